//! Total order over the batches of all brokers: the sequencer, the brokers' side of it, and takeovers.
//!
//! [`Core`] is a state machine without I/O, threads or a clock. Records of lanes and the time go in, [`Action`]s
//! come out: place this batch at that position, save this session's row, notify that broker of a record's outcome.
//! The core answers every record once, by its place or by one notice, at the latest when its session's lease ends.
//! It never answers only what an older incarnation of a broker left. The driver of a core does the actions in their
//! order.
//!
//! A publisher's batches belong to a *session*: its identity in one topic. A session has *epochs*. One of them is
//! current, and each begins where the one before it ended, at the session's *mark*, the lowest number that has no
//! place yet. A [`Protocol`] decides how batches come to their places. A session belongs to whoever knows its
//! secret ([`request`]).
//!
//! This crate never looks at a batch's bytes, never waits for another process, and knows neither sockets nor
//! topics: a *chain* is a number.
//!
//! Reading order: [`action`] (what goes in and out), [`protocol`], [`Core`], then [`leadership`] and [`sequencer`]
//! (the candidate's side), [`participant`] and [`follower`] (the brokers' side).
#![forbid(unsafe_code)]

pub mod action;
mod chains;
mod changed_chains;
mod clock;
mod core;
mod figures;
pub mod follower;
mod gaps;
mod held;
mod idle;
pub mod leader_watch;
pub mod leadership;
mod limits;
pub mod participant;
pub mod protocol;
pub mod request;
pub mod row_progress;
pub mod sequencer;
mod session;
mod sessions;

pub use crate::core::{Core, RestoreError};
pub use action::{Action, Arrival, Outcome, Source};
pub use changed_chains::ChangedChains;
pub use figures::Figures;
pub use follower::Follower;
pub use leader_watch::LeaderWatch;
pub use leadership::{Leadership, Term};
pub use limits::{Limits, LimitsError};
pub use participant::{Event, Participant};
pub use protocol::Protocol;
pub use request::{Operation, Request};
pub use sequencer::{MayGiveUp, Sequencer, Step, TakeoverError};
