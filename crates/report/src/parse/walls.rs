//! `embar bench walls`.

use embar_meter::Better;

use super::node::Node;
use super::origin;
use crate::Error;
use crate::picture::ratios::{self, Claim, Line};
use crate::section::{Block, Section};
use crate::table::Table;
use crate::words;

/// The section of it.
pub(super) fn section(root: &Node<'_>) -> Result<Section, Error> {
    let (rates, times) = (root.objects("rows")?, root.objects("times")?);
    if rates.is_empty() && times.is_empty() {
        return Err(root.nothing("no rate and no time was measured"));
    }
    let (rate_lines, rate_rest) = rate_lines(&rates)?;
    let (time_lines, time_rest) = time_lines(&times)?;
    let says = format!(
        "{} rates and {} times beside what the machine allows",
        rates.len(),
        times.len()
    );
    let mut blocks = Vec::new();
    let scale = ratios::scale(rate_lines.iter().map(|it| &it.1));
    for lines in by_path(rate_lines) {
        let title = format!("Rates beside walls: {}", lines[0].0);
        let lines: Vec<Line> = lines.into_iter().map(|it| it.1).collect();
        let table = Table::new(title.clone(), RATES);
        let picture = ratios::picture(
            title,
            described(&lines),
            Better::Higher,
            scale.clone(),
            table,
            lines,
        );
        blocks.push(Block::Picture(Box::new(picture)));
    }
    if !time_lines.is_empty() {
        let title = "Times beside walls";
        let table = Table::new(title, TIMES);
        let scale = ratios::scale(&time_lines);
        let described = described(&time_lines);
        let picture = ratios::picture(title, described, Better::Lower, scale, table, time_lines);
        blocks.push(Block::Picture(Box::new(picture)));
    }
    for rest in [rate_rest, time_rest] {
        if !rest.rows.is_empty() {
            blocks.push(Block::Heading(rest.caption.clone()));
            blocks.push(Block::Table(rest));
        }
    }
    blocks.extend(origin::settings(root)?);
    Ok(Section {
        title: "Beside the walls".into(),
        says,
        file: String::new(),
        origin: Vec::new(),
        blocks,
    })
}

/// A picture of all paths would be longer than its axis can be seen from.
fn by_path(lines: Vec<(String, Line)>) -> Vec<Vec<(String, Line)>> {
    let mut paths: Vec<Vec<(String, Line)>> = Vec::new();
    for line in lines {
        match paths.last_mut() {
            Some(path) if path[0].0 == line.0 => path.push(line),
            _ => paths.push(vec![line]),
        }
    }
    paths
}

fn described(lines: &[Line]) -> String {
    let count = |claim| lines.iter().filter(|it| it.claim == claim).count();
    format!(
        "{} ratios of ours to a wall: {} are below 1, {} above, {} inside the noise.",
        lines.len(),
        count(Claim::Below),
        count(Claim::Above),
        count(Claim::Nothing)
    )
}

const RATES: [&str; 9] = [
    "batches / messages",
    "ours",
    "beside",
    "#GB/s",
    "#ours GB/s",
    "#ratio",
    "#aim",
    "reached",
    "verdict",
];
const TIMES: [&str; 11] = [
    "path",
    "ours",
    "beside",
    "#p50",
    "#p99",
    "#ours p50",
    "#ours p99",
    "#ratio of p50",
    "#aim",
    "reached",
    "verdict",
];

