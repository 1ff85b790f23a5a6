//! A process of `verify sessions`: publishes, and waits to be killed.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use embar_client::Publisher;
use serde::{Deserialize, Serialize};

/// The topic.
pub const TOPIC: &str = "sessions";
/// How long one publisher may take to open, killed ones and the last one.
const OPENS_WITHIN: Duration = Duration::from_secs(60);

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

/// Opens a publisher that publishes one message; how long that took.
pub fn publish_first(bootstrap: &str) -> Result<(Publisher, Duration)> {
    let started = Instant::now();
    let publisher = Publisher::builder(bootstrap)
        .topic(TOPIC)
        .auto_create(false)
        .batch_bytes(1024)
        .buffers(2)
        .linger(Duration::ZERO)
        .open_timeout(OPENS_WITHIN)
        .open()?;
    publish(&publisher)?;
    Ok((publisher, started.elapsed()))
}

/// Publishes one message and waits for its acknowledgement.
pub fn publish(publisher: &Publisher) -> Result<()> {
    publisher.publish(b"a message")?;
    Ok(publisher.flush()?)
}
