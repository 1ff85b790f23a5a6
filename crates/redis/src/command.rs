//! A command: its bytes, the node it goes to, and whether the client may send it again.

use crate::error::Error;
use crate::merge::FanOut;
use crate::resp::{Arg, Out, bulk_len};
use crate::slot::slot;

/// A key: an argument whose bytes give the slot.
pub trait Key: Arg + AsRef<[u8]> {}

impl<T: Arg + AsRef<[u8]>> Key for T {}

/// Which node a command goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// To the node that serves this slot.
    Slot(u16),
    /// To any node.
    Any,
    /// Its keys have different slots. Only a standalone server can execute it; with a cluster the
    /// client refuses it with [`Error::CrossSlot`], unless it can be split (see [`Client`](crate::Client#several-nodes)).
    CrossSlot,
    /// To this node of the client, which [`Client::nodes`](crate::Client::nodes) names, whatever it serves. When the node has left the
    /// cluster, the command fails.
    Node(NodeId),
    /// To each primary; one reply is made of theirs.
    AllPrimaries,
    /// To each node, replicas included; one reply is made of theirs.
    AllNodes,
}

/// Names a node of a client, for as long as that one knows it: the number is never given to another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(crate) u32);

impl Route {
    /// To the node that serves this key.
    #[must_use]
    pub fn of(key: impl AsRef<[u8]>) -> Self {
        Self::Slot(slot(key.as_ref()))
    }

    /// The route of a command with one more key.
    #[must_use]
    pub fn and(self, key: impl AsRef<[u8]>) -> Self {
        let other = Self::of(key);
        match self {
            Self::Any => other,
            _ if self == other => self,
            _ => Self::CrossSlot,
        }
    }
}

/// Whether the client may send a command again whose outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The command changes nothing: the client sends it again.
    Read,
    /// The command may change data: the client sends it again only if the caller allows that. Even a
    /// command that is harmless to repeat, such as SET, could overwrite what another client wrote
    /// meanwhile.
    Write,
}

/// A command that can encode itself.
pub trait Command {
    /// How many bytes it has when encoded.
    fn encoded_len(&self) -> usize;

    /// Fills `out`, which is exactly [`Command::encoded_len`] bytes.
    fn encode(&self, out: &mut [u8]);

    /// Which node it goes to.
    fn route(&self) -> Route;

    /// Whether the client may send it again when its outcome is unknown.
    fn class(&self) -> Class;

    /// How many frames its reply has: more than 1 for several commands in one.
    fn replies(&self) -> u32 {
        1
    }

    /// Whether it may change something and then fail, as a script may. The client asks when the server has
    /// answered with an error, for [`Error::may_have_executed`].
    #[inline]
    fn may_fail_midway(&self) -> bool {
        false
    }

    /// Why the client must not send it: [`Error::NotShared`] for a command that would affect others on
    /// the same connection. Dedicated connections do not ask.
    #[inline]
    fn refused(&self) -> Option<Error> {
        None
    }

    /// Which node it goes to together with others, in a pipeline or a transaction.
    #[doc(hidden)]
    fn route_with_others(&self) -> Route {
        self.route()
    }

    /// How it goes to several nodes, if it does.
    #[doc(hidden)]
    fn fan_out(&self) -> Option<FanOut> {
        None
    }
}

/// The arguments of a command that always has the same number of them.
pub trait Args {
    /// How many bytes they have when encoded.
    fn encoded_len(&self) -> usize;

    /// Writes them.
    fn encode(&self, out: &mut Out<'_>);
}

macro_rules! tuples {
    ($(($($name:ident)*);)*) => {$(
        impl<$($name: Arg),*> Args for ($($name,)*) {
            #[inline]
            #[allow(non_snake_case, reason = "a value is named like its type; there may be none")]
            fn encoded_len(&self) -> usize {
                let ($($name,)*) = self;
                0 $(+ bulk_len($name.len()))*
            }

            #[inline]
            #[allow(non_snake_case, reason = "a value is named like its type; there may be none")]
            fn encode(&self, out: &mut Out<'_>) {
                let _of_none = &out;
                let ($($name,)*) = self;
                $(out.bulk($name);)*
            }
        }
    )*};
}

tuples! {
    ();
    (A);
    (A B);
    (A B C);
    (A B C D);
    (A B C D E);
    (A B C D E F);
}

/// A command whose name and number of arguments are encoded at compile time.
#[derive(Debug, Clone, Copy)]
pub struct Fixed<A> {
    prefix: &'static [u8],
    args: A,
    route: Route,
    class: Class,
}

impl<A: Args> Fixed<A> {
    /// `prefix` is the array's first line and the name, as [`prefix!`](crate::prefix) makes it.
    pub fn new(prefix: &'static [u8], args: A, route: Route, class: Class) -> Self {
        Self {
            prefix,
            args,
            route,
            class,
        }
    }
}

impl<A: Args> Command for Fixed<A> {
    #[inline]
    fn encoded_len(&self) -> usize {
        self.prefix.len() + self.args.encoded_len()
    }

    #[inline]
    fn encode(&self, out: &mut [u8]) {
        let mut out = Out::new(out);
        out.raw(self.prefix);
        self.args.encode(&mut out);
        out.finish();
    }

    fn route(&self) -> Route {
        self.route
    }

    fn class(&self) -> Class {
        self.class
    }
}

/// Encodes the beginning of a command: how many arguments it has, its name included, how long the name
/// is, and the name.
#[doc(hidden)]
#[macro_export]
macro_rules! prefix {
    ($count:literal, $len:literal, $name:literal) => {{
        const _: () = assert!($name.len() == $len);
        concat!("*", $count, "\r\n$", $len, "\r\n", $name, "\r\n").as_bytes()
    }};
}

impl<C: Command + ?Sized> Command for &C {
    fn encoded_len(&self) -> usize {
        (**self).encoded_len()
    }

    fn encode(&self, out: &mut [u8]) {
        (**self).encode(out);
    }

    fn route(&self) -> Route {
        (**self).route()
    }

    fn class(&self) -> Class {
        (**self).class()
    }

    fn replies(&self) -> u32 {
        (**self).replies()
    }

    fn may_fail_midway(&self) -> bool {
        (**self).may_fail_midway()
    }

    fn refused(&self) -> Option<Error> {
        (**self).refused()
    }

    fn route_with_others(&self) -> Route {
        (**self).route_with_others()
    }

    fn fan_out(&self) -> Option<FanOut> {
        (**self).fan_out()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_keys_have_one_slot_or_none() {
        let one = Route::Any.and("{a}1").and("{a}2");
        assert_eq!(one, Route::of("a"));
        assert_eq!(one.and("b"), Route::CrossSlot);
        assert_eq!(one.and("b").and("a"), Route::CrossSlot);
    }

    #[test]
    fn a_fixed_command_is_encoded_as_redis_expects() {
        let command = Fixed::new(
            prefix!(3, 3, "SET"),
            ("key", 12),
            Route::of("key"),
            Class::Write,
        );
        let mut out = vec![0; command.encoded_len()];
        command.encode(&mut out);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$2\r\n12\r\n");
        assert_eq!(command.replies(), 1);
    }
}
