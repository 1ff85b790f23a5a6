//! One lane of a broker: submits records to the sequencer, in order, and keeps each submission until its outcome is
//! known.

use embar_memory::canary::{Canary, injected};
use std::collections::{BTreeMap, VecDeque};
use std::mem;

use embar_fabric::{
    GoiRecord, LaneWriter, Notice, NoticeKind, NoticeReader, PbrKind, PbrRecord, Region, Seen,
};
use embar_memory::Memory;

use super::{Event, LaneFull};
use crate::action::Outcome;
use crate::leadership::Term;

/// The submissions of a lane, from their record in the ring to their answer.
#[derive(Debug)]
pub(super) struct Lane<M, T> {
    writer: LaneWriter<M>,
    epoch: u32,
    /// Numbers below may be overwritten.
    consumed: u64,
    /// The newest, by number, without gaps.
    submissions: VecDeque<Submission<T>>,
    /// Unsettled ones that so many others were submitted behind: they wait for a predecessor.
    waiting: BTreeMap<u64, Submission<T>>,
    unsettled: usize,
    /// Those of them whose chain was closed.
    closed: usize,
    /// What the sequencer has taken and not answered, by its last grant that counts.
    held: usize,
    /// The oldest number that was not taken at the last [`Lane::restore_lost`].
    stood: Option<u64>,
    /// Numbers below were taken by the sequencer, and looked at by [`Lane::newly_held`].
    judged: u64,
    /// Places of the sessions whose batches were settled since [`Lane::take_released`].
    released: Vec<u32>,
    notices: Option<NoticeReader<M>>,
    /// What the last look read, and may not count.
    looked: Looked,
}

#[derive(Debug)]
struct Submission<T> {
    number: u64,
    record: PbrRecord,
    state: State<T>,
}

#[derive(Debug)]
enum State<T> {
    Open(T),
    /// Its chain was closed: the broker asks for it no more. It takes a slot until the sequencer has answered it,
    /// which the broker does not always see.
    Closed,
    Settled,
}

impl<T> Submission<T> {
    fn is_settled(&self) -> bool {
        matches!(self.state, State::Settled)
    }
}

#[derive(Debug, Default)]
struct Looked {
    consumed: u64,
    held: usize,
    /// What was known to be consumed before.
    before: u64,
    notices: Vec<Notice>,
    /// One of the notices that were read is damaged.
    unreadable: bool,
}

impl<M: Memory, T> Lane<M, T> {
    pub fn new(writer: LaneWriter<M>) -> Self {
        Self {
            consumed: writer.next(),
            judged: writer.next(),
            writer,
            epoch: 0,
            submissions: VecDeque::new(),
            waiting: BTreeMap::new(),
            unsettled: 0,
            closed: 0,
            held: 0,
            stood: None,
            released: Vec::new(),
            notices: None,
            looked: Looked::default(),
        }
    }

    /// Submissions that are not settled, or that the sequencer has not answered yet: as many answers may come.
    pub fn in_use(&self) -> usize {
        let asked_for = self.unsettled - self.closed;
        let unanswered = self.untaken().saturating_add(self.held);
        asked_for
            .max(unanswered.min(self.unsettled))
            .max(self.untaken())
    }

    fn untaken(&self) -> usize {
        self.writer.next().saturating_sub(self.consumed) as usize
    }

    /// Submissions that the sequencer has taken and not answered: it holds them, or has them for a moment.
    pub fn held(&self) -> usize {
        self.in_use() - self.untaken()
    }

    /// The tags of batches that the sequencer has taken since the last call and not answered.
    pub fn newly_held(&mut self) -> impl Iterator<Item = &T> {
        let first = self.submissions.front().map_or(0, |first| first.number);
        let index = |number: u64| {
            let index = number.saturating_sub(first) as usize;
            index.min(self.submissions.len())
        };
        let judged = index(self.judged)..index(self.consumed);
        self.judged = self.consumed;
        let taken = self.submissions.range(judged);
        taken.filter_map(|it| match &it.state {
            State::Open(tag) if it.record.kind == PbrKind::Batch as u8 => Some(tag),
            _ => None,
        })
    }

    /// Batches of a session that the sequencer has taken and not answered.
    pub fn held_of(&self, chain: u32, session: u32) -> impl Iterator<Item = &PbrRecord> {
        let taken = |it: &&Submission<T>| it.number < self.consumed;
        let all = self.unsettled_of(chain, session).filter(taken);
        all.map(|submission| &submission.record)
    }

    /// Whether this batch of a session was submitted and is not answered.
    pub fn awaits(&self, chain: u32, session: u32, sequence: u64) -> bool {
        let mut all = self.unsettled_of(chain, session);
        all.any(|it| it.record.sequence == sequence)
    }

    fn unsettled_of(&self, chain: u32, session: u32) -> impl Iterator<Item = &Submission<T>> {
        let all = self.submissions.iter().chain(self.waiting.values());
        all.filter(move |it| {
            let named = (it.record.chain, it.record.session, it.record.kind);
            named == (chain, session, PbrKind::Batch as u8) && !it.is_settled()
        })
    }

