//! Streams by shared memory: both sides of connections on simulated memory, without sockets and reactors.
//!
//! The cores of the transport run here as its reactor runs them: they receive, send, name what lies in memory of theirs,
//! sleep, and are woken by doorbells. Others step between two of their accesses to memory. Processes end in the middle of
//! anything, stand still, and give connections up while the other side still reads what they named. Some break every
//! rule of the protocol. Whatever happens, who is honest receives the bytes that an honest peer sent, in their order, and
//! nobody sleeps over what it waits for.
//!
//! Reading order: `plan` (what a seed decides), `pool` (memory that is named to the peer), `side` (an honest process),
//! `liar` (one that is not), `links` (who is connected to whom), `world` (what is known of them), `schedule` (who steps
//! next).

mod liar;
mod links;
mod plan;
mod pool;
mod schedule;
mod side;
mod world;

pub use schedule::run;

/// What has to happen in a few hundred seeds: what does not happen is not tested.
pub const EXPECTED: &[&str] = &[
    "bytes copied",
    "bytes named",
    "naps",
    "rings",
    "interruptions",
    "pauses",
    "ended politely",
    "given up",
    "given up while something was named",
    "withdrawn in time",
    "processes ended",
    "lies told",
    "lies refused",
];
