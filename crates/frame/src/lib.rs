//! Frames: how a stream of bytes is cut into messages, whatever protocol they belong to.
//!
//! A frame is 8 bytes of [`FrameHeader`] (length, id, flags) and as many bytes as it says. A
//! [`Protocol`] says of each header whether such a frame may come, and in which [`Shape`] it is
//! received. A protocol that wants it ends its frames with a [checksum](write_checksum).
//!
//! Everything here is a pure function of bytes: this crate never does I/O, never reads a clock
//! ([`Now`] is a number that its caller read), never allocates, and never knows what a frame means.
//!
//! ```
//! use embar_frame::{FrameError, FrameHeader, Protocol, Shape};
//!
//! /// Frames with id 1, of any length.
//! struct Chat;
//!
//! impl Protocol for Chat {
//!     const NAME: &'static str = "chat";
//!     const VERSION: u32 = 1;
//!
//!     fn shape(&self, header: FrameHeader) -> Result<Shape, FrameError> {
//!         match header.id {
//!             1 => Ok(Shape::Whole),
//!             id => Err(FrameError::UnknownId { id }),
//!         }
//!     }
//! }
//!
//! let header = FrameHeader::parse(&[5, 0, 0, 0, 1, 0, 0, 0]);
//! assert_eq!(header.frame_bytes(), 13);
//! assert_eq!(Chat.shape(header), Ok(Shape::Whole));
//! ```

#![forbid(unsafe_code)]

mod checksum;
mod crc;
mod header;
mod now;
mod protocol;

pub use checksum::{CHECKED, CHECKSUM_BYTES, ChecksumError, verify_checksum, write_checksum};
pub use crc::{Crc, crc32c};
pub use header::{FRAME_HEADER_BYTES, FrameHeader};
pub use now::Now;
pub use protocol::{FIRST_RESERVED_ID, FrameError, MAX_PROTOCOL_NAME_BYTES, Protocol, Shape};
