//! `embar bench redis`.

use std::collections::BTreeMap;

use super::node::Node;
use super::origin;
use super::shared::{self, Series};
use crate::Error;
use crate::picture::percentiles::{self, FIELDS, Times};
use crate::picture::trials::{self, Trials};
use crate::section::{Block, Fact, Section};
use crate::words;

/// What the table of latencies says besides: the field and its name.
const MORE: [(&str, &str); 5] = [
    ("ops_per_s", "operations/s"),
    ("client_cpu_us_per_op", "client's CPU µs"),
    ("replies_per_read", "replies by read"),
    ("errors", "errors"),
    ("wrong", "wrong values"),
];

/// The section of operations.
pub(super) fn section(root: &Node<'_>) -> Result<Section, Error> {
    let operations = root.objects("operations")?;
    // A name that comes twice has its runs once: what a file costs grows no faster than the file.
    let mut runs: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for run in root.objects("runs")? {
        if let (Some(name), Some(rate)) = (run.text("operation")?, run.number("ops_per_s")?) {
            runs.entry(words::label(&name)).or_default().push(rate);
        }
    }
    let (mut times, mut series) = (Vec::new(), Vec::new());
    for operation in &operations {
        let name = words::label(&operation.needed_text("operation")?);
        times.push(latencies(operation, &name)?);
        let values = runs.remove(&name).unwrap_or_default();
        series.push(rates(operation, name, values)?);
    }
    if series.is_empty() {
        return Err(root.nothing("no operation was measured"));
    }
    let told: Vec<String> = series
        .iter()
        .take(3)
        .map(|it| {
            format!(
                "{}: {} operations/s",
                it.trials.name,
                words::whole(it.median)
            )
        })
        .collect();
    let says = told.join("; ");
    let mut blocks = Vec::new();
    let faults = faults(&operations)?;
    if !faults.is_empty() {
        blocks.push(Block::Facts(faults));
    }
    blocks.extend(shared::medians(
        "Operations a second",
        "operations/s",
        &series,
    ));
    let of_runs: Vec<Trials> = series.into_iter().map(|it| it.trials).collect();
    let picture = trials::picture("Operations a second of each run", &of_runs, "operations/s");
    blocks.extend(picture.map(|it| Block::Picture(Box::new(it))));
    if times.iter().any(|it| it.micros.iter().any(Option::is_some)) {
        let description = words::clipped(&format!("{says}."));
        let groups = vec![(String::new(), times)];
        let title = "Latency of each operation";
        let picture = percentiles::picture(title, description, &MORE.map(|it| it.1), groups);
        blocks.push(Block::Picture(Box::new(picture)));
    }
    blocks.extend(origin::settings_of(root, "plan")?);
    Ok(Section {
        title: "Redis client".into(),
        says,
        file: String::new(),
        origin: Vec::new(),
        blocks,
    })
}

fn latencies(operation: &Node<'_>, name: &str) -> Result<Times, Error> {
    let mut micros = [None; FIELDS.len()];
    for (time, (field, _)) in micros.iter_mut().zip(FIELDS) {
        *time = operation.number(&format!("{field}_ns"))?.map(|ns| ns / 1e3);
    }
    let cells = MORE.iter().map(|(field, _)| {
        let number = operation.number(field)?;
        Ok(number.map(words::number).unwrap_or_default())
    });
    Ok(Times {
        label: name.to_owned(),
        micros,
        cells: cells.collect::<Result<_, Error>>()?,
    })
}

/// What went wrong, which may be all there was.
fn faults(operations: &[Node<'_>]) -> Result<Vec<Fact>, Error> {
    let mut faults = Vec::new();
    for operation in operations {
        let name = words::label(&operation.needed_text("operation")?);
        for (field, what) in [("errors", "errors"), ("wrong", "wrong values")] {
            let count = operation.number(field)?.filter(|count| *count != 0.0);
            faults.extend(count.map(|it| Fact::new(format!("{name}: {what}"), words::whole(it))));
        }
    }
    Ok(faults)
}

/// The rates of all runs of an operation.
fn rates(operation: &Node<'_>, name: String, values: Vec<f64>) -> Result<Series, Error> {
    let trials = Trials { name, values };
    Ok(Series {
        median: operation.needed("ops_per_s")?,
        interval: trials.interval(),
        trials,
    })
}
