//! The rules about one source file: its length, `unsafe`, unfinished work. Each returns (line number from 1, what is
//! wrong).

use super::{LINES_MAX, MAY_BE_UNSAFE};
use std::path::Path;

/// Marks of unfinished work. (Written so that this file is not found by itself.)
const LATER: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("db", "g!"),
];

/// The attribute that makes the compiler refuse `unsafe` in a whole crate.
const FORBID: &str = "#![forbid(unsafe_code)]";

/// A file with too many lines to keep in mind.
pub fn too_long(text: &str) -> Vec<(usize, String)> {
    let lines = text.lines().count();
    if lines <= LINES_MAX {
        return Vec::new();
    }
    vec![(
        lines,
        format!("{lines} lines, at most {LINES_MAX} are allowed: split it by subject"),
    )]
}

/// Whether a crate begins with this file: a library, the main program, or another program.
pub fn is_root(sources: &Path, path: &Path) -> bool {
    let Ok(inside) = path.strip_prefix(sources) else {
        return false;
    };
    let depth = inside.components().count();
    match inside.file_name().and_then(|name| name.to_str()) {
        Some("lib.rs") => depth == 1,
        Some("main.rs") => depth == 1 || (depth == 3 && inside.starts_with("bin")),
        _ => depth == 2 && inside.starts_with("bin"),
    }
}

/// A root of a crate in which `unsafe` is possible.
pub fn not_forbidding(text: &str) -> Vec<(usize, String)> {
    if text.lines().any(|line| line.trim() == FORBID) {
        return Vec::new();
    }
    let crates = MAY_BE_UNSAFE.join(" and ");
    vec![(
        1,
        format!("`{FORBID}` is missing: only {crates} may be without it"),
    )]
}

/// Unfinished work, and prints that were to find a bug.
pub fn left_for_later(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for mark in LATER {
            if has_word(line, mark) {
                found.push((index + 1, format!("`{mark}`: do it now, or write an issue")));
            }
        }
    }
    found
}

/// Whether `word` is in the line and is no part of a longer word.
fn has_word(line: &str, word: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        !before.ends_with(in_word) && !after.starts_with(in_word)
    })
}

#[cfg(test)]
mod tests {
    use super::{FORBID, LATER, is_root, left_for_later, not_forbidding, too_long};
    use std::path::Path;

    #[test]
    fn length_is_counted_in_lines() {
        assert!(too_long(&"x\n".repeat(600)).is_empty());
        assert_eq!(too_long(&"x\n".repeat(601))[0].0, 601);
    }

    #[test]
    fn roots_are_libraries_and_programs() {
        let is_root = |path: &str| is_root(Path::new("a/src"), Path::new(path));
        for root in [
            "a/src/lib.rs",
            "a/src/main.rs",
            "a/src/bin/b.rs",
            "a/src/bin/b/main.rs",
        ] {
            assert!(is_root(root), "{root}");
        }
        for other in [
            "a/src/b.rs",
            "a/src/b/lib.rs",
            "a/src/bin/b/c.rs",
            "a/tests/lib.rs",
        ] {
            assert!(!is_root(other), "{other}");
        }
    }

    #[test]
    fn a_comment_about_unsafe_code_forbids_nothing() {
        assert!(not_forbidding(&format!("//! A crate.\n{FORBID}\n")).is_empty());
        assert_eq!(not_forbidding(&format!("// {FORBID}\n")).len(), 1);
        assert_eq!(not_forbidding("#![deny(unsafe_code)]\n").len(), 1);
    }

    #[test]
    fn unfinished_work_is_found_as_a_word() {
        let [first, second, third] = LATER;
        let text = format!("fn a() {{}} // {first}: b\nx{second}\n/// {second}\n{third}(1);\n");
        let lines: Vec<_> = left_for_later(&text)
            .iter()
            .map(|(line, _)| *line)
            .collect();
        assert_eq!(lines, [1, 3, 4]);
        assert!(left_for_later(&format!("{first}S and _{first}\nmy_{third}(1)")).is_empty());
    }
}
