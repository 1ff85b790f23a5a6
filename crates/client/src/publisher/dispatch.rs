//! Which connection takes the next batch.
//!
//! A batch is given to a connection only when that connection can write it now; until then it stays in the one queue
//! they all share. So a slow or stalled connection holds back what was already written to it, and nothing else.

/// The connection with the least in flight among those that can write now, given as (index, bytes in flight).
///
/// Of equals the one that follows `last` in the ring is taken, so that an idle publisher spreads its batches too.
pub(super) fn choose(able: impl Iterator<Item = (usize, u64)>, last: usize) -> Option<usize> {
    able.min_by_key(|&(index, bytes)| (bytes, index <= last, index))
        .map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_queue_wins() {
        assert_eq!(choose([(0, 50), (1, 20), (2, 30)].into_iter(), 1), Some(1));
        assert_eq!(choose([].into_iter(), 0), None);
    }

    #[test]
    fn equals_take_turns() {
        let equal = || [(0, 10), (1, 10), (2, 10)].into_iter();
        assert_eq!(choose(equal(), 0), Some(1));
        assert_eq!(choose(equal(), 1), Some(2));
        assert_eq!(choose(equal(), 2), Some(0));
        assert_eq!(choose([(0, 10), (2, 10)].into_iter(), 1), Some(2));
    }
}
