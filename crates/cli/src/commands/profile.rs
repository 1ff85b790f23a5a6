//! `embar profile`: where the brokers' time goes.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use embar_bench::disk_profile::{self, DiskDerived};
use embar_bench::publish::broker_profile;
use embar_bench::report::{Derived, profile_text};
use embar_console::size::parse_duration;
use embar_meter::Snapshot;
use embar_wire::control::BrokerState;
use serde::Serialize;

use crate::connect::AskArgs;
use crate::context::Context;

/// How soon a signal is noticed between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Show where the time of the publish pipeline goes, and that of the way to and from the disks
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar profile                    all brokers together, since they started
  embar profile --broker 2
  embar profile --watch 2          what was added in each 2 s, until Ctrl-C
  embar profile --off              stop timing; --on starts it again

Disks are written by the broker that sequences, and read by those that take data. With --broker it
is what that one did; without, what all of them did.

JSON, one object per look: brokers[], title, stages[] with name, total_ns, count, avg_ns, share
(0 to 1), counters[] as [name, value], recv_calls_per_batch, bytes_per_recv, recv_eagain,
refused_batches; disks, null where the log has none, with title, stages[] and counters[] likewise,
write_amplification (bytes written for each byte of payload) and bytes_per_commit.
With --on or --off: brokers[], metering")]
pub struct ProfileArgs {
    /// One broker; all that take data without it
    #[arg(long, value_name = "N")]
    broker: Option<u32>,
    /// Time the stages from now on
    #[arg(long, conflicts_with = "off")]
    on: bool,
    /// Do not time the stages from now on
    #[arg(long)]
    off: bool,
    /// Look again and again, this long apart, and show what was added
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with_all = ["on", "off"])]
    watch: Option<Duration>,
    #[command(flatten)]
    ask: AskArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    brokers: &'a [u32],
    #[serde(flatten)]
    profile: &'a Snapshot,
    #[serde(flatten)]
    derived: Derived,
    disks: Option<Disks<'a>>,
}

#[derive(Serialize)]
struct Disks<'a> {
    #[serde(flatten)]
    profile: &'a Snapshot,
    #[serde(flatten)]
    derived: DiskDerived,
}

/// Asks the brokers.
pub fn run(args: &ProfileArgs, context: &Context) -> Result<()> {
    let admin = args.ask.admin(context)?;
    let brokers = match args.broker {
        Some(broker) => vec![broker],
        None => admin
            .metadata()
            .wait()?
            .brokers
            .iter()
            .filter(|broker| broker.takes_data && broker.state != BrokerState::Left)
            .map(|broker| broker.id)
            .collect(),
    };
    if args.on || args.off {
        for broker in &brokers {
            admin.set_metering(*broker, args.on).wait()?;
        }
        context
            .output
            .json(&serde_json::json!({ "brokers": brokers, "metering": args.on }))?;
        let word = if args.on { "on" } else { "off" };
        return context.output.say(format_args!(
            "metering is {word} at {} broker(s)",
            brokers.len()
        ));
    }
    let look = || {
        let disks = match args.broker {
            Some(broker) => admin.disk_profile(broker).wait()?,
            None => disk_profile::of_all(&admin)?,
        };
        Ok::<_, anyhow::Error>((broker_profile(&admin, &brokers)?, disks))
    };
    let mut before = look()?;
    let Some(every) = args.watch else {
        return show(&brokers, &before.0, before.1.as_ref(), context);
    };
    while wait(every, context) {
        let now = look()?;
        let disks = disk_profile::since(now.1.clone(), before.1);
        show(&brokers, &now.0.since(&before.0), disks.as_ref(), context)?;
        before = now;
    }
    Ok(())
}

fn show(
    brokers: &[u32],
    profile: &Snapshot,
    disks: Option<&Snapshot>,
    context: &Context,
) -> Result<()> {
    context.output.json(&Report {
        brokers,
        profile,
        derived: Derived::of(profile),
        disks: disks.map(|profile| Disks {
            profile,
            derived: DiskDerived::of(profile),
        }),
    })?;
    context.output.say(profile_text(profile))?;
    match disks {
        Some(disks) => context
            .output
            .say(format_args!("\n{}", disk_profile::text(disks))),
        None => Ok(()),
    }
}

/// False when it was interrupted.
fn wait(duration: Duration, context: &Context) -> bool {
    let deadline = Instant::now() + duration;
    while !context.work.interrupt.is_raised() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(LOOK_EVERY));
    }
    false
}
