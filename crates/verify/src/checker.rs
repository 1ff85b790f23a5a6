//! All checks together: takes the outcomes that publishers report and the messages that readers see, in whatever order
//! they come, and finds the promises that were broken.
//!
//! The reference reader begins before anything is published and sees every message. What was acknowledged must be among
//! what it saw, and the other readers must see the same.

use std::collections::BTreeMap;

use embar_client::Position;

use super::ack_check::{AckCheck, FalseAck, MessageRange};
use super::observed_retention::ObservedRetention;
use super::ranges::Ranges;
use super::reader_check::{Promise, ReaderCheck, ReaderStart};
use super::reference_log::{ReferenceLog, Stream};
use super::retention_model::RetentionModel;
use super::stamp::{Origin, Stamp};
use super::violation::{Kind, Violations};

/// Index of the reader that sees everything.
pub const REFERENCE_READER: usize = 0;

/// What is known of one publishing process.
#[derive(Debug, Default)]
struct OriginState {
    /// Messages of batches that it began, without those whose outcome is known.
    open: i64,
    /// Messages whose outcome is known.
    resolved: u64,
    /// The process is gone: no further outcome will be known.
    gone: bool,
    /// Numbers below may have been published.
    announced: u64,
    /// It ended in good order after so many messages.
    ended: Option<u64>,
    /// Acknowledged.
    acknowledged: Ranges,
    /// Not stored, or of unknown outcome.
    given_up: Ranges,
    /// Certainly not stored.
    not_stored: Ranges,
    /// Acknowledged without a position.
    unplaced: Ranges,
    /// Acknowledged at positions that the reference reader skipped when it was overtaken.
    excused: Ranges,
}

/// The checks of one topic.
#[derive(Debug)]
pub struct Checker {
    promise: Promise,
    /// Whether publishers learn where their messages are.
    acknowledging: bool,
    reference_logs: BTreeMap<Stream, ReferenceLog>,
    ack_checks: BTreeMap<Stream, AckCheck>,
    readers: Vec<ReaderCheck>,
    /// Behind the highest position that was acknowledged.
    acknowledged_below: u64,
    origins: BTreeMap<Origin, OriginState>,
    retention: RetentionModel,
    retained: ObservedRetention,
    violations: Violations,
}

impl Checker {
    /// For a new topic of this order level; it has a reference reader.
    pub fn new(order: u32, acknowledging: bool, retention: RetentionModel) -> Self {
        Self {
            promise: Promise::of(order),
            acknowledging,
            reference_logs: BTreeMap::new(),
            ack_checks: BTreeMap::new(),
            readers: vec![ReaderCheck::new("subscriber 0", ReaderStart::AtZero)],
            acknowledged_below: 0,
            origins: BTreeMap::new(),
            retention,
            retained: ObservedRetention::default(),
            violations: Violations::default(),
        }
    }

    /// The reference reader, which has seen nothing yet, is something else than the first subscriber.
    pub fn name_reference(&mut self, name: impl Into<String>) {
        self.readers[REFERENCE_READER] = ReaderCheck::new(name, ReaderStart::AtZero);
    }

    /// One more reader; its index.
    pub fn add_reader(&mut self, name: impl Into<String>) -> usize {
        self.readers
            .push(ReaderCheck::new(name, ReaderStart::Anywhere));
        self.readers.len() - 1
    }

    /// A reader begins anew.
    pub fn begin(&mut self, reader: usize, begin: ReaderStart) {
        let known = self.ends().map(|(_, end)| end).sum();
        self.readers[reader].begin(begin, known);
    }

