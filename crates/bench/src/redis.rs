//! Callers that share the connections of one Redis client.
//!
//! Read [`plan`] (what is measured), [`work`] (which keys and values), `tally` (what operations gave), then `callers` and
//! `pipelined` (who does it, one by one or many at a time), `load` (keys that are there before), [`measure`] (one
//! run), `profile` (where its time went), [`figures`] (of a run, and of several) and [`report`] (what is printed).

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
