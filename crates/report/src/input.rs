//! From bytes to objects, within bounds.

use serde_json::{Deserializer, Value};

use crate::Error;
use crate::limits::{BYTES_MAX, ENTRIES_MAX};

/// What was recorded with a result: by whom, where and when.
#[derive(Debug, Default)]
pub(crate) struct Origin {
    pub command: Option<String>,
    pub machine: Option<String>,
    pub commit: Option<String>,
    pub date: Option<String>,
    pub note: Option<String>,
}

/// What one command printed, and what is known of how it came about.
#[derive(Debug)]
pub(crate) struct Object {
    pub value: Value,
    pub origin: Origin,
}

/// The objects of a file: one, or several one after the other.
pub(crate) fn objects(name: &str, bytes: &[u8]) -> Result<Vec<Object>, Error> {
    let name = || name.to_owned();
    if bytes.len() as u64 > BYTES_MAX {
        return Err(Error::TooLarge { name: name() });
    }
    // Editors of some systems put a mark in front.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    // Before anything is parsed, which takes many times the memory of the text.
    if commas(bytes) > ENTRIES_MAX {
        return Err(Error::TooMany { name: name() });
    }
    let mut objects = Vec::new();
    for value in Deserializer::from_slice(bytes).into_iter::<Value>() {
        let value = value.map_err(|error| Error::NotJson {
            name: name(),
            why: error.to_string(),
        })?;
        if objects.len() == ENTRIES_MAX {
            return Err(Error::TooMany { name: name() });
        }
        objects.push(unwrapped(value));
    }
    if objects.is_empty() {
        return Err(Error::Empty { name: name() });
    }
    Ok(objects)
}

/// The commas outside of texts.
fn commas(bytes: &[u8]) -> usize {
    let (mut count, mut in_text, mut is_escaped) = (0, false, false);
    for byte in bytes {
        match byte {
            // Whatever follows a backslash is no end.
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_text,
            b'"' => in_text = !in_text,
            b',' if !in_text => count += 1,
            _ => {}
        }
    }
    count
}

/// `cargo xtask benchmarks record` keeps a report together with its command and machine.
fn unwrapped(mut value: Value) -> Object {
    let is_recorded =
        value.get("report").is_some() && (value.get("command").or(value.get("measured"))).is_some();
    if !is_recorded {
        let origin = Origin::default();
        return Object { value, origin };
    }
    let measured = |field: &str| text(value.get("measured").and_then(|it| it.get(field)));
    let origin = Origin {
        command: text(value.get("command")),
        machine: measured("machine"),
        commit: measured("commit"),
        date: measured("date"),
        note: measured("note"),
    };
    let value = value["report"].take();
    Object { value, origin }
}

/// A text; anything else is nothing that a page could show of it.
fn text(value: Option<&Value>) -> Option<String> {
    value?.as_str().map(crate::words::clipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_object_or_several() {
        let count = |text: &str| objects("x", text.as_bytes()).map(|it| it.len());
        assert_eq!(count("{}").expect("one"), 1);
        assert_eq!(count("\u{feff}{} \n{}\n").expect("two"), 2);
        assert!(matches!(count(" \n"), Err(Error::Empty { .. })));
        for bad in ["{", "{}}", "NaN", "1e999", "{\"a\":Infinity}", "\0"] {
            assert!(matches!(count(bad), Err(Error::NotJson { .. })), "{bad:?}");
        }
        let deep = "[".repeat(100_000);
        assert!(matches!(count(&deep), Err(Error::NotJson { .. })));
    }

    #[test]
    fn files_are_bounded() {
        let long = vec![b' '; BYTES_MAX as usize + 1];
        assert!(matches!(objects("x", &long), Err(Error::TooLarge { .. })));
        let list = format!("[{}0]", "0,".repeat(ENTRIES_MAX + 1));
        for many in [list, "{}".repeat(ENTRIES_MAX + 1)] {
            let error = objects("x", many.as_bytes());
            assert!(matches!(error, Err(Error::TooMany { .. })));
        }
        // Commas of texts are no entries, and a quote in a text does not end it.
        let text = r#"\","#.repeat(ENTRIES_MAX + 1);
        let one = format!("[\"{text}\", \"{text}\\\\\", 1]");
        assert_eq!(objects("x", one.as_bytes()).expect("JSON").len(), 1);
        assert_eq!(commas(one.as_bytes()), 2);
    }

    #[test]
    fn what_was_recorded_has_an_origin() {
        let text =
            r#"{"command":"embar x","measured":{"date":"2026-01-02","commit":7},"report":{"a":1}}"#;
        let one = objects("x", text.as_bytes()).expect("JSON").remove(0);
        assert_eq!(one.value["a"], 1);
        assert_eq!(one.origin.command.as_deref(), Some("embar x"));
        assert_eq!(one.origin.date.as_deref(), Some("2026-01-02"));
        assert_eq!(one.origin.commit, None);
    }
}
