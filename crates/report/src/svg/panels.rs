//! Panels of trials, or of what happened over time, below each other, on one scale.

use maud::{Markup, html};

use super::{anchor, percent};
use crate::picture::scale::Scale;
use crate::picture::{Across, Panel, Panels};
use crate::words;

/// Of more trials the dots would be a band: only the line is drawn.
const DOTS_MAX: usize = 60;
/// More trials are not drawn one by one, but each n-th.
const POINTS_MAX: usize = 400;
/// Numbers of trials below the axis, at most.
const NAMES: usize = 10;

/// Of a panel, in pixels: from its name to the next one's.
const PITCH: usize = 108;
/// Where its plot begins.
const TOP: f64 = 28.0;
/// How high the plot is.
const PLOT: f64 = 60.0;
/// Below the last plot: the names of the trials.
const FOOT: usize = 12;
/// The margin of the style sheet, in which the numbers of the axis stand.
const MARGIN: &str = "-52";

/// Of the picture, in pixels.
pub(super) fn height(panels: &Panels) -> usize {
    panels.panels.len() * PITCH + FOOT
}

pub(super) fn drawn(panels: &Panels) -> Markup {
    let last = panels.panels.len().saturating_sub(1);
    html! {
        @for (index, panel) in panels.panels.iter().enumerate() {
            g transform={ "translate(0 " (index * PITCH) ")" } {
                text.name x=(MARGIN) y="14" { (panel.label) }
                text.value x="100%" y="14" text-anchor="end" { (panel.value) }
                (plot(panels, panel))
                @if index == last { (axis(&panels.across, panel.values.len())) }
            }
        }
    }
}

fn plot(panels: &Panels, panel: &Panel) -> Markup {
    let y = |value: f64| {
        let place = panels.scale.place(value).unwrap_or_default();
        format!("{:.1}", TOP + PLOT * (1.0 - place / 100.0))
    };
    let count = panel.values.len();
    let every = count.div_ceil(POINTS_MAX);
    let drawn = panel.values.iter().enumerate().step_by(every);
    let points: Vec<(String, String)> = drawn
        .map(|(index, it)| (percent(x(&panels.across, index, count)), y(*it)))
        .collect();
    let ends = [panels.scale.ticks.first(), panels.scale.ticks.last()];
    html! {
        @for (value, name) in ends.into_iter().flatten() {
            line.grid x1="0" x2="100%" y1=(y(*value)) y2=(y(*value)) {}
            text x="-8" y=(y(*value)) dy="4" text-anchor="end" { (name) }
        }
        line.median x1="0" x2="100%" y1=(y(panel.median)) y2=(y(panel.median)) {}
        @for pair in points.windows(2) {
            line.trace x1=(pair[0].0) y1=(pair[0].1) x2=(pair[1].0) y2=(pair[1].1) {}
        }
        @if points.len() <= DOTS_MAX {
            @for (x, y) in &points { circle.dot cx=(x) cy=(y) r="3.5" {} }
        }
    }
}

/// Where a trial or a step is, in percent.
fn x(across: &Across, index: usize, count: usize) -> f64 {
    let middle = match across {
        Across::Order => None,
        Across::Time(_, middles) => middles.get(index).copied(),
    };
    middle.unwrap_or((index as f64 + 0.5) / count as f64) * 100.0
}

/// What stands below: the numbers of the trials, or the time.
fn axis(across: &Across, count: usize) -> Markup {
    let names: Vec<(f64, String)> = match across {
        Across::Order => (0..count)
            .step_by(count.div_ceil(NAMES).max(1))
            .map(|index| (x(across, index, count), (index + 1).to_string()))
            .collect(),
        Across::Time(span, _) => Scale::until(*span)
            .into_iter()
            .map(|seconds| (seconds / span * 100.0, time(seconds)))
            .collect(),
    };
    html! {
        @for (place, name) in names {
            text x=(percent(place)) y=(TOP + PLOT) dy="18" text-anchor=(anchor(place)) { (name) }
        }
    }
}

fn time(seconds: f64) -> String {
    if seconds > 0.0 {
        words::micros(seconds * 1e6)
    } else {
        "0".to_owned()
    }
}
