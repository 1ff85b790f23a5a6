//! The Embar wire protocol: bytes to meaning and back.
//!
//! Frames, batch headers, message records, acknowledgements and control messages, as views over
//! borrowed bytes. Everything here is a pure function of bytes.
//!
//! This crate never does I/O, never reads a clock, never allocates on the path of messages, and
//! never allocates what a length field says. Bytes of a peer give typed errors, never a panic.
//!
//! Read it in this order: [`limits`], [`frame`], [`batch`], [`message`], [`builder`], [`ack`],
//! [`control`], [`check`]; then the small ones: [`error`], [`topic`], [`acks`], [`isolation`], [`time`]. [`embar_frame`] has what all protocols'
//! frames have in common. The session layer that carries this protocol cuts frames from a stream and
//! exchanges greetings.
//!
//! ```
//! use embar_wire::batch::{Batch, SealFields};
//! use embar_wire::builder::BatchBuilder;
//! use embar_wire::limits::MAX_BATCH_BYTES;
//!
//! let mut builder = BatchBuilder::new(Vec::new(), 4096);
//! builder.try_push(Some(b"key"), &[], b"value")?;
//! let frame = builder.seal(SealFields { topic: 7, ..SealFields::default() });
//!
//! let (batch, rest) = Batch::split_first(&frame, MAX_BATCH_BYTES)?;
//! assert!(rest.is_empty());
//! for message in batch.messages() {
//!     let message = message?;
//!     assert_eq!((message.key, message.value), (Some(&b"key"[..]), &b"value"[..]));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod ack;
pub mod acks;
pub mod batch;
pub mod builder;
pub mod check;
pub mod control;
pub mod error;
pub mod frame;
pub mod isolation;
pub mod limits;
pub mod message;
mod proto;
pub mod share;
pub mod time;
pub mod topic;
