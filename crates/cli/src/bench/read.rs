//! Reading back what is retained, and verifying it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use embar_meter::Snapshot;
use serde::Serialize;

use super::plan::TOPIC;
use super::stamp::Verifier;
use super::usage::{Costs, Meters, Rate};
use crate::connect::ConnectArgs;
use crate::output::Bar;
use crate::supervise::work::Abort;

/// How long nothing may arrive before a reader gives up.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// What reading everything once gave.
#[derive(Clone, Debug, Serialize)]
pub struct ReadTrial {
    /// From opening the subscriber to the last message.
    #[serde(flatten)]
    pub rate: Rate,
    /// What it cost.
    #[serde(flatten)]
    pub costs: Costs,
    /// Of the subscriber.
    #[serde(skip)]
    pub subscriber_profile: Option<Snapshot>,
}

/// Reading stamped messages from a cluster that is there.
pub struct Job {
    /// How many.
    pub messages: u64,
    /// Bytes of each.
    pub message_bytes: u32,
    /// Whether stages are timed.
    pub metering: bool,
    /// Where.
    pub connect: ConnectArgs,
    /// Processes of the brokers.
    pub pids: Vec<u32>,
    /// Shown meanwhile.
    pub bar: Bar,
}

impl Job {
    /// Reads from the start until everything is there; an error if anything is not as it was published.
    pub fn run(&self, abort: &Abort) -> Result<ReadTrial> {
        todo!()
    }
}
