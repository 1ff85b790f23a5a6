//! The rows of each view as text: the terminal view and the plain one show the same cells.

use std::borrow::Cow;

use embar_console::size::Size;
use embar_diagnose::finding::Finding;
use embar_meter::table::{Table, grouped};

use super::look::{BrokerRow, Look};

/// What is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tab {
    #[default]
    Brokers,
    Topics,
    Connections,
    Stages,
    Findings,
}

impl Tab {
    /// All of them, in the order of their keys.
    pub const ALL: [Self; 5] = [
        Self::Brokers,
        Self::Topics,
        Self::Connections,
        Self::Stages,
        Self::Findings,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Brokers => "brokers",
            Self::Topics => "topics",
            Self::Connections => "connections",
            Self::Stages => "stages",
            Self::Findings => "findings",
        }
    }

    /// The one that is so many after it; it goes round.
    pub fn after(self, steps: usize) -> Self {
        let at = Self::ALL.iter().position(|it| *it == self).unwrap_or(0);
        Self::ALL[(at + steps) % Self::ALL.len()]
    }
}

/// Columns and rows. Names of columns that begin with `#` are of numbers.
#[derive(Debug, PartialEq)]
pub struct Sheet {
    pub columns: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
    /// Columns that go first where all have no room.
    pub spare: &'static [&'static str],
    /// What to say where there are no rows.
    pub none: Cow<'static, str>,
}

/// Columns of a screen between two columns of a sheet.
pub const BETWEEN: usize = 2;

impl Sheet {
    /// The rows of a view; none of findings, which are sentences.
    pub fn of(look: &Look, tab: Tab) -> Self {
        match tab {
            Tab::Brokers => brokers(look),
            Tab::Topics => topics(look),
            Tab::Connections => connections(look),
            Tab::Stages => stages(look),
            Tab::Findings => Self {
                columns: Vec::new(),
                rows: Vec::new(),
                spare: &[],
                none: "".into(),
            },
        }
    }

    /// How wide each column is.
    pub fn widths(&self) -> Vec<usize> {
        let width = |(at, name): (usize, &&str)| {
            let cells = self.rows.iter().filter_map(|row| row.get(at));
            let widest = cells.map(|it| it.chars().count()).max().unwrap_or(0);
            widest.max(name.trim_start_matches('#').chars().count())
        };
        self.columns.iter().enumerate().map(width).collect()
    }

    /// Without spare columns, as far as the rest has no room in so many columns of a screen.
    pub fn within(mut self, room: usize) -> Self {
        for name in self.spare {
            let widths = self.widths();
            if widths.iter().sum::<usize>() + BETWEEN * widths.len().saturating_sub(1) <= room {
                break;
            }
            if let Some(at) = self.columns.iter().position(|it| it == name) {
                self.columns.remove(at);
                for row in self.rows.iter_mut().filter(|row| at < row.len()) {
                    row.remove(at);
                }
            }
        }
        self
    }

    /// As a table for people.
    pub fn table(&self) -> Table {
        let names = self.columns.iter().map(|it| it.trim_start_matches('#'));
        let mut table = Table::new(names);
        for row in &self.rows {
            table.row(row.clone());
        }
        table
    }
}

fn brokers(look: &Look) -> Sheet {
    let row = |it: &BrokerRow| {
        let role = match look.sequencer == Some(it.id) {
            true => format!("{}, sequences", it.role),
            false => it.role.to_owned(),
        };
        let mut row = vec![
            it.id.to_string(),
            role,
            it.state.to_owned(),
            it.address.clone(),
        ];
        match &it.rates {
            Some(rates) => row.extend([
                match rates.paused_connections {
                    0 => rates.connections.to_string(),
                    paused => format!("{} ({paused} wait)", rates.connections),
                },
                rate(rates.bytes_in_per_s),
                rate(rates.bytes_out_per_s),
                number(rates.messages_per_s),
                number(rates.batches_per_s),
                rates.log_used.map(bar).unwrap_or_default(),
                format!("{:.0} %", rates.cpus * 100.0),
            ]),
            // Where the rates stand, which stay when others go.
            None => row.extend([String::new(), "no answer".into()]),
        }
        row
    };
    Sheet {
        columns: vec![
            "broker",
            "role",
            "state",
            "address",
            "#connections",
            "#in",
            "#out",
            "#messages/s",
            "#batches/s",
            "log used",
            "#CPU",
        ],
        rows: look.brokers.iter().map(row).collect(),
        spare: &["#batches/s", "address", "state", "#CPU", "#connections"],
        none: "no broker".into(),
    }
}

fn topics(look: &Look) -> Sheet {
    let row = |it: &super::look::TopicRow| {
        vec![
            it.name.clone(),
            it.order.to_string(),
            it.brokers.to_string(),
            it.messages_per_s.map(number).unwrap_or_default(),
            grouped(it.first),
            grouped(it.next),
            Size(it.bytes).to_string(),
        ]
    };
    Sheet {
        columns: vec![
            "topic",
            "#order",
            "#brokers",
            "#messages/s",
            "#first",
            "#next",
            "#retained",
        ],
        rows: look.topics.iter().map(row).collect(),
        spare: &["#brokers", "#order"],
        none: match &look.unlisted {
            Some(why) => format!("topics could not be read: {why}").into(),
            None => "no topic: `embar topic create NAME` makes one".into(),
        },
    }
}

