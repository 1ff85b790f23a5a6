//! The tables of other logs, and of other ways to send messages, beside ours.

use super::super::numbers::grouped;
use super::super::results::{
    LogFigures, LogPeer, LogPeers, Recorded, SessionPeer, SessionPeers, SessionPeersTest, Spread,
};
use super::{Table, bold};

/// Rates of all logs, how ours compare with the best of the others, and what each promises.
pub fn logs(recorded: &Recorded<LogPeers>) -> String {
    let LogPeers {
        rows, of_best_peer, ..
    } = &recorded.report;
    let table = rates(rows.iter());
    let mut best = Table::new(&[
        "ours to the best of the first three others",
        "publish",
        "read",
    ]);
    for one in of_best_peer {
        let ratio = |ratio: Option<Spread>| ratio.map(bold).unwrap_or_default();
        best.row(&[one.settings.clone(), ratio(one.publish), ratio(one.read)]);
    }
    let mut promises = Table::new(&[
        "log",
        "what it promises for these messages, and what else it can",
    ]);
    let mut told: Vec<_> = rows.iter().map(|row| [&row.log, &row.promises]).collect();
    told.dedup();
    for row in &told {
        promises.row(row);
    }
    let measured = [(recorded.command.as_str(), &recorded.measured)];
    [table.0, best.0, promises.measured(&measured)].join("\n")
}

/// The rates of these.
fn rates<'a>(rows: impl Iterator<Item = &'a LogPeer>) -> Table {
    let mut table = Table::new(&[
        "log",
        "settings",
        ">publish, MiB/s",
        "ours to it",
        ">read, MiB/s",
        "ours to it",
        ">both at once, MiB/s",
        "ours to it",
    ]);
    for row in rows {
        let mut cells = vec![row.log.clone(), row.settings.clone()];
        for figures in [&row.publish, &row.read, &row.at_once] {
            let rate = |figures: &LogFigures| grouped(figures.mib_per_s);
            cells.push(figures.as_ref().map(rate).unwrap_or_default());
            let figures = figures.as_ref().filter(|_| row.log != OURS);
            cells.push(spread(figures.and_then(|figures| figures.ours_to_it)));
        }
        table.row(&cells);
    }
    table
}

/// Ours by each way to it on one machine, at order 0, beside what has no sockets.
pub fn on_one_machine(recorded: &Recorded<LogPeers>) -> String {
    let rows = recorded.report.rows.iter();
    let is_here = |row: &&LogPeer| match row.log == OURS {
        true => row.settings.starts_with("order 0"),
        false => row.way == "shm",
    };
    let measured = [(recorded.command.as_str(), &recorded.measured)];
    rates(rows.filter(is_here)).measured(&measured)
}

/// The log that others are compared with, as its bench names it.
const OURS: &str = "embar";

/// Round trips, then messages one way.
pub fn sessions(recorded: &Recorded<SessionPeers>) -> String {
    let mut parts = Vec::new();
    for tested in &recorded.report.tests {
        parts.push(session(tested).0);
    }
    let measured = [(recorded.command.as_str(), &recorded.measured)];
    let mut best = Table::new(&["", "ours to the best of the others"]);
    for tested in &recorded.report.tests {
        let ratio = tested.of_best_peer.map(bold).unwrap_or_default();
        best.row(&[title(tested).to_owned(), ratio]);
    }
    parts.push(best.measured(&measured));
    parts.join("\n")
}

fn title(tested: &SessionPeersTest) -> &str {
    match tested.test.as_str() {
        "round-trip" => "round trips",
        "one-way" => "one way",
        "unary" => "calls",
        other => other,
    }
}

fn session(tested: &SessionPeersTest) -> Table {
    let mut table = Table::new(&[
        title(tested),
        ">messages/s",
        "ours to it",
        ">P50 us",
        ">P99 us",
        ">CPU us/message",
        ">allocations/message",
        ">bytes/message",
        ">peak MiB",
    ]);
    for row in &tested.rows {
        let SessionPeer {
            peer,
            messages_per_s,
            p50_us,
            p99_us,
            cpu_us_per_message,
            allocations_per_message,
            allocated_bytes_per_message,
            peak_mib,
            ours_to_it,
        } = row;
        let digits = |figure: &Option<f64>, digits: usize| {
            let text = figure.map(|figure| format!("{figure:.digits$}"));
            text.unwrap_or_default()
        };
        table.row(&[
            peer.clone(),
            messages_per_s.map(grouped).unwrap_or_default(),
            spread(ours_to_it.filter(|_| peer != OURS)),
            digits(p50_us, 1),
            digits(p99_us, 1),
            digits(cpu_us_per_message, 2),
            digits(allocations_per_message, 2),
            digits(allocated_bytes_per_message, 0),
            digits(peak_mib, 1),
        ]);
    }
    table
}

