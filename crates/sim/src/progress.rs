//! How far a search is, on the terminal.

use std::io::{self, Write};

use embar_sim::search::{Failure, Sums};
use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// A bar on a terminal, none elsewhere; and failures, everywhere.
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar for so many runs.
    pub fn new(runs: u64) -> Self {
        let style = "{elapsed_precise} {wide_bar} {pos}/{len} runs, {per_sec}, {eta} left";
        let style = ProgressStyle::with_template(style).expect("the template is right");
        Self(ProgressBar::new(runs).with_style(style))
    }

    /// So many have ended.
    pub fn show(&self, sums: &Sums) {
        self.0.set_position(sums.runs);
    }

    /// One has failed: at once, as a long search may be watched, or cut short.
    pub fn report(&self, failure: &Failure) {
        let (seed, part) = (failure.options.seed, failure.options.part.name());
        let what = output::first_line(&failure.violation);
        // What cannot be written now is in the report at the end.
        let _told = self
            .0
            .suspend(|| writeln!(io::stderr(), "seed {seed}, {part}: {what}"));
    }

    /// The bar goes.
    pub fn end(&self) {
        self.0.finish_and_clear();
    }
}
