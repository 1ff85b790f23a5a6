//! Benches: they measure how fast the log, sessions and the Redis client are, and what that costs. A bench of the log
//! starts brokers for its trials.
//!
//! Read [`plan`] (what is measured), [`stamp`] (messages that can be verified), [`usage`] (what it cost),
//! [`private_cluster`] (brokers of one trial) and [`shared_cluster`] (brokers of several), then [`publish`], [`read`],
//! [`e2e`] (one trial each), [`retained`] (whether all of it can still be read), [`compare`] (any setting of a bench, by turns),
//! [`experiment`] (trials by turns, and what else the machine did),
//! [`latency`] (until a message is acknowledged), [`wall`] (what the machine allows), [`walls`] (the log beside it),
//! [`disk`] (what a disk does alone, and with the log's commits), [`scale`] (what it costs as one thing grows), [`largest_stage`] (what limited a run), [`mod@diagnose`] (why a load is no faster, and what its remedy brings) and [`report`] (what is printed).
//! [`session`] and [`redis`] are benches without log and brokers.

#![forbid(unsafe_code)]

pub mod beside_reader;
pub mod compare;
pub mod diagnose;
pub mod disk;
pub mod disk_profile;
pub mod e2e;
pub mod experiment;
pub mod largest_stage;
pub mod latency;
pub mod plan;
pub mod private_cluster;
pub mod publish;
pub mod read;
pub mod reader;
pub mod redis;
pub mod report;
pub mod retained;
pub mod scale;
mod scratch;
pub mod session;
pub mod shared_cluster;
pub mod stalls;
pub mod stamp;
pub mod usage;
pub mod wall;
pub mod walls;
