//! Why a file gives no section.

use crate::limits::{BYTES_MAX, ENTRIES_MAX, UNDERSTOOD};

/// Why a file gives no section.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// More bytes than [`BYTES_MAX`].
    #[error("{name} has more than {} MiB, and no report of a command is as large", BYTES_MAX >> 20)]
    TooLarge {
        /// The file.
        name: String,
    },
    /// Not JSON at all.
    #[error("{name} is not JSON: {why}; give what a command prints with --json")]
    NotJson {
        /// The file.
        name: String,
        /// What the parser says.
        why: String,
    },
    /// Nothing in it.
    #[error("{name} is empty; give what a command prints with --json")]
    Empty {
        /// The file.
        name: String,
    },
    /// More numbers than a page can show.
    #[error(
        "{name} has lists with more than {ENTRIES_MAX} entries in all, and a page cannot show so many"
    )]
    TooMany {
        /// The file.
        name: String,
    },
    /// JSON of something else.
    #[error("{name} is not the output of a command that is understood; these are: {}", UNDERSTOOD.join(", "))]
    Unknown {
        /// The file.
        name: String,
    },
    /// A field of another type, or none where one is needed.
    #[error("{name}: {path} is {found}, where {expected} is expected")]
    WrongType {
        /// The file.
        name: String,
        /// The field, as in `trials[2].mib_per_s`.
        path: String,
        /// What should be there.
        expected: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// All fields are as they should be, and none of them has a figure.
    #[error(
        "{name} has nothing that a page could show: {why}; give what a command prints with --json once it has ended"
    )]
    Nothing {
        /// The file.
        name: String,
        /// What is missing.
        why: &'static str,
    },
    /// A field that says what no version of the command says.
    #[error("{name} is not what {command} prints: {why}")]
    Invalid {
        /// The file.
        name: String,
        /// The command that its fields are of.
        command: &'static str,
        /// What is wrong.
        why: String,
    },
}
