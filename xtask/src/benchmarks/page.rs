//! Replaces the drawn parts of a document: what stands between `<!-- drawn: NAME -->` and `<!-- end -->`.

use anyhow::{Context, bail};
use std::collections::BTreeMap;

/// Documents with such parts.
pub const DOCUMENTS: [&str; 4] = [
    "README.md",
    "benches/README.md",
    "docs/architecture/larger-machines.md",
    "docs/architecture/diagnosis.md",
];

const BEGIN: &str = "<!-- drawn: ";
const END: &str = "<!-- end -->";

/// The document with each part replaced by the one of its name.
pub fn fill(document: &str, parts: &BTreeMap<&str, String>) -> anyhow::Result<String> {
    let mut filled = String::new();
    let mut rest = document;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (name, after) = after.split_once(" -->\n").context("a mark has no end")?;
        let Some((_, after)) = after.split_once(END) else {
            bail!("{BEGIN}{name} --> is not followed by {END}");
        };
        let Some(part) = parts.get(name) else {
            bail!("nothing with the name {name} is drawn");
        };
        filled += &format!("{before}{BEGIN}{name} -->\n{part}{END}");
        rest = after;
    }
    Ok(filled + rest)
}

#[cfg(test)]
mod tests {
    use super::fill;
    use std::collections::BTreeMap;

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let parts = BTreeMap::from([("a", "new\n".to_owned()), ("b", "too\n".to_owned())]);
        let text =
            "x\n<!-- drawn: a -->\nold\nold\n<!-- end -->\ny\n<!-- drawn: b -->\n<!-- end -->\n";
        let filled = fill(text, &parts).unwrap();
        let expected =
            "x\n<!-- drawn: a -->\nnew\n<!-- end -->\ny\n<!-- drawn: b -->\ntoo\n<!-- end -->\n";
        assert_eq!(filled, expected);
        assert_eq!(fill(&filled, &parts).unwrap(), filled);
    }

    #[test]
    fn a_mark_without_an_end_or_a_part_is_an_error() {
        let parts = BTreeMap::from([("a", String::new())]);
        for text in [
            "<!-- drawn: a -->\nold",
            "<!-- drawn: c -->\n<!-- end -->",
            "<!-- drawn: a",
        ] {
            assert!(fill(text, &parts).is_err(), "{text}");
        }
    }
}
