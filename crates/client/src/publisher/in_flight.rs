//! The batches that were handed to one connection and are not done with.
//!
//! Invariants:
//! - `batches` is in the order of sending, so the first one has the connection-local number `acked`.
//! - Only the last ones, which go by one send, may still be in the hands of the reactor (`sending`). Their buffers are
//!   released only after the reactor gave up its references, even if acknowledgements were faster: those are `held`.
//! - A batch with a place in a session is not resolved here: its answer is handed on, with the batch, once the reactor has
//!   no reference to it.

use std::collections::VecDeque;
use std::sync::Arc;

use embar_frame::{Now, crc32c};
use embar_memory::Buffer;
use embar_wire::ack::POSITION_UNKNOWN;
use embar_wire::acks::Acks;
use embar_wire::batch::{BatchFlags, BatchHeader};
use embar_wire::control::ErrorCode;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};

use super::model::Event;
use super::receipt::{Failure, Outcome, Position};
use super::session::Sequence;

/// A sealed batch on its way.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) number: u64,
    pub(super) messages: u32,
    pub(super) bytes: Arc<Buffer>,
    pub(super) sealed_at: Now,
    /// When it was last handed to a connection.
    pub(super) sent_at: Now,
    /// A broker may have stored it.
    pub(super) written: bool,
    /// Its place in the session; none before it is handed to a connection, and on topics without sessions.
    pub(super) sequence: Option<Sequence>,
    /// Not to be sent again before this time; zero: there is nothing to wait for.
    pub(super) resend_at: Now,
    /// How often a broker refused for good the connection that carried it.
    pub(super) refusals: u32,
    /// It was beyond the sequencer's window although it was the lowest that was open.
    pub(super) was_beyond: bool,
}

impl Batch {
    /// Gives it this place in the session.
    pub(super) fn place(&mut self, sequence: Sequence) {
        self.sequence = Some(sequence);
        self.change_header(|header| header.renumber(sequence.number, sequence.epoch));
    }

    /// Gives it the checksum of its payload, if it has none.
    pub(super) fn sum(&mut self) {
        if !self.header().is_summed() {
            let crc = crc32c(&self.bytes[BATCH_HEADER_BYTES..]);
            self.change_header(|header| header.sum(crc));
        }
    }

    pub(super) fn flag_as_possible_duplicate(&mut self) {
        self.change_header(|header| header.add_flags(BatchFlags::POSSIBLE_DUPLICATE));
    }

    /// Whether another connection carried it before, and it is not known what became of it there.
    pub(super) fn is_possible_duplicate(&self) -> bool {
        self.header()
            .flags()
            .contains(BatchFlags::POSSIBLE_DUPLICATE)
    }

    fn header(&self) -> BatchHeader {
        BatchHeader::parse(&self.bytes, MAX_BATCH_BYTES)
            .expect("a submitted batch starts with a good header")
    }

    fn change_header(&mut self, change: impl FnOnce(&mut BatchHeader)) {
        let mut header = self.header();
        change(&mut header);
        if self.bytes.place().is_some() && Arc::get_mut(&mut self.bytes).is_none() {
            // Answered by a broker that has not read all of it: it may go on reading what is there.
            self.bytes = Arc::new(Buffer::from(self.bytes.to_vec()));
        }
        let bytes = Arc::get_mut(&mut self.bytes)
            .expect("a batch that no connection has is referred to by nobody else");
        bytes[..BATCH_HEADER_BYTES].copy_from_slice(header.as_bytes());
    }

    /// Resolves the batch as answered, after so many nanoseconds, and releases its buffer.
    pub(super) fn resolve(self, outcome: Outcome, waited_ns: u64, out: &mut VecDeque<Event>) {
        out.push_back(resolved(&self, outcome, Some(waited_ns)));
        out.push_back(Event::Released { buffer: self.bytes });
    }

    /// Resolves the batch and releases its buffer.
    pub(super) fn finish(self, outcome: Outcome, out: &mut VecDeque<Event>) {
        out.push_back(resolved(&self, outcome, None));
        out.push_back(Event::Released { buffer: self.bytes });
    }