    /// A reader was given these messages, in this order; those without a valid stamp have none.
    pub fn read(&mut self, reader: usize, messages: &[(Position, Option<Stamp>)]) {
        for (position, stamp) in messages {
            self.retention
                .reaches(position.broker, position.offset.saturating_add(1));
            let kept_from = self.retention.kept_from(position.broker);
            let reference_log = self.reference_logs.entry(position.broker).or_default();
            let violations = &mut self.violations;
            let reader_check = &mut self.readers[reader];
            reader_check.step(
                self.promise,
                (*position, *stamp),
                kept_from,
                reference_log,
                violations,
            );
            let (REFERENCE_READER, Some(stamp)) = (reader, stamp) else {
                continue;
            };
            if self.acknowledging {
                let ack_check = self.ack_checks.entry(position.broker).or_default();
                ack_check.see(position.offset, *stamp);
            } else {
                // That it was read is the only sign that it was stored.
                let resolved = self
                    .origins
                    .get(&stamp.origin)
                    .map_or(0, |state| state.resolved);
                self.resolve(stamp.origin, (stamp.number + 1).saturating_sub(resolved));
            }
        }
        if reader == REFERENCE_READER {
            for (broker, ack_check) in &mut self.ack_checks {
                for false_ack in ack_check.match_seen() {
                    add_false_ack(*broker, false_ack, &mut self.violations);
                }
            }
            if self.readers[REFERENCE_READER].skips() > 0 {
                let brokers: Vec<Stream> = self.ack_checks.keys().copied().collect();
                brokers.into_iter().for_each(|it| self.excuse_skipped(it));
            }
        }
    }

    /// A reader at `next` of a stream learned that everything below `first` is gone; false if that must not be.
    pub fn evicted(&mut self, reader: usize, stream: Stream, next: u64, first: u64) -> bool {
        let name = self.readers[reader].name().to_owned();
        self.was_evicted(&name, stream, next, first)
    }

    /// The same of a reader whose messages are not checked.
    pub fn was_evicted(&mut self, name: &str, stream: Stream, next: u64, first: u64) -> bool {
        let kept_from = self.retention.kept_from(stream);
        if first <= kept_from {
            return true;
        }
        let of = stream.map_or_else(String::new, |broker| format!(" of broker {broker}"));
        self.violations.add(
            Kind::Lost,
            format_args!(
                "{name}: {} to {}{of} are gone, and there was room for everything from {kept_from} on",
                next.max(kept_from),
                first - 1
            ),
        );
        false
    }

    /// Brokers offer the positions `first..next` of a stream to readers.
    pub fn offered(&mut self, stream: Stream, first: u64, next: u64) {
        self.retention.reaches(stream, next);
        let behind = |first| {
            let messages = self.retention.end(stream).saturating_sub(first);
            self.retention.bytes_of(messages)
        };
        let bytes = (behind(first), behind(self.retention.kept_from(stream)));
        let kept = self.retention.kept_bytes();
        let more_is_gone = self.retained.look(stream, first, bytes, kept);
        if more_is_gone {
            self.was_evicted("what can be read", stream, 0, first);
        }
    }

    /// What could be read while the log was full.
    pub fn retained(&self) -> &ObservedRetention {
        &self.retained
    }

    /// The reference reader was overtaken, as [`Checker::evicted`] allowed, and goes on at `position`.
    pub fn skip(&mut self, position: Position) {
        self.readers[REFERENCE_READER].skip(position);
        self.ack_checks
            .entry(position.broker)
            .or_default()
            .skip(position.offset);
        self.excuse_skipped(position.broker);
    }

    fn excuse_skipped(&mut self, broker: Stream) {
        let ack_check = self.ack_checks.entry(broker).or_default();
        for range in ack_check.take_excused() {
            let state = self.origins.entry(range.origin).or_default();
            state
                .excused
                .merge(&Ranges::of(range.number, range.number + range.count));
        }
    }

    /// Whether there is something for a reader to read. The reference reader must also see what others have not seen yet.
    pub fn is_behind(&self, reader: usize) -> bool {
        let acknowledged = || self.ack_checks.values().any(AckCheck::is_waiting);
        self.readers[reader].is_behind(self.ends()) || reader == REFERENCE_READER && acknowledged()
    }

    /// A publisher began a batch; the one before had `messages` messages.
    pub fn begun(&mut self, origin: Origin, messages: u64) {
        self.origins.entry(origin).or_default().open += messages as i64;
        self.retention.begun(messages);
    }

    /// The outcome of so many more messages is known.
    fn resolve(&mut self, origin: Origin, messages: u64) {
        let state = self.origins.entry(origin).or_default();
        state.resolved += messages;
        if !state.gone {
            state.open -= messages as i64;
            self.retention.settled(messages as i64);
        }
    }

