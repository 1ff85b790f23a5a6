//! `embar bench session --attack`: what honest sessions notice while somebody attacks their server; and
//! `--idle-sessions`: what sessions take that do nothing.

use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Args;
use embar_bench::session::drill::idle;
use embar_bench::session::drill::kind::Chosen;
use embar_bench::session::drill::measure::attack;
use embar_bench::session::drill::plan::DrillPlan;
use embar_bench::session::drill::report::DrillReport;
use embar_bench::session::payloads::Payload;
use embar_console::size::parse_duration;

use crate::context::Context;
use crate::exit;

/// Options of the bench that say nothing about a drill.
const OTHERS: [&str; 15] = [
    "send",
    "receive",
    "rate",
    "half_load",
    "connect",
    "iterations",
    "in_flight",
    "warmup",
    "spin_us",
    "transport",
    "placement",
    "ring",
    "one_way",
    "stall",
    "log",
];

/// Options of drills.
#[derive(Args, Debug)]
pub struct DrillArgs {
    /// Attack a server, and measure honest sessions beside that
    #[arg(long, value_name = "KIND", value_enum, value_delimiter = ',', conflicts_with_all = OTHERS, conflicts_with = "csv")]
    attack: Vec<Chosen>,
    /// Most connections of an attacker at a time
    #[arg(long, value_name = "N", default_value_t = 10_000, requires = "attack", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// Addresses that an attacker comes from
    #[arg(long, value_name = "N", default_value_t = 1, requires = "attack", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    addresses: u16,
    /// How long a round lasts without an attack, and again with it
    #[arg(long, value_name = "TIME", default_value = "1s", requires = "attack", value_parser = parse_duration)]
    duration: Duration,
    /// Honest round trips may take this many times as long while a server is attacked, at the median
    #[arg(
        long,
        value_name = "RATIO",
        default_value_t = 20.0,
        requires = "attack"
    )]
    max_ratio: f64,
    /// Open so many sessions, and measure the memory that they take of their server
    #[arg(long, value_name = "N", conflicts_with_all = OTHERS, conflicts_with_all = ["csv", "attack", "sessions", "payload", "runs", "timeout"], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    idle_sessions: Option<u32>,
}

/// What the bench's other options say about a drill.
pub struct Honest {
    /// Honest sessions.
    pub sessions: u32,
    /// Bytes of the payloads of their messages.
    pub payload: Payload,
    /// Rounds of each attack.
    pub runs: usize,
    /// Threads of the server.
    pub threads: u16,
    /// An echo that takes longer is lost.
    pub timeout: Duration,
}

impl DrillArgs {
    /// Whether it is a drill that is wanted, or idle sessions.
    pub fn is_asked_for(&self) -> bool {
        !self.attack.is_empty() || self.idle_sessions.is_some()
    }
}

/// Runs what was asked for.
pub fn run(args: &DrillArgs, honest: Honest, context: &Context) -> Result<()> {
    if let Some(sessions) = args.idle_sessions {
        let report = idle::measure(sessions, honest.threads, &context.work)?;
        return context.output.report(&report, &report);
    }
    let plan = DrillPlan {
        attacks: Chosen::attacks(&args.attack),
        connections: args.connections,
        addresses: args.addresses,
        sessions: honest.sessions,
        payload: honest.payload,
        runs: honest.runs,
        duration: args.duration,
        threads: honest.threads,
        timeout: honest.timeout,
        max_ratio: args.max_ratio,
    };
    plan.validate()?;
    let what = format!("session attack: {}", plan.describe());
    context.output.say(what)?;
    let mut attacked = Vec::with_capacity(plan.attacks.len());
    for (number, kind) in plan.attacks.iter().enumerate() {
        let (number, all) = (number + 1, plan.attacks.len());
        context.note(format_args!("{}, {number} of {all}", kind.name()));
        attacked.push(attack(&plan, *kind, &context.work)?);
    }
    let report = DrillReport::of(&plan, &attacked);
    let paint = context.output.paint();
    context.output.report(&report, report.text(paint))?;
    if report.has_lost() {
        return Err(exit::data(report.verdict()));
    }
    if report.is_harmed {
        return Err(anyhow!(report.verdict()));
    }
    Ok(())
}
