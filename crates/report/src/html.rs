//! The page.

mod blocks;
mod findings;
mod headings;
mod tables;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::Report;
use crate::section::Section;
use blocks::Place;

/// The style sheet stands in the page: there is nothing to load.
const STYLE: &str = concat!(
    include_str!("html/page.css"),
    include_str!("html/pictures.css")
);
/// Forbids all that a page could load or run, whatever stands in it.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// The whole page.
pub(crate) fn page(report: &Report) -> String {
    let title = title(report);
    // The title of the page is that of its only section, which needs none of its own.
    let is_titled = report.title.is_some() || report.sections.len() > 1;
    let mut place = Place::new(if is_titled { 3 } else { 2 });
    let sections: Vec<Markup> = report
        .sections
        .iter()
        .enumerate()
        .map(|(index, it)| section(it, index, is_titled, &mut place))
        .collect();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (title) }
                    @if let Some(made) = &report.made { p.made { "Report made on " (made) } }
                    @if report.sections.len() > 1 { (contents(&report.sections)) }
                }
                main { @for section in sections { (section) } }
                footer {
                    p { "Made by " code { "embar report" } " from what the commands printed. Intervals are of 95 % unless they say otherwise." }
                }
            }
        }
    };
    page.into_string()
}

fn title(report: &Report) -> String {
    match (&report.title, report.sections.as_slice()) {
        (Some(title), _) => crate::words::clipped(title),
        (None, [only]) => only.title.clone(),
        (None, all) => format!("{} results", all.len()),
    }
}

/// What each section says, in one line.
fn contents(sections: &[Section]) -> Markup {
    html! {
        nav aria-label="Results" {
            ol {
                @for (index, section) in sections.iter().enumerate() {
                    li {
                        a href={ "#s" (index + 1) } { (section.title) }
                        @if !section.says.is_empty() { span { (section.says) } }
                    }
                }
            }
        }
    }
}

fn section(section: &Section, index: usize, is_titled: bool, place: &mut Place) -> Markup {
    html! {
        section id={ "s" (index + 1) } class=[is_titled.then_some("titled")] {
            @if is_titled { h2.title { (section.title) } }
            @if !section.says.is_empty() { p.says { (section.says) } }
            (blocks::facts(&section.origin, "origin"))
            @for block in &section.blocks { (blocks::block(block, place)) }
        }
    }
}
