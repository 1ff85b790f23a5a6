//! What the kernel says of a machine, its processes, threads and connections, without root, and without touching what is
//! read.
//!
//! 1. [`process`]: CPU time, page faults and peak memory of a process and of its threads.

#![forbid(unsafe_code)]

pub mod process;
