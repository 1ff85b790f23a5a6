//! `embar bench publish`, `read` and `e2e`.

use embar_meter::Better;

use super::node::Node;
use super::{latency, origin, shared};
use crate::Error;
use crate::input::Origin;
use crate::picture::ratios::Line;
use crate::picture::trials::{self, Trials};
use crate::section::{Block, Fact, Section};
use crate::table::Table;
use crate::words;

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bench {
    Publish,
    Read,
    EndToEnd,
    /// Recorded results do not say.
    Unknown,
}

impl Bench {
    /// What the report says, or else the command that made it.
    pub fn of(root: &Node<'_>, origin: &Origin) -> Result<Self, Error> {
        let command = origin.command.as_deref().and_then(|it| {
            let mut words = it.split_whitespace().skip_while(|it| *it != "bench");
            words.nth(1).map(str::to_owned)
        });
        Ok(match root.text("bench")?.or(command).as_deref() {
            Some("publish") => Self::Publish,
            Some("read") => Self::Read,
            Some("e2e") => Self::EndToEnd,
            _ => Self::Unknown,
        })
    }

    fn title(self) -> &'static str {
        match self {
            Self::Publish => "Publish",
            Self::Read => "Read",
            Self::EndToEnd => "Publish and read at once",
            Self::Unknown => "Throughput",
        }
    }

    fn series(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Read => "read",
            Self::EndToEnd => "e2e",
            Self::Unknown => "rate",
        }
    }
}

/// The section of one of them.
pub(super) fn section(root: &Node<'_>, bench: Bench) -> Result<Section, Error> {
    let trials = root.objects("trials")?;
    let rates = shared::rates(bench.series(), &trials)?;
    let mut blocks = Vec::new();
    if let Some(note) = root.text("note")? {
        blocks.push(Block::Text(format!("Note: {note}.")));
    }
    let (says, facts) = headline(root, &rates)?;
    blocks.push(Block::Facts(facts));
    let latencies = latency::trials(&trials)?;
    let wall = root.object("wall")?;
    if says.is_empty() && latencies.is_none() {
        return Err(root.nothing("no trial of it has a rate (mib_per_s) or latencies"));
    }
    let picture = trials::picture("Throughput of each trial", &[rates], "MiB/s");
    blocks.extend(picture.map(|it| Block::Picture(Box::new(it))));
    blocks.extend(latencies.map(|it| Block::Picture(Box::new(it))));
    if let Some(wall) = &wall {
        blocks.extend(walls(wall, bench)?);
        let title = "Median rates of the same run, MiB/s";
        blocks.extend(shared::medians(title, "MiB/s", &shared::series(wall)?));
    }
    blocks.extend(shared::profiles(root)?);
    blocks.extend(shared::costs(root)?);
    let settings = origin::settings(root)?;
    blocks.extend(settings);
    Ok(Section {
        title: bench.title().to_owned(),
        says,
        file: String::new(),
        origin: Vec::new(),
        blocks,
    })
}

/// The rate in one line, and what is known of it.
fn headline(root: &Node<'_>, rates: &Trials) -> Result<(String, Vec<Fact>), Error> {
    let mut facts = Vec::new();
    let median = root.number("median_mib_per_s")?.or(rates.median());
    facts.extend(median.map(|it| Fact::new("median", words::mib_per_s(it))));
    if let Some(interval) = rates.interval() {
        let level = words::percent(interval.level.unwrap_or_default());
        let ends = [interval.low, interval.high]
            .map(words::number)
            .join(" to ");
        facts.push(Fact::new(
            format!("{level} interval"),
            format!("{ends} MiB/s"),
        ));
    }
    let ends = [root.number("min_mib_per_s")?, root.number("max_mib_per_s")?];
    if let [Some(low), Some(high)] = ends {
        let ends = format!("{} to {} MiB/s", words::number(low), words::number(high));
        facts.push(Fact::new("slowest to fastest", ends));
    }
    let messages = root.number("messages_per_s")?;
    facts.extend(messages.map(|it| Fact::new("messages a second", words::whole(it))));
    let trials = rates.values.len();
    if trials > 0 {
        facts.push(Fact::new("trials", trials.to_string()));
    }
    let asked = root.number("rate_bytes_per_s")?;
    facts.extend(asked.map(|it| Fact::new("asked for", words::bytes_per_s(it))));
    let reader = root.text("reader")?;
    facts.extend(reader.map(|it| Fact::new("reader", it)));
    facts.extend(shared::derived(root)?);
    let of = match trials {
        0 => String::new(),
        1 => ", one trial".to_owned(),
        _ => format!(", median of {trials} trials"),
    };
    let says = match median {
        Some(median) => format!("{}{of}", words::mib_per_s(median)),
        None => latency::told(&root.objects("trials")?)?.unwrap_or_default(),
    };
    Ok((says, facts))
}

/// Ours beside what the machine allows.
fn walls(wall: &Node<'_>, bench: Bench) -> Result<Option<Block>, Error> {
    let ours = bench.series();
    let names = [
        ("ratio_to_working", "working wall"),
        ("ratio_to_bare", "bare wall"),
    ];
    let mut lines: Vec<Line> = Vec::new();
    for (field, name) in names {
        if let Some(one) = wall.object(field)? {
            lines.extend(shared::comparison(&one, [ours, name], Better::Higher)?);
        }
    }
    if lines.is_empty() {
        return Ok(None);
    }
    let title = "Beside what the machine allows";
    let table = Table::new(title, shared::COMPARISON);
    Ok(Some(shared::ratios(title, Better::Higher, table, lines)))
}
