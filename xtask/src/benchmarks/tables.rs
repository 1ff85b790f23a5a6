//! The tables that are drawn from results, in Markdown.

use super::chart::Tone;
use super::comparisons::{self, figures, one_way_rate};
use super::numbers::{grouped, mebibytes, median, millions};
use super::results::{
    Compared, Latency, Measured, Metering, Peers, Recorded, Results, SessionMedian, Sessions,
    Spread,
};
use std::collections::BTreeMap;

mod diagnosis;
mod peers;
mod scale;
mod walls;

/// Each part of a document, by the name in its mark.
pub fn all(results: &Results) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("slower", slower(results)),
        ("log", log(results)),
        ("order", order(results)),
        ("walls", walls::all(&results.walls)),
        ("walls in short", walls::in_short(&results.walls)),
        (
            "diagnose matrix",
            diagnosis::matrix(&results.diagnose_matrix),
        ),
        (
            "diagnose remedies",
            diagnosis::remedies(&results.diagnose_remedies),
        ),
        ("scale", scale::curves(&results.scale)),
        ("larger machines", scale::larger_machines(&results.scale)),
        ("latency", latency(&results.latency)),
        ("sessions", sessions(results)),
        ("sessions one way", one_way(&results.session_one_way)),
        ("redis", redis(&results.redis)),
        ("redis pipelines", pipelines(&results.redis_pipelines)),
        ("log peers", peers::logs(&results.log_peers)),
        ("one machine", peers::on_one_machine(&results.log_peers)),
        ("session peers", peers::sessions(&results.session_peers)),
    ])
}

/// Builds a table line by line.
struct Table(String);

impl Table {
    /// Columns that begin with `>` are aligned to the right.
    fn new(columns: &[&str]) -> Self {
        let names: Vec<_> = columns
            .iter()
            .map(|name| name.trim_start_matches('>'))
            .collect();
        let lines: Vec<_> = columns
            .iter()
            .map(|name| if name.starts_with('>') { "---:" } else { "---" })
            .collect();
        let mut table = Self(String::new());
        table.row(&names);
        table.row(&lines);
        table
    }

    fn row(&mut self, cells: &[impl AsRef<str>]) {
        let cells: Vec<_> = cells.iter().map(AsRef::as_ref).collect();
        let line = format!("| {} |\n", cells.join(" | "));
        // Markdown wants no space where there is nothing.
        self.0 += &line.replace("|  |", "| |").replace("|  |", "| |");
    }

    /// With the commands and where they ran.
    fn measured(mut self, of: &[(&str, &Measured)]) -> String {
        self.0 += &provenance(of);
        self.0
    }
}

/// The commands, each once, and each machine and commit once.
fn provenance(of: &[(&str, &Measured)]) -> String {
    let mut text = String::new();
    let mut commands: Vec<&str> = of.iter().map(|(command, _)| *command).collect();
    commands.dedup();
    commands.retain(|command| !command.is_empty());
    if !commands.is_empty() {
        text += &format!("\n```sh\n{}\n```\n", commands.join("\n"));
    }
    let mut places: Vec<String> = Vec::new();
    for (_, measured) in of {
        let Measured {
            machine,
            commit,
            date,
            note,
        } = measured;
        let date = date
            .as_ref()
            .map(|date| format!(" on {date}"))
            .unwrap_or_default();
        let note = note
            .as_ref()
            .map(|note| format!(" ({note})"))
            .unwrap_or_default();
        let place = format!("Measured{date} at commit {commit} on {machine}{note}.");
        if !places.contains(&place) {
            places.push(place);
        }
    }
    text + "\n" + &places.join("\n") + "\n"
}

/// All that is certainly slower than what it was measured beside.
fn slower(results: &Results) -> String {
    let mut table = Table::new(&["", "what", ">ours", "beside", "ratio"]);
    for one in comparisons::all(results) {
        if one.tone() == Tone::Worse {
            let face = one.face.title();
            table.row(&[face, &one.what, &one.ours, &one.beside, &one.figures()]);
        }
    }
    table.0
}

