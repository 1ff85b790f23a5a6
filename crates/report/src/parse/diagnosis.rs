//! `embar diagnose`, and what its `--save` writes.

use embar_diagnose::finding::Change;
use embar_diagnose::limits::{Resource, Use};
use embar_diagnose::observed::{Flow, Missing};
use embar_diagnose::{Diagnosis, Evidence, Finding, Observed, diagnose, redis, session};

use embar_meter::Better;

use super::node::Node;
use crate::Error;
use crate::picture::Picture;
use crate::picture::ratios::{Claim, Interval, Line};
use crate::picture::shares::{self, Share};
use crate::section::{Block, Fact, Found, Section, Weight};
use crate::table::Table;
use crate::words;

/// No evidence is as large, and with its digits it would be longer than a page is wide.
const ABSURD: f64 = 1e15;

/// What a diagnosis says that names nothing.
const NOTHING_FOUND: &str = "Nothing was found";

/// What a diagnosis is of, as a title.
const LOG: &str = "Diagnosis of the log";
const REDIS: &str = "Diagnosis of Redis";
const SESSIONS: &str = "Diagnosis of sessions";

/// The section of a diagnosis that was printed.
pub(super) fn reported(root: &Node<'_>) -> Result<Section, Error> {
    let diagnosis: Diagnosis = serde_json::from_value(root.value().clone())
        .map_err(|error| root.invalid("embar diagnose --json", error))?;
    let mut facts = Vec::new();
    let of = root.text("of")?;
    // With --from it is a file.
    let of = of.map(|it| match it.starts_with('/') {
        true => words::file(&it),
        false => it,
    });
    facts.extend(of.map(|it| Fact::new("of", it)));
    let injected = root.list("injected")?;
    let injected: Vec<String> = injected
        .iter()
        .map(Node::as_text)
        .collect::<Result<_, _>>()?;
    if !injected.is_empty() {
        facts.push(Fact::code("injected", words::clipped(&injected.join(", "))));
    }
    let rate = root.number("bytes_per_s")?;
    facts.extend(rate.map(|it| Fact::new("rate", words::bytes_per_s(it))));
    let of_redis = root.number("operations_per_s")?;
    facts.extend(of_redis.map(operations));
    let of_sessions = root.number("messages_per_s")?;
    facts.extend(of_sessions.map(messages));
    if let Some(observed) = root.object("observed")? {
        if of_sessions.is_some() {
            let observed: session::Observed = serde_json::from_value(observed.value().clone())
                .map_err(|error| root.invalid("embar diagnose session --json", error))?;
            facts.extend(seen_of_sessions(&observed));
            return section(root, SESSIONS, &diagnosis, facts);
        }
        if of_redis.is_some() {
            let observed: redis::Observed = serde_json::from_value(observed.value().clone())
                .map_err(|error| root.invalid("embar diagnose redis --json", error))?;
            facts.extend(seen_of_redis(&observed));
            return section(root, REDIS, &diagnosis, facts);
        }
        let observed: Observed = serde_json::from_value(observed.value().clone())
            .map_err(|error| root.invalid("embar diagnose --json", error))?;
        facts.extend(seen(&observed));
    }
    let title = match (of_redis, of_sessions) {
        (Some(_), _) => REDIS,
        (None, Some(_)) => SESSIONS,
        (None, None) => LOG,
    };
    section(root, title, &diagnosis, facts)
}

/// The section of what was saved: it is diagnosed here.
pub(super) fn observed(root: &Node<'_>) -> Result<Section, Error> {
    if root.value().get("nodes").is_some() {
        let observed: redis::Observed = serde_json::from_value(root.value().clone())
            .map_err(|error| root.invalid("embar diagnose redis --save", error))?;
        let mut facts = vec![operations(observed.operations_per_s())];
        facts.extend(seen_of_redis(&observed));
        return section(root, REDIS, &redis::diagnose(&observed), facts);
    }
    if root.value().get("way").is_some() {
        let observed: session::Observed = serde_json::from_value(root.value().clone())
            .map_err(|error| root.invalid("embar diagnose session --save", error))?;
        let mut facts = vec![messages(observed.messages_per_s())];
        facts.extend(seen_of_sessions(&observed));
        return section(root, SESSIONS, &session::diagnose(&observed), facts);
    }
    let observed: Observed = serde_json::from_value(root.value().clone())
        .map_err(|error| root.invalid("embar diagnose --save", error))?;
    let rate = words::bytes_per_s(observed.bytes_per_s());
    let mut facts = vec![Fact::new("rate", rate)];
    facts.extend(seen(&observed));
    section(root, LOG, &diagnose(&observed), facts)
}

