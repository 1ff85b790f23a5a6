//! How old a game's state is when its player sees it, by TCP and by QUIC, where packets take time and some are lost: an
//! example of `embar-quic`, and its bench.
//!
//! ```sh
//! cargo run --release -p fresh -- state --delay 50ms --loss 2   # as root
//! cargo run --release -p fresh -- echo
//! ```
//!
//! # What it shows
//! - One server whose sessions come by TCP, TLS and QUIC, with the same handlers.
//! - State as datagrams ([`Session::send_datagram_with`](embar_session::Session::send_datagram_with)), beside the same
//!   state as messages.
//! - What the way through QUIC costs messages that must arrive.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "figures are for the terminal")]

mod ends;
mod round_trips;
mod state;

use std::env;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser};
use embar_bench::diagnose::fault::Share;
use embar_bench::diagnose::network::{Network, Worse, run_inside};
use embar_console::size::parse_duration;

/// How old a game's state is by TCP and by QUIC, and what a round trip takes
#[derive(Parser)]
#[command(name = "fresh", version)]
enum Command {
    /// Send a state at a steady rate three ways at once, and print how old the newest one is at the other end
    State(state::Options),
    /// Send messages there and back, one after the other, by TCP, TLS and QUIC
    Echo(round_trips::Options),
}

#[derive(Args)]
struct Path {
    /// How long each packet is on its way, in each direction, in a network of its own (needs root)
    #[arg(long, value_parser = parse_duration, default_value = "0")]
    delay: Duration,
    /// Percent of the packets that are lost there
    #[arg(long, default_value = "0")]
    loss: Share,
}

impl Path {
    /// Makes the network that this asks for: returns in there.
    fn make(&self) -> Result<()> {
        let delay = (!self.delay.is_zero()).then_some(Worse::Delay(self.delay));
        let loss = (!self.loss.is_zero()).then_some(Worse::Loss(self.loss));
        let Some(network) = Network::of(delay.into_iter().chain(loss)) else {
            return Ok(());
        };
        if !network.make_if_inside()? {
            let program = env::current_exe().context("cannot tell which program this is")?;
            run_inside(&program, env::args_os().skip(1))?;
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::State(options) => state::run(&options),
        Command::Echo(options) => round_trips::run(&options),
    }
}
