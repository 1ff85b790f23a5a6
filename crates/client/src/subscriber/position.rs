//! Where a reader stands: the next offset to read on each broker, or one number for all of them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Where to go on reading. At orders 0 and 1 the next offset on each broker, written as `1:4096,2:0`; at orders 2 and 5
/// the next position in the one order of the topic, written as `4096`. The empty text is "nothing read yet".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Positions(Next);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    ByBroker(BTreeMap<u32, u64>),
    OfAll(u64),
}

impl Default for Positions {
    fn default() -> Self {
        Self(Next::ByBroker(BTreeMap::new()))
    }
}

impl Positions {
    /// Nothing read yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// At this position of a topic with one order over all brokers.
    pub fn at(next: u64) -> Self {
        Self(Next::OfAll(next))
    }

    /// Sets the next offset of `broker`. What was one number for all brokers is forgotten.
    pub fn set(&mut self, broker: u32, next: u64) {
        match &mut self.0 {
            Next::ByBroker(offsets) => {
                offsets.insert(broker, next);
            }
            Next::OfAll(_) => *self = Self::from_iter([(broker, next)]),
        }
    }

    /// The next offset of `broker`, if anything is known of it alone.
    pub fn next(&self, broker: u32) -> Option<u64> {
        match &self.0 {
            Next::ByBroker(offsets) => offsets.get(&broker).copied(),
            Next::OfAll(_) => None,
        }
    }

    /// The next position in the one order of all brokers, if it is that.
    pub fn position(&self) -> Option<u64> {
        match self.0 {
            Next::ByBroker(_) => None,
            Next::OfAll(next) => Some(next),
        }
    }

    /// All brokers with their next offset, by broker.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let offsets = match &self.0 {
            Next::ByBroker(offsets) => Some(offsets),
            Next::OfAll(_) => None,
        };
        let offsets = offsets.into_iter().flatten();
        offsets.map(|(broker, next)| (*broker, *next))
    }

    /// True if nothing was read yet.
    pub fn is_empty(&self) -> bool {
        self.position().is_none() && self.iter().next().is_none()
    }

    /// Goes on at `next`, on one broker or in the one order of all.
    pub(super) fn advance(&mut self, broker: Option<u32>, next: u64) {
        match broker {
            Some(broker) => self.set(broker, next),
            None => *self = Self::at(next),
        }
    }
}

impl FromIterator<(u32, u64)> for Positions {
    fn from_iter<I: IntoIterator<Item = (u32, u64)>>(entries: I) -> Self {
        Self(Next::ByBroker(entries.into_iter().collect()))
    }
}

impl fmt::Display for Positions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(next) = self.position() {
            return write!(f, "{next}");
        }
        for (index, (broker, next)) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{broker}:{next}")?;
        }
        Ok(())
    }
}

/// A text that is not a position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{part:?} is not BROKER:OFFSET, or names a broker twice; a position looks like 1:4096,2:0, or like 4096 where there is one order over all brokers"
)]
pub struct ParsePositionsError {
    part: String,
}

impl FromStr for Positions {
    type Err = ParsePositionsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if let Ok(next) = text.parse() {
            return Ok(Self::at(next));
        }
        let mut offsets = BTreeMap::new();
        for part in text.split(',').map(str::trim).filter(|_| !text.is_empty()) {
            let wrong = || ParsePositionsError {
                part: part.to_string(),
            };
            let (broker, next) = part.split_once(':').ok_or_else(wrong)?;
            let broker: u32 = broker.trim().parse().map_err(|_| wrong())?;
            let next: u64 = next.trim().parse().map_err(|_| wrong())?;
            if offsets.insert(broker, next).is_some() {
                return Err(wrong());
            }
        }
        Ok(Self(Next::ByBroker(offsets)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for text in ["", "4096", "1:4096", "1:4096,2:0,31:18446744073709551615"] {
            assert_eq!(text.parse::<Positions>().expect(text).to_string(), text);
        }
        assert_eq!(
            " 2:7 , 1:3 "
                .parse::<Positions>()
                .expect("spaces")
                .to_string(),
            "1:3,2:7"
        );
        assert_eq!(" 7 ".parse(), Ok(Positions::at(7)));
    }

    #[test]
    fn one_number_is_of_no_broker_and_offsets_of_brokers_are_no_number() {
        let mut positions = Positions::at(7);
        assert_eq!((positions.position(), positions.next(1)), (Some(7), None));
        assert!(!positions.is_empty() && positions.iter().next().is_none());
        positions.advance(None, 9);
        assert_eq!(positions, Positions::at(9));
        positions.advance(Some(1), 3);
        assert_eq!((positions.position(), positions.next(1)), (None, Some(3)));
    }

    #[test]
    fn nonsense_names_the_part_that_is_wrong() {
        for (text, part) in [
            ("x", "x"),
            ("-1", "-1"),
            ("1:2,77", "77"),
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
