//! Pictures as SVG that fits any width.
//!
//! Places on an axis are in percent, texts in pixels, and the style sheet says where rows and axes begin. So letters keep their
//! size, and on a narrow page a row becomes two lines: its name and figures above, its marks below.

mod panels;
mod rows;

use maud::{Markup, html};

use crate::picture::{Drawing, Picture};

/// Draws a picture; `number` tells it from the others of the page.
pub(crate) fn drawn(picture: &Picture, number: usize) -> Markup {
    let (class, style, inside) = match &picture.drawing {
        Drawing::Rows(rows) => ("picture rows", rows::style(rows), rows::drawn(rows)),
        Drawing::Panels(panels) => ("picture panels", panels::style(panels), panels::drawn(panels)),
    };
    html! {
        svg class=(class) style=(style) role="img" aria-labelledby={ "t" (number) " d" (number) } {
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
