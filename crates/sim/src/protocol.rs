//! The protocol of ordering alone: participants, sequencers that replace each other, publishers and
//! readers on simulated memory, without connections and without the broker around it.
//!
//! A run takes little time, and nothing stands between a fault and the protocol: so this world finds moments that a
//! few accesses to memory decide. Whatever dies, pauses or is taken for dead, there is one order, and nothing that
//! was acknowledged leaves it.
//!
//! Reading order: `world` (who is there), `schedule` (who steps next), `plan` and `chance` (what a seed does),
//! `broker`, `candidate`, `publisher` and `reader` (who takes part, each by what `env` offers), then `oracle` (what
//! is known) and `check` (what must hold).

mod broker;
mod bytes;
mod candidate;
mod chance;
mod check;
mod env;
mod oracle;
mod plan;
mod process;
mod publisher;
mod reader;
mod schedule;
mod world;

pub use schedule::run;

/// What has to happen in a few hundred seeds: what does not happen is not tested.
pub const EXPECTED: &[&str] = &[
    "batches ordered",
    "brokers ready",
    "brokers' hosts failed",
    "brokers' processes ended",
    "candidates' hosts failed",
    "candidates' processes ended",
    "takeovers",
    "takeovers that died",
    "sequencers deposed",
    "pauses",
    "interruptions",
    "reads that did not count",
    "chains deleted",
    "clients restarted",
    "windows raised",
    "extents given back",
    "positions skipped",
    "left and intact",
    "left and used again",
    "lanes full",
    "payload full",
    "told duplicate",
    "told fenced",
    "told beyond the window",
    "told that too many are held",
    "told that it was given up",
    "told of another instance",
    "told that sessions are full",
];
