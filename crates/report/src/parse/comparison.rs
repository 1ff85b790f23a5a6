//! `embar bench publish --compare`.

use super::node::Node;
use super::shared::Series;
use super::{origin, shared};
use crate::Error;
use crate::picture::ratios::Line;
use crate::picture::trials::{self, Trials};
use crate::section::{Block, Fact, Section};
use crate::table::Table;
use crate::words;

/// The section of a comparison.
pub(super) fn section(root: &Node<'_>) -> Result<Section, Error> {
    let mut lines = Vec::new();
    for one in root.objects("comparisons")? {
        lines.extend(shared::comparison(&one, ["changed", "baseline"])?);
    }
    let compared = compared(root)?;
    let mut blocks = Vec::new();
    if let Some(what) = root.text("compare")? {
        blocks.push(Block::Facts(vec![Fact::code("compared", what)]));
    }
    let says = says(&lines);
    if !lines.is_empty() {
        let title = "Each divided by the first";
        let table = Table::new(title, shared::COMPARISON);
        blocks.push(shared::ratios(title, table, lines));
    }
    blocks.extend(shared::medians("Median rates, MiB/s", &compared));
    let trials: Vec<Trials> = compared.into_iter().map(|it| it.trials).collect();
    let picture = trials::picture("Throughput of each trial", &trials, "MiB/s");
    blocks.extend(picture.map(|it| Block::Picture(Box::new(it))));
    blocks.extend(costs(root)?);
    blocks.extend(origin::settings(root)?);
    Ok(Section {
        title: "Publish, compared".into(),
        says,
        origin: Vec::new(),
        blocks,
    })
}

fn says(lines: &[Line]) -> String {
    let sure = lines.iter().filter(|it| it.interval.excludes_equal());
    let sure: Vec<String> = sure
        .take(3)
        .map(|it| format!("{}: {}", it.label, it.interval.shown()))
        .collect();
    if sure.is_empty() {
        "No difference was shown".into()
    } else {
        sure.join("; ")
    }
}

/// From `series[]`, or from `orders[]` and `paths[]` where a recorded result keeps no series.
fn compared(root: &Node<'_>) -> Result<Vec<Series>, Error> {
    let series = shared::series(root)?;
    if !series.is_empty() {
        return Ok(series);
    }
    let mut all = Vec::new();
    for (name, one) in each(root)? {
        let trials = shared::rates(name, &one.objects("trials")?)?;
        if let Some(median) = one.number("median_mib_per_s")? {
            all.push(Series {
                interval: trials.interval(),
                trials,
                median,
            });
        }
    }
    Ok(all)
}

/// The entries of `orders[]` and `paths[]`, of which a report has one, with their names.
fn each<'a>(root: &Node<'a>) -> Result<Vec<(String, Node<'a>)>, Error> {
    let mut all = Vec::new();
    for one in root.objects("orders")? {
        let order = one.needed("order")?;
        all.push((format!("order {}", words::number(order)), one));
    }
    for one in root.objects("paths")? {
        all.push((one.needed_text("receive")?, one));
    }
    Ok(all)
}

/// CPU time of each; nothing where a recorded result keeps none.
fn costs(root: &Node<'_>) -> Result<Vec<Block>, Error> {
    let columns = [
        "of",
        "#CPU s per GiB, client",
        "#CPU s per GiB, brokers",
        "#recv calls per batch",
        "#messages a second",
    ];
    let mut table = Table::new("Costs, medians of the trials", columns);
    for (name, one) in each(root)? {
        let mut cells = vec![name];
        for side in ["client", "brokers"] {
            let cost = match one.object("costs")? {
                Some(costs) => costs.object(side)?,
                None => None,
            };
            let cpu = cost.map(|it| it.number("cpu_s_per_gib")).transpose()?;
            cells.push(cpu.flatten().map(words::number).unwrap_or_default());
        }
        let calls = one.number("recv_calls_per_batch")?;
        cells.push(calls.map(words::number).unwrap_or_default());
        let messages = one.number("messages_per_s")?;
        cells.push(messages.map(words::whole).unwrap_or_default());
        if cells.iter().skip(1).any(|it| !it.is_empty()) {
            table.row(cells);
        }
    }
    if table.rows.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![Block::Heading("Costs".into()), Block::Table(table)])
}
