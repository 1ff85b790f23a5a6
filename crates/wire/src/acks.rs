//! When a batch counts as published: the level of acknowledgements that a publisher asks for.

use std::fmt;
use std::str::FromStr;

/// When a batch counts as published.
///
/// The wire, the command line and reports name it by its [level](Acks::level): 0, 1 or 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acks {
    /// Level 0. When the kernel took it: fast, and nothing is known about what became of it.
    None,
    /// Level 1. When it is readable at the topic's order level; survives any process crash, not the loss of the region.
    Readable,
    /// Level 2. When it is readable at the topic's order level, and it and everything before it in the topic are synced on
    /// all disks of the topic; survives the loss of the region, too. Topics of replication factor 1 have no disk: brokers
    /// refuse it there.
    Durable,
}

impl Acks {
    /// All of them, by level.
    pub const ALL: [Self; 3] = [Self::None, Self::Readable, Self::Durable];

    /// Its number: 0, 1 or 2.
    #[must_use]
    pub const fn level(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Readable => 1,
            Self::Durable => 2,
        }
    }
}

/// A number or text that is no level of acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "acks are 0 (none), 1 (when the batch is readable) or 2, also called all (when it is on all disks of its topic)"
)]
pub struct UnknownAcks;

impl TryFrom<u32> for Acks {
    type Error = UnknownAcks;

    fn try_from(level: u32) -> Result<Self, UnknownAcks> {
        let mut same = Self::ALL.into_iter().filter(|acks| acks.level() == level);
        same.next().ok_or(UnknownAcks)
    }
}

impl FromStr for Acks {
    type Err = UnknownAcks;

    /// Reads a level, `0`, `1` or `2`, or `all`, which is 2.
    fn from_str(text: &str) -> Result<Self, UnknownAcks> {
        if text == "all" {
            return Ok(Self::Durable);
        }
        let level: u32 = text.parse().map_err(|_| UnknownAcks)?;
        level.try_into()
    }
}

impl fmt::Display for Acks {
    /// Writes the level.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.level().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acks_and_their_level_name_each_other() {
        for (level, acks) in (0..).zip(Acks::ALL) {
            assert_eq!(acks.level(), level);
            assert_eq!(Acks::try_from(level), Ok(acks));
            assert_eq!(acks.to_string().parse(), Ok(acks));
        }
        assert_eq!("all".parse(), Ok(Acks::Durable));
        assert_eq!(Acks::try_from(3), Err(UnknownAcks));
        for text in ["", "3", "-1", "All", "two"] {
            assert_eq!(text.parse::<Acks>(), Err(UnknownAcks), "{text}");
        }
    }
}