fn log(results: &Results) -> String {
    let mut table = Table::new(&["what", "rate", "against the wall", "command"]);
    let publish = &results.publish;
    let report = &publish.report;
    let rate = report.median_mib_per_s.map(mebibytes).unwrap_or_default();
    let wall = report.wall.as_ref().map_or_else(String::new, |wall| {
        let bare = figures(wall.ratio_to_bare.ratio);
        match &wall.ratio_to_working {
            Some(working) => format!(
                "{} of the working wall, {bare} of the bare one",
                figures(working.ratio)
            ),
            None => format!("{bare} of the bare wall"),
        }
    });
    let rate = format!("{rate}, {} messages/s", millions(report.messages_per_s));
    table.row(&["publish 10 GiB", &rate, &wall, &code(&publish.command)]);
    let small = &results.publish_small;
    let rate = format!("{} messages/s", millions(small.report.messages_per_s));
    let what = "publish 64-byte messages, one application thread";
    table.row(&[what, &rate, "", &code(&small.command)]);
    let read = &results.read;
    let rate = read
        .report
        .median_mib_per_s
        .map(mebibytes)
        .unwrap_or_default();
    let wall = read.report.wall.as_ref().map_or_else(String::new, |wall| {
        format!("{} of the bare wall", figures(wall.ratio_to_bare.ratio))
    });
    table.row(&[
        "read back 1.2 GiB, each message verified",
        &rate,
        &wall,
        &code(&read.command),
    ]);
    let e2e = &results.e2e;
    let trials = &e2e.report.trials;
    let p50 = median(trials.iter().map(|trial| trial.latency_us.p50));
    let p99 = median(trials.iter().map(|trial| trial.latency_us.p99));
    let rate = format!(
        "p50 {:.1} ms, p99 {:.1} ms (of which linger: up to 5 ms)",
        p50 / 1e3,
        p99 / 1e3
    );
    table.row(&["end to end at 200 MiB/s", &rate, "", &code(&e2e.command)]);
    for (recorded, what, names) in [
        (
            &results.metering,
            "stage timers, on against off",
            ["metering on", "metering off"],
        ),
        (
            &results.metering_attached,
            "looked at by `embar diagnose --attach`, against alone",
            ["looked at", "alone"],
        ),
    ] {
        let (rate, cost) = metering(&recorded.report, names);
        let what = format!("{what}, {} pairs", recorded.report.metering_cost.pairs);
        table.row(&[&what, &rate, &cost, &code(&recorded.command)]);
    }
    let measured = [
        ("", &publish.measured),
        ("", &small.measured),
        ("", &read.measured),
        ("", &e2e.measured),
        ("", &results.metering.measured),
        ("", &results.metering_attached.measured),
    ];
    table.measured(&measured)
}

/// The rates of both, and what the first costs.
fn metering(report: &Metering, [with, without]: [&str; 2]) -> (String, String) {
    let rate = |name: &str| {
        let series = report.series.iter().find(|series| series.name == name);
        series.map_or_else(String::new, |series| grouped(series.median_mib_per_s))
    };
    let cost = &report.metering_cost;
    (
        format!("{} against {} MiB/s", rate(with), rate(without)),
        format!(
            "loss {:.1} %, at most {:.1} %",
            cost.loss.point * 100.0,
            cost.loss.upper * 100.0
        ),
    )
}

fn order(results: &Results) -> String {
    let (small, large) = (&results.order_small, &results.order_large);
    let mut table = Table::new(&[
        "",
        ">16 KiB batches, MiB/s",
        "to order 0",
        ">2 MiB batches, MiB/s",
        "to order 0",
    ]);
    for order in [0, 1, 2, 5] {
        let cells = |compared: &Compared| {
            let rate = compared.rates().find(|(one, _)| *one == order);
            let rate = rate.map_or_else(String::new, |(_, rate)| grouped(rate));
            [
                rate,
                compared.to_order_0(order).map(figures).unwrap_or_default(),
            ]
        };
        let [rate, ratio] = cells(&small.report);
        let [large_rate, large_ratio] = cells(&large.report);
        table.row(&[
            format!("order {order}"),
            rate,
            ratio,
            large_rate,
            large_ratio,
        ]);
    }
    table.measured(&[
        (&small.command, &small.measured),
        (&large.command, &large.measured),
    ])
}

fn latency(recorded: &Recorded<Latency>) -> String {
    let Latency { alone, loaded } = &recorded.report;
    let mut table = Table::new(&[
        "",
        ">alone: P50",
        ">P99",
        ">P99.9",
        ">at half of the highest rate: P50",
        ">P99",
        ">P99.9",
        ">messages/s",
    ]);
    for row in alone {
        let mut cells = vec![match row.order {
            Some(order) => format!("order {order}"),
            None => "bare round trip".to_owned(),
        }];
        let busy = loaded
            .iter()
            .find(|busy| row.order.is_some() && busy.order == row.order);
        for latency in [Some(row), busy].map(|row| row.map(|row| &row.latency_us)) {
            let percentiles = latency.map(|of| [Some(of.p50), Some(of.p99), of.p999]);
            for number in percentiles.unwrap_or_default() {
                cells.push(number.map(grouped).unwrap_or_default());
            }
        }
        let rate = busy.and_then(|busy| busy.messages_per_s);
        cells.push(rate.map(grouped).unwrap_or_default());
        table.row(&cells);
    }
    table.measured(&[(&recorded.command, &recorded.measured)])
}

/// The phases of the bench, as a reader knows them.
const PHASES: [(&str, &str); 4] = [
    ("baseline", "copies both ways"),
    ("scatter-gather", "gathered send"),
    ("zero-copy send", "encoded in place"),
    ("zero-copy receive", "encoded in place, read as a view"),
];

