//! `embar data`: what is in the directories of a log that is on disks.

mod contents;
mod listing;
mod repair;
mod show;
mod topics;
mod verify;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::context::Context;
use repair::RepairArgs;
use show::ShowArgs;
use verify::VerifyArgs;

/// Look into the directories of a log that is on disks, check them, and repair them
#[derive(Args, Debug)]
#[command(arg_required_else_help = true)]
pub struct DataArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    Show(ShowArgs),
    Verify(VerifyArgs),
    Repair(RepairArgs),
}

/// Looks; only a repair changes anything.
pub fn run(args: &DataArgs, context: &Context) -> Result<()> {
    match &args.action {
        Action::Show(args) => show::run(args, context),
        Action::Verify(args) => verify::run(args, context),
        Action::Repair(args) => repair::run(args, context),
    }
}

/// An identity as people write them.
fn uuid(id: &[u8; 16]) -> String {
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|it| format!("{it:02x}")).collect() };
    let (a, rest) = id.split_at(4);
    let parts = [a, &rest[..2], &rest[2..4], &rest[4..6], &rest[6..]];
    parts.map(hex).join("-")
}

/// A time in nanoseconds since the Unix epoch, to the second.
fn time(ns: u64) -> String {
    match jiff::Timestamp::from_nanosecond(ns.into()) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        Err(_) => format!("{ns} ns"),
    }
}
