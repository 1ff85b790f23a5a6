//! Finds where a cost jumps between two neighbouring points of a curve.

use serde::Serialize;

/// A jump.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Jump {
    /// The point before it.
    pub from: u32,
    /// The point after it.
    pub to: u32,
    /// The median of what it costs there, divided by that of what it costs here.
    pub factor: f64,
}

/// The jumps of a curve: `points` have a value and, of each trial, what a unit of work cost. A jump is a median that
/// grows by more than `factor`, where no trial of the one point reaches the trials of the other.
pub fn find(points: &[(u32, Vec<f64>)], factor: f64) -> Vec<Jump> {
    let pairs = points.windows(2).filter_map(|pair| {
        let [(from, before), (to, after)] = pair else {
            return None;
        };
        let grown = median(after)? / median(before)?;
        let highest = before.iter().copied().fold(f64::MIN, f64::max);
        let lowest = after.iter().copied().fold(f64::MAX, f64::min);
        (grown.is_finite() && grown > factor && lowest > highest).then_some(Jump {
            from: *from,
            to: *to,
            factor: grown,
        })
    });
    pairs.collect()
}

fn median(values: &[f64]) -> Option<f64> {
    embar_meter::stats::median(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_is_large_and_outside_the_noise() {
        let points = [
            (1, vec![1.0, 1.1, 0.9]),
            (10, vec![1.4, 1.3, 1.45]),
            (100, vec![2.9, 3.0, 3.1]),
            (1000, vec![2.0, 9.0, 8.0]),
            (10_000, vec![1.0, 1.0, 1.0]),
        ];
        let jumps = find(&points, 1.5);
        assert_eq!(jumps.len(), 1, "{jumps:?}");
        assert_eq!((jumps[0].from, jumps[0].to), (10, 100));
        assert!((jumps[0].factor - 3.0 / 1.4).abs() < 1e-9);
    }

    #[test]
    fn what_was_not_measured_is_no_jump() {
        // Less than a tick of the kernel's clock.
        assert!(find(&[(1, vec![0.0]), (2, vec![1.0])], 1.5).is_empty());
        assert!(find(&[(1, vec![1.0]), (2, vec![])], 1.5).is_empty());
        assert!(find(&[], 1.5).is_empty());
    }
}
