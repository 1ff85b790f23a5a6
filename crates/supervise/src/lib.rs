//! A cluster of child processes: started, watched, restarted, drained.
//!
//! Invariants:
//! - No broker outlives this process, however it ends: each holds the reading end of a pipe whose writing end is ours,
//!   and stops when it closes.
//! - A signal goes only to a process that was not waited for, so its id cannot have been given to another.
//! - Terminal signals reach this process only (each broker has a process group of its own), so the order of a shutdown
//!   is ours: data brokers first, then the standbys, then the head.
//!
//! Read [`protocol`], then `child.rs`, [`plan`], [`cluster`], and for a cluster that is kept going `keeper.rs` (the decisions),
//! `watch.rs`, and `tenure.rs` and `takeover.rs` (processes that an earlier command left); [`work`] for one that is not.

#![forbid(unsafe_code)]

pub mod arguments;
pub mod child;
pub mod cluster;
mod keeper;
pub mod logs;
pub mod plan;
pub mod protocol;
pub mod regions;
mod stop;
mod takeover;
pub mod tenure;
mod watch;
pub mod work;

pub use cluster::{Broker, Cluster, Happening};
pub use plan::Plan;
pub use watch::Watch;