    pub fn submit(&mut self, record: PbrRecord, tag: T) -> Result<(), (LaneFull, T)> {
        // At most as many answers may be outstanding as the ring of notices has slots.
        let slots = self.writer.slots() as usize;
        if self.in_use() >= slots || !self.writer.has_room(self.consumed) {
            return Err((LaneFull, tag));
        }
        while self.submissions.len() >= slots
            && let Some(oldest) = self.submissions.pop_front()
        {
            if !oldest.is_settled() {
                self.waiting.insert(oldest.number, oldest);
            }
        }
        let number = if self.epoch == 0 {
            // No sequencer was met yet: the record is published when one is.
            self.submissions
                .back()
                .map_or(self.writer.next(), |last| last.number + 1)
        } else {
            self.writer.publish(self.consumed, &record)
        };
        self.submissions.push_back(Submission {
            number,
            record,
            state: State::Open(tag),
        });
        self.unsettled += 1;
        Ok(())
    }

    /// Begins anew for another sequencer, and submits again what is not settled.
    pub fn begin(&mut self, epoch: u32) {
        self.writer.begin(epoch);
        self.epoch = epoch;
        self.consumed = self.writer.next();
        self.judged = self.consumed;
        (self.closed, self.held) = (0, 0);
        self.notices = None;
        self.forget_look();
        while let Some((_, oldest)) = self.waiting.pop_last() {
            self.submissions.push_front(oldest);
        }
        for submission in mem::take(&mut self.submissions) {
            match submission.state {
                State::Open(_) => self.submissions.push_back(submission),
                State::Closed => self.released.extend(session_of(&submission.record)),
                State::Settled => {}
            }
        }
        self.unsettled = self.submissions.len();
        for submission in &mut self.submissions {
            if !injected(Canary::Resubmission) {
                submission.number = self.writer.publish(self.consumed, &submission.record);
            }
        }
    }

    /// Reads back the oldest submission that was not taken, if it was the oldest at the last call, too, and stores
    /// it again where memory has lost it. Returns whether it was lost.
    pub fn restore_lost(&mut self) -> bool {
        let oldest = (self.untaken() > 0).then_some(self.consumed);
        let before = mem::replace(&mut self.stood, oldest);
        let Some(number) = oldest.filter(|_| oldest == before) else {
            return false;
        };
        let first = self.submissions.front().map_or(0, |first| first.number);
        let index = number.checked_sub(first).map(|index| index as usize);
        let submission = index.and_then(|index| self.submissions.get(index));
        let Some(submission) = submission.filter(|_| !injected(Canary::LostRestored)) else {
            return false;
        };
        self.writer.restore(number, &submission.record)
    }

