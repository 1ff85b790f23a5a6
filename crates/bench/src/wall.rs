//! What the machine itself allows: the same bytes over the same number of sockets, without the log.
//!
//! - *bare*: senders write 2 MiB buffers, receiving processes read them into a warm ring.
//! - *working*: also one copy of each message into the batch by one application thread, and one CRC-32C on each side.
//! - *read*: the receiving processes send from their ring, readers in this process read.
//!
//! Nothing of the product is between the sockets but the checksum function; the ring is memory of the kind the log
//! lives in, so that page sizes and placement are the same.

mod connection;
pub mod drive;
pub mod receiver;
mod ring;
pub mod wire;
