//! Headings, whose level is that of where they stand.

use maud::{Markup, html};

/// A heading of level 2, 3 or 4.
pub(super) fn heading(level: u8, class: &str, text: &Markup) -> Markup {
    html! {
        @match level {
            2 => { h2 class=(class) { (text) } }
            3 => { h3 class=(class) { (text) } }
            _ => { h4 class=(class) { (text) } }
        }
    }
}
