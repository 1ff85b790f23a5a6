//! The tables of what publishing costs as one thing grows.

use super::super::numbers::grouped;
use super::super::results::{Recorded, Scale, Side, Sides};
use super::Table;

/// Each point of each curve, and where its cost jumps.
pub fn curves(recorded: &Recorded<Scale>) -> String {
    let mut table = Table::new(&[
        "curve",
        ">point",
        ">MB/s",
        ">messages/s",
        ">CPU s per GiB",
        ">CPU us per message",
    ]);
    let mut remarks = Vec::new();
    for curve in &recorded.report.curves {
        let name = &curve.curve;
        for point in &curve.points {
            let whole = |number: Option<f64>| number.map(grouped).unwrap_or_default();
            let exact = |number: Option<f64>| number.map(|number| format!("{number:.3}"));
            let value = curve.show(point.value);
            if let Some(failed) = &point.failed {
                remarks.push(format!("- {name} {value} could not be run: {failed}"));
            }
            table.row(&[
                name.clone(),
                value,
                whole(point.mb_per_s),
                whole(point.messages_per_s),
                exact(point.cpu_s_per_gib).unwrap_or_default(),
                exact(point.cpu_us_per_message).unwrap_or_default(),
            ]);
        }
        let cliffs = [
            ("CPU time", &curve.cpu_cliffs),
            ("time", &curve.time_cliffs),
        ];
        for (what, cliffs) in cliffs {
            for cliff in cliffs {
                let (from, to) = (curve.show(cliff.from), curve.show(cliff.to));
                let factor = cliff.factor;
                remarks.push(format!(
                    "- a cliff: from {from} to {to} {name}, {what} per GiB grows {factor:.1} times"
                ));
            }
        }
    }
    if remarks.is_empty() {
        remarks.push("No cliff was found.".to_owned());
    }
    table.0 += &format!("\n{}\n", remarks.join("\n"));
    table.measured(&[(&recorded.command, &recorded.measured)])
}

/// 200 Gbit/s, in GiB.
const NETWORK_GIB_PER_S: f64 = 200e9 / 8.0 / (1u64 << 30) as f64;

/// Loads of the model: in words, the point of a curve that has its costs, and bytes of its batches.
const MODELLED: [(&str, &str, u64, u64); 4] = [
    (
        "1 KiB messages, 2 MiB batches",
        "messages",
        1 << 10,
        2 << 20,
    ),
    ("64 B messages, 2 MiB batches", "messages", 64, 2 << 20),
    ("256 B messages, 2 MiB batches", "batches", 2 << 20, 2 << 20),
    (
        "256 B messages, 16 KiB batches",
        "batches",
        16 << 10,
        16 << 10,
    ),
];

/// What the costs would mean on a larger machine.
pub fn larger_machines(recorded: &Recorded<Scale>) -> String {
    let mut table = Table::new(&[
        "load",
        ">brokers, CPU s per GiB",
        ">publishers, CPU s per GiB",
        ">cores of brokers at 200 Gbit/s",
        ">cores of publishers",
        ">batches/s",
    ]);
    for (load, name, value, batch_bytes) in MODELLED {
        let mut curves = recorded.report.curves.iter();
        let curve = curves.find(|curve| curve.curve == name);
        let point = curve.and_then(|curve| curve.points.iter().find(|point| point.value == value));
        let Some(Sides { client, brokers }) = point.and_then(|point| point.costs) else {
            continue;
        };
        let cores = |of: Side| format!("{:.0}", (of.cpu_s_per_gib * NETWORK_GIB_PER_S).ceil());
        let batches = NETWORK_GIB_PER_S * (1u64 << 30) as f64 / batch_bytes as f64;
        table.row(&[
            load.to_owned(),
            format!("{:.2}", brokers.cpu_s_per_gib),
            format!("{:.2}", client.cpu_s_per_gib),
            cores(brokers),
            cores(client),
            grouped(batches),
        ]);
    }
    table.measured(&[(&recorded.command, &recorded.measured)])
}

#[cfg(test)]
mod tests {
    use super::{curves, larger_machines};
    use crate::benchmarks::results::{Recorded, Scale};

    fn recorded(cliffs: &str) -> Recorded<Scale> {
        let report = format!(
            r#"{{"curves": [{{"curve": "batches", "cpu_cliffs": [{cliffs}], "time_cliffs": [], "points": [
                {{"value": 16384, "mb_per_s": 1234.5, "messages_per_s": 5e6, "cpu_s_per_gib": 0.75,
                  "cpu_us_per_message": 0.18, "costs": {{"client": {{"cpu_s_per_gib": 0.5}},
                  "brokers": {{"cpu_s_per_gib": 0.25}}}}}},
                {{"value": 2097152, "failed": "no memory"}}]}}]}}"#
        );
        Recorded::for_test(&report)
    }

    #[test]
    fn what_could_not_be_run_and_each_cliff_is_named() {
        let text = curves(&recorded(
            r#"{"from": 16384, "to": 2097152, "factor": 2.04}"#,
        ));
        for line in [
            "| batches | 16 KiB | 1,234 | 5,000,000 | 0.750 | 0.180 |\n",
            "| batches | 2 MiB | | | | |\n",
            "- batches 2 MiB could not be run: no memory\n",
            "- a cliff: from 16 KiB to 2 MiB batches, CPU time per GiB grows 2.0 times\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }

    #[test]
    fn the_model_is_of_what_was_measured() {
        let text = larger_machines(&recorded(""));
        // 200 Gbit/s are 23.3 GiB/s: with batches of 16 KiB 1.5 million of them.
        let line = "| 256 B messages, 16 KiB batches | 0.25 | 0.50 | 6 | 12 | 1,525,879 |\n";
        assert!(text.contains(line), "{text}");
        assert!(!text.contains("2 MiB batches"), "{text}");
    }
}
