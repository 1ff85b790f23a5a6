//! Links of a Markdown document to files of this repository.

use std::path::Path;

/// (line number from 1, what is wrong) for each link to a file that is not there.
pub fn broken(document: &Path, text: &str) -> Vec<(usize, String)> {
    let folder = document.parent().expect("a document is in a folder");
    let mut found = Vec::new();
    for (line, target) in relative_links(text) {
        let path = target.split(['#', '?']).next().unwrap_or_default();
        if path.starts_with('/') {
            found.push((line, format!("link {target:?} is not relative")));
        } else if !folder.join(path).exists() {
            found.push((line, format!("link {target:?} leads nowhere")));
        }
    }
    found
}

/// Links outside of code that lead neither to another site nor to a place in the same document.
fn relative_links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut fence = None;
    for (index, line) in text.lines().enumerate() {
        let mark = ["```", "~~~"]
            .into_iter()
            .find(|mark| line.trim_start().starts_with(mark));
        match (fence, mark) {
            (None, Some(_)) => fence = mark,
            (Some(open), Some(close)) if open == close => fence = None,
            (None, None) => found.extend(targets(line).into_iter().map(|to| (index + 1, to))),
            _ => {}
        }
    }
    found.retain(|(_, target)| !target.starts_with('#') && !has_scheme(target));
    found
}

/// Where the links of one line lead: `[text](target "title")` and `[label]: target`.
fn targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    if let Some(definition) = line.strip_prefix('[')
        && let Some((_, target)) = definition.split_once("]: ")
    {
        found.push(bare(target));
    }
    // Every second piece between backticks is code.
    for prose in line.split('`').step_by(2) {
        for after in prose.split("](").skip(1) {
            found.push(bare(after.split(')').next().unwrap_or(after)));
        }
    }
    found
}

/// Without a title after it and brackets around it.
fn bare(target: &str) -> &str {
    let target = target.trim();
    match target
        .strip_prefix('<')
        .and_then(|rest| rest.split_once('>'))
    {
        Some((inside, _)) => inside,
        None => target.split_whitespace().next().unwrap_or_default(),
    }
}

/// `https:`, `mailto:` and the like.
fn has_scheme(target: &str) -> bool {
    target.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric())
    })
}

#[cfg(test)]
mod tests {
    use super::{broken, relative_links};
    use std::fs;

    #[test]
    fn links_to_files_are_found() {
        let text = "\
See [a](A.md), [`b`](crates/b#part) and ![c](<c d.svg>).
[site](https://example.org/x) [mail](mailto:x@example.org) [here](#part)
`[code](no.md)` and [d](d.md \"title\")
```text
[fenced](no.md)
```
[e]: e.md
";
        let found = relative_links(text);
        let expected = [
            (1, "A.md"),
            (1, "crates/b#part"),
            (1, "c d.svg"),
            (3, "d.md"),
            (7, "e.md"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let document = folder.path().join("README.md");
        fs::write(folder.path().join("there.md"), "").unwrap();
        let text = "[a](there.md#x)\n[b](gone.md)\n[c](/there.md)\n";
        let lines: Vec<_> = broken(&document, text)
            .iter()
            .map(|(line, _)| *line)
            .collect();
        assert_eq!(lines, [2, 3]);
    }
}
