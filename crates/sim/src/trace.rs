//! Records the events of a run: always as a hash, which is equal for equal runs, and as lines of text when asked to.

use std::fmt::{self, Write};

use embar_frame::Now;

/// Hashes every event (FNV-1a), and keeps their text if asked to.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    events: u64,
    lines: Option<Vec<String>>,
}

impl Trace {
    /// An empty trace; `verbose` keeps the text.
    pub fn new(verbose: bool) -> Self {
        Self {
            hash: 0xCBF2_9CE4_8422_2325,
            events: 0,
            lines: verbose.then(Vec::new),
        }
    }

    /// Something happened.
    pub fn event(&mut self, now: Now, what: fmt::Arguments<'_>) {
        self.events += 1;
        self.mix(&now.0.to_le_bytes());
        // Hashing cannot fail.
        let _ = self.write_fmt(what);
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>14.6} ms  {what}", now.0 as f64 / 1e6));
        }
    }

    fn mix(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }

    /// Equal for equal runs.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The text, if it was kept.
    pub fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}

impl Write for Trace {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.mix(s.as_bytes());
        Ok(())
    }
}
