//! `embar bench session serve`: the server for an `embar bench session --connect` in another process or on another
//! host.

use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use embar_bench::session::measure::settings;
use embar_bench::session::payloads::{PAYLOAD_BYTES_MAX, Payload, Payloads};
use embar_bench::session::server::EchoServer;
use embar_console::size::Size;
use embar_session::Server as SessionServer;
use embar_transport::Address;
use serde::Serialize;

use crate::context::Context;
use crate::exit;
use crate::output::raw_line;

/// How long sessions may take to end at the end.
const GRACE: Duration = Duration::from_secs(2);

/// Echo for benches in other processes, or on other hosts
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar bench session serve --listen 10.0.0.7:9500
  embar bench session serve --listen unix:/tmp/bench.sock --spin-us 50
  embar bench session --connect 10.0.0.7:9500           on the other host

It serves any client until it is interrupted: listen where only those who are to measure can reach
it.

JSON, one object, when it listens: listening, the address")]
pub struct ServeArgs {
    /// Address to listen on: HOST:PORT (port 0 for any that is free) or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9500")]
    listen: String,
    /// Bytes of the largest payload that clients may ask for
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    max_payload: Size,
    /// Bytes of each ring of a session
    #[arg(long, value_name = "SIZE", default_value = "256KiB")]
    ring: Size,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Microseconds a thread looks for bytes before it sleeps; 0 for not at all
    #[arg(long, value_name = "US", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    spin_us: u64,
}

#[derive(Serialize)]
struct Ready {
    listening: String,
}

/// Serves until a signal asks it to stop.
pub fn run(args: &ServeArgs, context: &Context) -> Result<()> {
    let max = exit::to_u32(args.max_payload, "--max-payload")?;
    if max > PAYLOAD_BYTES_MAX {
        return Err(exit::usage(format!(
            "--max-payload must be at most {}",
            Size(PAYLOAD_BYTES_MAX.into())
        )));
    }
    embar_console::process::raise_file_limit();
    let address: Address = args
        .listen
        .parse()
        .map_err(|error| exit::usage(format!("--listen {}: {error}", args.listen)))?;
    let (stop, stopped) = mpsc::channel();
    context.work.interrupt.on_raise(move || {
        // One that has stopped receives nothing.
        let _received = stop.send(());
    });
    let frame_bytes = Payloads::new(Payload { min: max, max }).frame_bytes();
    let ring = exit::to_u32(args.ring, "--ring")? as usize;
    let spin = Duration::from_micros(args.spin_us);
    let server = SessionServer::builder()
        .settings(settings(frame_bytes, ring, args.threads, spin))
        .listen(address)
        .start(|_| EchoServer::default())
        .context("cannot serve")?;
    let listening = server.address().to_string();
    if context.output.is_json() {
        context.output.json(&Ready { listening })?;
    } else {
        raw_line(&format_args!("serving on {listening}"))?;
    }
    // The sender lives in a callback that is never dropped; an error would mean the same as a message.
    let _asked = stopped.recv();
    server.shutdown(GRACE);
    Ok(())
}
