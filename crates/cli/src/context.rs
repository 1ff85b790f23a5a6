//! What `main` hands to every command: where results go, and what the libraries need.

use std::fmt::Display;

use crate::output::Output;

/// Made once, in `main`.
#[derive(Clone)]
pub struct Context {
    /// Where results go.
    pub output: Output,
    /// What libraries get: progress, Ctrl-C and SIGTERM, and this program's file.
    pub work: embar_console::context::Context,
}

impl Context {
    /// A remark on standard error.
    pub fn note(&self, text: impl Display) {
        self.work.note(text);
    }
}