/// `1.52 (1.40 to 1.63)`
fn spread(spread: Option<Spread>) -> String {
    let Some(Spread { median, min, max }) = spread else {
        return String::new();
    };
    format!("{median:.2} ({min:.2} to {max:.2})")
}

#[cfg(test)]
mod tests {
    use super::{logs, on_one_machine, sessions};
    use crate::benchmarks::results::Recorded;

    #[test]
    fn ours_by_each_way_stands_beside_what_has_no_sockets() {
        let row = |log: &str, way: &str, settings: &str| {
            format!(
                r#"{{"log": "{log}", "way": "{way}", "settings": "{settings}", "promises": "",
                     "publish": null, "read": null, "at_once": {{"mib_per_s": 10.0, "ours_to_it": null}}}}"#
            )
        };
        let rows = [
            row("embar", "tcp", "order 0"),
            row("embar", "tcp", "order 5"),
            row("embar", "shm", "order 0, in memory"),
            row("kafka", "tcp", "small"),
            row("aeron-ipc", "shm", "touched"),
        ]
        .join(",");
        let report = format!(
            r#"{{"message_size": 1024, "rounds": 3, "rows": [{rows}], "of_best_peer": []}}"#
        );
        let text = on_one_machine(&Recorded::for_test(&report));
        let shown = ["| order 0 |", "| order 0, in memory |", "| touched |"];
        assert!(shown.iter().all(|it| text.contains(it)), "{text}");
        assert!(
            !text.contains("order 5") && !text.contains("kafka"),
            "{text}"
        );
    }

    #[test]
    fn ours_has_no_ratio_to_itself_and_each_log_promises_once() {
        let row = |log: &str, settings: &str| {
            format!(
                r#"{{"log": "{log}", "way": "tcp", "settings": "{settings}", "promises": "of {log}",
                     "publish": {{"mib_per_s": 1234.5, "ours_to_it": {{"median": 2.0, "min": 1.0, "max": 3.0}}}},
                     "read": null, "at_once": null}}"#
            )
        };
        let rows = [
            row("embar", "order 0"),
            row("kafka", "small"),
            row("kafka", "large"),
        ]
        .join(",");
        let best = r#"{"settings": "order 0", "publish": {"median": 2.0, "min": 1.0, "max": 3.0}, "read": null}"#;
        let report = format!(
            r#"{{"message_size": 1024, "rounds": 6, "rows": [{rows}], "of_best_peer": [{best}]}}"#
        );
        let text = logs(&Recorded::for_test(&report));
        for line in [
            "| embar | order 0 | 1,234 | | | | | |\n",
            "| kafka | large | 1,234 | 2.00 (1.00 to 3.00) | | | | |\n",
            "| order 0 | **2.00** (1.00 to 3.00) | |\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert_eq!(text.matches("| kafka | of kafka |").count(), 1);
        assert!(text.ends_with("Measured at commit 1234567 on 2 cores.\n"));
    }

    #[test]
    fn what_a_peer_has_no_figure_of_is_left_empty() {
        let row = r#"{"peer": "zeromq", "messages_per_s": 1000.0, "p50_us": null, "p99_us": null, "cpu_us_per_message": 0.25,
            "allocations_per_message": null, "allocated_bytes_per_message": null, "peak_mib": 1.5,
            "ours_to_it": {"median": 2.0, "min": 1.0, "max": 3.0}}"#;
        let report = format!(
            r#"{{"payload_bytes": 64, "tests": [{{"test": "one-way", "rows": [{row}], "of_best_peer": null}}]}}"#
        );
        let text = sessions(&Recorded::for_test(&report));
        let line = "| zeromq | 1,000 | 2.00 (1.00 to 3.00) | | | 0.25 | | | 1.5 |\n";
        assert!(text.contains(line), "{text}");
        assert!(text.starts_with("| one way |"));
    }
}
