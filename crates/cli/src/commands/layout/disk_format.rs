//! What is in the files of a disk, byte by byte.

use std::fmt::Write as _;

use anyhow::Result;
use embar_broker::journal::facts::FACTS;
use embar_disk::format::{Field, LAYOUTS, Layout, VERSION};
use serde::Serialize;

use crate::context::Context;

/// Where lines are broken.
const COLUMNS: usize = 100;
/// Where what a field means begins.
const MEANING_AT: usize = 34;

#[derive(Serialize)]
struct Format {
    version: u32,
    parts: Vec<Part>,
}

#[derive(Serialize)]
struct Part {
    name: &'static str,
    about: &'static str,
    bytes: usize,
    /// What its run says that it is about, if it is a fact.
    fact: Option<u16>,
    key: Option<&'static str>,
    fields: Vec<FieldReport>,
}

#[derive(Serialize)]
struct FieldReport {
    name: &'static str,
    offset: usize,
    bytes: usize,
    meaning: &'static str,
}

impl From<&Field> for FieldReport {
    fn from(field: &Field) -> Self {
        Self {
            name: field.name,
            offset: field.offset,
            bytes: field.bytes,
            meaning: field.meaning.trim(),
        }
    }
}

impl Part {
    fn new(layout: &Layout, fact: Option<(u16, &'static str)>) -> Self {
        Self {
            name: layout.name,
            about: layout.about.trim(),
            bytes: layout.bytes,
            fact: fact.map(|(about, _)| about),
            key: fact.map(|(_, key)| key),
            fields: layout.fields.iter().map(FieldReport::from).collect(),
        }
    }
}

/// Prints it.
pub fn run(context: &Context) -> Result<()> {
    let format = format();
    context.output.report(&format, text(&format).trim_end())
}

fn format() -> Format {
    let files = LAYOUTS.iter().map(|layout| Part::new(layout, None));
    let facts = FACTS.iter();
    let facts = facts.map(|fact| Part::new(&fact.layout, Some((fact.about, fact.key))));
    Format {
        version: VERSION,
        parts: files.chain(facts).collect(),
    }
}

fn text(format: &Format) -> String {
    let mut text = format!("format of a disk, version {}\n", format.version);
    text += "all numbers are little-endian, all checksums CRC-32C\n";
    for part in &format.parts {
        let name = match (part.fact, part.key) {
            (Some(about), Some(key)) => {
                format!("fact about {about}, key {key}: {}", part.name)
            }
            _ => part.name.to_owned(),
        };
        let _never_fails = writeln!(text, "\n{name}, {} bytes", part.bytes);
        for line in wrapped(part.about, COLUMNS - 2) {
            let _never_fails = writeln!(text, "  {line}");
        }
        for field in &part.fields {
            let mut left = format!("  {:>6} {:>5}  {}", field.offset, field.bytes, field.name);
            for line in wrapped(field.meaning, COLUMNS - MEANING_AT) {
                let _never_fails = writeln!(text, "{left:<MEANING_AT$}{line}");
                left.clear();
            }
        }
    }
    text
}

/// A text in lines of at most so many columns.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_leave_no_gap_and_lines_fit() {
        for part in format().parts {
            let mut end = 0;
            for field in &part.fields {
                assert_eq!(field.offset, end, "{}.{}", part.name, field.name);
                assert!(!field.meaning.is_empty(), "{}.{}", part.name, field.name);
                end += field.bytes;
            }
            assert_eq!(end, part.bytes, "{}", part.name);
        }
        let text = text(&format());
        let long = text.lines().find(|line| line.chars().count() > COLUMNS);
        assert_eq!(long, None);
    }

    #[test]
    fn the_page_about_the_format_shows_what_is_printed() {
        let page = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/architecture/disk-format.md"
        );
        let page = std::fs::read_to_string(page).expect("the page is there");
        let shown = page.split("```").nth(1).expect("it shows the format");
        let shown = shown.strip_prefix("text\n").expect("as text");
        assert!(
            shown == text(&format()),
            "put there what `embar layout --disk-format` prints"
        );
    }
}
