//! What a program hands to the libraries that work for it: where to report progress, whether to stop, and its own file.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use crate::interrupt::Interrupt;
use crate::progress::{Bar, Progress};

/// Made once by the program and handed down. Clones share everything.
#[derive(Clone)]
pub struct Context {
    /// Where work reports how it goes.
    pub progress: Arc<dyn Progress>,
    /// Whether the work is to end.
    pub interrupt: Interrupt,
    /// The program's own file, to start children from.
    pub program: PathBuf,
}

impl Context {
    /// Reports a remark.
    pub fn note(&self, text: impl Display) {
        self.progress.note(&text.to_string());
    }

    /// Reports that work on `total_bytes` bytes begins.
    pub fn bar(&self, label: &str, total_bytes: u64) -> Box<dyn Bar> {
        self.progress.bar(label, total_bytes)
    }
}
