//! An authoritative game server that is replaced while it is played: an example of `embar-resume`.
//!
//! ```sh
//! cargo run -p game -- server --hand-over /tmp/game.hand-over
//! cargo run -p game -- play 127.0.0.1:7777 anna
//! cargo run -p game -- bots 127.0.0.1:7777 --count 50 --for 30
//! ```
//!
//! # How it is made
//! - `proto/game.proto` says what is said, `protocol.rs` has the ids and all limits.
//! - `world.rs` is the game: moves in, ticks, snapshots out; without I/O, clock or luck of its own.
//! - `arena.rs` joins it with the sessions of those who play, `guest.rs` is the handler of one of these.
//! - `server.rs` ticks at the times of `pace.rs`, and hands the world over to the process that follows.
//! - `pilot.rs` is the player's side: `play.rs` puts a person into its seat, with the frames of `view.rs`, and `bots.rs` load.
//!
//! # What it shows
//! - What counts is numbered, and goes by sessions that survive their connection, so it counts once. What only has to be
//!   fresh is left out for who is slow.
//! - A server goes on in another process at the same tick, and nobody has to join again.

#![forbid(unsafe_code)]

mod arena;
mod bots;
mod guest;
mod pace;
mod pilot;
mod play;
mod protocol;
mod server;
mod view;
mod world;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use embar_session::Address;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

const EXAMPLES: &str = "Examples:
  game server                                      serve at 127.0.0.1:7777
  game server 0.0.0.0:7777 --hand-over /run/game   once more, and the second takes over from the first
  game play 127.0.0.1:7777 anna                    play in this terminal
  game bots 127.0.0.1:7777 --count 50 --for 30     fifty who play for half a minute, and what became of it";

/// Players collect coins on a grid; the server can be replaced meanwhile
#[derive(Parser)]
#[command(name = "game", version, after_help = EXAMPLES)]
enum Command {
    /// Keep a world
    Server(server::Options),
    /// Play in a terminal
    Play {
        /// Where the server listens
        address: Address,
        /// What others see of you: letters and digits
        name: String,
    },
    /// Let many play, and print what became of their moves
    Bots(bots::Options),
}

fn main() -> ExitCode {
    let outcome = match Command::parse() {
        Command::Server(options) => server::run(&options),
        Command::Play { address, name } => play::run(&address, &name),
        Command::Bots(options) => bots::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("game: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// One line for people. Somebody who closed the terminal does not read it, and need not.
fn print(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// One line about what went wrong.
fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Ctrl-C, and a polite kill.
fn stop_signals() -> io::Result<Signals> {
    Signals::new([SIGINT, SIGTERM])
}
