//! The client against real servers, alone and as clusters, while they work and while they fail.

mod addresses;
mod basics;
mod blocking;
mod caching;
mod caching_cluster;
mod cluster;
mod consumer;
mod credentials;
mod dedicated;
mod executed;
mod faults;
mod lazy;
mod limits;
mod metrics;
mod network;
mod open_transactions;
mod own_writes;
mod pipeline_outages;
mod pipelines;
#[cfg(feature = "prometheus")]
mod prometheus;
mod pubsub;
mod refusals;
mod replicas;
mod replicated;
mod role_change;
mod scans;
mod scripts;
mod sentinel;
mod silence;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod topology;
