//! How every check ends: with a report, and with an error if a promise was broken or nothing was tried.

use embar_console::paint::Paint;
use serde::Serialize;

/// What a check found; its JSON has all of it.
pub trait Findings: Serialize {
    /// The findings for people.
    fn text(&self, paint: Paint) -> String;

    /// Whether every promise was kept.
    fn verdict(&self) -> Result<(), NotKept>;
}

/// Why a check did not end well.
#[derive(Debug, thiserror::Error)]
pub enum NotKept {
    /// A promise was broken.
    #[error("{0}")]
    Broken(String),
    /// Nothing happened that could have broken a promise.
    #[error("nothing was tried: {0}")]
    NothingTried(String),
}