/// What was looked at.
fn seen(observed: &Observed) -> Vec<Fact> {
    let machine = &observed.machine;
    let messages = observed.messages as f64 / observed.seconds.max(f64::EPSILON);
    let flow = match observed.flow {
        Flow::Publish => "publish",
        Flow::Read => "read",
        Flow::Both => "publish and read",
    };
    vec![
        Fact::new("flow", flow),
        Fact::new("messages a second", words::whole(messages)),
        Fact::new("looked for", words::micros(observed.seconds * 1e6)),
        Fact::new("processors", machine.cores.to_string()),
        Fact::new("busy with the pipeline", words::percent(machine.ours)),
        Fact::new("busy with others", words::percent(machine.others)),
        Fact::new("taken by the host", words::percent(machine.steal)),
        Fact::new("connections", observed.connections.len().to_string()),
    ]
}

fn operations(per_s: f64) -> Fact {
    Fact::new("operations a second", words::whole(per_s))
}

/// What was looked at, of Redis.
fn seen_of_redis(observed: &redis::Observed) -> Vec<Fact> {
    let machine = &observed.machine;
    let mut facts = vec![
        Fact::new("servers", observed.nodes.len().to_string()),
        Fact::new("looked for", words::micros(observed.seconds * 1e6)),
    ];
    if let Some(client) = &observed.client {
        facts.push(Fact::new("callers", client.callers.to_string()));
        facts.push(Fact::new(
            "an operation takes",
            words::micros(client.latency_s * 1e6),
        ));
    }
    // Servers on other machines do not say how busy these are.
    if machine.cores > 0 {
        facts.push(Fact::new("processors", machine.cores.to_string()));
        facts.push(Fact::new(
            "busy with callers and servers",
            words::percent(machine.ours),
        ));
        facts.push(Fact::new(
            "busy with others",
            words::percent(machine.others),
        ));
    }
    facts
}

fn messages(per_s: f64) -> Fact {
    Fact::new("messages a second", words::whole(per_s))
}

/// What was looked at, of sessions.
fn seen_of_sessions(observed: &session::Observed) -> Vec<Fact> {
    let machine = &observed.machine;
    let way = match observed.way {
        session::observed::Way::OneWay => "one way",
        session::observed::Way::Echo => "there and back",
    };
    let bytes_per_s = observed.bytes as f64 / observed.seconds.max(f64::EPSILON);
    let mut facts = vec![
        Fact::new("messages go", way),
        Fact::new("rate", words::bytes_per_s(bytes_per_s)),
        Fact::new("looked for", words::micros(observed.seconds * 1e6)),
        Fact::new("encrypted", if observed.by_tls { "yes" } else { "no" }),
        Fact::new("processors", machine.cores.to_string()),
        Fact::new("busy with the sessions", words::percent(machine.ours)),
        Fact::new("busy with others", words::percent(machine.others)),
    ];
    if let Some(latency) = observed.latency_s() {
        facts.push(Fact::new(
            "a message is there and back after",
            words::micros(latency * 1e6),
        ));
    }
    facts
}

fn section(
    root: &Node<'_>,
    title: &str,
    diagnosis: &Diagnosis,
    facts: Vec<Fact>,
) -> Result<Section, Error> {
    if diagnosis.findings.is_empty() && diagnosis.limits.uses.is_empty() {
        return Err(root.nothing("it has neither findings nor parts that work"));
    }
    let stands = diagnosis.findings.iter().find(|it| !it.withdrawn());
    let says = stands.map(|it| {
        let sentence = it.cause.sentence();
        format!("{}: {sentence}", it.cause)
    });
    let mut blocks = vec![
        Block::Facts(facts),
        Block::Picture(Box::new(parts(diagnosis))),
        Block::Heading("Findings".into()),
    ];
    let found: Vec<Found> = diagnosis.findings.iter().map(found).collect();
    blocks.push(match found.is_empty() {
        true => Block::Text(NOTHING_FOUND.into()),
        false => Block::Findings(found),
    });
    blocks.extend(tried(&diagnosis.findings));
    blocks.extend(missing(&diagnosis.missing));
    Ok(Section {
        title: title.into(),
        says: says.unwrap_or_else(|| NOTHING_FOUND.into()),
        file: String::new(),
        origin: Vec::new(),
        blocks,
    })
}

/// What each part does with its time, and which one limits.
fn parts(diagnosis: &Diagnosis) -> Picture {
    let limiting = diagnosis.limiting().map(|it| it.part);
    let mut uses = diagnosis.limits.uses.clone();
    // The network and the log have no share of time.
    let has_share = |part: Resource| uses.iter().any(|it| it.part == part);
    let other = limiting.filter(|it| !has_share(*it));
    let title = "What each part does with its time";
    let columns = [
        "part",
        "#share of the time",
        "#of it without a processor",
        "",
    ];
    uses.truncate(64);
    let mut shares: Vec<Share> = uses.iter().map(|it| share(it, limiting)).collect();
    shares.extend(other.map(|part| Share {
        label: part.name().into(),
        share: 0.0,
        hollow: 0.0,
        is_marked: true,
        value: "◀ limits".into(),
        cells: [part.name(), "", "", "limits"].map(str::to_owned).into(),
    }));
    let description = match limiting {
        Some(part) => format!(
            "Parts in the order in which bytes come by. What limits: {}.",
            part.name()
        ),
        None => "Parts in the order in which bytes come by.".into(),
    };
    shares::picture(
        title,
        description,
        "Filled: at work, or full. Hollow: ready to work, and without a processor.",
        Table::new(title, columns),
        shares,
    )
}

