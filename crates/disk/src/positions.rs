//! Which positions of a chain are somewhere.

use std::ops::Range;

/// Positions of one chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// In order. They do not touch each other, and none is empty.
    ranges: Vec<Range<u64>>,
}

impl Positions {
    /// Adds those of a range.
    pub fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let from = self.ranges.partition_point(|it| it.end < range.start);
        let to = self.ranges.partition_point(|it| it.start <= range.end);
        let touched = &self.ranges[from..to];
        let start = touched.first().map_or(range.start, |it| it.start);
        let end = touched.last().map_or(range.end, |it| it.end);
        let all = start.min(range.start)..end.max(range.end);
        self.ranges.splice(from..to, [all]);
    }

    /// All of them, as ranges in order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.ranges.iter().cloned()
    }

    /// Those that are in a range.
    #[must_use]
    pub fn within(&self, range: &Range<u64>) -> Self {
        let parts = self.ranges.iter();
        let parts = parts.map(|it| it.start.max(range.start)..it.end.min(range.end));
        Self {
            ranges: parts.filter(|part| !part.is_empty()).collect(),
        }
    }

    /// Those of a range that are not among them.
    #[must_use]
    pub fn missing_in(&self, range: &Range<u64>) -> Self {
        let mut missing = Self::default();
        let mut from = range.start;
        for part in self.within(range).ranges {
            missing.add(from..part.start);
            from = part.end;
        }
        missing.add(from..range.end);
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ranges: &[(u64, u64)]) -> Positions {
        let mut positions = Positions::default();
        for (start, end) in ranges {
            positions.add(*start..*end);
        }
        positions
    }

    fn shown(positions: &Positions) -> Vec<(u64, u64)> {
        positions.ranges().map(|it| (it.start, it.end)).collect()
    }

    #[test]
    fn ranges_that_touch_become_one_in_whatever_order_they_come() {
        let touching = of(&[(0, 4), (4, 6), (9, 9)]);
        assert_eq!(shown(&touching), [(0, 6)]);
        let mut apart = of(&[(8, 9), (0, 2), (4, 6)]);
        assert_eq!(shown(&apart), [(0, 2), (4, 6), (8, 9)]);
        apart.add(1..8);
        assert_eq!(shown(&apart), [(0, 9)]);
        apart.add(2..3);
        assert_eq!(shown(&apart), [(0, 9)]);
    }

    #[test]
    fn what_is_in_a_range_and_what_is_missing_there_make_it_up() {
        let positions = of(&[(2, 4), (6, 8)]);
        assert_eq!(shown(&positions.within(&(3..7))), [(3, 4), (6, 7)]);
        assert_eq!(shown(&positions.missing_in(&(3..9))), [(4, 6), (8, 9)]);
        assert_eq!(shown(&positions.missing_in(&(2..4))), []);
        assert_eq!(shown(&positions.missing_in(&(10..12))), [(10, 12)]);
    }
}
