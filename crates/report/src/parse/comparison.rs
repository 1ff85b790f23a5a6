//! `embar bench … --compare` and `--precision`.

use embar_meter::Better;

use super::node::Node;
use super::shared::Series;
use super::{origin, shared};
use crate::Error;
use crate::picture::ratios::{Claim, Line};
use crate::picture::trials::{self, Trials};
use crate::section::{Block, Fact, Section};
use crate::table::Table;
use crate::words;

/// The section of a comparison.
pub(super) fn section(root: &Node<'_>) -> Result<Section, Error> {
    let configurations = root.objects("configurations")?;
    let series = configurations.iter().map(series);
    let series = series.collect::<Result<Vec<_>, _>>()?;
    let (metric, unit) = (root.text("metric")?, root.text("unit")?);
    let metric = metric.unwrap_or_else(|| "throughput".into());
    let unit = unit.unwrap_or_else(|| "MiB/s".into());
    let better = match root.text("better")?.as_deref() {
        Some("Lower") => Better::Lower,
        _ => Better::Higher,
    };
    let mut lines = Vec::new();
    for one in root.objects("comparisons")? {
        lines.extend(shared::comparison(&one, ["changed", "baseline"], better)?);
    }
    if series.is_empty() && lines.is_empty() {
        return Err(root.nothing("no trials of any configuration"));
    }
    let mut blocks = facts(root)?;
    let says = says(&lines, &series, &unit);
    if !lines.is_empty() {
        let title = format!("{} of each divided by that of the first", capital(&metric));
        let table = Table::new(title.as_str(), shared::COMPARISON);
        blocks.push(shared::ratios(&title, better, table, lines));
    }
    let title = format!("Medians of {metric}");
    blocks.extend(shared::medians(&title, &unit, &series));
    let trials: Vec<Trials> = series.into_iter().map(|it| it.trials).collect();
    let title = format!("{} of each trial", capital(&metric));
    let picture = trials::picture(&title, &trials, &unit);
    blocks.extend(picture.map(|it| Block::Picture(Box::new(it))));
    if let Some(first) = configurations.first() {
        blocks.extend(origin::settings(first)?);
    }
    blocks.extend(origin::environment(root)?);
    let bench = root.text("bench")?.unwrap_or_else(|| "publish".into());
    Ok(Section {
        title: format!("{}, compared", capital(&bench)),
        says,
        file: String::new(),
        origin: Vec::new(),
        blocks,
    })
}

fn says(lines: &[Line], series: &[Series], unit: &str) -> String {
    if let ([], [only]) = (lines, series) {
        return format!("{} {unit}", words::number(only.median));
    }
    let sure = lines.iter().filter(|it| it.claim != Claim::Nothing);
    let sure: Vec<String> = sure
        .take(3)
        .map(|it| format!("{}: {}", it.label, it.interval.shown()))
        .collect();
    match sure.as_slice() {
        [] if lines.is_empty() => "No configurations were compared".into(),
        [] => "No difference was shown".into(),
        sure => sure.join("; "),
    }
}

/// What was compared, why it ended, and what else the machine did.
fn facts(root: &Node<'_>) -> Result<Vec<Block>, Error> {
    let mut facts = Vec::new();
    for (field, name) in [("compare", "compared"), ("command", "command")] {
        facts.extend(root.text(field)?.map(|it| Fact::code(name, it)));
    }
    facts.extend(root.text("time")?.map(|it| Fact::new("ended", it)));
    if let Some(rounds) = root.number("rounds")? {
        facts.push(Fact::new("rounds", words::whole(rounds)));
    }
    if let Some(stopped) = root.field("stopped") {
        facts.extend(ended(&stopped)?);
    }
    if let Some(around) = root.object("surroundings")? {
        for (field, name) in [("others", "others"), ("steal", "the host")] {
            let (mean, most) = (
                around.number(field)?,
                around.number(&format!("{field}_most"))?,
            );
            if let (Some(mean), Some(most)) = (mean, most) {
                let (mean, most) = (words::percent(mean), words::percent(most));
                let text = format!("{mean} of the processors, at most {most} in a trial");
                facts.push(Fact::new(format!("taken by {name}"), text));
            }
        }
    }
    Ok(match facts.is_empty() {
        true => Vec::new(),
        false => vec![Block::Facts(facts)],
    })
}

fn ended(stopped: &Node<'_>) -> Result<Option<Fact>, Error> {
    let text = match stopped.value().as_str() {
        Some("Planned") => return Ok(None),
        Some("Precise") => "as precise as was asked for".into(),
        Some(other) => words::clipped(other),
        None => match stopped.object("Spent")? {
            Some(spent) => match spent.number("rounds_needed")? {
                Some(rounds) => format!(
                    "the budget was spent: {} rounds would be as precise as was asked for",
                    words::whole(rounds)
                ),
                None => "the budget was spent".into(),
            },
            None => return Ok(None),
        },
    };
    Ok(Some(Fact::new("stopped", text)))
}

fn series(of: &Node<'_>) -> Result<Series, Error> {
    let values = of.list("trials")?;
    let values = values.iter().map(Node::as_number);
    Ok(Series {
        trials: Trials {
            name: of.needed_text("name")?,
            values: values.collect::<Result<_, _>>()?,
        },
        median: of.needed("median")?,
        interval: of.interval("interval")?,
    })
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    words::clipped(&first.chain(letters).collect::<String>())
}
