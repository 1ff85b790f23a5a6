//! How work goes: remarks and bars, on standard error.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::paint::Paint;
use crate::visible::visible;

/// Where work reports how it goes.
pub trait Progress: Send + Sync {
    /// A remark for whoever waits.
    fn note(&self, text: &str);

    /// Work on `total_bytes` bytes begins; it ends when the bar is dropped.
    fn bar(&self, label: &str, total_bytes: u64) -> Box<dyn Bar>;
}

/// How far one piece of work is. Threads share it.
pub trait Bar: Send + Sync {
    /// `done_bytes` of the total are done.
    fn set(&self, done_bytes: u64);
}

/// Remarks have no colours.
const PLAIN: Paint = Paint::new(false);

/// Work shorter than this shows no bar: it would only flicker.
const SHOW_AFTER: Duration = Duration::from_millis(700);

/// Says nothing, for whoever draws the whole terminal.
pub struct Silent;

impl Progress for Silent {
    fn note(&self, _text: &str) {}

    fn bar(&self, _label: &str, _total_bytes: u64) -> Box<dyn Bar> {
        Box::new(Self)
    }
}

impl Bar for Silent {
    fn set(&self, _done_bytes: u64) {}
}

/// Writes remarks to standard error, and draws bars there if that is a terminal.
#[derive(Clone, Copy, Debug)]
pub struct Terminal;

impl Progress for Terminal {
    fn note(&self, text: &str) {
        // Where a remark cannot be written, neither can the complaint about it.
        let _dropped = writeln!(io::stderr().lock(), "{}", visible(text, PLAIN));
    }

    fn bar(&self, label: &str, total_bytes: u64) -> Box<dyn Bar> {
        Box::new(TerminalBar {
            started: Instant::now(),
            label: visible(label, PLAIN).into_owned(),
            total_bytes,
            is_terminal: io::stderr().is_terminal(),
            bar: Mutex::new(None),
        })
    }
}

/// Appears once its work has taken [`SHOW_AFTER`].
struct TerminalBar {
    started: Instant,
    label: String,
    total_bytes: u64,
    is_terminal: bool,
    bar: Mutex<Option<ProgressBar>>,
}

impl Bar for TerminalBar {
    fn set(&self, done_bytes: u64) {
        if !self.is_terminal || self.started.elapsed() < SHOW_AFTER {
            return;
        }
        let mut bar = self
            .bar
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let bar = bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template(
                "{msg:<22} [{bar:32}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
            )
            .unwrap_or_else(|_| ProgressStyle::default_bar());
            let target = ProgressDrawTarget::stderr_with_hz(10);
            ProgressBar::with_draw_target(Some(self.total_bytes), target)
                .with_style(style)
                .with_elapsed(self.started.elapsed())
                .with_message(self.label.clone())
        });
        bar.set_position(done_bytes);
    }
}

impl Drop for TerminalBar {
    fn drop(&mut self) {
        if let Ok(Some(bar)) = self.bar.get_mut().map(Option::take) {
            bar.finish_and_clear();
        }
    }
}