    /// Places of the sessions whose batches were settled since the last call, once for each batch.
    pub fn take_released(&mut self) -> impl Iterator<Item = u32> + '_ {
        self.released.drain(..)
    }

    /// Shows the sequencer that this incarnation was admitted.
    pub fn set_admitted(&mut self) {
        self.writer.set_admitted(true);
    }

    /// Takes the tags of a chain's submissions.
    pub fn close_chain(&mut self, chain: u32) -> Vec<T> {
        let mut tags = Vec::new();
        for submission in self.of_chain(chain) {
            match mem::replace(&mut submission.state, State::Closed) {
                State::Open(tag) => tags.push(tag),
                other => submission.state = other,
            }
        }
        self.closed += tags.len();
        tags
    }

    /// The sequencer does not know a closed chain: it has answered or ordered what it had taken before the last
    /// look. Returns whether there is more of the chain.
    pub fn give_up(&mut self, chain: u32) -> bool {
        let consumed = self.looked.before;
        self.settle_closed(|closed| closed.record.chain == chain && closed.number < consumed);
        self.is_closing(chain)
    }

    /// These are answered, as far as their chains were closed.
    fn settle_closed(&mut self, is_answered: impl Fn(&Submission<T>) -> bool) {
        let all = self.submissions.iter().chain(self.waiting.values());
        let closed = all.filter(|it| matches!(it.state, State::Closed) && is_answered(it));
        let numbers: Vec<u64> = closed.map(|it| it.number).collect();
        for number in numbers {
            self.take(number);
        }
    }

    /// Whether anything of a chain that was closed takes slots.
    pub fn is_closing(&mut self, chain: u32) -> bool {
        self.of_chain(chain)
            .any(|submission| matches!(submission.state, State::Closed))
    }

    /// Whether batches of a chain are not settled.
    pub fn awaits_places(&self, chain: u32) -> bool {
        let mut all = self.submissions.iter().chain(self.waiting.values());
        all.any(|submission| {
            submission.record.chain == chain
                && submission.record.kind == PbrKind::Batch as u8
                && matches!(submission.state, State::Open(_))
        })
    }

    fn of_chain(&mut self, chain: u32) -> impl Iterator<Item = &mut Submission<T>> {
        let all = self.submissions.iter_mut().chain(self.waiting.values_mut());
        all.filter(move |submission| submission.record.chain == chain)
    }

    /// Reads grant and notices; they count only when [`Lane::accept`] is called.
    pub fn look(&mut self, region: &Region<M>, term: Term, of: (u16, u32), lane: u16) {
        let (row, incarnation) = of;
        self.looked.consumed = self.consumed;
        self.looked.held = self.held;
        self.looked.before = self.consumed;
        let Some(grant) = region.lane_grant(term.area, row, lane).found() else {
            return;
        };
        // Until it names this incarnation, its notices are for an older one.
        if (grant.epoch, grant.incarnation) != (term.epoch, incarnation) {
            return;
        }
        self.looked.consumed = if injected(Canary::ConsumedGrant) {
            self.writer.next()
        } else {
            grant.consumed.clamp(self.consumed, self.writer.next())
        };
        self.looked.held = usize::try_from(grant.held).unwrap_or(usize::MAX);
        let notices = self
            .notices
            .get_or_insert_with(|| region.notice_reader(term.area, row, lane, grant.notices));
        let end = if injected(Canary::NoticeCount) {
            0
        } else {
            grant.notices_end
        };
        let read = self.looked.notices.len();
        while self.looked.notices.len() - read < self.unsettled {
            match notices.peek(end) {
                Seen::Found(notice) => self.looked.notices.push(notice),
                Seen::Nothing => break,
                Seen::Damaged => {
                    self.looked.unreadable = true;
                    break;
                }
            }
            notices.advance();
        }
    }

    /// What was read does not count, or not yet: the next look reads it again.
    pub fn forget_look(&mut self) {
        if let Some(notices) = &mut self.notices {
            notices.back(self.looked.notices.len() as u64);
        }
        self.looked.notices.clear();
        self.looked.held = self.held;
        self.looked.unreadable = false;
    }

    /// Whether the last look found an answer to a submission that cannot be read.
    pub fn is_unreadable(&self) -> bool {
        self.looked.unreadable
    }

    /// What the last look read counts.
    pub fn accept(&mut self, lane: u16, events: &mut Vec<Event<T>>) {
        self.consumed = self.looked.consumed.max(self.consumed);
        self.held = self.looked.held;
        let mut notices = mem::take(&mut self.looked.notices);
        for notice in notices.drain(..) {
            let Some(kind) = NoticeKind::from_number(notice.kind) else {
                continue;
            };
            let Some((record, tag)) = self.take(notice.lane_number) else {
                continue;
            };
            events.push(Event::Answered {
                lane,
                tag,
                record,
                outcome: Outcome {
                    kind,
                    mark: notice.mark,
                    session_epoch: notice.session_epoch,
                    first_epoch: notice.first_epoch,
                    session: notice.session,
                },
            });
        }
        self.looked.notices = notices;
        if self.closed > 0 && self.held == 0 {
            // The order may have ended before their places.
            let consumed = self.consumed;
            self.settle_closed(|closed| closed.number < consumed);
        }
    }

    /// The submission that was ordered as `record`.
    pub fn place(&mut self, record: &GoiRecord) -> Option<T> {
        let is_it = |s: &Submission<T>| {
            let same = (s.record.payload_at, s.record.len) == (record.payload_at, record.len);
            same && s.record.kind == PbrKind::Batch as u8 && !s.is_settled()
        };
        // Nearly always under its number; under another one if an older sequencer ordered it.
        let first = self.submissions.front().map_or(0, |first| first.number);
        let offset = record.lane_number.wrapping_sub(first as u32) as usize;
        let found = self.submissions.get(offset).filter(|s| is_it(s));
        let mut all = self.submissions.iter().chain(self.waiting.values());
        let number = found.or_else(|| all.find(|s| is_it(s)))?.number;
        self.take(number).map(|(_, tag)| tag)
    }

    /// Settles a submission; returns its tag, unless its chain was closed.
    fn take(&mut self, number: u64) -> Option<(PbrRecord, T)> {
        let (record, state) = match self.waiting.remove(&number) {
            Some(waited) => (waited.record, waited.state),
            None => {
                let first = self.submissions.front()?.number;
                let index = usize::try_from(number.checked_sub(first)?).ok()?;
                let submission = self.submissions.get_mut(index)?;
                let state = mem::replace(&mut submission.state, State::Settled);
                (submission.record, state)
            }
        };
        if !matches!(state, State::Settled) {
            self.unsettled -= 1;
            self.closed -= usize::from(matches!(state, State::Closed));
            self.released.extend(session_of(&record));
        }
        while self
            .submissions
            .pop_front_if(|submission| submission.is_settled())
            .is_some()
        {}
        match state {
            State::Open(tag) => Some((record, tag)),
            State::Closed | State::Settled => None,
        }
    }
}

/// The place of the session that a batch is of.
pub(super) fn session_of(record: &PbrRecord) -> Option<u32> {
    (record.kind == PbrKind::Batch as u8).then_some(record.session)
}
