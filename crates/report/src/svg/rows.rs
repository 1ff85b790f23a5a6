//! Rows of bars, of dots with their intervals, or of points.

use maud::{Markup, html};

use super::{anchor, percent};
use crate::picture::scale::Scale;
use crate::picture::{Marks, Row, Rows, Tone};
use crate::words;

/// The widest that names of rows may be, in pixels.
const LABEL_MAX: usize = 270;

/// What the style sheet has to know: how many rows and headings there are, and how wide the texts are.
pub(super) fn style(rows: &Rows) -> String {
    let all = || rows.groups.iter().flat_map(|group| &group.rows);
    let headings = rows.groups.iter().filter(|it| !it.title.is_empty()).count();
    let widest = |of: fn(&Row) -> &String| all().map(|row| words::width(of(row))).max();
    let label = widest(|row| &row.label).unwrap_or(0).min(LABEL_MAX) + 12;
    let value = widest(|row| &row.value).unwrap_or(0) + 16;
    let count = all().count();
    format!("--rows:{count};--headings:{headings};--label:{label}px;--value:{value}px")
}

pub(super) fn drawn(rows: &Rows) -> Markup {
    let (mut row_number, mut heading_number) = (0, 0);
    let mut placed = Vec::new();
    for group in &rows.groups {
        let is_titled = !group.title.is_empty();
        if is_titled {
            let style = format!("--row:{row_number};--heading:{heading_number}");
            placed.push(html! {
                g.row style=(style) { text.heading x="0" { (group.title) } }
            });
            heading_number += 1;
        }
        for row in &group.rows {
            let style = format!("--row:{row_number};--heading:{heading_number}");
            placed.push(html! {
                g.row style=(style) {
                    text x="0" { (row.label) }
                    text.value x="100%" text-anchor="end" { (row.value) }
                    svg.plot { (marks(&rows.scale, &row.marks)) }
                }
            });
            row_number += 1;
        }
    }
    html! {
        svg."plot axis" {
            @for (value, name) in &rows.scale.ticks {
                @let place = rows.scale.place(*value).unwrap_or_default();
                @let class = if rows.equal == Some(*value) { "equal" } else { "grid" };
                line class=(class) x1=(percent(place)) x2=(percent(place)) y1="0" y2="100%" {}
                text.tick x=(percent(place)) y="100%" dy="16" text-anchor=(anchor(place)) { (name) }
            }
        }
        @for row in placed { (row) }
    }
}

fn marks(scale: &Scale, marks: &Marks) -> Markup {
    match marks {
        Marks::Bar {
            share,
            hollow,
            tone,
        } => bar(*share, *hollow, *tone),
        Marks::Points(values) => points(scale, values),
        Marks::Whisker {
            point,
            low,
            high,
            aim,
            tone,
            is_filled,
        } => {
            // What is below a logarithmic axis begins at its end.
            let place = |value: &f64| scale.place(*value).unwrap_or_default();
            let dot = if *is_filled { "dot" } else { "ring" };
            html! {
                g class=(class(*tone)) {
                    line.range x1=(percent(place(low))) x2=(percent(place(high))) y1="50%" y2="50%" {}
                    @if let Some(aim) = aim.and_then(|aim| scale.place(aim)) {
                        line.aim x1=(percent(aim)) x2=(percent(aim)) y1="20%" y2="80%" {}
                    }
                    circle class=(dot) cx=(percent(place(point))) cy="50%" r="4" {}
                }
            }
        }
    }
}

fn bar(share: f64, hollow: f64, tone: Tone) -> Markup {
    let width = |share: f64| percent(share * 100.0);
    html! {
        rect.track x="0" y="25%" width="100%" height="50%" {}
        g class=(class(tone)) {
            @if share > 0.0 { rect.bar x="0" y="25%" width=(width(share)) height="50%" {} }
            @if hollow > 0.0 {
                rect.hollow x=(width(share)) y="25%" width=(width(hollow)) height="50%" {}
            }
        }
    }
}

/// Shapes tell percentiles apart, in the order of the legend.
fn points(scale: &Scale, values: &[f64]) -> Markup {
    let places: Vec<Option<f64>> = values.iter().map(|it| scale.place(*it)).collect();
    let there = || places.iter().flatten().copied();
    let (low, high) = (there().fold(100.0, f64::min), there().fold(0.0, f64::max));
    html! {
        g.plain {
            @if low < high {
                line.range x1=(percent(low)) x2=(percent(high)) y1="50%" y2="50%" {}
            }
            // Those that matter most come last, on top.
            @for (index, place) in places.iter().enumerate().rev() {
                @if let Some(x) = place.map(percent) {
                    @match index {
                        0 => { circle.dot cx=(x) cy="50%" r="4" {} }
                        1 => { line.aim x1=(x) x2=(x) y1="25%" y2="75%" {} }
                        2 => { circle.ring cx=(x) cy="50%" r="4" {} }
                        3 => { rect.dot x=(x) y="50%" width="7" height="7" transform="translate(-3.5 -3.5)" {} }
                        _ => { svg.diamond x=(x) y="50%" { path.ring d="M0-5L5 0L0 5L-5 0Z" {} } }
                    }
                }
            }
        }
    }
}

fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Strong => "strong",
        Tone::Weak => "weak",
        Tone::Plain => "plain",
    }
}
