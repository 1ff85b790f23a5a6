//! `embar diagnose session`: names what limits message sessions, and tries the remedy.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use embar_bench::diagnose::session::attach::look;
use embar_bench::diagnose::session::inject::Fault;
use embar_bench::diagnose::session::plan::SessionLoad;
use embar_bench::diagnose::session::report::SessionReport;
use embar_bench::diagnose::session::run::examine;
use embar_bench::session::plan::Transport;
use embar_console::size::{Size, parse_duration, parse_span};
use embar_diagnose::Diagnosis;
use embar_diagnose::session::observed::Way;
use embar_diagnose::session::{Observed, diagnose};
use embar_transport::Address;

use super::{RemedyArgs, enter, save, saved};
use crate::context::Context;
use crate::exit;

/// Messages under way on each session, unless told otherwise.
const IN_FLIGHT: u32 = 64;

/// Name what limits message sessions: the application, rings, sockets, handlers, or the way between
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar diagnose session                                     messages one way, as fast as they go
  embar diagnose session --flow echo --in-flight 1           each is answered before the next leaves
  embar diagnose session --payload 16KiB --tls
  embar diagnose session --inject small-ring=4KiB --verify   a fault on purpose, and its remedy
  embar diagnose session --inject slow-handler=5us
  embar diagnose session --inject many-fields=200            messages that take long to decode
  embar diagnose session --server 127.0.0.1:9500 --for 10s   only look at sessions that others use
  embar diagnose session --server unix:/tmp/bench.sock
  embar diagnose session --save seen.json; embar diagnose session --from seen.json

It starts a server and a client with sessions to it, as `embar bench session` does, and looks at
what the sessions count (messages, bytes, calls, waits for room in a ring), at the time that the
server's handlers take, and at the kernel's word on threads, connections and the machine. With
--server it starts nothing, and looks at the threads and connections of a server that runs and
of its clients, as far as they are on this machine and this user's (of root: anybody's). What cannot
be read is said.

It names: application-too-slow, slow-handler, send-ring-too-small, receive-window-too-small,
send-buffer-too-small, kernel-buffer-maxima, too-few-in-flight, small-writes, big-value,
encoding-bound, decoding-bound, tls-cost, receiver-cpu-bound, too-few-client-threads, network-delay,
network-loss, network-rate-limit, processors-taken-by-others, processor-quota; and machine-wall and
nothing-found, which are no faults.

JSON, one object: of, injected[], messages_per_s; limits, findings[] and missing[] as of `embar
diagnose`; observed (all that was looked at: seconds, way, messages, bytes, large, machine,
application, client, server, in_flight, connections[], by_tls)
")]
pub struct SessionArgs {
    /// How long to look
    #[arg(long = "for", value_name = "TIME", default_value = "4s", value_parser = parse_span)]
    span: Duration,
    /// How long messages go before
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    warm_up: Duration,
    /// Only look at the sessions of this server, and their clients on this machine: the address that it listens on, HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = of_load(&[]))]
    server: Option<Address>,
    /// Which way messages go
    #[arg(long, value_name = "WAY", value_enum, default_value_t = Flow::OneWay)]
    flow: Flow,
    /// Bytes of the payload of each message
    #[arg(long, value_name = "SIZE", default_value = "64")]
    payload: Size,
    /// Sessions at a time; one way each has a thread that sends
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    sessions: u32,
    /// Messages under way on each session, with --flow echo [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    in_flight: Option<u32>,
    /// Threads of the server that serve sessions, and as many of the client
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Bytes of each send ring of the client, a power of two [default: 256 KiB, or what two messages need]
    #[arg(long, value_name = "SIZE")]
    ring: Option<Size>,
    /// What the sessions run on
    #[arg(long, value_name = "WHAT", value_enum, default_value = "tcp")]
    transport: Transport,
    /// Encrypt the sessions
    #[arg(long)]
    tls: bool,
    /// Inject a fault; may be given several times. An unknown name lists those that there are
    #[arg(long, value_name = "FAULT=VALUE")]
    inject: Vec<Fault>,
    #[command(flatten)]
    remedies: RemedyArgs,
    /// Also write what was seen to this file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Diagnose what such a file says, instead of measuring
    #[arg(long, value_name = "FILE", conflicts_with_all = of_load(&["span", "server", "save"]))]
    from: Option<PathBuf>,
}

/// The options that say what the load is like and what is tried on it, and these others: whoever makes none cannot heed them.
fn of_load(others: &[&'static str]) -> Vec<&'static str> {
    let own = [
        "warm_up",
        "flow",
        "payload",
        "sessions",
        "in_flight",
        "threads",
        "ring",
        "transport",
        "tls",
        "inject",
        "verify",
        "pairs",
        "remedies",
    ];
    [&own, others].concat()
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Flow {
    /// The client sends, the server takes
    OneWay,
    /// The server answers each message, and another one leaves when an answer comes
    Echo,
}

impl SessionArgs {
    fn plan(&self) -> Result<SessionLoad> {
        if self.in_flight.is_some() && matches!(self.flow, Flow::OneWay) {
            return Err(exit::usage(
                "--in-flight: one way, rings say how much is under way: give --flow echo, or --ring",
            ));
        }
        let ring = self.ring.map(|it| exit::to_u32(it, "--ring")).transpose()?;
        let plan = SessionLoad {
            way: match self.flow {
                Flow::OneWay => Way::OneWay,
                Flow::Echo => Way::Echo,
            },
            payload: exit::to_u32(self.payload, "--payload")?,
            sessions: self.sessions,
            in_flight: self.in_flight.unwrap_or(IN_FLIGHT),
            workers: self.threads,
            ring,
            transport: self.transport,
            by_tls: self.tls,
            recv_buffer: None,
            send_buffer: None,
            waits_after: None,
            big: None,
            fields: 0,
            span: self.span,
            warm_up: self.warm_up,
            faults: Vec::new(),
        };
        Ok(plan.with_faults(self.inject.clone())?)
    }
}

/// Measures, and says what limits.
pub fn run(args: &SessionArgs, context: &Context) -> Result<()> {
    if let Some(path) = &args.from {
        let observed: Observed = saved(path, "embar diagnose session")?;
        let of = path.display().to_string();
        return show(of, &[], &observed, &diagnose(&observed), context);
    }
    if let Some(server) = &args.server {
        let observed = look(server, args.span, &context.work.interrupt)?;
        save(args.save.as_deref(), &observed)?;
        let of = format!("the sessions of the server at {server}");
        return show(of, &[], &observed, &diagnose(&observed), context);
    }
    args.remedies.check()?;
    let plan = args.plan()?;
    enter(Fault::network(&args.inject), context)?;
    let observed = examine(&plan, &context.work)?;
    save(args.save.as_deref(), &observed)?;
    let mut diagnosis = diagnose(&observed);
    let tried = args.remedies.try_on(&mut diagnosis, &plan, context);
    let of = "a server and a client of our own".to_owned();
    show(of, &args.inject, &observed, &diagnosis, context)?;
    tried
}

fn show(
    of: String,
    injected: &[Fault],
    observed: &Observed,
    diagnosis: &Diagnosis,
    context: &Context,
) -> Result<()> {
    let report = SessionReport {
        of,
        injected: injected.iter().map(Fault::to_string).collect(),
        messages_per_s: observed.messages_per_s(),
        diagnosis,
        observed,
    };
    context.output.report(&report, format_args!("{report}"))
}
