//! The parts of a section.

use maud::{Markup, html};

use super::{findings, headings, tables};
use crate::picture::Picture;
use crate::section::{Block, Fact};
use crate::svg;

/// Where on the page a part stands.
#[derive(Debug)]
pub(super) struct Place {
    /// The level of its heading.
    level: u8,
    /// Pictures before it.
    pictures: usize,
}

impl Place {
    /// At the top of a page whose parts have headings of this level.
    pub fn new(level: u8) -> Self {
        Self { level, pictures: 0 }
    }
}

/// One part.
pub(super) fn block(block: &Block, place: &mut Place) -> Markup {
    match block {
        Block::Heading(text) => headings::heading(place.level, "part", &html! { (text) }),
        Block::Text(text) => html! { p { (text) } },
        Block::Facts(all) => facts(all, "facts"),
        Block::More(name, all) => html! {
            details { summary { (name) } (facts(all, "facts")) }
        },
        Block::Picture(picture) => figure(picture, place),
        Block::Table(table) => tables::table(table),
        Block::Findings(found) => findings::findings(found, place.level + 1),
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
fn figure(picture: &Picture, place: &mut Place) -> Markup {
    place.pictures += 1;
    html! {
        (headings::heading(place.level, "part", &html! { (picture.title) }))
        figure {
            (svg::drawn(picture, place.pictures))
            figcaption { (picture.legend) }
            details {
                summary { "All figures as a table" }
                (tables::table(&picture.table))
            }
        }
    }
}
