//! A process of `verify sessions`: it publishes, and waits to be killed.

use std::io::{self, Read, Write};
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::sessions::publish_first;

/// What it says when all have published; microseconds of the slowest follow.
pub const READY: &str = "ready ";

/// Publishers that are about to be killed
#[derive(Args, Debug)]
pub struct VictimsArgs {
    /// Addresses of the brokers
    #[arg(long)]
    pub bootstrap: String,
    /// How many
    #[arg(long)]
    pub count: u32,
}

/// Publishes, says so, and waits; ends by itself when nobody can kill it any more.
pub fn run(args: &VictimsArgs) -> Result<()> {
    let mut publishers = Vec::new();
    let mut slowest = Duration::ZERO;
    for _ in 0..args.count {
        let (publisher, took) = publish_first(&args.bootstrap)?;
        publishers.push(publisher);
        slowest = slowest.max(took);
    }
    writeln!(io::stdout(), "{READY}{}", slowest.as_micros())?;
    io::stdin().read_to_end(&mut Vec::new())?;
    std::process::exit(1);
}
