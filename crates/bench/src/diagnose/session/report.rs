//! What a diagnosis of sessions prints: application, sessions and handlers, then the findings.

use std::fmt;

use embar_diagnose::Diagnosis;
use embar_diagnose::session::Observed;
use embar_meter::table::grouped;
use serde::Serialize;

use crate::diagnose::report::{Carried, write_diagnosis};

/// A diagnosis with what it is of.
#[derive(Debug, Serialize)]
pub struct SessionReport<'a> {
    /// What was looked at, in words.
    pub of: String,
    /// What was injected, as on the command line.
    pub injected: Vec<String>,
    /// Messages a second.
    pub messages_per_s: f64,
    /// What was found.
    #[serde(flatten)]
    pub diagnosis: &'a Diagnosis,
    /// What it was found in.
    pub observed: &'a Observed,
}

impl fmt::Display for SessionReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes_per_s = self.observed.bytes as f64 / self.observed.seconds;
        let mib_per_s = bytes_per_s / f64::from(1 << 20);
        // Of sessions that others use nobody counts messages, nor bytes of Unix sockets.
        match self.observed.messages {
            0 if self.observed.bytes == 0 => write!(f, "nothing that could be counted")?,
            0 => write!(f, "{mib_per_s:.1} MiB/s")?,
            _ => {
                let messages = grouped(self.messages_per_s as u64);
                write!(f, "{messages} messages/s ({mib_per_s:.1} MiB/s)")?;
            }
        }
        write!(f, " in {:.1} s", self.observed.seconds)?;
        match self.observed.latency_s() {
            Some(latency) => writeln!(f, ", each there and back in {:.0} us\n", latency * 1e6)?,
            None => writeln!(f, "\n")?,
        }
        write_diagnosis(
            f,
            self.diagnosis,
            Carried::both_ways(&self.observed.over_time),
        )
    }
}
