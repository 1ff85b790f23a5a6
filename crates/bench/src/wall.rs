//! The *wall* of the log, what the machine itself allows: the same bytes over the same number of sockets, without the
//! log.
//!
//! - *bare*: senders write buffers of the size of a batch, receiving processes read them into a ring of memory that is
//!   already mapped.
//! - *working*: also one copy of each message into the batch by one application thread, and one CRC-32C on each side.
//! - *read*: the receiving processes send from their ring, readers in this process read.
//!
//! Of the log's code only the checksum function takes part. The ring is memory of the kind the log lives in, so that
//! page sizes and placement are the same.

mod connection;
pub mod drive;
pub mod receiver;
mod ring;
pub mod wire;
