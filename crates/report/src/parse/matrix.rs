//! `embar diagnose --matrix`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::node::Node;
use crate::Error;
use crate::picture::shares::{self, Share};
use crate::section::{Block, Fact, Section};
use crate::table::{Cell, Column, Mark, Table};
use crate::words;

/// The most causes that are columns: more than there are. A file may name any number.
const CAUSES_MAX: usize = 48;

/// One case.
struct Case {
    injected: String,
    options: String,
    expected: Vec<String>,
    /// How often each cause came first.
    first: BTreeMap<String, f64>,
    right: f64,
    among_three: f64,
    runs: f64,
    rate: Option<f64>,
    /// What was said could be gained at most, and what is without the fault.
    gains: [Option<f64>; 2],
    /// How often each came of the remedy that was tried.
    outcomes: BTreeMap<String, f64>,
}

/// The section of it.
pub(super) fn section(root: &Node<'_>) -> Result<Section, Error> {
    let runs = root.number("runs")?;
    let rows = root.objects("rows")?;
    let cases: Vec<Case> = rows
        .iter()
        .map(|row| case(row, runs))
        .collect::<Result<_, _>>()?;
    let sum = |of: fn(&Case) -> f64| cases.iter().map(of).sum::<f64>();
    let (right, all) = (sum(|it| it.right), sum(|it| it.runs));
    let three = sum(|it| it.among_three);
    let of_all = |count: f64| format!("{} of {}", words::whole(count), words::whole(all));
    let facts = vec![
        Fact::new("cases", cases.len().to_string()),
        Fact::new("right cause first", of_all(right)),
        Fact::new("among the first three", of_all(three)),
    ];
    Ok(Section {
        title: "Diagnosis: faults on purpose".into(),
        says: format!("The right cause came first in {} runs", of_all(right)),
        file: String::new(),
        origin: Vec::new(),
        blocks: vec![
            Block::Facts(facts),
            Block::Picture(Box::new(right_first(&cases))),
            Block::Heading("What was injected, and what was named first".into()),
            Block::Text(
                "Numbers are runs. ✓ is a cause that is right for the row, ✗ one that is not."
                    .into(),
            ),
            Block::Table(named(&cases)),
        ],
    })
}

fn case(row: &Node<'_>, runs: Option<f64>) -> Result<Case, Error> {
    let expected = row.list("expected")?;
    let (first, outcomes) = (counts(row, "first")?, counts(row, "outcomes")?);
    let counted = first.values().sum();
    // Recorded results do not keep the number, and each run names one cause first.
    let runs = runs.unwrap_or(counted);
    let (right, among_three) = (row.needed("right")?, row.number("among_three")?);
    let among_three = among_three.unwrap_or_default();
    let counts = [
        ("right", right),
        ("among_three", among_three),
        ("the sum of first", counted),
    ];
    for (name, count) in counts {
        if !(0.0..=runs).contains(&count) {
            let why = format!(
                "{name} is {} of {} runs",
                words::number(count),
                words::number(runs)
            );
            return Err(row.invalid("embar diagnose --matrix --json", why));
        }
    }
    Ok(Case {
        injected: row.needed_text("injected")?,
        options: row.text("options")?.unwrap_or_default(),
        expected: expected
            .iter()
            .map(Node::as_text)
            .collect::<Result<_, _>>()?,
        right,
        among_three,
        runs,
        first,
        rate: row.number("bytes_per_s")?,
        gains: [row.number("gain_at_most")?, row.number("gained")?],
        outcomes,
    })
}

/// An object whose fields say how often each was seen; none if it is not there.
fn counts(row: &Node<'_>, name: &str) -> Result<BTreeMap<String, f64>, Error> {
    let mut all = BTreeMap::new();
    if let Some(counts) = row.object(name)?
        && let Value::Object(fields) = counts.value()
    {
        for name in fields.keys() {
            all.insert(words::clipped(name), counts.needed(name)?);
        }
    }
    Ok(all)
}

fn right_first(cases: &[Case]) -> crate::picture::Picture {
    let title = "How often the right cause came first";
    let columns = [
        "injected",
        "options",
        "expected",
        "#MiB/s",
        "#right first",
        "#among three",
        "#gain at most, %",
        "#without it, %",
        "remedy tried",
    ];
    let of =
        |count: f64, case: &Case| format!("{} of {}", words::whole(count), words::whole(case.runs));
    let tried = |case: &Case| {
        let each = case.outcomes.iter();
        let each = each.map(|(outcome, times)| format!("{outcome} {}", words::whole(*times)));
        each.collect::<Vec<_>>().join(", ")
    };
    let share = |case: &Case| {
        let share = if case.runs > 0.0 {
            case.right / case.runs
        } else {
            0.0
        };
        let mebi = f64::from(1 << 20);
        let rate = case.rate.map(|it| words::number(it / mebi));
        let gain = |it: Option<f64>| it.map_or_else(String::new, |it| words::signed(it * 100.0));
        Share {
            label: case.injected.clone(),
            share,
            hollow: 0.0,
            is_marked: share < 1.0,
            value: match share < 1.0 {
                true => format!("✗ {}", of(case.right, case)),
                false => of(case.right, case),
            },
            cells: vec![
                case.injected.clone(),
                case.options.clone(),
                case.expected.join(", "),
                rate.unwrap_or_default(),
                of(case.right, case),
                of(case.among_three, case),
                gain(case.gains[0]),
                gain(case.gains[1]),
                tried(case),
            ],
        }
    };
    let missed: Vec<&str> = cases
        .iter()
        .filter(|it| it.right < it.runs)
        .map(|it| it.injected.as_str())
        .collect();
    let description = match missed.as_slice() {
        [] => "The right cause came first in every run of every case.".into(),
        missed => words::clipped(&format!(
            "Not always right: {}. All others: in every run.",
            missed.join(", ")
        )),
    };
    shares::picture(
        title,
        description,
        "Bars: share of the runs. ✗ marks cases in which another cause came first at least once.",
        Table::new(title, columns),
        cases.iter().map(share).collect(),
    )
}

/// Rows are what was injected, columns the causes that were named.
fn named(cases: &[Case]) -> Table {
    let mut causes: Vec<&String> = Vec::new();
    for cause in cases.iter().flat_map(|it| it.first.keys()) {
        if causes.len() < CAUSES_MAX && !causes.contains(&cause) {
            causes.push(cause);
        }
    }
    let mut table = Table::new("Injected faults and the causes named first", ["injected"]);
    table.is_narrow = true;
    table.columns.extend(causes.iter().map(|name| Column {
        name: (*name).clone(),
        is_numeric: true,
    }));
    for case in cases {
        let mut cells = vec![Cell::from(case.injected.clone())];
        for cause in &causes {
            let is_right = case.expected.contains(cause);
            let count = case.first.get(*cause).copied().unwrap_or_default();
            cells.push(match (count > 0.0, is_right) {
                (true, true) => Cell {
                    text: format!("{} ✓", words::whole(count)),
                    mark: Mark::Good,
                },
                (true, false) => Cell {
                    text: format!("{} ✗", words::whole(count)),
                    mark: Mark::Bad,
                },
                (false, _) => Cell::from(""),
            });
        }
        table.row(cells);
    }
    table
}
