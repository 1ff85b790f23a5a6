//! Up to where a subscriber reads a topic that is on disks.

use std::fmt;
use std::str::FromStr;

/// Up to where a subscriber reads a topic that is on disks. Of a topic in memory alone it reads everything in any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// What all disks of the topic have: nobody loses again what was read, not even with the memory.
    #[default]
    Durable,
    /// Everything that is readable, as soon as it is. Who loses the memory may lose the last of it, although it was read.
    Latest,
}

/// Text that names no [`Isolation`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no isolation: write durable or latest")]
pub struct UnknownIsolation(String);

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Durable => "durable",
            Self::Latest => "latest",
        })
    }
}

impl FromStr for Isolation {
    type Err = UnknownIsolation;

    fn from_str(text: &str) -> Result<Self, UnknownIsolation> {
        let mut named = [Self::Durable, Self::Latest]
            .into_iter()
            .filter(|it| it.to_string() == text);
        named.next().ok_or_else(|| UnknownIsolation(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_isolation_has_a_name_and_is_durable_unless_told_otherwise() {
        assert_eq!(Isolation::default(), Isolation::Durable);
        for isolation in [Isolation::Durable, Isolation::Latest] {
            assert_eq!(isolation.to_string().parse(), Ok(isolation));
        }
        let error = "read-committed".parse::<Isolation>().expect_err("no name");
        assert!(error.to_string().contains("durable or latest"), "{error}");
    }
}