    /// A broker was killed, stopped, or asked to leave, or one that takes data serves again, or another one
    /// sequences.
    pub fn disturbed(&mut self) {
        self.retention.disturbed();
    }

    /// The publisher is gone: outcomes that it has not reported stay unknown.
    pub fn gone(&mut self, origin: Origin) {
        let state = self.origins.entry(origin).or_default();
        state.gone = true;
        self.retention.abandoned(std::mem::take(&mut state.open));
    }

    /// From now on messages with numbers below `below` may be published.
    pub fn announced(&mut self, origin: Origin, below: u64) {
        let state = self.origins.entry(origin).or_default();
        state.announced = state.announced.max(below);
    }

    /// The publisher got an acknowledgement of these messages, with their position if that is known.
    pub fn acknowledged(&mut self, range: MessageRange, position: Option<Position>) {
        self.resolve(range.origin, range.count);
        let state = self.origins.entry(range.origin).or_default();
        if !state.acknowledged.insert(range.number, range.count) {
            self.violations.add(
                Kind::Acknowledgement,
                format_args!(
                    "messages {} to {} of {} were acknowledged twice",
                    range.number,
                    range.number + range.count - 1,
                    range.origin
                ),
            );
        }
        if let Some(position) = position {
            let end = position.offset.saturating_add(range.count);
            self.acknowledged_below = self.acknowledged_below.max(end);
            self.retention.reaches(position.broker, end);
            let ack_check = self.ack_checks.entry(position.broker).or_default();
            if let Err(false_ack) = ack_check.acknowledge(position.offset, range) {
                add_false_ack(position.broker, false_ack, &mut self.violations);
            }
            self.excuse_skipped(position.broker);
        } else {
            // Looked for at all positions, unless the reference reader skipped some.
            let state = self.origins.entry(range.origin).or_default();
            state
                .unplaced
                .merge(&Ranges::of(range.number, range.number + range.count));
        }
    }

    /// These messages are certainly not stored, as the publisher learned.
    pub fn not_stored(&mut self, range: MessageRange) {
        self.given_up(range);
        let state = self.origins.entry(range.origin).or_default();
        state.not_stored.insert(range.number, range.count);
    }

    /// These messages may be stored or not, as the publisher learned.
    pub fn given_up(&mut self, range: MessageRange) {
        self.resolve(range.origin, range.count);
        let state = self.origins.entry(range.origin).or_default();
        state.given_up.insert(range.number, range.count);
    }

    /// The publisher ended in good order after `published` messages.
    pub fn ended(&mut self, origin: Origin, published: u64) {
        self.origins.entry(origin).or_default().ended = Some(published);
    }

    /// Adds a violation that other parts of the verifier found.
    pub fn fail(&mut self, kind: Kind, text: impl std::fmt::Display) {
        self.violations.add(kind, text);
    }

