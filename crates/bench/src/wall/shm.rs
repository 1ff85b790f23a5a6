//! The walls of shared memory: what two threads can pass each other through memory that both map, without the log and
//! without the kernel.
//!
//! One thread puts messages into batches, as a publisher does, and gives the other a record of 64 bytes for each batch.
//! The other acknowledges by a counter. [`drive::ShmWall`] lists what is measured.
//!
//! Both sides are threads of this process, where the log has processes. The memory is of the same kind (pages of a file
//! in memory, of 4 KiB), and two processes passed batches as fast as two threads did.

pub mod drive;
mod hand_over;
pub mod messages;
mod passing;
mod pieces;
pub mod ping;
