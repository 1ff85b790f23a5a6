//! What a diagnosis found, in the order of what it could bring.

use maud::{Markup, html};

use super::{headings, tables};
use crate::section::Found;

/// All findings, with headings of this level.
pub(super) fn findings(all: &[Found], level: u8) -> Markup {
    html! {
        ol.findings {
            @for found in all {
                li class=[found.is_withdrawn.then_some("withdrawn")] { (finding(found, level)) }
            }
        }
    }
}

fn finding(found: &Found, level: u8) -> Markup {
    let cause = html! {
        (found.cause)
        @if found.is_withdrawn { " " span { "(withdrawn)" } }
    };
    html! {
        (headings::heading(level, "cause", &cause))
        p { (found.sentence) }
        dl.facts {
            div { dt { "part" } dd { (found.part) } }
            @if let Some(weight) = &found.weight {
                div { dt { "confidence" } dd { (weight.confidence) } }
                div { dt { "gain without it" } dd { (weight.gain) } }
            }
        }
        @if !found.evidence.rows.is_empty() { (tables::table(&found.evidence)) }
        dl.remedy {
            div {
                dt { "Remedy" }
                dd {
                    (found.remedy)
                    @if let Some(change) = &found.change { " " code { (change) } }
                }
            }
            @if let Some(tried) = &found.tried { div { dt { "Tried" } dd { (tried) } } }
        }
    }
}
