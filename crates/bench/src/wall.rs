//! The *wall* of the log, what the machine itself allows: the same bytes over the same number of sockets, without the
//! log.
//!
//! [`drive::Wall`] lists what is measured. *Bare* walls are sockets alone: buffers of the size of a batch, one write for
//! each, into and out of a ring of memory that is already mapped. *Working* walls also do what any log must do: one copy
//! of each message into the batch by one application thread, and one CRC-32C of each batch on each side.
//!
//! Of the log's code only the checksum function takes part. The ring is memory of the kind the log lives in, so that
//! page sizes and placement are the same.
//!
//! [`shm`] has the walls of shared memory, without sockets and processes.

mod connection;
pub mod drive;
mod filler;
mod publishing;
mod reading;
pub mod receiver;
mod relay;
mod relaying;
mod ring;
pub mod shm;
pub mod stream;
mod verifying;
pub mod wire;