    /// The end of each stream: the position behind the highest one that any reader saw.
    pub fn ends(&self) -> impl Iterator<Item = (Stream, u64)> + '_ {
        let ends = self.reference_logs.iter();
        ends.map(|(broker, reference_log)| (*broker, reference_log.end()))
    }

    /// The position of the one order that a reader comes to next.
    pub fn next(&self, reader: usize) -> u64 {
        self.readers[reader].next(None)
    }

    /// The position of the one order behind the highest that was acknowledged.
    pub fn acknowledged_below(&self) -> u64 {
        self.acknowledged_below
    }

    /// Messages that a reader saw, and how many of them were allowed repetitions.
    pub fn messages(&self, reader: usize) -> (u64, u64) {
        let reader_check = &self.readers[reader];
        (reader_check.messages(), reader_check.repeated())
    }

    /// Whether a reader began with the first message there ever was.
    pub fn is_whole(&self, reader: usize) -> bool {
        self.readers[reader].is_whole()
    }

    /// Whether the reference reader saw everything that was acknowledged, and everything of publishers that ended.
    pub fn is_complete(&self) -> bool {
        self.origins
            .iter()
            .all(|(origin, state)| self.missing(*origin, state).is_empty())
    }

    /// What of one origin must be there and was not seen by the reference reader.
    fn missing(&self, origin: Origin, state: &OriginState) -> Vec<(u64, u64)> {
        let reference = self.readers[REFERENCE_READER].seen(origin);
        let mut expected = state.acknowledged.clone();
        // Without acknowledgements a message need not outlive the broker that it was sent to.
        if let (true, Some(published)) = (self.acknowledging, state.ended) {
            let open = state.given_up.missing_in(0, published);
            open.into_iter()
                .for_each(|(first, end)| expected.merge(&Ranges::of(first, end)));
        }
        let mut found = reference.cloned().unwrap_or_default();
        if self.readers[REFERENCE_READER].skips() > 0 {
            found.merge(&state.excused);
            found.merge(&state.unplaced);
        }
        let expected = expected.iter();
        expected
            .flat_map(|(first, end)| found.missing_in(first, end))
            .collect()
    }

    /// Checks what can be checked only at the end. `last` is a reader that read everything retained after all was
    /// published; it must reach the end of every stream.
    pub fn finish(&mut self, last: Option<usize>) {
        let mut found = Violations::default();
        for (broker, ack_check) in &self.ack_checks {
            for false_ack in ack_check.unseen() {
                add_false_ack(*broker, false_ack, &mut found);
            }
        }
        for (origin, state) in &self.origins {
            for (first, end) in self.missing(*origin, state) {
                let text = format!("messages {first} to {} of {origin} are not there", end - 1);
                found.add(Kind::Lost, text);
            }
        }
        self.check_origins(&mut found);
        if let Some(last) = last {
            for (broker, end) in self.ends() {
                let next = self.readers[last].next(broker);
                if next < end {
                    let of =
                        broker.map_or_else(String::new, |broker| format!(" of broker {broker}"));
                    found.add(
                        Kind::Lost,
                        format_args!(
                            "in the end only positions below {next}{of} are there, and {} was seen before",
                            end - 1
                        ),
                    );
                }
            }
        }
        self.violations.absorb(found);
    }

    /// Checks what the reference reader saw of each origin: nothing that was never sent, and no hole where none may be.
    fn check_origins(&self, found: &mut Violations) {
        for (origin, seen) in self.readers[REFERENCE_READER].origins() {
            let state = self.origins.get(origin);
            let announced = state.map_or(0, |state| state.announced);
            if seen.end() > announced {
                found.add(
                    Kind::NeverSent,
                    format_args!(
                        "message {} of {origin} is there, which published none above {announced}",
                        seen.end() - 1
                    ),
                );
            }
            let Some(state) = state else { continue };
            for (first, end) in state.not_stored.iter() {
                if seen.missing_in(first, end) != [(first, end)] {
                    let text = format!(
                        "messages {first} to {} of {origin} were reported as not stored, and some of them are there",
                        end - 1
                    );
                    found.add(Kind::NotStored, text);
                }
            }
            if !self.promise.publishers {
                continue;
            }
            // Of one that ended all messages were checked above.
            if state.ended.is_some() {
                continue;
            }
            let mut known = self.readers[REFERENCE_READER].skipped_numbers(*origin);
            known.merge(seen);
            for (first, end) in known.missing_in(0, seen.end()) {
                for (first, end) in state.given_up.missing_in(first, end) {
                    let text = format!(
                        "messages {first} to {} of {origin} are left out, and later ones are there",
                        end - 1
                    );
                    found.add(Kind::Lost, text);
                }
            }
        }
    }

    /// The violations found so far.
    pub fn violations(&self) -> &Violations {
        &self.violations
    }
}

fn add_false_ack(broker: Stream, false_ack: FalseAck, violations: &mut Violations) {
    let FalseAck { offset, range } = false_ack;
    violations.add(
        Kind::Acknowledgement,
        format_args!(
            "messages {} to {} of {} were acknowledged at {}, and are not there",
            range.number,
            range.number + range.count - 1,
            range.origin,
            Position { broker, offset }
        ),
    );
}

#[cfg(test)]
#[path = "checker/tests.rs"]
mod tests;
