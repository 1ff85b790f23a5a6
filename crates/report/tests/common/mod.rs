//! Looks at a page as a browser would, as far as these tests need it.

// Each test program uses a part of this.
#![allow(dead_code)]

use embar_report::{Error, Report, read};

/// Elements without an end.
const VOID: [&str; 2] = ["meta", "br"];

/// The page of one file.
pub fn page_of(json: &str) -> Result<String, Error> {
    let sections = read("x.json", json.as_bytes())?;
    let report = Report {
        title: None,
        made: None,
        sections,
    };
    Ok(report.to_html())
}

/// A start tag: its name, its attributes as they are written, and where its content begins.
pub struct Tag<'a> {
    pub name: &'a str,
    pub attributes: &'a str,
    pub depth: usize,
}

/// All start tags. Panics if tags are not nested as they should be.
pub fn tags(page: &str) -> Vec<Tag<'_>> {
    let mut open: Vec<&str> = Vec::new();
    let mut tags = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("a doctype");
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').expect("each tag ends");
        let inside = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = inside.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "it closes what is open");
            continue;
        }
        let (name, attributes) = inside.split_once(' ').unwrap_or((inside, ""));
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "{inside}");
        tags.push(Tag {
            name,
            attributes,
            depth: open.len(),
        });
        if !VOID.contains(&name) {
            open.push(name);
        }
        if name == "style" {
            rest = &rest[rest.find("</style>").expect("it ends")..];
        }
    }
    assert!(open.is_empty(), "{open:?}");
    tags
}

/// What every page must be, whatever it shows.
pub fn check(page: &str) {
    let tags = tags(page);
    let allowed = [
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "header",
        "h1",
        "h2",
        "h3",
        "h4",
        "p",
        "nav",
        "ol",
        "li",
        "a",
        "span",
        "main",
        "section",
        "dl",
        "div",
        "dt",
        "dd",
        "code",
        "figure",
        "figcaption",
        "details",
        "summary",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "footer",
        "svg",
        "desc",
        "g",
        "text",
        "line",
        "rect",
        "circle",
        "path",
    ];
    let mut ids = Vec::new();
    for tag in &tags {
        assert!(
            allowed.contains(&tag.name),
            "{} has no business here",
            tag.name
        );
        // Values are free of quotes, so this finds the names of attributes only.
        let names = tag.attributes.split('"').step_by(2);
        for name in names.map(|it| it.trim().trim_end_matches('=')) {
            let loads = ["src", "srcset", "data", "action", "xlink:href"].contains(&name);
            assert!(!loads && !name.starts_with("on"), "{}: {name}", tag.name);
        }
        for attribute in ["href=\"", "url("] {
            if let Some((_, value)) = tag.attributes.split_once(attribute) {
                assert!(value.starts_with('#'), "{value}");
            }
        }
        ids.extend(attribute(tag.attributes, "id"));
    }
    assert!(page.contains("<html lang=\"en\">"));
    for bad in ["<script", "@import", "url("] {
        assert!(!page.contains(bad), "{bad}");
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "each id is there once");
    headings(&tags);
    pictures(page, &tags, &ids);
}

/// Each heading is at most one level below the one before.
fn headings(tags: &[Tag<'_>]) {
    let levels = tags
        .iter()
        .filter_map(|tag| tag.name.strip_prefix('h')?.parse::<u32>().ok());
    let levels: Vec<u32> = levels.collect();
    assert_eq!(levels.iter().filter(|it| **it == 1).count(), 1);
    assert_eq!(levels.first(), Some(&1));
    for pair in levels.windows(2) {
        assert!(pair[1] <= pair[0] + 1, "{levels:?}");
    }
}

/// Each picture has a name, a description, and the table of its figures.
fn pictures(page: &str, tags: &[Tag<'_>], ids: &[&str]) {
    let pictures = tags
        .iter()
        .filter(|it| it.attributes.contains("role=\"img\""));
    let mut count = 0;
    for picture in pictures {
        count += 1;
        assert_eq!(picture.name, "svg");
        let labels = attribute(picture.attributes, "aria-labelledby").expect("a label");
        for label in labels.split(' ') {
            assert!(ids.contains(&label), "{label}");
            let text = page
                .split_once(&format!("id=\"{label}\">"))
                .expect("there")
                .1;
            assert!(!text.starts_with('<'), "{label} says something");
        }
    }
    let figures: Vec<&str> = page.split("<figure>").skip(1).collect();
    assert_eq!(figures.len(), count, "a picture each");
    for figure in figures {
        let figure = figure.split_once("</figure>").expect("it ends").0;
        let details = figure.split_once("<details>").expect("a table").1;
        assert!(details.contains("<td"), "with figures");
        for shown in values(figure) {
            let numbers = shown.split(|c: char| !c.is_ascii_digit() && c != '.' && c != ',');
            let numbers = numbers.map(|it| it.trim_end_matches([',', '.']));
            for number in numbers.filter(|it| !it.is_empty()) {
                assert!(
                    details.contains(number),
                    "{shown}: {number} is not in the table"
                );
            }
        }
    }
    // All svg elements that are not pictures are parts of one.
    for tag in tags.iter().filter(|it| it.name == "svg") {
        assert!(tag.attributes.contains("role=\"img\"") || tag.depth > 5);
    }
}

/// What stands beside the marks of rows.
fn values(figure: &str) -> Vec<&str> {
    let values = figure.split("<span class=\"value\">").skip(1);
    values.filter_map(|it| it.split('<').next()).collect()
}

fn attribute<'a>(attributes: &'a str, name: &str) -> Option<&'a str> {
    let start = format!("{name}=\"");
    let at = match attributes.strip_prefix(&start) {
        Some(rest) => rest,
        None => attributes.split_once(&format!(" {start}"))?.1,
    };
    at.split('"').next()
}

/// The texts of all elements of this name, tags within taken out.
pub fn texts(page: &str, name: &str) -> Vec<String> {
    let (start, end) = (format!("<{name}"), format!("</{name}>"));
    let parts = page.split(&start).skip(1);
    let parts = parts.filter(|part| part.starts_with([' ', '>']));
    let text = |part: &str| {
        let inside = part.split_once('>')?.1.split_once(&end)?.0;
        let pieces = inside
            .split('<')
            .map(|it| it.split_once('>').map_or(it, |it| it.1));
        Some(pieces.collect())
    };
    parts.filter_map(text).collect()
}

/// Whether some cell of a table has this text.
pub fn has_cell(page: &str, text: &str) -> bool {
    texts(page, "td").iter().any(|it| it == text)
}
