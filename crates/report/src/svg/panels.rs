//! Panels of trials, below each other, on one scale.

use maud::{Markup, html};

use super::{anchor, percent};
use crate::picture::{Panel, Panels};

/// Of more trials the dots would be a band: only the line is drawn.
const DOTS_MAX: usize = 60;
/// More trials are not drawn one by one, but each n-th.
const POINTS_MAX: usize = 400;
/// Names of trials below the axis, at most.
const NAMES: usize = 10;

pub(super) fn style(panels: &Panels) -> String {
    format!("--rows:{}", panels.panels.len())
}

pub(super) fn drawn(panels: &Panels) -> Markup {
    let last = panels.panels.len().saturating_sub(1);
    html! {
        @for (index, panel) in panels.panels.iter().enumerate() {
            g.row style={ "--row:" (index) } {
                text.name x="0" { (panel.label) }
                text.value x="100%" text-anchor="end" { (panel.value) }
                svg.plot { (plot(panels, panel, index == last)) }
            }
        }
    }
}

fn plot(panels: &Panels, panel: &Panel, is_last: bool) -> Markup {
    let y = |value: f64| 100.0 - panels.scale.place(value).unwrap_or_default();
    let count = panel.values.len();
    let x = |index: usize| (index as f64 + 0.5) / count as f64 * 100.0;
    let every = count.div_ceil(POINTS_MAX);
    let drawn = panel.values.iter().enumerate().step_by(every);
    let points: Vec<(f64, f64)> = drawn.map(|(index, it)| (x(index), y(*it))).collect();
    let (low, high) = (panels.scale.ticks.first(), panels.scale.ticks.last());
    let name_every = count.div_ceil(NAMES);
    html! {
        @for (value, name) in low.into_iter().chain(high) {
            @let at = percent(y(*value));
            line.grid x1="0" x2="100%" y1=(at) y2=(at) {}
            text.tick x="-8" y=(at) dy="4" text-anchor="end" { (name) }
        }
        line.median x1="0" x2="100%" y1=(percent(y(panel.median))) y2=(percent(y(panel.median))) {}
        @for pair in points.windows(2) {
            line.trace x1=(percent(pair[0].0)) y1=(percent(pair[0].1)) x2=(percent(pair[1].0)) y2=(percent(pair[1].1)) {}
        }
        @if points.len() <= DOTS_MAX {
            @for (x, y) in &points { circle.dot cx=(percent(*x)) cy=(percent(*y)) r="3.5" {} }
        }
        @if is_last {
            @for index in (0..count).step_by(name_every) {
                text.tick x=(percent(x(index))) y="100%" dy="18" text-anchor=(anchor(x(index))) { (index + 1) }
            }
        }
    }
}
