//! Pictures as SVG that fits any width.
//!
//! Places on an axis are in percent, and all else is in pixels. So letters keep their size. Names of rows are no part of the
//! SVG: the style sheet puts them beside it, or, on a narrow page, above their marks.

mod panels;
mod rows;

use maud::{Markup, html};

use crate::picture::{Drawing, Picture};

/// Draws a picture; `number` tells it from the others of the page.
pub(crate) fn drawn(picture: &Picture, number: usize) -> Markup {
    match &picture.drawing {
        Drawing::Rows(rows) => html! {
            div.rows.tall[rows::is_long(rows)] style=(rows::style(rows)) {
                (rows::names(rows))
                (svg(picture, number, &rows::marks(rows)))
            }
        },
        Drawing::Panels(panels) => html! {
            div.panels { (svg(picture, number, &panels::drawn(panels))) }
        },
    }
}

fn svg(picture: &Picture, number: usize, inside: &Markup) -> Markup {
    let height = match &picture.drawing {
        Drawing::Rows(_) => None,
        Drawing::Panels(panels) => Some(panels::height(panels)),
    };
    html! {
        svg height=[height] role="img" aria-labelledby={ "t" (number) " d" (number) } {
            title id={ "t" (number) } { (picture.title) }
            desc id={ "d" (number) } { (picture.description) }
            (inside)
        }
    }
}

/// A place on an axis, in percent.
fn percent(place: f64) -> String {
    format!("{place:.2}%")
}

/// Where a label may grow to: not beyond the ends of the axis.
fn anchor(place: f64) -> &'static str {
    match place {
        it if it < 4.0 => "start",
        it if it > 96.0 => "end",
        _ => "middle",
    }
}
