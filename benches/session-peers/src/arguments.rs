//! What can be asked for.

use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};

/// Bytes that each message carries beside its number.
pub const PAYLOAD_BYTES: usize = 64;

/// Measures our sessions and others like them by turns, on this machine, and prints a table to compare them
#[derive(Parser)]
pub struct Arguments {
    /// Which are compared
    #[arg(long, value_enum, value_delimiter = ',', num_args = 1.., default_values_t = Peer::ALL)]
    pub peers: Vec<Peer>,
    /// How often each is measured
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: u64,
    /// Messages there and back, one after the other; a tenth of them goes first and does not count
    #[arg(long, default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(10..))]
    pub round_trips: u64,
    /// Messages one way; a tenth of them goes first and does not count
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(10..))]
    pub one_way: u64,
    /// Calls, one after the other; a tenth of them goes first and does not count
    #[arg(long, default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(10..))]
    pub unary: u64,
    /// Measure only this one, once, in this process
    #[arg(long, requires = "test")]
    pub peer: Option<Peer>,
    /// What that one does
    #[arg(long, requires = "peer")]
    pub test: Option<Test>,
    /// Print JSON, on one line
    #[arg(long)]
    pub json: bool,
}

impl Arguments {
    /// Messages of a test.
    pub fn messages(&self, test: Test) -> u64 {
        match test {
            Test::RoundTrip => self.round_trips,
            Test::OneWay => self.one_way,
            Test::Unary => self.unary,
        }
    }
}

/// A way to send messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// Ours.
    Embar,
    /// gRPC by tonic: streams of messages.
    Tonic,
    /// Cap'n Proto by capnp-rpc.
    CapnpRpc,
    /// ZeroMQ by libzmq.
    Zeromq,
    /// ENet by rusty_enet: reliable packets over UDP.
    Enet,
}

impl Peer {
    /// In the order of the table.
    pub const ALL: [Self; 5] = [
        Self::Embar,
        Self::Tonic,
        Self::CapnpRpc,
        Self::Zeromq,
        Self::Enet,
    ];
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// One message there and back at a time.
    RoundTrip,
    /// Messages one way, as fast as it takes them, until the receiver reports how many there were.
    OneWay,
    /// One call with one reply at a time.
    Unary,
}

impl Test {
    /// In the order of the table.
    pub const ALL: [Self; 3] = [Self::RoundTrip, Self::OneWay, Self::Unary];

    /// Whether it is something that this peer does.
    pub fn is_of(self, peer: Peer) -> bool {
        self != Self::Unary || !matches!(peer, Peer::Zeromq | Peer::Enet)
    }
}

/// As it is written on the command line.
impl Display for Peer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(name(self).as_str())
    }
}

/// As it is written on the command line.
impl Display for Test {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(name(self).as_str())
    }
}

fn name(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value().expect("none is hidden");
    value.get_name().to_owned()
}

#[cfg(test)]
mod tests {
    use super::{Arguments, Peer, Test};
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_arguments_make_sense() {
        Arguments::command().debug_assert();
        let all = Arguments::try_parse_from(["session-peers"]).unwrap();
        assert_eq!(all.peers, Peer::ALL);
        assert!(Test::Unary.is_of(Peer::Embar) && !Test::Unary.is_of(Peer::Enet));
        let half = ["session-peers", "--peer", "tonic"];
        assert!(Arguments::try_parse_from(half).is_err());
    }
}
