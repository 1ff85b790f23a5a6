//! `embar`: run the log, drive it, measure it.
//!
//! What it never does: hold logic that a user of the libraries would want, or touch memory unsafely. It reads options,
//! calls the libraries, and prints.
//!
//! Read `args.rs` and one file of `commands/`, then [`embar_supervise`] for child processes, [`embar_bench`] for measuring
//! and [`embar_verify`] for verifying.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod connect;
mod context;
mod exit;
mod output;
mod replication_factor;
mod settings;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use embar_console::interrupt::{Interrupt, Interrupted};
use embar_console::process::own_executable;
use embar_console::progress::{Progress, Terminal};
use embar_transport::alloc::Counting;

use crate::args::{Cli, Command};
use crate::context::Context;
use crate::exit::Problem;
use crate::output::Output;

/// Counts allocations while a bench asks for it; otherwise it is the system's.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    let (cli, leaves_nothing) = Cli::read();
    let output = Output::new(cli.json, cli.color);
    match run(&cli, leaves_nothing, output) {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) => {
            report(&error);
            ExitCode::from(exit::code(&error))
        }
    }
}

fn run(cli: &Cli, leaves_nothing: bool, output: Output) -> Result<()> {
    // What has nothing to end or to remove is ended by the signal itself.
    let interrupt = match leaves_nothing {
        true => Interrupt::default(),
        false => Interrupt::install().context("cannot watch for signals")?,
    };
    let context = Context {
        output,
        work: embar_console::context::Context {
            progress: Arc::new(Terminal),
            interrupt,
            program: own_executable(),
        },
    };
    start_logging(&cli.command);
    match &cli.command {
        Command::Quickstart(args) => commands::quickstart::run(args, &context),
        Command::Up(args) => commands::up::run(args, &context),
        Command::Broker(args) => commands::broker::run(args, &context),
        Command::Drain(args) => commands::drain::run(args, &context),
        Command::Topic(args) => commands::topic::run(args, &context),
        Command::Produce(args) => commands::produce::run(args, &context),
        Command::Consume(args) => commands::consume::run(args, &context),
        Command::Status(args) => commands::status::run(args, &context),
        Command::Profile(args) => commands::profile::run(args, &context),
        Command::Top(args) => commands::top::run(args, &context),
        Command::Layout(args) => commands::layout::run(args, &context),
        Command::Data(args) => commands::data::run(args, &context),
        Command::Bench(args) => commands::bench::run(args, &args::check, &context),
        Command::Verify(args) => commands::verify::run(args, &context),
        Command::Diagnose(args) => commands::diagnose::run(args, &context),
        Command::Report(args) => commands::report::run(args, &context),
        Command::CpuHog(args) => embar_bench::diagnose::hog::run(&args.spec),
        Command::DrillAttacker(args) => embar_bench::session::drill::attacker::run(&args.spec),
        Command::DrillServer(args) => embar_bench::session::drill::server::run(&args.spec),
        Command::VerifyHostile(args) => embar_verify::hostile::run(&args.spec),
        Command::VerifyPublisher(args) => embar_verify::publisher::run(&args.spec),
        Command::VerifyVictims(args) => embar_verify::victims::run(&args.spec),
        Command::WallReceiver(args) => embar_bench::wall::receiver::run(&args.spec),
    }
}

/// Brokers log what they do; other commands say what matters themselves. RUST_LOG overrides both.
fn start_logging(command: &Command) {
    let level = if matches!(command, Command::Broker(_)) {
        "info"
    } else {
        "error"
    };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
}

fn report(error: &anyhow::Error) {
    let is_closed = matches!(error.downcast_ref(), Some(Problem::OutputClosed));
    if is_closed || error.is::<Interrupted>() {
        return;
    }
    Terminal.note(&format!("embar: {}", exit::explain(error)));
}
