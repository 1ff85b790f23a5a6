//! `embar bench scale`.

use std::collections::BTreeSet;

use super::node::Node;
use super::origin;
use crate::Error;
use crate::picture::ratios::{self, Claim, Interval, Line};
use crate::section::{Block, Section};
use crate::table::Table;
use crate::words;

/// The figures of a point: the field and its name.
const FIGURES: [(&str, &str); 2] = [
    ("mb_per_s", "MB/s"),
    ("cpu_s_per_gib", "CPU seconds for each GiB"),
];

/// The section of curves of what grows.
pub(super) fn section(root: &Node<'_>) -> Result<Section, Error> {
    let curves = root.objects("curves")?;
    let mut blocks = Vec::new();
    for (field, title) in FIGURES {
        let mut lines = Vec::new();
        for curve in &curves {
            lines.extend(points(curve, field)?);
        }
        if lines.is_empty() {
            return Err(root.nothing("no point of it could be run"));
        }
        let table = Table::new(title, ["what grows", "#to", &format!("#{title}")]);
        let description = format!("{title} at each point of {} curves.", curves.len());
        let picture = ratios::medians(title, description, table, lines);
        blocks.push(Block::Picture(Box::new(picture)));
    }
    let (cliffs, failed) = (cliffs(&curves)?, failed(&curves)?);
    let says = match cliffs.rows.len() {
        0 => "No cost jumps from a point to the next".to_owned(),
        _ => format!("Costs jump at {} point(s)", points_of(&cliffs)),
    };
    for (name, table) in [("Cliffs", cliffs), ("What could not be run", failed)] {
        if !table.rows.is_empty() {
            blocks.extend([Block::Heading(name.into()), Block::Table(table)]);
        }
    }
    blocks.extend(origin::settings(root)?);
    Ok(Section {
        title: "What it costs to be larger".into(),
        says,
        file: String::new(),
        origin: Vec::new(),
        blocks,
    })
}

/// How many points a table of cliffs has: CPU time and time may jump at the same.
fn points_of(cliffs: &Table) -> usize {
    let points = cliffs
        .rows
        .iter()
        .map(|row| [0, 2, 3].map(|cell| row[cell].text.as_str()));
    points.collect::<BTreeSet<_>>().len()
}

fn name(curve: &Node<'_>) -> Result<String, Error> {
    Ok(words::label(&curve.needed_text("curve")?))
}

/// What a curve has grown to: a size of messages or batches, or how many of something there are.
fn reached(curve: &str, value: f64) -> String {
    match curve {
        "messages" | "batches" => words::bytes(value),
        _ => words::number(value),
    }
}

fn points(curve: &Node<'_>, field: &str) -> Result<Vec<Line>, Error> {
    let group = name(curve)?;
    let mut lines = Vec::new();
    for point in curve.objects("points")? {
        let Some(figure) = point.number(field)? else {
            continue;
        };
        let value = reached(&group, point.needed("value")?);
        lines.push(Line {
            group: group.clone(),
            label: value.clone(),
            interval: Interval {
                point: figure,
                low: figure,
                high: figure,
                level: None,
            },
            claim: Claim::Nothing,
            aim: None,
            cells: vec![group.clone(), value, words::number(figure)],
        });
    }
    Ok(lines)
}

/// From where to where which cost jumps.
fn cliffs(curves: &[Node<'_>]) -> Result<Table, Error> {
    let columns = ["what grows", "cost", "#from", "#to", "#factor"];
    let mut table = Table::new("Where the cost of a GiB jumps", columns);
    for curve in curves {
        for (field, cost) in [("cpu_cliffs", "CPU time"), ("time_cliffs", "time")] {
            for cliff in curve.objects(field)? {
                let name = name(curve)?;
                let [from, to] = ["from", "to"].map(|it| cliff.needed(it));
                let (from, to) = (reached(&name, from?), reached(&name, to?));
                let factor = words::number(cliff.needed("factor")?);
                table.row([name, cost.to_owned(), from, to, factor]);
            }
        }
    }
    Ok(table)
}

fn failed(curves: &[Node<'_>]) -> Result<Table, Error> {
    let mut table = Table::new("Points that could not be run", ["what grows", "#to", "why"]);
    for curve in curves {
        for point in curve.objects("points")? {
            if let Some(why) = point.text("failed")? {
                let name = name(curve)?;
                let value = reached(&name, point.needed("value")?);
                table.row([name, value, why]);
            }
        }
    }
    Ok(table)
}
