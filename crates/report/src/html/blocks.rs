//! The parts of a section.

use maud::{Markup, html};

use super::{findings, tables};
use crate::picture::Picture;
use crate::section::{Block, Fact};
use crate::svg;

/// Counts the pictures of a page.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pictures: usize,
}

/// One part.
pub(super) fn block(block: &Block, numbers: &mut Numbers) -> Markup {
    match block {
        Block::Heading(text) => html! { h3 { (text) } },
        Block::Text(text) => html! { p { (text) } },
        Block::Facts(all) => facts(all, "facts"),
        Block::Picture(picture) => figure(picture, numbers),
        Block::Table(table) => tables::table(table),
        Block::Findings(found) => findings::findings(found),
    }
}

/// Names and what they have.
pub(super) fn facts(facts: &[Fact], class: &str) -> Markup {
    html! {
        @if !facts.is_empty() {
            dl class=(class) {
                @for fact in facts {
                    div {
                        dt { (fact.name) }
                        dd { @if fact.is_code { code { (fact.value) } } @else { (fact.value) } }
                    }
                }
            }
        }
    }
}

/// A picture, how to read it, and the table of its figures.
fn figure(picture: &Picture, numbers: &mut Numbers) -> Markup {
    numbers.pictures += 1;
    html! {
        h3 { (picture.title) }
        figure {
            (svg::drawn(picture, numbers.pictures))
            figcaption { (picture.legend) }
            details {
                summary { "All figures as a table" }
                (tables::table(&picture.table))
            }
        }
    }
}
