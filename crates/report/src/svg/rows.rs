//! Rows of bars, of dots with their intervals, or of points.

use maud::{Markup, html};

use super::{anchor, percent};
use crate::picture::scale::Scale;
use crate::picture::{Group, Marks, Row, Rows, Tone};

/// Letters in a line of a phone.
const LINE: usize = 40;
/// The middle of the marks of a row, in pixels from where it begins.
const MIDDLE: &str = "12";

/// What the style sheet has to know: how many rows and headings there are, and of how many letters the texts are.
pub(super) fn style(rows: &Rows) -> String {
    let all = || rows.groups.iter().flat_map(|group| &group.rows);
    let headings = rows.groups.iter().filter(|it| has_heading(it)).count();
    let widest = |of: fn(&Row) -> &String| all().map(|row| of(row).chars().count()).max();
    // A digit is wider than most letters.
    let name = widest(|row| &row.label).unwrap_or(0) + 1;
    let value = widest(|row| &row.value).unwrap_or(0) + 1;
    let count = all().count();
    format!("--rows:{count};--headings:{headings};--name:{name}ch;--value:{value}ch")
}

/// Whether a name and its figures may be too long for one line of a phone.
pub(super) fn is_long(rows: &Rows) -> bool {
    let all = rows.groups.iter().flat_map(|group| &group.rows);
    let letters = |row: &Row| row.label.chars().count() + row.value.chars().count();
    all.map(letters).max().unwrap_or(0) > LINE
}

fn has_heading(group: &Group) -> bool {
    !group.title.is_empty()
}

/// The names of the rows and their figures. Those who do not see them have the picture's description and its table.
pub(super) fn names(rows: &Rows) -> Markup {
    html! {
        div.names aria-hidden="true" {
            @for group in &rows.groups {
                @if has_heading(group) { div.heading { span { (group.title) } } }
                @for row in &group.rows {
                    div.row { span.name { (row.label) } span.value { (row.value) } }
                }
            }
        }
    }
}

/// The axis and what stands on it.
pub(super) fn marks(rows: &Rows) -> Markup {
    let (mut row, mut heading) = (0, 0);
    let mut placed = Vec::new();
    for group in &rows.groups {
        heading += usize::from(has_heading(group));
        for one in &group.rows {
            let style = format!("--row:{row};--heading:{heading}");
            let tone = class(&one.marks);
            placed.push(html! {
                g class={ "row " (tone) } style=(style) { (mark(&rows.scale, &one.marks)) }
            });
            row += 1;
        }
    }
    html! {
        @for (value, name) in &rows.scale.ticks {
            @let place = rows.scale.place(*value).unwrap_or_default();
            @let class = if rows.equal == Some(*value) { "equal" } else { "grid" };
            line class=(class) x1=(percent(place)) x2=(percent(place)) y1="0" y2="100%" {}
            text x=(percent(place)) y="100%" dy="16" text-anchor=(anchor(place)) { (name) }
        }
        @for row in placed { (row) }
    }
}

fn mark(scale: &Scale, marks: &Marks) -> Markup {
    match marks {
        Marks::Bar { share, hollow, .. } => bar(*share, *hollow),
        Marks::Points(values) => points(scale, values),
        Marks::Whisker {
            point,
            low,
            high,
            aim,
            is_filled,
            ..
        } => {
            // What is below a logarithmic axis begins at its end.
            let place = |value: &f64| scale.place(*value).unwrap_or_default();
            let dot = if *is_filled { "dot" } else { "ring" };
            html! {
                line.range x1=(percent(place(low))) x2=(percent(place(high))) y1=(MIDDLE) y2=(MIDDLE) {}
                @if let Some(aim) = aim.and_then(|aim| scale.place(aim)) {
                    line.aim x1=(percent(aim)) x2=(percent(aim)) y1="4" y2="20" {}
                }
                circle class=(dot) cx=(percent(place(point))) cy=(MIDDLE) r="4" {}
            }
        }
    }
}

fn bar(share: f64, hollow: f64) -> Markup {
    let width = |share: f64| percent(share * 100.0);
    html! {
        rect.track x="0" y="6" width="100%" height="12" {}
        @if share > 0.0 { rect.bar x="0" y="6" width=(width(share)) height="12" {} }
        @if hollow > 0.0 {
            rect.hollow x=(width(share)) y="6.75" width=(width(hollow)) height="10.5" {}
        }
    }
}

/// Shapes tell percentiles apart, in the order of the legend.
fn points(scale: &Scale, values: &[f64]) -> Markup {
    let places: Vec<Option<f64>> = values.iter().map(|it| scale.place(*it)).collect();
    let there = || places.iter().flatten().copied();
    let (low, high) = (there().fold(100.0, f64::min), there().fold(0.0, f64::max));
    html! {
        @if low < high {
            line.range x1=(percent(low)) x2=(percent(high)) y1=(MIDDLE) y2=(MIDDLE) {}
        }
        // Those that matter most come last, on top.
        @for (index, place) in places.iter().enumerate().rev() {
            @if let Some(x) = place.map(percent) {
                @match index {
                    0 => { circle.dot cx=(x) cy=(MIDDLE) r="4" {} }
                    1 => { line.stroke x1=(x) x2=(x) y1="6" y2="18" {} }
                    2 => { circle.ring cx=(x) cy=(MIDDLE) r="4" {} }
                    3 => { rect.dot x=(x) y="8.5" width="7" height="7" transform="translate(-3.5)" {} }
                    _ => { svg x=(x) y=(MIDDLE) { path.ring d="M0-5L5 0L0 5L-5 0Z" {} } }
                }
            }
        }
    }
}

fn class(marks: &Marks) -> &'static str {
    match marks {
        Marks::Points(_) => "plain",
        Marks::Bar { tone, .. } | Marks::Whisker { tone, .. } => match tone {
            Tone::Strong => "strong",
            Tone::Weak => "weak",
            Tone::Plain => "plain",
        },
    }
}
