//! `bench redis`: measures the Redis client while many callers share its connections.
//!
//! Read [`plan`] (what is measured), [`work`] (which keys and values), `tally` (counts and latencies), then `callers`
//! (tasks and threads) and `pipelined` (many operations at a time), `load` (writes the keys before), [`measure`] (one
//! run), `profile` (where its time went), [`figures`] (of one run, and of several) and [`report`] (what is printed).

mod callers;
pub mod figures;
mod load;
pub mod measure;
mod pipelined;
pub mod plan;
mod profile;
pub mod report;
mod tally;
pub mod work;
