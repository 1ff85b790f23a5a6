//! Pictures as figures: what is to be drawn, and the table of the same figures. A file for each kind makes both at once, so that
//! they cannot differ.

pub(crate) mod over_time;
pub(crate) mod percentiles;
pub(crate) mod ratios;
pub(crate) mod scale;
pub(crate) mod shares;
pub(crate) mod trials;

use scale::Scale;

use crate::table::Table;

/// A picture, and what is known of it without seeing it.
#[derive(Debug)]
pub(crate) struct Picture {
    pub title: String,
    /// What it shows, in a sentence or two.
    pub description: String,
    /// How to read its marks.
    pub legend: String,
    pub drawing: Drawing,
    pub table: Table,
}

#[derive(Debug)]
pub(crate) enum Drawing {
    Rows(Rows),
    Panels(Panels),
}

/// Rows below each other on one axis.
#[derive(Debug)]
pub(crate) struct Rows {
    pub scale: Scale,
    /// A number that all are compared with.
    pub equal: Option<f64>,
    pub groups: Vec<Group>,
}

/// Rows that belong together.
#[derive(Debug)]
pub(crate) struct Group {
    /// Empty for none.
    pub title: String,
    pub rows: Vec<Row>,
}

/// One row: its name, its marks, its figures in short.
#[derive(Debug)]
pub(crate) struct Row {
    pub label: String,
    pub value: String,
    pub marks: Marks,
}

/// What stands on the axis.
#[derive(Debug)]
pub(crate) enum Marks {
    Bar {
        /// The filled part.
        share: f64,
        /// What follows it, drawn hollow.
        hollow: f64,
        tone: Tone,
    },
    Whisker {
        point: f64,
        low: f64,
        high: f64,
        aim: Option<f64>,
        tone: Tone,
        /// Whether the dot is filled.
        is_filled: bool,
    },
    /// Of rising rank; at most five are told apart.
    Points(Vec<f64>),
}

/// What a mark says; its colour, and never the colour alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// More than, or most of all.
    Strong,
    /// Less than.
    Weak,
    Plain,
}

/// Series in panels of one height and scale.
#[derive(Debug)]
pub(crate) struct Panels {
    pub scale: Scale,
    pub across: Across,
    pub panels: Vec<Panel>,
}

/// What goes from left to right in panels.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Across {
    /// The first, the second, and so on.
    Order,
    /// So many seconds, and where in them the middle of each step is, 0 to 1.
    Time(f64, Vec<f64>),
}

#[derive(Debug)]
pub(crate) struct Panel {
    pub label: String,
    pub value: String,
    pub values: Vec<f64>,
    pub median: f64,
}
