//! `embar drain`: a data broker leaves the cluster for good.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use embar_console::size::parse_duration;
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::context::Context;

/// Let a data broker leave a cluster that runs, for good
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar drain 2
  embar drain 2 --force                 also with messages that only it has
  embar broker --follower 127.0.0.1:9400 --id 2    take its place again, with what it kept

It takes nothing new, its clients go on with the others, what it was given is settled, and its
process ends; the `embar up` that runs does not start it again. What it holds of topics of orders
2 and 5 the others read from its memory. Of orders 0 and 1 it alone can: it leaves with that only
if it is forced to. It stays in memory, and can be read again once a broker takes its place.

JSON: broker, left")]
pub struct DrainArgs {
    /// The broker, as `embar status` numbers it
    #[arg(value_name = "ID")]
    broker: u32,
    /// Leave also as the last one, or with messages of orders 0 and 1, which cannot be read until a broker takes its place
    #[arg(long)]
    force: bool,
    /// How long it may take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Serialize)]
struct Report {
    broker: u32,
    left: bool,
}

/// Asks it to leave, and waits until it has.
pub fn run(args: &DrainArgs, context: &Context) -> Result<()> {
    let admin = args.connect.connector(context).admin_within(args.timeout)?;
    let broker = args.broker;
    admin.remove_broker(broker, args.force).wait()?;
    context.output.json(&Report { broker, left: true })?;
    context
        .output
        .say(format_args!("broker {broker} has left the cluster"))
}
