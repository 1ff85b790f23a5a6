//! Which topic names are allowed, and which order a topic promises its subscribers.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::limits::MAX_TOPIC_NAME_BYTES;

/// The order in which subscribers read the messages of a topic. A topic keeps it for life.
///
/// The wire, the command line and reports name it by its [level](Order::level): 0, 1, 2 or 5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Order {
    /// Level 0: none. A publisher's batches take whichever connection is free.
    #[default]
    None = 0,
    /// Level 1: each broker keeps the order in which messages arrive there.
    PerBroker = 1,
    /// Level 2: all subscribers read one order of all messages, on whichever broker.
    Total = 2,
    /// Level 5: as [`Order::Total`], and each publisher's messages stay in the order in which it
    /// published them.
    TotalPerPublisher = 5,
}

impl Order {
    /// All of them, by level.
    pub const ALL: [Self; 4] = [
        Self::None,
        Self::PerBroker,
        Self::Total,
        Self::TotalPerPublisher,
    ];

    /// Its number: 0, 1, 2 or 5.
    #[must_use]
    pub const fn level(self) -> u8 {
        self as u8
    }

    /// Whether one order covers the messages of all brokers. The topic's offsets are positions in
    /// that order then, and its publishers have sessions; otherwise each broker counts its own
    /// offsets.
    #[must_use]
    pub const fn is_total(self) -> bool {
        matches!(self, Self::Total | Self::TotalPerPublisher)
    }
}

/// A number or text that is no order level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an order level is 0, 1, 2 or 5")]
pub struct UnknownOrder;

impl TryFrom<u32> for Order {
    type Error = UnknownOrder;

    fn try_from(level: u32) -> Result<Self, UnknownOrder> {
        let known = Self::ALL.into_iter();
        let mut same = known.filter(|order| u32::from(order.level()) == level);
        same.next().ok_or(UnknownOrder)
    }
}

impl From<Order> for u32 {
    fn from(order: Order) -> Self {
        order.level().into()
    }
}

impl FromStr for Order {
    type Err = UnknownOrder;

    /// Reads a level: `0`, `1`, `2` or `5`.
    fn from_str(text: &str) -> Result<Self, UnknownOrder> {
        let level: u32 = text.parse().map_err(|_| UnknownOrder)?;
        level.try_into()
    }
}

impl fmt::Display for Order {
    /// Writes the level.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.level().fmt(f)
    }
}

/// Checks a topic name: 1 to 249 of the characters `A-Z a-z 0-9 . _ -`, and neither `.` nor `..`,
/// so that a name is also a file name anywhere.
///
/// # Errors
/// Says which rule the name breaks.
pub fn check_topic_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > MAX_TOPIC_NAME_BYTES {
        return Err(NameError::TooLong { bytes: name.len() });
    }
    if name == "." || name == ".." {
        return Err(NameError::Dots);
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match name.chars().find(|&c| !allowed(c)) {
        Some(found) => Err(NameError::Character { found }),
        None => Ok(()),
    }
}

/// A topic name that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// No characters.
    #[error("a topic name must not be empty")]
    Empty,
    /// Too many characters.
    #[error("a topic name of {bytes} bytes exceeds {max}", max = MAX_TOPIC_NAME_BYTES)]
    TooLong {
        /// Bytes of the name.
        bytes: usize,
    },
    /// `.` or `..`.
    #[error("a topic must not be named `.` or `..`")]
    Dots,
    /// A character outside of the allowed set.
    #[error("a topic name must not contain {found:?}: use letters, digits, `.`, `_` and `-`")]
    Character {
        /// The first such character.
        found: char,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_and_its_level_name_each_other() {
        for (level, order) in [0, 1, 2, 5].into_iter().zip(Order::ALL) {
            assert_eq!(u32::from(order), level);
            assert_eq!(Order::try_from(level), Ok(order));
            assert_eq!(order.to_string().parse(), Ok(order));
            assert_eq!(order.is_total(), level >= 2);
        }
        for level in [3, 4, 6, 256, u32::MAX] {
            assert_eq!(Order::try_from(level), Err(UnknownOrder));
        }
        assert_eq!("five".parse::<Order>(), Err(UnknownOrder));
    }

    #[test]
    fn names() {
        let longest = "x".repeat(MAX_TOPIC_NAME_BYTES);
        for good in ["a", "orders.eu-1_x", "...", "..a", &longest] {
            assert_eq!(check_topic_name(good), Ok(()), "{good}");
        }
        let longer = "x".repeat(MAX_TOPIC_NAME_BYTES + 1);
        assert_eq!(check_topic_name(""), Err(NameError::Empty));
        assert_eq!(check_topic_name("."), Err(NameError::Dots));
        assert_eq!(check_topic_name(".."), Err(NameError::Dots));
        assert_eq!(
            check_topic_name(&longer),
            Err(NameError::TooLong { bytes: 250 })
        );
        for (bad, found) in [("a/b", '/'), ("a b", ' '), ("grün", 'ü'), ("a\0", '\0')] {
            assert_eq!(check_topic_name(bad), Err(NameError::Character { found }));
        }
    }
}
