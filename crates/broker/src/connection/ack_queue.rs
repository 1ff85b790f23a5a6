//! The acknowledgements of a connection's batches: in the order of the batches, in whatever order their answers
//! come.

use std::collections::VecDeque;

use embar_wire::control::ErrorCode;
use embar_wire::limits::MAX_ACK_BATCHES;

/// Batches that one frame acknowledges, at most: frames of at most 8 KiB.
const ACKS_PER_FRAME: usize = 1000;

const _: () = assert!(ACKS_PER_FRAME <= MAX_ACK_BATCHES);

/// Accepted, or why not.
type Status = Option<ErrorCode>;

/// Answers that wait for those before them, and answers that the next frames carry.
#[derive(Default)]
pub(crate) struct AckQueue {
    /// Batches that the sequencer has. An answered one waits for those before it.
    due: VecDeque<Option<(Status, u64)>>,
    /// Number of the first of them, counted on this connection.
    first_due: u64,
    /// Offsets of batches whose acknowledgement can be sent.
    ready: Vec<u64>,
    /// From which place in `ready` on which status holds.
    statuses: VecDeque<(usize, Status)>,
    /// Number of the batch that `ready` begins with.
    first_ready: u64,
}

impl AckQueue {
    /// Expects an answer of the sequencer to one more batch, and returns its number.
    pub fn expect(&mut self) -> u64 {
        self.due.push_back(None);
        self.first_due + self.due.len() as u64 - 1
    }

    /// Takes the answer to an expected batch.
    pub fn answer(&mut self, number: u64, status: Status, offset: u64) {
        let index = number.checked_sub(self.first_due);
        let index = index.and_then(|index| usize::try_from(index).ok());
        let due = index.and_then(|index| self.due.get_mut(index));
        *due.expect("an answer comes once, and only to what is expected") = Some((status, offset));
        while let Some(Some((status, offset))) = self.due.pop_front_if(|first| first.is_some()) {
            self.first_due += 1;
            self.put(status, offset);
        }
    }

    /// Acknowledges a batch that this broker stored without the sequencer.
    pub fn push(&mut self, offset: u64) {
        self.first_due += 1;
        self.put(None, offset);
    }

    fn put(&mut self, status: Status, offset: u64) {
        if self.statuses.back().is_none_or(|(_, last)| *last != status) {
            self.statuses.push_back((self.ready.len(), status));
        }
        self.ready.push(offset);
    }

    /// What the next frame says: the number of its first batch, their status, their offsets.
    pub fn next_run(&self) -> Option<(u64, Status, &[u64])> {
        let (_, status) = self.statuses.front()?;
        let end = self.statuses.get(1).map_or(self.ready.len(), |(at, _)| *at);
        let end = end.min(ACKS_PER_FRAME);
        Some((self.first_ready, *status, &self.ready[..end]))
    }

    /// Removes the first `count`, which were sent.
    pub fn sent(&mut self, count: usize) {
        self.ready.drain(..count);
        self.first_ready += count as u64;
        for (at, _) in &mut self.statuses {
            *at = at.saturating_sub(count);
        }
        while self.ready.is_empty() || self.statuses.get(1).is_some_and(|(at, _)| *at == 0) {
            if self.statuses.pop_front().is_none() {
                return;
            }
        }
    }

    /// Whether every batch was answered, and its acknowledgement sent.
    pub fn is_empty(&self) -> bool {
        self.due.is_empty() && self.ready.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send_all(acks: &mut AckQueue) -> Vec<(u64, Status, Vec<u64>)> {
        let mut runs = Vec::new();
        while let Some((first, status, offsets)) = acks.next_run() {
            let run = (first, status, offsets.to_vec());
            acks.sent(run.2.len());
            runs.push(run);
        }
        runs
    }

    #[test]
    fn answers_wait_for_those_before_them() {
        let mut acks = AckQueue::default();
        assert_eq!((acks.expect(), acks.expect()), (0, 1));
        acks.answer(1, None, 20);
        assert!(acks.next_run().is_none() && !acks.is_empty());
        acks.answer(0, None, 10);
        assert_eq!(send_all(&mut acks), [(0, None, vec![10, 20])]);
        assert!(acks.is_empty());
    }

    #[test]
    fn every_frame_has_one_status() {
        let mut acks = AckQueue::default();
        let fenced = Some(ErrorCode::Fenced);
        for (status, offset) in [(None, 1), (fenced, 7), (fenced, 7), (None, 2)] {
            let number = acks.expect();
            acks.answer(number, status, offset);
        }
        acks.push(3);
        assert_eq!(
            send_all(&mut acks),
            [
                (0, None, vec![1]),
                (1, fenced, vec![7, 7]),
                (3, None, vec![2, 3])
            ]
        );
    }

    #[test]
    fn frames_are_bounded() {
        let mut acks = AckQueue::default();
        (0..2500).for_each(|offset| acks.push(offset));
        let lengths: Vec<usize> = send_all(&mut acks).iter().map(|run| run.2.len()).collect();
        assert_eq!(lengths, [1000, 1000, 500]);
        let number = acks.expect();
        assert_eq!(number, 2500);
    }
}
