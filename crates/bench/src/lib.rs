//! Measuring: private clusters, trials, what the processes used, reports.
//!
//! Read [`plan`] (what is measured), [`stamp`] (messages that can be verified), [`usage`] (what it cost), [`cluster`]
//! (brokers of one trial), then [`publish`], [`read`], [`e2e`] (one trial each), [`compare`] (order levels by turns), [`latency`] (until a message is acknowledged), [`wall`] (what the machine allows) and
//! [`report`] (what is printed). [`session`] and [`redis`] stand for themselves: no log, no
//! brokers.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod compare;
pub mod e2e;
pub mod latency;
pub mod limit;
pub mod plan;
pub mod publish;
pub mod read;
pub mod redis;
pub mod report;
pub mod retained;
pub mod session;
pub mod stamp;
pub mod standing;
pub mod usage;
pub mod wall;
