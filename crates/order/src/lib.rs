//! Who comes when: one order over the batches of all brokers.
//!
//! [`Core`] is a state machine without I/O, threads or a clock. Records of lanes and the time go in,
//! [`Action`]s come out: place this batch at that position, write back this session's row, tell
//! that publisher what became of its record. Every record is answered once, by its place or by one
//! notice, at the latest when its session's lease ends; only what a broker's older incarnation left
//! is never answered. The one who drives a core carries out the actions in their order.
//!
//! A publisher's batches belong to a *session*: its identity in one topic. A session has *epochs*;
//! one of them is current, and each begins where the one before it ended, at the session's *mark*,
//! the lowest number that is not placed. How batches come to their places is a [`Protocol`]'s choice.
//! A session is whose it is by its secret ([`request`]).
//!
//! Reading order: [`action`] (what goes in and out), [`protocol`], then [`core`](Core).
#![forbid(unsafe_code)]

pub mod action;
pub mod candidate;
mod chains;
mod changed_chains;
mod clock;
mod core;
mod figures;
pub mod follower;
mod gaps;
mod held;
mod idle;
pub mod leadership;
mod limits;
pub mod participant;
pub mod protocol;
pub mod request;
pub mod sequencer;
mod session;
mod sessions;

pub use crate::core::{Core, RestoreError};
pub use action::{Action, Arrival, Outcome, Source};
pub use candidate::Candidate;
pub use changed_chains::ChangedChains;
pub use figures::Figures;
pub use follower::Follower;
pub use leadership::{Leadership, Term};
pub use limits::{Limits, LimitsError};
pub use participant::{Event, Participant};
pub use protocol::Protocol;
pub use request::{Operation, Request};
pub use sequencer::{Sequencer, Step, TakeoverError};
