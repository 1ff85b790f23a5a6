//! Options of commands for bits, and numbers within a string.

use super::words;
use crate::cmd::Cmd;

words! {
    /// What offsets of bits count.
    BitUnit {
        /// Bytes.
        Byte => "BYTE",
        /// Bits.
        Bit => "BIT",
    }
}

words! {
    /// How strings are combined bit by bit.
    BitOp {
        /// Set in all of them.
        And => "AND",
        /// Set in any of them.
        Or => "OR",
        /// Set in an odd number of them.
        Xor => "XOR",
        /// Not set in the only one.
        Not => "NOT",
    }
}

words! {
    /// What happens when a number becomes too great or too small.
    Overflow {
        /// It begins again at the other end.
        Wrap => "WRAP",
        /// It stays at the end.
        Saturate => "SAT",
        /// It stays what it is, and the result is null.
        Fail => "FAIL",
    }
}

/// An operation of `BITFIELD`. A kind is `u8` or `i5`, for example: without or with a sign, and how
/// many bits. Offsets are in bits.
#[derive(Debug, Clone, Copy)]
pub enum BitField {
    /// The number there.
    Get(&'static str, u64),
    /// Sets it; the result is the one before.
    Set(&'static str, u64, i64),
    /// Adds to it; the result is the new one.
    IncrBy(&'static str, u64, i64),
    /// What those after this do when they overflow; it has no result.
    Overflow(Overflow),
}

impl BitField {
    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        match self {
            Self::Get(kind, at) => cmd.arg("GET").arg(kind).arg(at),
            Self::Set(kind, at, to) => cmd.arg("SET").arg(kind).arg(at).arg(to),
            Self::IncrBy(kind, at, by) => cmd.arg("INCRBY").arg(kind).arg(at).arg(by),
            Self::Overflow(overflow) => cmd.arg("OVERFLOW").arg(overflow.word()),
        }
    }
}