fn sessions(results: &Results) -> String {
    let (blocking, spinning) = (&results.session_blocking, &results.session_spinning);
    let mut table = Table::new(&[
        "",
        "blocking: P50, to the wall",
        "spinning: P50, to the wall, round trips",
    ]);
    let cell = |report: &Sessions, of: Option<&SessionMedian>, phase: &str| {
        let mut parts = Vec::new();
        let p50 = of.and_then(|of| of.p50_ns);
        parts.extend(p50.map(|ns| format!("{:.1} us", ns / 1e3)));
        parts.extend(report.to_wall("p50_ns", phase).map(figures));
        let rate = of.and_then(|of| of.messages_per_s);
        parts.extend(rate.map(|rate| format!("{}/s", grouped(rate))));
        parts.join(", ")
    };
    let wall = |report: &Sessions| {
        let wall = report.wall.as_ref().map(|wall| &wall.median);
        cell(report, wall, "")
    };
    table.row(&[
        "bare sockets".to_owned(),
        wall(&blocking.report),
        wall(&spinning.report),
    ]);
    for (phase, name) in PHASES {
        let [blocking, spinning] = [&blocking.report, &spinning.report]
            .map(|report| cell(report, report.median.get(phase), phase));
        table.row(&[name.to_owned(), blocking, spinning]);
    }
    table.measured(&[
        (&blocking.command, &blocking.measured),
        (&spinning.command, &spinning.measured),
    ])
}

fn one_way(recorded: &Recorded<Sessions>) -> String {
    let mut table = Table::new(&[
        "",
        "messages of 64 bytes",
        "to bare sockets with large writes",
    ]);
    let ratio = recorded
        .report
        .to_wall("messages_per_s", "zero-copy receive");
    let name = "encoded in place, read as a view".to_owned();
    let ratio = ratio.map(figures).unwrap_or_default();
    table.row(&[name, one_way_rate(&recorded.report), ratio]);
    table.measured(&[(&recorded.command, &recorded.measured)])
}

fn redis(recorded: &Recorded<Peers>) -> String {
    let mut table = Table::new(&[
        ">threads",
        ">callers",
        "operation",
        ">ours, operations/s",
        ">best peer",
        "ratio (lowest to highest)",
        ">CPU us/operation, ours and its",
    ]);
    let Peers { columns, cells } = &recorded.report;
    let mut cells: Vec<_> = cells.iter().collect();
    cells.sort_by_key(|cell| (std::cmp::Reverse(cell.threads), cell.callers));
    for cell in cells {
        let (Some(ours), Some((name, peer)), Some(ratio)) =
            (cell.ours(), cell.best_peer(columns), cell.of_best_peer)
        else {
            continue;
        };
        table.row(&[
            cell.threads.to_string(),
            cell.callers.to_string(),
            cell.operation.clone(),
            grouped(ours.ops_per_s.median),
            format!("{} ({name})", grouped(peer.ops_per_s.median)),
            bold(ratio),
            format!(
                "{:.2}, {:.2}",
                ours.client_cpu_us_per_op.median, peer.client_cpu_us_per_op.median
            ),
        ]);
    }
    table.measured(&[(&recorded.command, &recorded.measured)])
}

fn pipelines(recorded: &Recorded<Peers>) -> String {
    let mut table = Table::new(&["operation", "to redis-benchmark (lowest to highest)"]);
    for cell in &recorded.report.cells {
        if let Some(ratio) = cell.of_redis_benchmark {
            table.row(&[&cell.operation, &bold(ratio)]);
        }
    }
    table.measured(&[(&recorded.command, &recorded.measured)])
}

/// `**1.52** (1.40 to 1.63)`
fn bold(ratio: Spread) -> String {
    let Spread { median, min, max } = ratio;
    format!("**{median:.2}** ({min:.2} to {max:.2})")
}

fn code(command: &str) -> String {
    format!("`{command}`")
}

#[cfg(test)]
mod tests {
    use super::{Table, provenance};
    use crate::benchmarks::results::Measured;

    #[test]
    fn tables_are_markdown() {
        let mut table = Table::new(&["", ">b", "c"]);
        table.row(&["1", "", ""]);
        assert_eq!(table.0, "| | b | c |\n| --- | ---: | --- |\n| 1 | | |\n");
    }

    #[test]
    fn a_place_that_several_commands_share_is_named_once() {
        let measured = Measured {
            machine: "2 cores".into(),
            commit: "1234567".into(),
            date: Some("2026-01-31".into()),
            note: None,
        };
        assert_eq!(
            provenance(&[("a", &measured), ("b", &measured)]),
            "\n```sh\na\nb\n```\n\nMeasured on 2026-01-31 at commit 1234567 on 2 cores.\n"
        );
    }
}
