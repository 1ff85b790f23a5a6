//! What a diagnosis of Redis prints: callers, client and servers, then the findings.

use std::fmt;

use embar_diagnose::Diagnosis;
use embar_diagnose::redis::Observed;
use serde::Serialize;

use crate::diagnose::report::{Carried, write_diagnosis};

/// A diagnosis with what it is of.
#[derive(Debug, Serialize)]
pub struct RedisReport<'a> {
    /// What was looked at, in words.
    pub of: String,
    /// What was injected, as on the command line.
    pub injected: Vec<String>,
    /// Operations a second.
    pub operations_per_s: f64,
    /// What was found.
    #[serde(flatten)]
    pub diagnosis: &'a Diagnosis,
    /// What it was found in.
    pub observed: &'a Observed,
}

impl fmt::Display for RedisReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} operations/s in {:.1} s",
            self.operations_per_s, self.observed.seconds
        )?;
        match &self.observed.client {
            Some(client) => write!(f, ", {:.0} us each", client.latency_s * 1e6)?,
            None => write!(f, " of {} server(s)", self.observed.nodes.len())?,
        }
        match self.observed.errors {
            0 => writeln!(f, "\n")?,
            errors => writeln!(f, ", {errors} failed\n")?,
        }
        let replies = Carried {
            steps: &self.observed.over_time,
            unit: "replies/s",
            of: 1.0,
        };
        write_diagnosis(f, self.diagnosis, replies)
    }
}