    /// Resolves a batch that will not be tried again: only one that no broker may have stored is surely
    /// not stored.
    pub(super) fn give_up(self, failure: Failure, out: &mut VecDeque<Event>) {
        let failure = if self.written {
            Failure::InDoubt
        } else {
            failure
        };
        self.finish(Outcome::Failed(failure), out);
    }
}

fn resolved(batch: &Batch, outcome: Outcome, waited_ns: Option<u64>) -> Event {
    Event::Resolved {
        batch: batch.number,
        messages: batch.messages,
        outcome,
        waited_ns,
    }
}

/// What a broker says of a batch.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) batch: Batch,
    /// Stored, and where if that is known, or why not.
    pub(super) answer: Result<Option<u64>, ErrorCode>,
    pub(super) waited_ns: u64,
}

/// Done with, but for the reactor, which still reads its bytes.
#[derive(Debug)]
enum Held {
    Resolved(Arc<Buffer>),
    Answered(Answered),
}

/// An acknowledgement that does not fit what was sent.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it acknowledges {count} batches from {first} on, where {expected} is next and {in_flight} are in flight"
)]
pub(super) struct WrongAck {
    pub(super) first: u64,
    pub(super) count: usize,
    pub(super) expected: u64,
    pub(super) in_flight: usize,
}

#[derive(Debug)]
pub(super) struct InFlight {
    acks: Acks,
    batches: VecDeque<Batch>,
    acked: u64,
    bytes: u64,
    /// Batches of the send that is with the reactor, those that are held included.
    sending: usize,
    held: VecDeque<Held>,
    answers: VecDeque<Answered>,
    progress_at: Now,
    /// When a batch was last stored.
    stored_at: Now,
}

impl InFlight {
    pub(super) fn new(acks: Acks) -> Self {
        Self {
            acks,
            batches: VecDeque::new(),
            acked: 0,
            bytes: 0,
            sending: 0,
            held: VecDeque::new(),
            answers: VecDeque::new(),
            progress_at: Now(0),
            stored_at: Now(0),
        }
    }

    /// When a batch was last stored, or handed to the kernel if nothing is acknowledged; zero before.
    pub(super) fn stored_at(&self) -> Now {
        self.stored_at
    }

    /// When the first of its batches was sealed.
    pub(super) fn oldest(&self) -> Option<Now> {
        self.batches.front().map(|batch| batch.sealed_at)
    }

    /// The number of the last of its batches.
    pub(super) fn last(&self) -> Option<u64> {
        self.batches.back().map(|batch| batch.number)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty() && !self.is_sending()
    }

    pub(super) fn is_sending(&self) -> bool {
        self.sending > 0
    }

    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    /// Bytes handed over and not yet acknowledged.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When something last moved, if something should.
    pub(super) fn waiting_since(&self) -> Option<Now> {
        (!self.is_empty()).then_some(self.progress_at)
    }

    /// The batch is handed to the reactor now, by one send with all others of which that is said before
    /// [`InFlight::sent`]; returns what to send.
    pub(super) fn send(&mut self, mut batch: Batch, now: Now) -> Arc<Buffer> {
        if self.batches.is_empty() {
            self.progress_at = now;
        }
        batch.sent_at = now;
        batch.written = true;
        let bytes = batch.bytes.clone();
        self.bytes += bytes.len() as u64;
        self.batches.push_back(batch);
        self.sending += 1;
        bytes
    }

    /// The kernel has all that was sent, and the reactor no reference to it.
    pub(super) fn sent(&mut self, now: Now, out: &mut VecDeque<Event>) {
        self.sending = 0;
        self.progress_at = now;
        self.let_go(out);
        if self.acks == Acks::None {
            self.bytes = 0;
            self.stored_at = now;
            for batch in self.batches.drain(..) {
                batch.finish(Outcome::Sent, out);
            }
        }
    }

    /// The send that is with the reactor ends with its connection, and the kernel never had its last `unsent` bytes: no
    /// broker has batches of which it had none.
    pub(super) fn cut_short(&mut self, mut unsent: usize) {
        let with_reactor = self.sending - self.held.len();
        for batch in self.batches.iter_mut().rev().take(with_reactor) {
            let Some(rest) = unsent.checked_sub(batch.bytes.len()) else {
                return;
            };
            unsent = rest;
            if batch.sequence.is_none() {
                batch.written = batch.is_possible_duplicate();
            }
        }
    }

