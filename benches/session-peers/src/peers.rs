//! Who is compared. Each has a server and a client in this process, with one connection over the loopback interface: TCP, and UDP where that is what
//! it is made for.

mod by_hand;
mod capnp_rpc;
mod embar;
mod embar_calls;
mod enet;
mod tonic;
mod zeromq;

pub use self::capnp_rpc::CapnpRpc;
pub use self::embar::Embar;
pub use self::enet::Enet;
pub use self::tonic::Tonic;
pub use self::zeromq::Zeromq;

use crate::arguments::PAYLOAD_BYTES;
use anyhow::{bail, ensure};
use std::time::Instant;

/// What every message carries.
static PAYLOAD: [u8; PAYLOAD_BYTES] = [0x5A; PAYLOAD_BYTES];

/// A server, and a client that is connected to it.
pub trait Connected: Sized {
    /// Starts both.
    fn start() -> anyhow::Result<Self>;

    /// Sends so many messages, each when the one before is back.
    fn round_trips(&mut self, messages: u64) -> anyhow::Result<RoundTrips>;

    /// Sends so many messages, until the server reports that all are there.
    fn one_way(&mut self, messages: u64) -> anyhow::Result<()>;

    /// Makes so many calls, each when the one before is answered; an error for libraries that have none.
    fn calls(&mut self, _calls: u64) -> anyhow::Result<RoundTrips> {
        bail!("it has no calls")
    }
}

/// How long each round trip took.
#[derive(Debug, Default)]
pub struct RoundTrips {
    /// In nanoseconds.
    pub nanos: Vec<u64>,
}

impl RoundTrips {
    /// None yet, with room for so many.
    fn with_capacity(messages: u64) -> Self {
        Self {
            nanos: Vec::with_capacity(messages as usize),
        }
    }

    /// One that began then and ends now.
    fn add(&mut self, begin: Instant) {
        self.nanos.push(begin.elapsed().as_nanos() as u64);
    }
}

/// Fails if a message is not the one that was sent.
fn check(expected: u64, sequence: u64, payload: &[u8]) -> anyhow::Result<()> {
    let right = sequence == expected && payload == PAYLOAD;
    ensure!(
        right,
        "message {expected} came back as {sequence}, with {} bytes",
        payload.len()
    );
    Ok(())
}

/// Fails if not all came.
fn check_count(sent: u64, counted: u64) -> anyhow::Result<()> {
    ensure!(
        sent == counted,
        "the server counted {counted} of {sent} messages"
    );
    Ok(())
}

/// What a server remembers of messages that go one way.
#[derive(Debug, Default)]
struct Counter {
    seen: u64,
}

impl Counter {
    /// Counts it, if it is the next one, and whole.
    fn see(&mut self, sequence: u64, payload: &[u8]) {
        if sequence == self.seen + 1 && payload == PAYLOAD {
            self.seen = sequence;
        }
    }

    /// How many there were; the next one is the first again.
    fn take(&mut self) -> u64 {
        std::mem::take(&mut self.seen)
    }
}

#[cfg(test)]
mod tests {
    use super::{CapnpRpc, Connected, Counter, Embar, Enet, PAYLOAD, Tonic, Zeromq};

    fn both_tests<C: Connected>() {
        let mut connected = C::start().unwrap();
        for _ in 0..2 {
            assert_eq!(connected.round_trips(10).unwrap().nanos.len(), 10);
        }
        // More than any of them has room for.
        for _ in 0..2 {
            connected.one_way(20_000).unwrap();
        }
    }

    fn calls<C: Connected>() {
        let mut connected = C::start().unwrap();
        for _ in 0..2 {
            assert_eq!(connected.calls(10).unwrap().nanos.len(), 10);
        }
    }

    #[test]
    fn ours_does_both() {
        both_tests::<Embar>();
        calls::<Embar>();
    }

    #[test]
    fn tonic_does_both() {
        both_tests::<Tonic>();
        calls::<Tonic>();
    }

    #[test]
    fn capnp_rpc_does_both() {
        both_tests::<CapnpRpc>();
        calls::<CapnpRpc>();
    }

    #[test]
    fn zeromq_does_both() {
        both_tests::<Zeromq>();
    }

    #[test]
    fn enet_does_both() {
        both_tests::<Enet>();
    }

    #[test]
    fn only_the_next_message_counts() {
        let mut counter = Counter::default();
        for (sequence, payload) in [
            (1, &PAYLOAD[..]),
            (3, &PAYLOAD),
            (2, &PAYLOAD[1..]),
            (2, &PAYLOAD),
        ] {
            counter.see(sequence, payload);
        }
        assert_eq!((counter.take(), counter.take()), (2, 0));
    }
}
