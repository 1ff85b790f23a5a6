//! What the libraries under a command share with whoever runs them: progress and remarks, the wish to stop, sizes and
//! durations as people write them, colours.
//!
//! What it never does: know what a command is for, print a result, read an option, or touch memory unsafely.
//!
//! Read [`progress`] and [`interrupt`], then [`context`], which hands both on.

#![forbid(unsafe_code)]

pub mod connect;
pub mod context;
pub mod explain;
pub mod interrupt;
pub mod paint;
pub mod process;
pub mod progress;
pub mod setting;
pub mod size;
pub mod visible;
pub mod waiting;
