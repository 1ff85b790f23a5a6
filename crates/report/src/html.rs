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
    let titles = report.titles();
    let sections: Vec<Markup> = (report.sections.iter().zip(&titles).enumerate())
        .map(|(index, (it, title))| section(it, index, is_titled.then_some(title), &mut place))
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
                    @if report.sections.len() > 1 { (contents(&report.sections, &titles)) }
                }
                main { @for section in sections { (section) } }
                footer {
                    p { "Made by " code { "embar report" } " from what the commands printed. Intervals are of 95 % unless another level stands with them." }
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
fn contents(sections: &[Section], titles: &[String]) -> Markup {
    html! {
        nav aria-label="Results" {
            ol {
                @for (index, (section, title)) in sections.iter().zip(titles).enumerate() {
                    li {
                        a href={ "#s" (index + 1) } { (title) }
                        @if !section.says.is_empty() { span { (section.says) } }
                    }
                }
            }
        }
    }
}

fn section(section: &Section, index: usize, title: Option<&String>, place: &mut Place) -> Markup {
    html! {
        section id={ "s" (index + 1) } class=[title.is_some().then_some("titled")] {
            @if let Some(title) = title { h2.title { (title) } }
            @if !section.says.is_empty() { p.says { (section.says) } }
            (blocks::facts(&section.origin, "origin"))
            @for block in &section.blocks { (blocks::block(block, place)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::STYLE;

    /// How much lighter the lighter one of two colours is, as the Web Content Accessibility Guidelines count.
    fn contrast(one: u32, other: u32) -> f64 {
        let light = |color: u32| {
            let [_, parts @ ..] = color.to_be_bytes();
            let parts = parts.map(|it| match f64::from(it) / 255.0 {
                dark if dark <= 0.040_45 => dark / 12.92,
                part => ((part + 0.055) / 1.055).powf(2.4),
            });
            0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] + 0.05
        };
        let (one, other) = (light(one), light(other));
        one.max(other) / one.min(other)
    }

    #[test]
    fn the_empty_part_of_a_bar_can_be_seen_in_each_theme() {
        let themes: Vec<&str> = STYLE.split(":root{").skip(1).collect();
        assert_eq!(themes.len(), 3, "light, dark, print");
        for theme in themes {
            let color = |name: &str| {
                let (_, rest) = theme.split_once(&format!("--{name}:#")).expect(name);
                let digits = rest.split([';', '}']).next().expect("digits");
                let full: String = match digits.len() {
                    3 => digits.chars().flat_map(|it| [it, it]).collect(),
                    _ => digits.to_owned(),
                };
                u32::from_str_radix(&full, 16).expect("a colour")
            };
            let track = color("track");
            assert!(contrast(track, color("paper")) >= 1.5, "{theme}");
            assert!(contrast(track, color("plain")) >= 3.0, "{theme}");
            assert!(contrast(track, color("strong")) >= 3.0, "{theme}");
        }
    }
}
