//! A chat room: the example of `embar-session`.
//!
//! Start a server in one terminal and a client in each of some others:
//!
//! ```sh
//! cargo run -p chat -- server
//! cargo run -p chat -- client --name anna
//! cargo run -p chat -- client --name ben
//! ```
//!
//! What is typed at one client appears at all others. Ctrl-D or Ctrl-C leaves.
//!
//! # How it is made
//! - `proto/chat.proto` says what is said; `build.rs` turns it into Rust types.
//! - `packets.rs` gives each message a number, and says what a name and a line may be.
//! - `room.rs` is the room without I/O: who is in it, the last lines, and what it has heard of whom.
//! - `server.rs` keeps one. `server/hall.rs` shares it between sessions, `server/member.rs` is the
//!   [`Handler`](embar_session::Handler) of one session, and `server/succession.rs` hands the room to the next server.
//! - `client.rs` connects, and connects again. `client/stay.rs` is, without I/O, what outlives a session: which lines
//!   were seen, and which are not said yet. `client/desk.rs` shares it between threads, `client/screen.rs` is the handler
//!   that prints.
//!
//! # What it shows
//! - A line is read as a view of the receive ring, and written into the send rings of all, encoded once for all of them.
//! - A member who stops reading is dropped when that ring is full
//!   ([`OnFull::Close`](embar_session::OnFull::Close)); nobody else is slower for it.
//! - A client that crashes or is killed is announced at once, one whose host vanished after the
//!   idle timeout.
//! - What must not be done twice has a number: a line whose answer was lost is sent again, and said once.
//! - A server is replaced by [`hand_over`](embar_session::hand_over), with all that it knows, and no line is lost.

#![forbid(unsafe_code)]

mod client;
mod packets;
mod room;
mod server;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use embar_session::Address;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// A chat room on sessions
#[derive(Parser)]
#[command(name = "chat", version)]
enum Command {
    /// Keep a room
    Server {
        /// Where to listen: `host:port` (port 0: any that is free) or `unix:/path`
        #[arg(long, default_value = "127.0.0.1:7777")]
        listen: Address,
        /// A file by which the next server takes the place of this one: start it with the same
        #[arg(long, value_name = "PATH")]
        hand_over: Option<PathBuf>,
    },
    /// Enter a room
    Client {
        /// Where the server listens
        #[arg(long, default_value = "127.0.0.1:7777")]
        connect: Address,
        /// What the others call you
        #[arg(long)]
        name: String,
    },
}

fn main() -> ExitCode {
    let outcome = match Command::parse() {
        Command::Server { listen, hand_over } => server::run(&listen, hand_over),
        Command::Client { connect, name } => client::run(&connect, &name),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "chat: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One line for people. Somebody who closed the terminal does not read it, and need not.
fn print(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Ctrl-C, and a polite kill.
fn stop_signals() -> io::Result<Signals> {
    Signals::new([SIGINT, SIGTERM])
}