    /// The reactor has no reference to what was held for it.
    fn let_go(&mut self, out: &mut VecDeque<Event>) {
        for held in self.held.drain(..) {
            match held {
                Held::Resolved(buffer) => out.push_back(Event::Released { buffer }),
                Held::Answered(answered) => self.answers.push_back(answered),
            }
        }
    }

    /// `broker` acknowledges batches from `first` on: one offset each, or all of them refused.
    pub(super) fn acknowledge(
        &mut self,
        broker: u32,
        first: u64,
        refused: Option<ErrorCode>,
        offsets: impl ExactSizeIterator<Item = u64>,
        now: Now,
        out: &mut VecDeque<Event>,
    ) -> Result<(), WrongAck> {
        let count = offsets.len();
        if first != self.acked || count == 0 || count > self.batches.len() {
            return Err(WrongAck {
                first,
                count,
                expected: self.acked,
                in_flight: self.batches.len(),
            });
        }
        for offset in offsets {
            let is_with_reactor = self.batches.len() + self.held.len() <= self.sending;
            let Some(batch) = self.batches.pop_front() else {
                break;
            };
            self.acked += 1;
            self.bytes -= batch.bytes.len() as u64;
            let waited_ns = now.0.saturating_sub(batch.sent_at.0);
            let held = if batch.sequence.is_some() {
                let known = (offset != POSITION_UNKNOWN).then_some(offset);
                Held::Answered(Answered {
                    batch,
                    answer: refused.map_or(Ok(known), Err),
                    waited_ns,
                })
            } else {
                let broker = Some(broker);
                let outcome = match refused {
                    None => Outcome::Stored(Position { broker, offset }),
                    // This broker has not stored it; the one that had it before may have.
                    Some(_) if batch.is_possible_duplicate() => Outcome::Failed(Failure::InDoubt),
                    Some(code) => Outcome::Failed(Failure::Refused(code)),
                };
                out.push_back(resolved(&batch, outcome, Some(waited_ns)));
                Held::Resolved(batch.bytes)
            };
            match held {
                held if is_with_reactor => self.held.push_back(held),
                Held::Resolved(buffer) => out.push_back(Event::Released { buffer }),
                Held::Answered(answered) => self.answers.push_back(answered),
            }
        }
        self.progress_at = now;
        if refused.is_none() {
            self.stored_at = now;
        }
        Ok(())
    }

    /// What a broker said of the next batch that has a place in a session.
    pub(super) fn next_answer(&mut self) -> Option<Answered> {
        self.answers.pop_front()
    }

