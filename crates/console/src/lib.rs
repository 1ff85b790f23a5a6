//! What every command shares with its user: results and progress, sizes and durations as people write them, signals,
//! exit codes.
//!
//! What it never does: know what a command is for, start a process, or touch memory unsafely.

#![forbid(unsafe_code)]

pub mod connect;
pub mod context;
pub mod exit;
pub mod interrupt;
pub mod limits;
pub mod output;
pub mod size;
pub mod waiting;
