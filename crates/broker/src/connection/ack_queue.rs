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

/// An answer whose batch is stored, and not on all disks yet.
struct Undurable {
    status: Status,
    offset: u64,
    /// The topic is durable up to here, or further, once it can be sent.
    durable_at: u64,
}

/// Answers that wait for those before them, answers that wait for disks, and answers that the next frames carry.
#[derive(Default)]
pub(crate) struct AckQueue {
    /// Batches that the sequencer has. An answered one waits for those before it.
    due: VecDeque<Option<Undurable>>,
    /// Number of the first of them, counted on this connection.
    first_due: u64,
    /// At acks 2: what was answered. A refusal waits for the answers before it only.
    undurable: VecDeque<Undurable>,
    /// At acks 2: up to where the topic is known to be durable.
    durable: Option<u64>,
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

    /// From now on answers wait until their batches are on all disks of the topic.
    pub fn await_disks(&mut self) {
        self.durable = Some(0);
    }

    /// The topic is durable up to this position. True if answers can be sent by that.
    pub fn durable(&mut self, next: u64) -> bool {
        let ready = self.ready.len();
        if let Some(durable) = &mut self.durable {
            *durable = next.max(*durable);
        }
        self.release();
        self.ready.len() > ready
    }

    fn release(&mut self) {
        let durable = self.durable.unwrap_or(u64::MAX);
        while let Some(answer) = self
            .undurable
            .pop_front_if(|first| first.durable_at <= durable)
        {
            self.make_ready(answer.status, answer.offset);
        }
    }

    /// Takes the answer to an expected batch. At acks 2 it can be sent once the topic is durable up to `durable_at`.
    pub fn answer(&mut self, number: u64, status: Status, offset: u64, durable_at: u64) {
        let index = number.checked_sub(self.first_due);
        let index = index.and_then(|index| usize::try_from(index).ok());
        let due = index.and_then(|index| self.due.get_mut(index));
        let answer = Undurable {
            status,
            offset,
            durable_at,
        };
        *due.expect("an answer comes once, and only to what is expected") = Some(answer);
        while let Some(Some(answer)) = self.due.pop_front_if(|first| first.is_some()) {
            self.first_due += 1;
            self.undurable.push_back(answer);
        }
        self.release();
    }

    /// Acknowledges a batch that this broker stored without the sequencer, as [`AckQueue::answer`].
    pub fn push(&mut self, offset: u64, durable_at: u64) {
        self.first_due += 1;
        self.undurable.push_back(Undurable {
            status: None,
            offset,
            durable_at,
        });
        self.release();
    }

    fn make_ready(&mut self, status: Status, offset: u64) {
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
        self.due.is_empty() && self.undurable.is_empty() && self.ready.is_empty()
    }

    /// Whether answers wait for disks.
    pub fn awaits_disks(&self) -> bool {
        !self.undurable.is_empty()
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
        acks.answer(1, None, 20, 21);
        assert!(acks.next_run().is_none() && !acks.is_empty());
        acks.answer(0, None, 10, 11);
        assert_eq!(send_all(&mut acks), [(0, None, vec![10, 20])]);
        assert!(acks.is_empty());
    }

    #[test]
    fn at_acks_2_answers_wait_until_their_batches_are_on_disks() {
        let mut acks = AckQueue::default();
        acks.await_disks();
        let full = Some(ErrorCode::HeldFull);
        for (status, offset, durable_at) in [(None, 10, 12), (full, 0, 0), (None, 12, 15)] {
            let number = acks.expect();
            acks.answer(number, status, offset, durable_at);
        }
        assert!(!acks.durable(11) && acks.next_run().is_none() && acks.awaits_disks());
        assert!(acks.durable(12));
        assert_eq!(
            send_all(&mut acks),
            [(0, None, vec![10]), (1, full, vec![0])]
        );
        assert!(!acks.durable(9) && !acks.is_empty(), "it never goes back");
        assert!(acks.durable(20));
        let number = acks.expect();
        acks.answer(number, None, 15, 20);
        assert_eq!(send_all(&mut acks), [(2, None, vec![12, 15])]);
        assert!(acks.is_empty() && !acks.awaits_disks());
    }

    #[test]
    fn every_frame_has_one_status() {
        let mut acks = AckQueue::default();
        let fenced = Some(ErrorCode::Fenced);
        for (status, offset) in [(None, 1), (fenced, 7), (fenced, 7), (None, 2)] {
            let number = acks.expect();
            acks.answer(number, status, offset, 0);
        }
        acks.push(3, 4);
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
        (0..2500).for_each(|offset| acks.push(offset, 0));
        let lengths: Vec<usize> = send_all(&mut acks).iter().map(|run| run.2.len()).collect();
        assert_eq!(lengths, [1000, 1000, 500]);
        let number = acks.expect();
        assert_eq!(number, 2500);
    }
}
