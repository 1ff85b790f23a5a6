//! A broker of the log: receives batches straight into memory shared by hosts,
//! gives them offsets, acknowledges, and sends them to subscribers from there.
//!
//! It knows the region, the protocol and the rules of the log; it never parses
//! command lines. Only `server` and `cluster` use sockets, threads and clocks (stage
//! timers aside); all else are state machines that a simulator can run.
//!
//! Read in this order: [`topics`] (what exists), [`log`] (where batches are),
//! [`shard`] (connections: `ingest`, `export`, `control`), [`node`] (what the
//! threads share), [`candidacy`] (who sequences), [`heartbeat`] (who is there),
//! [`server`] (threads and sockets around it), [`cluster`] (several brokers in one process).
#![forbid(unsafe_code)]

pub mod broker_row;
pub mod candidacy;
pub mod clock;
pub mod cluster;
pub mod config;
mod connection;
mod connections;
mod disk_bytes;
mod disks;
pub mod drain;
pub mod heartbeat;
mod inbox;
pub mod journal;
pub mod log;
pub mod node;
pub mod peers;
pub mod places;
pub mod profile;
pub mod receive_path;
pub mod server;
pub mod shard;
#[cfg(test)]
mod test_region;
pub mod topics;

pub use cluster::{Cluster, ClusterBuilder, RemoveError};
pub use config::{BrokerConfig, ConfigError};
pub use log::Recovered;
pub use receive_path::ReceivePath;
pub use server::{Entry, Progress, RegionSpec, Role, Server, Shutdown, StartError};
