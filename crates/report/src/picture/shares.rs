//! Shares of time: a bar each.

use super::scale::Scale;
use super::{Drawing, Group, Marks, Picture, Row, Rows, Tone};
use crate::table::Table;
use crate::words;

/// A share, and what is known of it.
#[derive(Debug)]
pub(crate) struct Share {
    pub label: String,
    /// 0 to 1.
    pub share: f64,
    /// Of that, what is drawn hollow.
    pub hollow: f64,
    /// Whether this one is what the picture is about.
    pub is_marked: bool,
    pub value: String,
    /// The row of the table.
    pub cells: Vec<String>,
}

/// A picture of shares. `table` has a heading for each cell of a [`Share`].
pub(crate) fn picture(
    title: impl Into<String>,
    description: String,
    legend: &str,
    mut table: Table,
    shares: Vec<Share>,
) -> Picture {
    let mut rows = Vec::new();
    for share in shares {
        let all = share.share.clamp(0.0, 1.0);
        let hollow = share.hollow.clamp(0.0, all);
        rows.push(Row {
            label: words::label(&share.label),
            value: words::label(&share.value),
            marks: Marks::Bar {
                share: all - hollow,
                hollow,
                tone: if share.is_marked {
                    Tone::Strong
                } else {
                    Tone::Plain
                },
            },
        });
        table.row(share.cells);
    }
    let groups = vec![Group {
        title: String::new(),
        rows,
    }];
    Picture {
        title: title.into(),
        description,
        legend: legend.to_owned(),
        drawing: Drawing::Rows(Rows {
            scale: Scale::shares(),
            equal: None,
            groups,
        }),
        table,
    }
}
