//! Typed commands, in groups as the Redis documentation has them.
//!
//! A [`Client`](crate::Client), a pipeline, a transaction and a dedicated connection all have these
//! methods. On a client a method returns a [`Request`](crate::Request) to await. Import all of them
//! with [`prelude`](crate::prelude); send a command that has no method with [`cmd`](crate::cmd()).
//!
//! The caller chooses the type of a result that contains values of keys; where Redis defines the
//! result, this crate has a type for it. With a cluster, the keys of a command must have one slot: the
//! client refuses others with [`Error::CrossSlot`](crate::Error::CrossSlot), but for those that it
//! [splits](crate::Client#several-nodes). The server answers an
//! empty list of keys with an error.

use crate::command::{Args, Class, Command, Fixed, Key, Route};
use crate::resp::FromReply;

pub mod bitmaps;
pub mod blocking;
pub mod geo;
pub mod hash_fields;
pub mod hashes;
pub mod hyperloglog;
pub mod keys;
pub mod lists;
pub mod options;
pub mod scripting;
pub mod server;
pub mod sets;
pub mod sorted_set_algebra;
pub mod sorted_sets;
pub mod stream_groups;
pub mod streams;
pub mod strings;

/// Takes commands, one by one: the methods of all groups end here.
pub trait Commands: Sized {
    /// What executing a command returns: a future, or a key to its result.
    type Output<C: Command, R: FromReply>;

    /// Executes a command, or adds it to those that will be executed together.
    fn execute<C: Command, R: FromReply>(self, command: C) -> Self::Output<C, R>;
}

/// A command that changes nothing.
#[inline]
fn read<A: Args>(prefix: &'static [u8], route: Route, args: A) -> Fixed<A> {
    Fixed::new(prefix, args, route, Class::Read)
}

/// A command that may change data.
#[inline]
fn write<A: Args>(prefix: &'static [u8], route: Route, args: A) -> Fixed<A> {
    Fixed::new(prefix, args, route, Class::Write)
}
