//! A process of `verify sessions`: publishes, and waits to be killed.

use std::io::{self, Read, Write};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::sessions::publish_first;

/// The line it writes when all have published begins so; microseconds of the slowest follow.
pub const READY: &str = "ready ";

/// The command of the program that runs such a process; the specification is its argument.
pub const COMMAND: &str = "verify-victims";

/// Publishers that are about to be killed, as their parent wants them.
#[derive(Debug, Serialize, Deserialize)]
pub struct VictimsSpec {
    /// Addresses of the brokers.
    pub bootstrap: String,
    /// How many.
    pub count: u32,
}

/// Publishes, reports it, and waits; ends by itself when its parent is gone. `spec` is a [`VictimsSpec`] in JSON.
pub fn run(spec: &str) -> Result<()> {
    let spec: VictimsSpec = serde_json::from_str(spec).context("these are no publishers")?;
    let mut publishers = Vec::new();
    let mut slowest = Duration::ZERO;
    for _ in 0..spec.count {
        let (publisher, took) = publish_first(&spec.bootstrap)?;
        publishers.push(publisher);
        slowest = slowest.max(took);
    }
    writeln!(io::stdout(), "{READY}{}", slowest.as_micros())?;
    io::stdin().read_to_end(&mut Vec::new())?;
    std::process::exit(1);
}
