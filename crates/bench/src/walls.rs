//! `bench walls`: the log beside the walls of the machine, path by path, in one interleaved run.
//!
//! Read [`plan`] (which paths), [`rows`] (what is compared with what, and what we aim at), [`ours`] (trials of the log),
//! [`measure`] (all of them by turns), [`report`] and [`times`].

pub mod measure;
pub mod ours;
pub mod plan;
pub mod report;
pub mod rows;
pub mod times;
