//! `embar bench latency`, and the latencies of `embar bench e2e`.

use super::node::Node;
use super::origin;
use crate::Error;
use crate::picture::Picture;
use crate::picture::percentiles::{self, FIELDS, Times};
use crate::section::{Block, Section};
use crate::words;

/// Headings of what the table says besides.
const MORE: [&str; 3] = ["samples", "messages/s due", "messages/s left"];

/// The section of `embar bench latency`.
pub(super) fn section(root: &Node<'_>) -> Result<Section, Error> {
    let alone = lines(&root.objects("alone")?)?;
    let loaded = lines(&root.objects("loaded")?)?;
    let says = match alone.as_slice() {
        [bare, fastest, ..] => format!("p50: {}, {}", median(bare), median(fastest)),
        [only] => format!("p50: {}", median(only)),
        [] => String::new(),
    };
    let groups = [("One message in flight", alone), ("Under load", loaded)];
    let groups = groups.into_iter().filter(|(_, lines)| !lines.is_empty());
    let groups: Vec<_> = groups
        .map(|(name, lines)| (name.to_owned(), lines))
        .collect();
    if !groups.iter().flat_map(|it| &it.1).any(has_times) {
        return Err(root.nothing("no latencies were measured"));
    }
    let description = described(&groups);
    let picture = percentiles::picture("Latency by order level", description, &MORE, groups);
    let mut blocks = vec![Block::Picture(Box::new(picture))];
    blocks.extend(origin::settings(root)?);
    Ok(Section {
        title: "Latency".into(),
        says,
        file: String::new(),
        origin: Vec::new(),
        blocks,
    })
}

/// The latencies of each trial of `embar bench e2e`; `None` if they have none.
pub(super) fn trials(trials: &[Node<'_>]) -> Result<Option<Picture>, Error> {
    let mut lines = Vec::new();
    for (index, trial) in trials.iter().enumerate() {
        if let Some(latency) = trial.object("latency_us")? {
            lines.push(Times {
                label: format!("trial {}", index + 1),
                micros: times(&latency)?,
                cells: Vec::new(),
            });
        }
    }
    if !lines.iter().any(has_times) {
        return Ok(None);
    }
    let groups = vec![(String::new(), lines)];
    let title = "Latency of each trial, from publishing to delivery";
    Ok(Some(percentiles::picture(
        title,
        described(&groups),
        &[],
        groups,
    )))
}

/// The median latency of the first trial, in words.
pub(super) fn told(trials: &[Node<'_>]) -> Result<Option<String>, Error> {
    let Some(first) = trials.first() else {
        return Ok(None);
    };
    let Some(latency) = first.object("latency_us")? else {
        return Ok(None);
    };
    let p50 = latency.number("p50")?;
    Ok(p50.map(|it| format!("p50 {} in the first trial", words::micros(it))))
}

fn lines(nodes: &[Node<'_>]) -> Result<Vec<Times>, Error> {
    let line = |node: &Node<'_>| {
        let order = node.number("order")?;
        // Those of earlier builds do not say it.
        let acks = node.number("acks")?;
        let acks = acks.map(|acks| format!(", acks {}", words::number(acks)));
        let acks = acks.unwrap_or_default();
        let latency = node.object("latency_us")?;
        let count = |name| -> Result<String, Error> {
            Ok(node.number(name)?.map(words::whole).unwrap_or_default())
        };
        Ok(Times {
            label: match order {
                Some(order) => format!("order {}{acks}", words::number(order)),
                None => "bare round trip".into(),
            },
            micros: match latency {
                Some(latency) => times(&latency)?,
                None => [None; FIELDS.len()],
            },
            cells: vec![
                count("samples")?,
                count("messages_per_s")?,
                count("reached_per_s")?,
            ],
        })
    };
    nodes.iter().map(line).collect()
}

fn has_times(line: &Times) -> bool {
    line.micros.iter().any(Option::is_some)
}

fn times(latency: &Node<'_>) -> Result<[Option<f64>; FIELDS.len()], Error> {
    let mut times = [None; FIELDS.len()];
    for (time, (field, _)) in times.iter_mut().zip(FIELDS) {
        *time = latency.number(field)?;
    }
    Ok(times)
}

fn median(of: &Times) -> String {
    match of.micros[0] {
        Some(time) => format!("{} {}", of.label, words::micros(time)),
        None => of.label.clone(),
    }
}

fn described(groups: &[(String, Vec<Times>)]) -> String {
    let all = groups.iter().map(|(name, lines)| {
        let medians: Vec<String> = lines.iter().take(6).map(median).collect();
        let name = if name.is_empty() { "Medians" } else { name };
        format!("{name}: {}.", medians.join(", "))
    });
    words::clipped(&all.collect::<Vec<_>>().join(" "))
}
