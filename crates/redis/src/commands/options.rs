//! Options of commands.

mod general;
mod geo;
mod hashes;
mod numbers;
mod sorted_sets;
mod streams;

pub use general::{
    CopyOptions, ExpireIf, Expiry, LPosOptions, RestoreOptions, ScanOptions, SetOptions, Side,
    SortOptions,
};
pub use geo::{GeoAddOptions, GeoFrom, GeoSearchOptions, GeoShape, GeoUnit};
pub use hashes::HSetExOptions;
pub use numbers::{BitField, BitOp, BitUnit, Overflow};
pub use sorted_sets::{Aggregate, Extreme, Limit, ZAddOptions, ZCombine, ZRangeOptions};
pub(crate) use streams::millis;
pub use streams::{Trim, XAddOptions, XClaimOptions, XPendingOptions, XReadGroupOptions};

/// An enum of words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident => $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$of])* $variant,)*
        }

        impl $name {
            pub(crate) fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }
    };
}
use words;