fn share(used: &Use, limiting: Option<Resource>) -> Share {
    let is_buffer = matches!(
        used.part,
        Resource::InFlight | Resource::SendRings | Resource::SendBuffers | Resource::ReceiveBuffers
    );
    let what = match used.part {
        _ if is_buffer => "full",
        Resource::Processors => "busy",
        _ => "at work",
    };
    let limits = limiting == Some(used.part);
    let mark = if limits { " ◀ limits" } else { "" };
    Share {
        label: used.part.name().into(),
        share: used.share,
        hollow: used.without_processor,
        is_marked: limits,
        value: format!("{} {what}{mark}", words::percent(used.share)),
        cells: vec![
            used.part.name().into(),
            words::percent(used.share),
            words::percent(used.without_processor),
            if limits { "limits" } else { "" }.into(),
        ],
    }
}

fn found(finding: &Finding) -> Found {
    let caption = format!("Evidence: {}", finding.cause);
    let mut evidence = Table::new(caption, ["what was measured", "#value"]);
    for one in &finding.evidence {
        evidence.row([words::clipped(&one.what), value(one)]);
    }
    let weight = finding.cause.is_fault().then(|| Weight {
        confidence: words::percent(finding.confidence),
        gain: format!("at most {} more", words::percent(finding.gain_at_most)),
    });
    let tried = finding.verified.as_ref().map(|verified| {
        let outcome = verified.outcome.sentence();
        let predicted = match verified.as_predicted {
            true => "as much as predicted",
            false => "not as much as predicted",
        };
        format!(
            "{outcome}: {} of the rate in {} pairs, {predicted}",
            interval(&verified.ratio).shown(),
            verified.pairs
        )
    });
    let change = finding.remedy.change.as_ref();
    let change = change
        .filter(|it| !matches!(it, Change::Linger(seconds) if !(0.0..ABSURD).contains(seconds)));
    Found {
        cause: finding.cause.name().into(),
        sentence: finding.cause.sentence().into(),
        part: finding.part.name().into(),
        weight,
        evidence,
        remedy: words::clipped(&finding.remedy.text),
        change: change.map(|it| words::clipped(&it.to_string())),
        tried,
        is_withdrawn: finding.withdrawn(),
    }
}

/// The number of an evidence, with its unit, and without what it is of.
fn value(evidence: &Evidence) -> String {
    if !(-ABSURD..ABSURD).contains(&evidence.value) {
        return words::NONE.into();
    }
    let unnamed = Evidence {
        what: String::new(),
        ..evidence.clone()
    };
    let shown = unnamed.to_string();
    words::clipped(shown.trim_start_matches(": "))
}

fn interval(of: &embar_meter::Interval) -> Interval {
    Interval {
        point: of.point,
        low: of.low.min(of.high),
        high: of.high.max(of.low),
        level: Some(of.level),
    }
}

/// The remedies that were tried.
fn tried(findings: &[Finding]) -> Option<Block> {
    let lines: Vec<Line> = findings
        .iter()
        .filter_map(|finding| {
            let verified = finding.verified.as_ref()?;
            let ratio = interval(&verified.ratio);
            // It is built on a wider interval than the one that is printed.
            let claim = Claim::of(verified.verdict, Better::Higher);
            Some(Line {
                group: String::new(),
                label: finding.cause.name().into(),
                interval: ratio,
                claim,
                aim: None,
                cells: vec![
                    finding.cause.name().into(),
                    ratio.shown(),
                    claim.words().into(),
                    verified.pairs.to_string(),
                ],
            })
        })
        .collect();
    if lines.is_empty() {
        return None;
    }
    let title = "Remedies that were tried: rate with, divided by rate without";
    let table = Table::new(title, ["cause", "#ratio", "verdict", "#pairs"]);
    Some(super::shared::ratios(title, Better::Higher, table, lines))
}

fn missing(missing: &[Missing]) -> Vec<Block> {
    if missing.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new("What could not be read", ["reading", "why"]);
    for one in missing {
        table.row([words::clipped(&one.what), words::clipped(&one.why)]);
    }
    vec![
        Block::Heading("What could not be read".into()),
        Block::Table(table),
    ]
}
