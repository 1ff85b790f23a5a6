//! `embar bench session`.

use embar_meter::Better;
use serde_json::Value;

use super::node::Node;
use super::origin;
use super::shared::{self, Series};
use crate::Error;
use crate::picture::percentiles::{self, FIELDS, Times};
use crate::picture::ratios::Line;
use crate::picture::trials::Trials;
use crate::section::{Block, Fact, Section};
use crate::table::Table;
use crate::words;

/// What phases are compared by: the field, its name, and which way is better.
const METRICS: [(&str, &str, Better); 3] = [
    ("p50_ns", "Median latency", Better::Lower),
    ("p99_ns", "Latency that one of 100 exceeds", Better::Lower),
    ("messages_per_s", "Messages a second", Better::Higher),
];

/// The section of a bench of sessions.
pub(super) fn section(root: &Node<'_>) -> Result<Section, Error> {
    let phases = phases(root)?;
    let (times, rates) = (times(&phases)?, rates(&phases)?);
    let says = says(&times, &rates);
    if says.is_empty() {
        return Err(root.nothing("no phase has a latency or a rate"));
    }
    let mut blocks = facts(root)?;
    if times.iter().any(has_times) {
        let description = words::clipped(&format!("{says}."));
        let groups = vec![(String::new(), times)];
        let title = "Latency of each phase";
        let picture = percentiles::picture(title, description, &["messages/s"], groups);
        blocks.push(Block::Picture(Box::new(picture)));
    }
    blocks.extend(shared::medians("Messages a second", "messages/s", &rates));
    blocks.extend(comparisons(root)?);
    blocks.extend(origin::settings(root)?);
    Ok(Section {
        title: "Sessions".into(),
        says,
        file: String::new(),
        origin: Vec::new(),
        blocks,
    })
}

/// The wall, if there is one, and the phases, with their names.
fn phases<'a>(root: &Node<'a>) -> Result<Vec<(String, Node<'a>)>, Error> {
    let mut phases = Vec::new();
    let median = root.object("median")?;
    // The wall alone has its medians in both places.
    let has_wall = median
        .as_ref()
        .is_some_and(|it| it.value().get("wall").is_some());
    if !has_wall && let Some(wall) = root.object("wall")? {
        phases.extend(wall.object("median")?.map(|it| ("wall".to_owned(), it)));
    }
    let Some(median) = median else {
        return Ok(phases);
    };
    let names = median
        .value()
        .as_object()
        .into_iter()
        .flat_map(|it| it.keys());
    for name in names {
        if let Some(phase) = median.object(name)? {
            phases.push((words::label(name), phase));
        }
    }
    Ok(phases)
}

fn times(phases: &[(String, Node<'_>)]) -> Result<Vec<Times>, Error> {
    let of = |(name, phase): &(String, Node<'_>)| {
        let mut micros = [None; FIELDS.len()];
        for (time, (field, _)) in micros.iter_mut().zip(FIELDS) {
            *time = phase.number(&format!("{field}_ns"))?.map(|ns| ns / 1e3);
        }
        let rate = phase.number("messages_per_s")?.map(words::whole);
        Ok(Times {
            label: name.clone(),
            micros,
            cells: vec![rate.unwrap_or_default()],
        })
    };
    phases.iter().map(of).collect()
}

fn rates(phases: &[(String, Node<'_>)]) -> Result<Vec<Series>, Error> {
    let mut rates = Vec::new();
    for (name, phase) in phases {
        let Some(median) = phase.number("messages_per_s")? else {
            continue;
        };
        let interval = match phase.object("interval")? {
            Some(intervals) => intervals.interval("messages_per_s")?,
            None => None,
        };
        rates.push(Series {
            trials: Trials {
                name: name.clone(),
                values: Vec::new(),
            },
            median,
            interval,
        });
    }
    Ok(rates)
}

/// The best of the phases; of the wall only if there is nothing else.
fn says(times: &[Times], rates: &[Series]) -> String {
    let is_wall = |name: &str| name == "wall";
    let fastest = times
        .iter()
        .filter_map(|it| Some((it.micros[0]?, &it.label)))
        .min_by(|a, b| {
            (is_wall(a.1), a.0)
                .partial_cmp(&(is_wall(b.1), b.0))
                .unwrap_or(std::cmp::Ordering::Equal)
        });
    if let Some((micros, name)) = fastest {
        return format!("{name}: p50 {}", words::micros(micros));
    }
    let most = rates.iter().max_by(|a, b| {
        let (a_ours, b_ours) = (!is_wall(&a.trials.name), !is_wall(&b.trials.name));
        a_ours.cmp(&b_ours).then(a.median.total_cmp(&b.median))
    });
    most.map_or_else(String::new, |it| {
        format!("{}: {} messages/s", it.trials.name, words::whole(it.median))
    })
}

fn has_times(line: &Times) -> bool {
    line.micros.iter().any(Option::is_some)
}

/// What went wrong, and how much was asked for.
fn facts(root: &Node<'_>) -> Result<Vec<Block>, Error> {
    let mut facts = Vec::new();
    for (field, name) in [
        ("lost", "messages lost"),
        ("wrong", "messages that were wrong"),
    ] {
        facts.extend(
            root.number(field)?
                .map(|it| Fact::new(name, words::whole(it))),
        );
    }
    let most = root.number("max_messages_per_s")?;
    facts.extend(most.map(|it| Fact::new("highest rate, messages/s", words::whole(it))));
    for (field, name) in [("ended_early", "ended early"), ("no_wall", "no wall")] {
        facts.extend(root.text(field)?.map(|it| Fact::new(name, it)));
    }
    Ok(match facts.is_empty() {
        true => Vec::new(),
        false => vec![Block::Facts(facts)],
    })
}

/// A picture for each metric.
fn comparisons(root: &Node<'_>) -> Result<Vec<Block>, Error> {
    let all = root.objects("comparisons")?;
    let mut blocks = Vec::new();
    for (field, name, better) in METRICS {
        let mut lines: Vec<Line> = Vec::new();
        for one in &all {
            let is_it = one
                .field("metric")
                .is_some_and(|it| it.value() == &Value::from(field));
            if is_it {
                lines.extend(shared::comparison(one, ["changed", "baseline"], better)?);
            }
        }
        if !lines.is_empty() {
            let title = format!("{name} of each, divided by that of what it stands beside");
            let table = Table::new(title.as_str(), shared::COMPARISON);
            blocks.push(shared::ratios(&title, better, table, lines));
        }
    }
    Ok(blocks)
}
