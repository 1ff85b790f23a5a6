//! Typed commands, in groups as the Redis documentation has them.
//!
//! Every one of them can be given to a [`Client`], and is then a [`Request`] to await. Import all
//! with [`prelude`]; what has no method is sent with [`cmd`](crate::cmd()).
//!
//! What the result is read as is chosen by the caller where values of keys are in it, and is a type
//! of ours where Redis defines it. Commands of several keys need keys with one slot if the server is
//! a cluster, else they are refused with [`Error::CrossSlot`](crate::Error::CrossSlot). A list that
//! is empty is an error of the server, as it is for Redis.

use crate::client::{Client, Request};
use crate::command::{Args, Class, Command, Fixed, Route};
use crate::resp::{Arg, FromReply};

pub mod bitmaps;
pub mod geo;
pub mod hashes;
pub mod hyperloglog;
pub mod keys;
pub mod lists;
pub mod options;
pub mod script;
pub mod scripting;
pub mod server;
pub mod sets;
pub mod sorted_set_algebra;
pub mod sorted_sets;
pub mod stream_groups;
pub mod streams;
pub mod strings;

/// All groups of commands, and their options.
pub mod prelude {
    pub use super::Commands;
    pub use super::bitmaps::BitmapCommands;
    pub use super::geo::GeoCommands;
    pub use super::hashes::HashCommands;
    pub use super::hyperloglog::HyperLogLogCommands;
    pub use super::keys::KeyCommands;
    pub use super::lists::ListCommands;
    pub use super::options::*;
    pub use super::script::Script;
    pub use super::scripting::ScriptCommands;
    pub use super::server::ServerCommands;
    pub use super::sets::SetCommands;
    pub use super::sorted_set_algebra::SortedSetAlgebra;
    pub use super::sorted_sets::SortedSetCommands;
    pub use super::stream_groups::StreamGroupCommands;
    pub use super::streams::StreamCommands;
    pub use super::strings::StringCommands;
}

/// What is a key: bytes that tell the slot.
pub trait Key: Arg + AsRef<[u8]> {}

impl<T: Arg + AsRef<[u8]>> Key for T {}

/// Whatever takes commands.
pub trait Commands: Sized {
    /// What comes of giving it a command.
    type Given<C: Command, R: FromReply>;

    /// Gives it a command.
    fn give<C: Command, R: FromReply>(self, command: C) -> Self::Given<C, R>;
}

impl<'c> Commands for &'c Client {
    type Given<C: Command, R: FromReply> = Request<'c, C, R>;

    fn give<C: Command, R: FromReply>(self, command: C) -> Self::Given<C, R> {
        self.send(command)
    }
}

/// A command that changes nothing.
#[inline]
fn read<A: Args>(prefix: &'static [u8], route: Route, args: A) -> Fixed<A> {
    Fixed::new(prefix, args, route, Class::Read)
}

/// A command that may change something.
#[inline]
fn write<A: Args>(prefix: &'static [u8], route: Route, args: A) -> Fixed<A> {
    Fixed::new(prefix, args, route, Class::Write)
}
