//! `embar diagnose`, and what its `--save` writes.

mod seen;

use embar_diagnose::finding::Change;
use embar_diagnose::limits::{Resource, Use};
use embar_diagnose::observed::Missing;
use embar_diagnose::{Diagnosis, Evidence, Finding, Observed, diagnose, redis, session};

use embar_meter::Better;

use self::seen::{LOG, REDIS, SESSIONS, Seen, messages, operations};
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
    let mut seen = match (of_redis, of_sessions) {
        (Some(_), _) => Seen::nothing(REDIS),
        (None, Some(_)) => Seen::nothing(SESSIONS),
        (None, None) => Seen::nothing(LOG),
    };
    if let Some(observed) = root.object("observed")? {
        let observed = observed.value().clone();
        seen = if of_sessions.is_some() {
            let observed = serde_json::from_value(observed)
                .map_err(|error| root.invalid("embar diagnose session --json", error))?;
            Seen::of_sessions(&observed)
        } else if of_redis.is_some() {
            let observed = serde_json::from_value(observed)
                .map_err(|error| root.invalid("embar diagnose redis --json", error))?;
            Seen::of_redis(&observed)
        } else {
            let observed = serde_json::from_value(observed)
                .map_err(|error| root.invalid("embar diagnose --json", error))?;
            Seen::of_log(&observed)
        };
    }
    facts.append(&mut seen.facts);
    section(root, &diagnosis, Seen { facts, ..seen })
}

/// The section of what was saved: it is diagnosed here.
pub(super) fn observed(root: &Node<'_>) -> Result<Section, Error> {
    let (first, mut seen, diagnosis);
    if root.value().get("nodes").is_some() {
        let observed: redis::Observed = serde_json::from_value(root.value().clone())
            .map_err(|error| root.invalid("embar diagnose redis --save", error))?;
        first = operations(observed.operations_per_s());
        (seen, diagnosis) = (Seen::of_redis(&observed), redis::diagnose(&observed));
    } else if root.value().get("way").is_some() {
        let observed: session::Observed = serde_json::from_value(root.value().clone())
            .map_err(|error| root.invalid("embar diagnose session --save", error))?;
        first = messages(observed.messages_per_s());
        (seen, diagnosis) = (Seen::of_sessions(&observed), session::diagnose(&observed));
    } else {
        let observed: Observed = serde_json::from_value(root.value().clone())
            .map_err(|error| root.invalid("embar diagnose --save", error))?;
        first = Fact::new("rate", words::bytes_per_s(observed.bytes_per_s()));
        (seen, diagnosis) = (Seen::of_log(&observed), diagnose(&observed));
    }
    seen.facts.insert(0, first);
    section(root, &diagnosis, seen)
}

fn section(root: &Node<'_>, diagnosis: &Diagnosis, seen: Seen) -> Result<Section, Error> {
    if diagnosis.findings.is_empty() && diagnosis.limits.uses.is_empty() {
        return Err(root.nothing("it has neither findings nor parts that work"));
    }
    let stands = diagnosis.findings.iter().find(|it| !it.withdrawn());
    let says = stands.map(|it| {
        let sentence = it.cause.sentence();
        format!("{}: {sentence}", it.cause)
    });
    let mut blocks = vec![
        Block::Facts(seen.facts),
        Block::Picture(Box::new(parts(diagnosis))),
    ];
    blocks.extend(seen.over_time.map(|it| Block::Picture(Box::new(it))));
    blocks.push(Block::Heading("Findings".into()));
    let found: Vec<Found> = diagnosis.findings.iter().map(found).collect();
    blocks.push(match found.is_empty() {
        true => Block::Text(NOTHING_FOUND.into()),
        false => Block::Findings(found),
    });
    blocks.extend(tried(&diagnosis.findings));
    blocks.extend(missing(&diagnosis.missing));
    Ok(Section {
        title: seen.title.into(),
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
