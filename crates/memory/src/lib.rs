//! One process's view of bytes that others share, and the handles that keep ranges of them still.
//!
//! [`Memory`] is the view: words and bytes at offsets, with write-back and invalidation for hosts
//! that see no caches but their own. [`Mapped`] is the real thing. [`Simulated`] is a private cache
//! over a shared [`Device`] that does everything that memory without coherence may do.
//!
//! [`PayloadFile`] divides such memory into [`Extent`]s. An extent gives [`Reservation`]s, each the
//! exclusive right to write a range. A committed reservation becomes a [`Span`], which is never
//! written again. So the kernel receives straight into a reservation and sends straight from a span.
//!
//! [`Sealed`] memory has one process that writes it and others that may only read it ([`SealedView`]), whom its writer
//! need not trust, nor they it. A payload file is *lent* ([`LentFile`], [`Loan`]) to processes that trust its owner
//! ([`LentView`]). A [`Buffer`] is private bytes, or a range of such memory.
//!
//! This crate never knows what the bytes mean, never waits, never starts a thread, and never follows
//! an offset before it checked it. It is the only place that shows slices of shared memory: [`payload`]
//! and [`sealed`] go through every safe way to them.
//!
//! Reading order: [`Memory`], [`Mapped`], [`Simulated`], then [`payload`] and [`sealed`].
//!
//! ```
//! use embar_memory::{Coherence, PayloadFile};
//!
//! let file = PayloadFile::anonymous(1 << 20, Coherence::Coherent)?;
//! let mut extent = file.allocate(64 << 10).expect("all of it is free");
//! let mut reservation = extent.reserve(5).expect("a fresh extent has room");
//! reservation.write(0, b"hello");
//! let span = reservation.commit();
//! assert_eq!(span.as_slice(), b"hello");
//! # Ok::<(), std::io::Error>(())
//! ```

mod buffer;
mod cache_line;
pub mod canary;
mod copy;
mod damage;
mod file_id;
pub mod file_lock;
mod lent;
mod mapped;
mod mapping;
mod memory;
pub mod payload;
mod present;
mod reserve;
pub mod sealed;
mod simulated;
pub mod streaming;

pub use buffer::Buffer;
pub use cache_line::LINE_BYTES;
pub use damage::Damage;
pub use file_id::FileId;
pub use lent::{LEFT_LOCKS_MAX, LentFile, LentOpening, LentView};
pub use mapped::{Coherence, Mapped};
pub use memory::{Memory, ShowsCopies};
pub use payload::{Exclusive, Extent, Foreign, Held, Loan, PayloadFile, Reservation, Span};
pub use reserve::reserve;
pub use sealed::{Sealed, SealedError, SealedFile, SealedRange, SealedView};
pub use simulated::{Device, Faults, Outage, Power, Simulated, interrupt_after};
