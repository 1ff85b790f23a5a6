//! Starts, watches, restarts and stops the processes of a cluster.
//!
//! What it never does: know what the cluster is for, or run a broker inside this process.
//!
//! Invariants:
//! - No broker outlives this process, however it ends: each holds the reading end of a pipe whose writing end is ours,
//!   and stops when it closes.
//! - A signal goes only to a process that was not waited for, so its id cannot have been given to another.
//! - Terminal signals reach this process only (each broker has a process group of its own), so the order of a shutdown
//!   is ours: data brokers first, then the standbys, then the head.
//!
//! Read [`protocol`] (what child processes report), then [`child`], [`plan`] and [`cluster`]. For a cluster that is kept
//! going read `restart_policy.rs` (the decisions) and `supervisor.rs`, then [`occupancy`], [`supervisor_lock`] and
//! `existing.rs` (a region whose rows other processes hold); for one that serves a single piece of work, [`work`].

#![forbid(unsafe_code)]

pub mod arguments;
pub mod child;
pub mod cluster;
mod existing;
pub mod leftovers;
pub mod logs;
pub mod occupancy;
pub mod plan;
pub mod protocol;
pub mod regions;
mod restart_policy;
mod stop;
mod supervisor;
pub mod supervisor_lock;
pub mod work;

pub use cluster::{Broker, Cluster, ClusterEvent};
pub use plan::ClusterPlan;
pub use supervisor::Supervisor;
