//! The id of an entry of a stream.

use std::fmt;
use std::str::FromStr;

/// The id of an entry of a stream, `1526919030474-55`: ids grow in the order of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId {
    /// By default the time at which the server added the entry, milliseconds of Unix time.
    pub millis: u64,
    /// Its number among those of the same time.
    pub sequence: u64,
}

/// A text that is no id of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id of an entry is two numbers with a - between them")]
pub struct NoEntryId;

impl FromStr for EntryId {
    type Err = NoEntryId;

    fn from_str(text: &str) -> Result<Self, NoEntryId> {
        let (millis, sequence) = text.split_once('-').ok_or(NoEntryId)?;
        let number = |digits: &str| digits.parse().map_err(|_| NoEntryId);
        Ok(Self {
            millis: number(millis)?,
            sequence: number(sequence)?,
        })
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.millis, self.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        for text in ["0-0", "1526919030474-55", "18446744073709551615-1"] {
            assert_eq!(
                text.parse::<EntryId>().map(|id| id.to_string()),
                Ok(text.to_owned())
            );
        }
        for text in [
            "",
            "1",
            "1-",
            "-1",
            "1-2-3",
            "a-1",
            "18446744073709551616-0",
        ] {
            assert_eq!(text.parse::<EntryId>(), Err(NoEntryId), "{text}");
        }
        let id = |text: &str| text.parse::<EntryId>().ok();
        assert!(id("9-9") < id("10-0"));
    }
}
