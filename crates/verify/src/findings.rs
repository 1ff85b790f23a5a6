//! How every check ends: it tells what it found, and fails if a promise was broken.

use anyhow::Result;

use embar_console::context::Context;

/// What a check found.
pub trait Findings {
    /// Prints all of it.
    fn tell(&self, context: &Context) -> Result<()>;

    /// An error if a promise was broken, or nothing was tried.
    fn verdict(&self) -> Result<()>;

    /// Prints it; the error is that of the verdict, if there is one: what was found counts for more than
    /// whether somebody reads it.
    fn print(&self, context: &Context) -> Result<()> {
        let told = self.tell(context);
        self.verdict().and(told)
    }
}
