//! What the kernel says of a machine, its processes, threads and connections, without root, and without touching what is
//! read.
//!
//! 1. [`process`]: CPU time, page faults and peak memory of a process and of its threads.
//! 2. [`machine`]: what all processors did, and the kernel's maxima.
//! 3. [`throttled`](mod@throttled): what quotas of control groups took.
//! 4. [`tcp`]: connections, their windows, buffers and waits.

#![forbid(unsafe_code)]

pub mod machine;
pub mod process;
pub mod tcp;
pub mod throttled;
