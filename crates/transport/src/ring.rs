//! Rings: memory of one session that messages are written into, sent from, received into and read
//! from, without a copy and without an allocation.
//!
//! A ring is *mirrored*: its memory is mapped twice, back to back, so a range that wraps is
//! contiguous all the same. [`RingPool`] makes such memory and keeps some of it for reuse.
//!
//! [`SendRing`]: any number of threads [`reserve`](SendRing::reserve) a range, fill it and
//! [`commit`](Reservation::commit) it; one at a time sends what is committed, as a [`SendSpan`].
//! Bytes leave in the order of the reservations. [`RecvRing`]: its one owner lends the free part
//! out as a [`RecvSpace`], reads what came with [`readable`](RecvRing::readable), and may pin a
//! part of it as a [`Kept`].
//!
//! Nothing here knows what a message is. Reading order: `raw.rs` (the memory), `access.rs` (why no
//! byte that is written is shared), `pool.rs`, `queue.rs` (who may reserve and send what, without a
//! lock), `queue/room.rs` (who waits for room), `queue/seal.rs` (the end), `memory.rs`, `send.rs`, `pins.rs`, `recv.rs`.
//!
//! ```
//! use embar_transport::ring::{Commit, RecvRing, RingPool, SendRing};
//!
//! let pool = RingPool::new(64 << 10, 2)?;
//! let ring = SendRing::new(&pool)?;
//! let mut reservation = ring.reserve(5)?;
//! reservation.copy_from_slice(b"hello");
//! assert_eq!(reservation.commit(), Commit::First, "the first to commit has to send");
//! let mut span = ring.span().expect("five bytes are committed");
//!
//! let mut received = RecvRing::new(&pool)?;
//! let mut space = received.lend(usize::MAX).expect("all of it is free");
//! let count = span.bytes().len();
//! space.as_mut_slice()[..count].copy_from_slice(span.bytes());
//! received.give_back(space, count);
//! span.advance(count);
//! assert!(!span.finish(), "nothing more to send");
//!
//! assert_eq!(received.readable(), b"hello");
//! let kept = received.keep(1..3);
//! received.consume(count);
//! assert_eq!(&*kept, b"el");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[allow(
    unsafe_code,
    reason = "slices of memory that several threads use, each its own part"
)]
mod access;
#[cfg(all(test, loom))]
mod keeping_models;
#[allow(unsafe_code, reason = "memory that leaves before its last handle")]
mod memory;
mod pins;
mod pool;
mod queue;
#[allow(unsafe_code, reason = "the mirrored mapping")]
mod raw;
mod recv;
mod send;
mod sender_fields;
mod sync;
mod ticket;

pub use pool::RingPool;
pub use recv::{Kept, RecvRing, RecvSpace};
pub use send::{
    Closed, Commit, Reservation, ReserveError, RoomWait, SendRing, SendSpan, WaitError,
};
