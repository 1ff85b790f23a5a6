//! Whose connections are counted together while they arrive.

use super::admission::Network;

/// Those that are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Crowd {
    /// An address, or a network of version 6.
    Of(Network),
    /// One that counts by itself: its number.
    Alone(u64),
}
