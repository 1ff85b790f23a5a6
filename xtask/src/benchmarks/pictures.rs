//! The pictures that are drawn from results.

use super::chart::{Chart, Group, Row, Tone};
use super::comparisons::{self, Comparison, Face};
use super::numbers::grouped;
use super::results::{CostCurve, CostPoint, OrderLatency, Results};

/// Each with the name of its file.
pub fn all(results: &Results) -> Vec<(&'static str, Chart)> {
    vec![
        ("overview", overview(results)),
        ("latency", latency(results)),
        ("redis", redis(results)),
        ("scale", scale(results)),
    ]
}

/// `1/4` to `4`, as far as the figures go.
fn speeds(least: f64, most: f64) -> Vec<(f64, String)> {
    let all = [
        (1.0 / 8.0, "⅛"),
        (1.0 / 4.0, "¼"),
        (1.0 / 2.0, "½"),
        (1.0, "as fast"),
        (2.0, "2 times"),
        (4.0, "4 times"),
    ];
    let ticks = all
        .into_iter()
        .filter(|(at, _)| (least..=most).contains(at));
    ticks.map(|(at, label)| (at, label.to_owned())).collect()
}

fn overview(results: &Results) -> Chart {
    let comparisons = comparisons::all(results);
    let group = |face: Face| Group {
        title: face.title().to_owned(),
        rows: comparisons
            .iter()
            .filter(|one| one.face == face && one.in_overview)
            .map(|one| ratio_row(format!("{}, beside {}", one.what, one.beside), one))
            .collect(),
    };
    Chart {
        title: "Speed beside bare sockets and beside other Redis clients".into(),
        caption: "Ratios of rates in the same run with their intervals: further to the right, ours is faster.".into(),
        ticks: speeds(1.0 / 8.0, 4.0),
        equal: Some(1.0),
        groups: Face::ALL.map(group).into(),
    }
}

fn ratio_row(label: String, comparison: &Comparison) -> Row {
    let speed = comparison.speed;
    Row {
        label,
        range: speed.low.zip(speed.high),
        marks: speed.point.into_iter().collect(),
        text: comparison.figures(),
        tone: comparison.tone(),
    }
}

fn redis(results: &Results) -> Chart {
    let comparisons = comparisons::all(results);
    let group = |threads: &str| Group {
        title: format!("Callers on {threads}"),
        rows: comparisons
            .iter()
            .filter_map(|one| {
                let label = one.what.strip_suffix(threads)?.trim_end_matches(", ");
                let label = format!("{label}, beside {}", one.beside);
                Some(ratio_row(label, one))
            })
            .collect(),
    };
    Chart {
        title: "The Redis client beside the fastest of redis-rs, fred and rustis".into(),
        caption: "Ratios of operations per second, lowest to highest round: further to the right, ours is faster.".into(),
        ticks: speeds(1.0 / 2.0, 4.0),
        equal: Some(1.0),
        groups: vec![group("1 thread"), group("2 threads")],
    }
}

fn scale(results: &Results) -> Chart {
    let group = |curve: &CostCurve| Group {
        title: curve.curve.clone(),
        rows: curve
            .points
            .iter()
            .map(|point| cost_row(curve, point))
            .collect(),
    };
    let ticks = [
        (0.125, "⅛"),
        (0.5, "½"),
        (2.0, "2 s"),
        (8.0, "8 s"),
        (32.0, "32 s"),
    ];
    Chart {
        title: "What a GiB costs as one thing grows".into(),
        caption: "CPU seconds of publishers and brokers for each GiB: further to the left is cheaper. Orange: a cliff.".into(),
        ticks: ticks.map(|(at, label)| (at, label.to_owned())).into(),
        equal: None,
        groups: results.scale.report.curves.iter().map(group).collect(),
    }
}

fn cost_row(curve: &CostCurve, point: &CostPoint) -> Row {
    let is_cliff = curve.cpu_cliffs.iter().any(|cliff| cliff.to == point.value);
    Row {
        label: curve.show(point.value),
        range: None,
        marks: point.cpu_s_per_gib.into_iter().collect(),
        text: match point.cpu_s_per_gib {
            Some(seconds) => format!("{seconds:.2} s"),
            None => "not run".to_owned(),
        },
        tone: if is_cliff { Tone::Worse } else { Tone::Better },
    }
}

fn latency(results: &Results) -> Chart {
    let report = &results.latency.report;
    let group = |title: &str, rows: &[OrderLatency]| Group {
        title: title.to_owned(),
        rows: rows.iter().map(latency_row).collect(),
    };
    let ticks = [
        (50.0, "50 us"),
        (200.0, "200 us"),
        (1_000.0, "1 ms"),
        (5_000.0, "5 ms"),
        (20_000.0, "20 ms"),
    ];
    Chart {
        title: "How long a message waits for its acknowledgement".into(),
        caption: "The median (dot), and what 99 % (ring) and 99.9 % (stroke) of messages stay below: further to the left is better.".into(),
        ticks: ticks.map(|(at, label)| (at, label.to_owned())).into(),
        equal: None,
        groups: vec![
            group("One message in flight", &report.alone),
            group("At half of the highest rate", &report.loaded),
        ],
    }
}

fn latency_row(of: &OrderLatency) -> Row {
    let latency = &of.latency_us;
    let marks: Vec<_> = [latency.p50, latency.p99]
        .into_iter()
        .chain(latency.p999)
        .collect();
    let figures: Vec<_> = marks.iter().map(|us| grouped(*us)).collect();
    Row {
        label: match of.order {
            Some(order) => format!("order {order}"),
            None => "a bare round trip".to_owned(),
        },
        range: marks.first().copied().zip(marks.last().copied()),
        text: figures.join(" · "),
        tone: match of.order {
            Some(_) => Tone::Better,
            None => Tone::Even,
        },
        marks,
    }
}
