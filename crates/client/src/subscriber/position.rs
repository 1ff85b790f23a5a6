//! Where a reader stands: the next offset to read on each broker.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The next offset to read, by broker. Written as `1:4096,2:0`; the empty text is "nothing read yet".
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Positions(BTreeMap<u32, u64>);

impl Positions {
    /// Nothing read yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the next offset of `broker`.
    pub fn set(&mut self, broker: u32, next: u64) {
        self.0.insert(broker, next);
    }

    /// The next offset of `broker`, if anything is known of it.
    pub fn next(&self, broker: u32) -> Option<u64> {
        self.0.get(&broker).copied()
    }

    /// All brokers with their next offset, by broker.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.0.iter().map(|(broker, next)| (*broker, *next))
    }

    /// True if nothing is known of any broker.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(u32, u64)> for Positions {
    fn from_iter<I: IntoIterator<Item = (u32, u64)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}

impl fmt::Display for Positions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (broker, next)) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{broker}:{next}")?;
        }
        Ok(())
    }
}

/// A text that is not a position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{part:?} is not BROKER:OFFSET, or names a broker twice; a position looks like 1:4096,2:0")]
pub struct ParsePositionsError {
    part: String,
}

impl FromStr for Positions {
    type Err = ParsePositionsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut positions = Self::new();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|_| !text.trim().is_empty())
        {
            let wrong = || ParsePositionsError {
                part: part.to_string(),
            };
            let (broker, next) = part.split_once(':').ok_or_else(wrong)?;
            let broker = broker.trim().parse().map_err(|_| wrong())?;
            let next = next.trim().parse().map_err(|_| wrong())?;
            if positions.0.insert(broker, next).is_some() {
                return Err(wrong());
            }
        }
        Ok(positions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for text in ["", "1:4096", "1:4096,2:0,31:18446744073709551615"] {
            assert_eq!(text.parse::<Positions>().expect(text).to_string(), text);
        }
        assert_eq!(
            " 2:7 , 1:3 "
                .parse::<Positions>()
                .expect("spaces")
                .to_string(),
            "1:3,2:7"
        );
    }

    #[test]
    fn nonsense_names_the_part_that_is_wrong() {
        for (text, part) in [
            ("1", "1"),
            ("1:2,", ""),
            ("1:2,x:3", "x:3"),
            ("1:2,1:3", "1:3"),
            ("1:-1", "1:-1"),
        ] {
            let error = text.parse::<Positions>().expect_err(text);
            assert_eq!(error.part, part);
        }
    }
}
