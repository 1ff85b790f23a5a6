//! Streams by shared memory, between processes of one machine.
//!
//! Each side owns an *outbox*: sealed memory that it alone writes, and that the other side maps for reading. It has a ring
//! of records, a ring of bytes, and three words: how much this side consumed of the other's outbox, whether it sleeps, and
//! whether what it named is withdrawn. A record carries a few bytes itself, or says where in the ring of bytes they are, or
//! *names* them in another sealed memory that was handed over at the beginning.
//!
//! The connection's Unix socket stays. It proves who the peer is, carries the descriptors in the *hellos* at the beginning,
//! wakes a peer that sleeps by a byte (the *doorbell*), and ends when the peer does.
//!
//! `Sender`, `Receiver` and `Nap` are cores without I/O, for any [`Memory`](embar_memory::Memory); [`Shm`] joins them to a
//! socket. The protocol is in `docs/architecture/shm.md`.
//!
//! Reading order: `layout`, `sender`, `receiver`, `leases`, `doorbell`, `nap`, `hello`, `stream`, `blocking`.

mod blocking;
mod doorbell;
mod hello;
mod layout;
mod leases;
#[cfg(all(test, loom))]
#[allow(
    unsafe_code,
    reason = "the trait of memory has methods that are unsafe to call"
)]
mod models;
mod nap;
mod receiver;
mod sender;
mod stream;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;

pub use layout::MEMORIES_MAX;
pub use sender::{WINDOW_BYTES, WINDOW_REFERENCES};
pub use stream::{Shm, ShmOptions};

/// The cores of both sides, on any memory: for who simulates them.
pub mod cores {
    pub use super::layout::Sizes;
    pub use super::nap::{Nap, settle};
    pub use super::receiver::{Receiver, Taken};
    pub use super::sender::Sender;
}

pub(crate) use nap::settle;