    /// The places of the batches that have no answer yet, or one that is held back.
    pub(super) fn sequences(&self) -> impl Iterator<Item = Sequence> + '_ {
        let held = self.held.iter().filter_map(|held| match held {
            Held::Answered(answered) => answered.batch.sequence,
            Held::Resolved(_) => None,
        });
        let open = self.batches.iter().filter_map(|batch| batch.sequence);
        open.chain(held)
    }

    /// The connection is gone and the reactor has no reference to any batch: what was not acknowledged, in order.
    pub(super) fn lost(&mut self, out: &mut VecDeque<Event>) -> VecDeque<Batch> {
        self.let_go(out);
        self.sending = 0;
        self.acked = 0;
        self.bytes = 0;
        std::mem::take(&mut self.batches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(number: u64) -> Batch {
        Batch {
            number,
            messages: 3,
            bytes: Arc::new(Buffer::from(vec![0; 128])),
            sealed_at: Now(0),
            sent_at: Now(0),
            written: false,
            sequence: None,
            resend_at: Now(0),
            refusals: 0,
            was_beyond: false,
        }
    }

    fn kinds(out: &mut VecDeque<Event>) -> Vec<String> {
        out.drain(..)
            .map(|event| match event {
                Event::Resolved { batch, outcome, .. } => format!("{batch}: {outcome:?}"),
                Event::Released { .. } => "released".into(),
                other => format!("{other:?}"),
            })
            .collect()
    }

    fn stored(number: u64, offset: u64) -> String {
        let broker = Some(9);
        let outcome = Outcome::Stored(Position { broker, offset });
        format!("{number}: {outcome:?}")
    }

    fn filled(numbers: std::ops::Range<u64>) -> InFlight {
        let mut in_flight = InFlight::new(Acks::Readable);
        for number in numbers {
            drop(in_flight.send(batch(number), Now(10)));
            in_flight.sent(Now(11), &mut VecDeque::new());
        }
        in_flight
    }

    #[test]
    fn cumulative_acks_resolve_in_order_of_sending() {
        let mut in_flight = filled(40..43);
        let mut out = VecDeque::new();
        assert_eq!((in_flight.len(), in_flight.bytes()), (3, 384));
        in_flight
            .acknowledge(9, 0, None, [100, 200].into_iter(), Now(20), &mut out)
            .expect("fits");
        assert_eq!(
            kinds(&mut out),
            [
                stored(40, 100),
                "released".into(),
                stored(41, 200),
                "released".into()
            ]
        );
        in_flight
            .acknowledge(9, 2, None, [300].into_iter(), Now(30), &mut out)
            .expect("fits");
        assert_eq!(kinds(&mut out), [stored(42, 300), "released".into()]);
        assert!(in_flight.is_empty() && in_flight.bytes() == 0);
    }

    #[test]
    fn an_ack_of_what_is_not_in_flight_is_wrong() {
        let mut in_flight = filled(0..2);
        let mut out = VecDeque::new();
        for (first, offsets) in [
            (1, vec![0]),
            (0, vec![0, 1, 2]),
            (u64::MAX, vec![0]),
            (0, vec![]),
        ] {
            let wrong =
                in_flight.acknowledge(9, first, None, offsets.into_iter(), Now(1), &mut out);
            assert_eq!(wrong.expect_err("must be refused").expected, 0);
        }
        assert!(out.is_empty());
        assert_eq!(in_flight.len(), 2);
    }

    #[test]
    fn an_ack_during_the_send_frees_the_buffer_after_it() {
        let mut in_flight = InFlight::new(Acks::Readable);
        let mut out = VecDeque::new();
        let in_reactor = in_flight.send(batch(7), Now(1));
        in_flight
            .acknowledge(9, 0, None, [5].into_iter(), Now(2), &mut out)
            .expect("fits");
        assert_eq!(kinds(&mut out), [stored(7, 5)]);
        assert!(!in_flight.is_empty(), "the reactor still reads the buffer");
        drop(in_reactor);
        in_flight.sent(Now(3), &mut out);
        assert_eq!(kinds(&mut out), ["released"]);
        assert!(in_flight.is_empty());
    }

    #[test]
    fn without_acks_a_batch_is_done_when_sent() {
        let mut in_flight = InFlight::new(Acks::None);
        let mut out = VecDeque::new();
        drop(in_flight.send(batch(1), Now(1)));
        assert_eq!(in_flight.waiting_since(), Some(Now(1)));
        in_flight.sent(Now(2), &mut out);
        assert_eq!(kinds(&mut out), ["1: Sent", "released"]);
        assert_eq!(in_flight.waiting_since(), None);
    }

    #[test]
    fn a_loss_gives_back_what_was_not_acknowledged() {
        let mut in_flight = filled(0..3);
        let mut out = VecDeque::new();
        in_flight
            .acknowledge(9, 0, None, [5].into_iter(), Now(2), &mut out)
            .expect("fits");
        out.clear();
        let lost = in_flight.lost(&mut out);
        assert_eq!(
            lost.iter().map(|batch| batch.number).collect::<Vec<_>>(),
            [1, 2]
        );
        assert!(lost.iter().all(|batch| batch.written));
        drop(in_flight.send(batch(8), Now(3)));
        in_flight.sent(Now(4), &mut out);
        in_flight
            .acknowledge(9, 0, None, [1].into_iter(), Now(5), &mut out)
            .expect("a new connection counts from 0");
    }
}
