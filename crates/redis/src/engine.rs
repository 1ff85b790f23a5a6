//! What a client runs on: connections to nodes, the routes to them, and the thread that looks after
//! both.
//!
//! Reading order: `timers` and `schedule` (the work of the manager's thread), `resolver`, `open_transaction`,
//! `greeting` and `protocol`,
//! `drivers` and `dialer` (how a connection opens), `lasting` (why it never will), `credential_store`, `pool` (connections
//! for commands that block), `cache` (what a client keeps of replies, as long as it holds),
//! `shared` (what all parts of a client use),
//! `leave_pace`, `node_connection` and `node` (a server, and the connections to it), `opening` (of one for a caller alone),
//! `routes` and `router` (which
//! node serves which slot), `cluster_info`, `answers`, `inquiry`, `question`, `failures` and `refresh`
//! (read that from the cluster), `replication` and `sentinel` (find a primary and its replicas without a cluster),
//! `source` (one of these), `first_topology` (what a client that connects waits for), `manager` (the thread),
//! `authentication` (tells living connections of new credentials), and `subscriptions`.

mod answers;
mod authentication;
mod cache;
mod cluster_info;
mod credential_store;
mod dialer;
mod drivers;
mod failures;
mod first_topology;
mod greeting;
mod inquiry;
mod lasting;
mod leave_pace;
mod manager;
mod node;
mod node_connection;
mod open_transaction;
mod opening;
mod pool;
mod protocol;
mod question;
mod refresh;
mod replication;
mod resolver;
mod router;
mod routes;
mod schedule;
mod sentinel;
mod shared;
mod source;
mod subscriptions;
mod timers;
mod topology_changes;

pub(crate) use authentication::start as start_authentication;
#[cfg(test)]
pub(crate) use cache::Tracker;
pub(crate) use cache::{AskedEntry, Asking, Cache, Cacheable, Looked, Outcome, Validity, Waiter};
pub(crate) use credential_store::Authenticated;
pub(crate) use dialer::Dialer;
pub(crate) use drivers::Drivers;
pub(crate) use greeting::encoded_auth;
pub(crate) use manager::start;
#[cfg(test)]
pub(crate) use node::Node;
pub use node::NodeInfo;
pub(crate) use node_connection::{ConnWait, NodeConnection};
pub(crate) use opening::{Tries, lease, open};
pub(crate) use pool::{Lease, Opened};
#[cfg(test)]
pub(crate) use resolver::slow_names;
pub(crate) use router::Router;
pub(crate) use routes::Routes;
pub(crate) use schedule::{Task, Timer, sleep_until};
pub(crate) use shared::Shared;
pub(crate) use subscriptions::SubscriptionSet;
pub(crate) use timers::after;