fn connections(look: &Look) -> Sheet {
    let percent = |it: Option<f64>| it.map(|it| format!("{:.0} %", it * 100.0));
    let row = |it: &super::look::ConnectionRow| {
        vec![
            it.broker.to_string(),
            it.client.to_owned(),
            it.bytes_per_s.map(rate).unwrap_or_default(),
            it.round_trip_us
                .map(|us| format!("{us:.0} us"))
                .unwrap_or_default(),
            percent(it.window_full).unwrap_or_default(),
            percent(it.send_buffer_full).unwrap_or_default(),
            percent(it.resent).unwrap_or_default(),
        ]
    };
    Sheet {
        columns: vec![
            "broker",
            "client",
            "#sent",
            "#round trip",
            "#window full",
            "#buffer full",
            "#resent",
        ],
        rows: look.connections.iter().map(row).collect(),
        spare: &[],
        none: "no TCP connection carried batches; those by shared memory and Unix sockets have no such readings".into(),
    }
}

fn stages(look: &Look) -> Sheet {
    let row = |it: &super::look::StageRow| {
        vec![
            it.of.clone(),
            it.stage.clone(),
            bar(it.share),
            number(it.times_per_s),
            time(it.avg_ns),
        ]
    };
    Sheet {
        columns: vec!["of", "stage", "share of the time", "#times/s", "#mean"],
        rows: look.stages.iter().map(row).collect(),
        spare: &["#times/s"],
        none: "nothing was timed: `embar profile --on` starts the brokers' timers".into(),
    }
}

/// A finding in lines: its head, its numbers, and its remedy.
pub fn lines(number: usize, finding: &Finding) -> [String; 3] {
    let evidence: Vec<String> = finding.evidence.iter().map(ToString::to_string).collect();
    let weight = match finding.cause.is_fault() {
        true => format!(
            " ({:.0} % sure; at most {:.0} % more without it)",
            finding.confidence * 100.0,
            finding.gain_at_most * 100.0
        ),
        false => String::new(),
    };
    [
        format!(
            "{number}. {}: {}{weight}",
            finding.cause,
            finding.cause.sentence()
        ),
        evidence.join("; "),
        finding.remedy.text.clone(),
    ]
}

/// `███·······  31 %`
fn bar(share: f64) -> String {
    const COLUMNS: usize = 10;
    let full = (share.clamp(0.0, 1.0) * COLUMNS as f64).round() as usize;
    format!(
        "{}{} {:>3.0} %",
        "█".repeat(full),
        "·".repeat(COLUMNS - full),
        share * 100.0
    )
}

/// A rate, in bytes.
pub fn rate(bytes_per_s: f64) -> String {
    match bytes_per_s < 0.5 {
        true => "-".into(),
        false => format!("{}/s", Size(bytes_per_s as u64)),
    }
}

fn number(per_s: f64) -> String {
    match per_s < 0.5 {
        true => "-".into(),
        false => grouped(per_s as u64),
    }
}

fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_go_round() {
        assert_eq!(Tab::Brokers.after(1), Tab::Topics);
        assert_eq!(Tab::Brokers.after(4), Tab::Findings);
        assert_eq!(Tab::Findings.after(1), Tab::Brokers);
    }

    #[test]
    fn spare_columns_go_where_there_is_no_room() {
        let sheet = || Sheet {
            columns: vec!["name", "spare", "#rate"],
            rows: vec![
                vec!["a".into(), "b".into(), "12345".into()],
                vec!["c".into()],
            ],
            spare: &["spare"],
            none: "".into(),
        };
        assert_eq!(sheet().widths(), [4, 5, 5]);
        assert_eq!(sheet().within(18).columns, ["name", "spare", "#rate"]);
        let narrow = sheet().within(17);
        assert_eq!(narrow.columns, ["name", "#rate"]);
        assert_eq!(narrow.rows, [vec!["a", "12345"], vec!["c"]]);
        assert_eq!(sheet().within(0).columns, ["name", "#rate"]);
    }

    #[test]
    fn topics_that_nobody_lists_are_not_none() {
        let mut look = Look::for_tests();
        assert!(Sheet::of(&look, Tab::Topics).none.contains("topic create"));
        look.unlisted = Some("broker 0, the head, does not answer".to_owned());
        let none = Sheet::of(&look, Tab::Topics).none;
        assert!(none.contains("could not be read") && none.contains("broker 0"));
    }

    #[test]
    fn numbers_are_as_people_read_them() {
        assert_eq!(bar(0.31), "███·······  31 %");
        assert_eq!(bar(2.5), "██████████ 250 %");
        assert_eq!((rate(0.0), number(0.2)), ("-".into(), "-".into()));
        assert_eq!(rate(3.0 * 1024.0 * 1024.0), "3MiB/s");
        assert_eq!(
            [12.0, 1.5e3, 2e6, 3e9].map(time),
            ["12 ns", "1.5 us", "2.0 ms", "3.0 s"]
        );
    }
}
