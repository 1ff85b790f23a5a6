//! RESP, the protocol of Redis, in its versions 2 and 3: bytes to values and back.
//!
//! A reply goes through three steps, none of which copies it:
//! 1. a [`Framer`] finds where replies end in a stream that may be cut anywhere, and refuses hostile
//!    bytes;
//! 2. [`parse`] makes a borrowed [`View`] of a complete reply;
//! 3. a type's [`FromReply`] converts the view.
//!
//! A command is an array of bulk strings: an [`Out`] writes [`Arg`]s into memory that was reserved for
//! exactly that many bytes.
//!
//! The protocol is described at <https://redis.io/docs/latest/develop/reference/protocol-spec/>,
//! its streamed types at <https://github.com/redis/redis-specifications/blob/master/protocol/RESP3.md>.

mod collections;
mod encode;
mod error;
mod framer;
mod from_reply;
mod scan;
mod value;
mod view;

pub(crate) use encode::encode_all;
pub use encode::{Arg, Out, bulk_len, header_len};
pub use error::{Address, ErrorKind, ErrorView, ServerError};
pub(crate) use error::{is_lasting_refusal, is_refusal_of_credentials};
pub use framer::{Framer, ReplyLimits};
pub use from_reply::{FromReply, WrongType};
pub use value::Value;
pub use view::{Chunks, Items, MAX_DEPTH, Malformed, Pairs, View, parse};
