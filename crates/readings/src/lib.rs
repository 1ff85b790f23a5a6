//! What the kernel says of a machine, its processes, threads and connections, without root, and without touching what is
//! read.
//!
//! 1. [`process`]: CPU time, page faults and peak memory of a process and of its threads.
//! 2. [`machine`]: what all processors did, and the kernel's maxima.
//! 3. [`throttled`](mod@throttled): what quotas of control groups took.
//! 4. [`pressure`]: how long threads stood still for want of something; [`disks`]: what block devices did.
//! 5. [`environment`]: what a measurement ran on; [`census`]: who used the processors.
//! 6. [`tcp`]: connections, their windows, buffers and waits; [`unix`]: Unix sockets; [`sockets`]: whose they are.

#![forbid(unsafe_code)]

pub mod census;
pub mod disks;
pub mod environment;
pub mod machine;
mod netlink;
pub mod pressure;
pub mod process;
pub mod sockets;
pub mod tcp;
pub mod throttled;
pub mod unix;