/// Lines with a ratio and their paths, and the rows of those of which only the wall was measured.
fn rate_lines(rows: &[Node<'_>]) -> Result<(Vec<(String, Line)>, Table), Error> {
    let (mut lines, mut rest) = (
        Vec::new(),
        Table::new(
            "Walls alone",
            ["path", "batches / messages", "wall", "#GB/s"],
        ),
    );
    for row in rows {
        let (path, wall) = (path(row)?, row.needed_text("wall")?);
        let (sizes, ours) = (sizes(row)?, ours(row, "reader")?);
        let gb = |field| -> Result<String, Error> {
            Ok(row.number(field)?.map(words::number).unwrap_or_default())
        };
        let Some(interval) = row.interval("interval")? else {
            rest.row([path, sizes, wall, gb("wall_gb_per_s")?]);
            continue;
        };
        let target = row.number("target")?;
        let rate = row.number("target_gb_per_s")?;
        let aims = [
            target.map(words::number),
            rate.map(|it| format!("{} GB/s", words::number(it))),
        ];
        let line = Line {
            label: joined([ours.clone(), wall.clone()], " · "),
            cells: vec![
                sizes.clone(),
                ours,
                wall,
                gb("wall_gb_per_s")?,
                gb("ours_gb_per_s")?,
                interval.shown(),
                joined(aims.into_iter().flatten(), ", "),
                reached(row)?,
                interval.claim().words().to_owned(),
            ],
            group: sizes_in_words(row)?,
            claim: interval.claim(),
            interval,
            aim: target,
        };
        lines.push((path, line));
    }
    Ok((lines, rest))
}

fn time_lines(rows: &[Node<'_>]) -> Result<(Vec<Line>, Table), Error> {
    let (mut lines, mut rest) = (
        Vec::new(),
        Table::new("Walls alone, times", ["path", "wall", "#p50", "#p99"]),
    );
    for row in rows {
        let (path, wall) = (path(row)?, row.needed_text("wall")?);
        let spins = row.flag("spins")?;
        let how = match spins {
            Some(true) => "spins".to_owned(),
            Some(false) => "sleeps".to_owned(),
            None => String::new(),
        };
        let ours = joined([order(row)?, how], ", ");
        let time = |field| -> Result<String, Error> {
            let ns = row.number(field)?;
            Ok(ns.map(|ns| words::micros(ns / 1e3)).unwrap_or_default())
        };
        let Some(interval) = row.interval("interval")? else {
            rest.row([path, wall, time("wall_p50_ns")?, time("wall_p99_ns")?]);
            continue;
        };
        let target = row.number("target")?;
        let aims = [target.map(words::number), Some(time("target_ns")?)];
        lines.push(Line {
            label: joined([ours.clone(), wall.clone()], " · "),
            cells: vec![
                path.clone(),
                ours,
                wall,
                time("wall_p50_ns")?,
                time("wall_p99_ns")?,
                time("ours_p50_ns")?,
                time("ours_p99_ns")?,
                interval.shown(),
                joined(aims.into_iter().flatten(), ", "),
                reached(row)?,
                interval.claim().words().to_owned(),
            ],
            group: path,
            claim: interval.claim(),
            interval,
            aim: target,
        });
    }
    Ok((lines, rest))
}

/// `publish_tcp` as `publish, TCP`.
fn path(row: &Node<'_>) -> Result<String, Error> {
    let path = row.needed_text("path")?;
    let Some((what, carrier)) = path.rsplit_once('_') else {
        return Ok(path);
    };
    let what = match what {
        "e2e" => "publish and read at once",
        "ack" => "acknowledgement",
        what => what,
    };
    let carrier = match carrier {
        "tcp" => "TCP",
        "unix" => "Unix sockets",
        "shm" => "shared memory",
        carrier => carrier,
    };
    Ok(format!("{what}, {carrier}"))
}

/// `2 MiB / 1 KiB`: batches and messages.
fn sizes(row: &Node<'_>) -> Result<String, Error> {
    let size = |field| -> Result<String, Error> {
        Ok(row.number(field)?.map(words::bytes).unwrap_or_default())
    };
    Ok(joined(
        [size("batch_bytes")?, size("message_bytes")?],
        " / ",
    ))
}

/// `2 MiB batches, 1 KiB messages`
fn sizes_in_words(row: &Node<'_>) -> Result<String, Error> {
    let size = |field, what| -> Result<String, Error> {
        let bytes = row.number(field)?.map(words::bytes);
        Ok(bytes.map_or_else(String::new, |it| format!("{it} {what}")))
    };
    Ok(joined(
        [
            size("batch_bytes", "batches")?,
            size("message_bytes", "messages")?,
        ],
        ", ",
    ))
}

fn order(row: &Node<'_>) -> Result<String, Error> {
    let order = row.number("order")?;
    Ok(order.map_or_else(String::new, |it| format!("order {}", words::number(it))))
}

/// What is to be known of ours.
fn ours(row: &Node<'_>, reader: &str) -> Result<String, Error> {
    let lone = row.number("brokers")? == Some(1.0);
    let reads = row
        .text("path")?
        .is_some_and(|it| it.starts_with("read") || it.starts_with("e2e"));
    let reader = row.text(reader)?.filter(|_| reads);
    let lone = lone.then(|| "one broker".to_owned());
    Ok(joined(
        [
            order(row)?,
            lone.unwrap_or_default(),
            reader.unwrap_or_default(),
        ],
        ", ",
    ))
}

/// Whether ours is as fast as the aim, where the report says so.
fn reached(row: &Node<'_>) -> Result<String, Error> {
    let reached = row.flag("reached")?;
    Ok(reached
        .map_or("", |it| if it { "yes" } else { "no" })
        .to_owned())
}

/// The texts that are not empty.
fn joined(texts: impl IntoIterator<Item = String>, between: &str) -> String {
    let texts = texts.into_iter().filter(|it| !it.is_empty());
    texts.collect::<Vec<_>>().join(between)
}
