//! The whole cluster in one thread, on simulated memory, network and time, from a seed.
//!
//! The real brokers (log, shard, recovery), the real sequencers, the real publisher and subscriber cores and the
//! real fabric run here; only what is below and around them is simulated. Each host has a private cache over the
//! memory that all share. Hosts die or stand still in the middle of anything, others run between two of their
//! accesses to memory, sequencers are deposed and go on, caches write lines back when they like, connections break
//! inside of frames. After every step checkers compare what is on the raw devices, and what clients received, with
//! what they know. The same seed gives the same run, event by event.
//!
//! A run never uses a socket, a thread of its own, a clock, or randomness that does not come from the seed.
//!
//! Reading order: [`mod@run`] (one seed), [`plan`] (what a seed does), [`world`] (the loop, its faults and its
//! end), [`host`] and [`candidate_host`] (brokers and candidates, and their memory), [`network`], [`actor`] (the
//! clients), then what finds the bugs: [`oracle`] (what is known) and [`check`] (the invariants). [`canaries`]
//! breaks rules on purpose, to see that they do. Two smaller worlds are beside it: [`protocol`], the protocol of ordering
//! alone, and [`streams`], streams by shared memory.
#![forbid(unsafe_code)]

pub mod actor;
pub mod canaries;
pub mod candidate_host;
pub mod check;
pub mod clock;
pub mod figures;
pub mod host;
pub mod lease;
pub mod network;
pub mod options;
pub mod oracle;
pub mod plan;
pub mod protocol;
pub mod random;
pub mod report;
pub mod run;
pub mod search;
pub mod streams;
pub mod trace;
pub mod violation;
pub mod world;

pub use options::{Options, Part};
pub use report::Report;
pub use run::run;
