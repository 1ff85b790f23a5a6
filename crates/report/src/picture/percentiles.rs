//! Percentiles of times, on a logarithmic axis.

use super::scale::Scale;
use super::{Drawing, Group, Marks, Picture, Row, Rows};
use crate::table::Table;
use crate::words;

/// The percentiles that the benches print, by their fields, in their order.
pub(crate) const FIELDS: [(&str, &str); 5] = [
    ("p50", "p50"),
    ("p90", "p90"),
    ("p99", "p99"),
    ("p999", "p99.9"),
    ("max", "max"),
];

/// Their marks, as the picture draws them.
const SIGNS: [&str; FIELDS.len()] = ["●", "|", "○", "■", "◇"];

/// Times of one kind of message.
#[derive(Debug)]
pub(crate) struct Times {
    pub label: String,
    /// Microseconds, one for each of [`FIELDS`].
    pub micros: [Option<f64>; FIELDS.len()],
    /// What the table says besides, behind them.
    pub cells: Vec<String>,
}

/// A picture of times in groups. `more` are the headings of what the table says besides.
pub(crate) fn picture(
    title: impl Into<String>,
    description: String,
    more: &[&str],
    groups: Vec<(String, Vec<Times>)>,
) -> Picture {
    let title = title.into();
    // Columns that no row fills say nothing.
    let is_there = |index: &usize| {
        let mut all = groups.iter().flat_map(|group| &group.1);
        all.any(|times| times.micros[*index].is_some())
    };
    let there: Vec<usize> = (0..FIELDS.len()).filter(is_there).collect();
    let signs: Vec<String> = there
        .iter()
        .map(|index| format!("{} {}", SIGNS[*index], FIELDS[*index].1))
        .collect();
    let mut columns = vec!["of".to_owned()];
    columns.extend(there.iter().map(|index| format!("#{}", FIELDS[*index].1)));
    columns.extend(more.iter().map(|name| format!("#{name}")));
    let mut table = Table::new(title.clone(), columns.iter().map(String::as_str));
    let numbers = groups.iter().flat_map(|group| &group.1);
    let scale = Scale::micros(numbers.flat_map(|times| times.micros.into_iter().flatten()));
    let mut drawn = Vec::new();
    for (group, lines) in groups {
        let mut rows = Vec::new();
        for times in lines {
            let name = match group.as_str() {
                "" => times.label.clone(),
                group => format!("{group}: {}", times.label),
            };
            let shown = |index: &usize| times.micros[*index].map(words::micros);
            let cells = there.iter().map(|index| shown(index).unwrap_or_default());
            table.row(
                std::iter::once(name)
                    .chain(cells)
                    .chain(times.cells.clone()),
            );
            let ends = [0, 2].iter().filter_map(|index| {
                let shown = shown(index)?;
                Some(format!("{} {shown}", FIELDS[*index].1))
            });
            rows.push(Row {
                label: words::label(&times.label),
                value: ends.collect::<Vec<_>>().join(", "),
                marks: Marks::Points(times.micros.map(|it| it.unwrap_or(0.0)).into()),
            });
        }
        drawn.push(Group { title: group, rows });
    }
    Picture {
        title,
        description,
        legend: format!("{}. The axis is logarithmic.", signs.join(" · ")),
        drawing: Drawing::Rows(Rows {
            scale,
            equal: None,
            groups: drawn,
        }),
        table,
    }
}
