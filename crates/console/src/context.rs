//! What every command needs.

use crate::interrupt::Interrupt;
use crate::output::Output;

/// Made once, in `main`.
#[derive(Clone)]
pub struct Context {
    /// Where results and remarks go.
    pub output: Output,
    /// Ctrl-C and SIGTERM.
    pub interrupt: Interrupt,
}
