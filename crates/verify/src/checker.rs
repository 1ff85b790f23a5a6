//! All checks together. It is told what publishers were told and what readers see, in whatever order that comes in, and
//! says in the end which promises were broken.
//!
//! The chief is the reader that begins before anything is published and sees everything: what was acknowledged is looked
//! for in what it saw. The others must see what it saw.

use std::collections::BTreeMap;

use super::ledger::{Ledger, Run, Wrong};
use super::ranges::Ranges;
use super::retained::Retained;
use super::room::{Room, Stream};
use super::stamp::{Origin, Stamp};
use super::trail::{Begin, Place, Promise, Trail};
use super::truth::Truth;
use super::violation::{Kind, Violations};

/// The reader that sees everything.
pub const CHIEF: usize = 0;

/// What is known of one publishing process.
#[derive(Debug, Default)]
struct Told {
    /// Messages of batches that were begun, without those whose outcome is known.
    open: i64,
    /// Messages whose outcome is known.
    heard: u64,
    /// Nobody will tell anything more of it.
    gone: bool,
    /// Numbers below may have been published.
    announced: u64,
    /// It ended in good order after so many messages.
    ended: Option<u64>,
    /// Acknowledged.
    acknowledged: Ranges,
    /// Not stored, or nobody knows.
    given_up: Ranges,
    /// Certainly not stored.
    not_stored: Ranges,
    /// Acknowledged, and nobody knows where.
    unplaced: Ranges,
    /// Acknowledged at places that the chief passed over when it was overtaken.
    excused: Ranges,
}

/// Of one topic.
#[derive(Debug)]
pub struct Checker {
    promise: Promise,
    /// Whether publishers are told where their messages are.
    acknowledging: bool,
    truths: BTreeMap<Option<u32>, Truth>,
    ledgers: BTreeMap<Option<u32>, Ledger>,
    trails: Vec<Trail>,
    told: BTreeMap<Origin, Told>,
    room: Room,
    retained: Retained,
    violations: Violations,
}

impl Checker {
    /// For a new topic of this order level, with a chief.
    pub fn new(order: u32, acknowledging: bool, room: Room) -> Self {
        Self {
            promise: Promise::of(order),
            acknowledging,
            truths: BTreeMap::new(),
            ledgers: BTreeMap::new(),
            trails: vec![Trail::new("subscriber 0", Begin::AtZero)],
            told: BTreeMap::new(),
            room,
            retained: Retained::default(),
            violations: Violations::default(),
        }
    }

    /// One more reader; its index.
    pub fn add_reader(&mut self, name: impl Into<String>) -> usize {
        self.trails.push(Trail::new(name, Begin::Anywhere));
        self.trails.len() - 1
    }

    /// A reader begins anew.
    pub fn begin(&mut self, reader: usize, begin: Begin) {
        let known = self.ends().map(|(_, end)| end).sum();
        self.trails[reader].begin(begin, known);
    }

    /// A reader was given these messages, in this order; those without a valid stamp have none.
    pub fn read(&mut self, reader: usize, messages: &[(Place, Option<Stamp>)]) {
        for (place, stamp) in messages {
            self.room
                .reaches(place.broker, place.offset.saturating_add(1));
            let kept_from = self.room.kept_from(place.broker);
            let truth = self.truths.entry(place.broker).or_default();
            let violations = &mut self.violations;
            let trail = &mut self.trails[reader];
            trail.step(self.promise, (*place, *stamp), kept_from, truth, violations);
            let (CHIEF, Some(stamp)) = (reader, stamp) else {
                continue;
            };
            if self.acknowledging {
                let ledger = self.ledgers.entry(place.broker).or_default();
                ledger.see(place.offset, *stamp);
            } else {
                // Nobody else tells what became of it.
                let heard = self.told.get(&stamp.origin).map_or(0, |told| told.heard);
                self.settle(stamp.origin, (stamp.number + 1).saturating_sub(heard));
            }
        }
        if reader == CHIEF {
            for (broker, ledger) in &mut self.ledgers {
                for wrong in ledger.settle_seen() {
                    tell_wrong(*broker, wrong, &mut self.violations);
                }
            }
            if self.trails[CHIEF].skips() > 0 {
                let brokers: Vec<Option<u32>> = self.ledgers.keys().copied().collect();
                brokers.into_iter().for_each(|it| self.enter_excused(it));
            }
        }
    }

    /// A reader that comes to `next` of a stream was told that everything below `first` is gone; false if that must not be.
    pub fn evicted(&mut self, reader: usize, stream: Stream, next: u64, first: u64) -> bool {
        let name = self.trails[reader].name().to_owned();
        self.was_evicted(&name, stream, next, first)
    }

    /// The same of somebody without a trail.
    pub fn was_evicted(&mut self, name: &str, stream: Stream, next: u64, first: u64) -> bool {
        let kept_from = self.room.kept_from(stream);
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

    /// Brokers say that of a stream `first` and what is behind it can be read, up to `next`.
    pub fn offered(&mut self, stream: Stream, first: u64, next: u64) {
        self.room.reaches(stream, next);
        let behind = |first| {
            let messages = self.room.end(stream).saturating_sub(first);
            self.room.bytes_of(messages)
        };
        let bytes = (behind(first), behind(self.room.kept_from(stream)));
        let room = self.room.kept_bytes();
        let is_news = self.retained.look(stream, first, bytes, room);
        if is_news {
            self.was_evicted("what can be read", stream, 0, first);
        }
    }

    /// What could be read while the log was full.
    pub fn retained(&self) -> &Retained {
        &self.retained
    }

    /// The chief, to which [`Checker::evicted`] said that this may be, goes on at `place`.
    pub fn skip(&mut self, place: Place) {
        self.trails[CHIEF].skip(place);
        self.ledgers
            .entry(place.broker)
            .or_default()
            .skip(place.offset);
        self.enter_excused(place.broker);
    }

    fn enter_excused(&mut self, broker: Option<u32>) {
        let ledger = self.ledgers.entry(broker).or_default();
        for run in ledger.take_excused() {
            let told = self.told.entry(run.origin).or_default();
            told.excused
                .merge(&Ranges::of(run.number, run.number + run.count));
        }
    }

    /// Whether there is something for a reader to read. The chief is to see also what others did not see yet.
    pub fn is_behind(&self, reader: usize) -> bool {
        let acknowledged = || self.ledgers.values().any(Ledger::is_waiting);
        self.trails[reader].is_behind(self.ends()) || reader == CHIEF && acknowledged()
    }

    /// A publisher began a batch, `messages` after the one before.
    pub fn begun(&mut self, origin: Origin, messages: u64) {
        self.told.entry(origin).or_default().open += messages as i64;
        self.room.begun(messages);
    }

    /// Of so many more messages it is known what became of them.
    fn settle(&mut self, origin: Origin, messages: u64) {
        let told = self.told.entry(origin).or_default();
        told.heard += messages;
        if !told.gone {
            told.open -= messages as i64;
            self.room.settled(messages as i64);
        }
    }

    /// A broker was killed, stopped, or asked to leave, or one that takes data serves again, or another one
    /// sequences.
    pub fn disturbed(&mut self) {
        self.room.disturbed();
    }

    /// The publisher is no more: what it has not told nobody will tell.
    pub fn gone(&mut self, origin: Origin) {
        let told = self.told.entry(origin).or_default();
        told.gone = true;
        self.room.abandoned(std::mem::take(&mut told.open));
    }

    /// From now on messages with numbers below `below` may be published.
    pub fn announced(&mut self, origin: Origin, below: u64) {
        let told = self.told.entry(origin).or_default();
        told.announced = told.announced.max(below);
    }

    /// The publisher was told that these messages are stored, and where unless nobody knows any more.
    pub fn acknowledged(&mut self, run: Run, place: Option<Place>) {
        self.settle(run.origin, run.count);
        let told = self.told.entry(run.origin).or_default();
        if !told.acknowledged.insert(run.number, run.count) {
            self.violations.add(
                Kind::Acknowledgement,
                format_args!(
                    "messages {} to {} of {} were acknowledged twice",
                    run.number,
                    run.number + run.count - 1,
                    run.origin
                ),
            );
        }
        if let Some(place) = place {
            let end = place.offset.saturating_add(run.count);
            self.room.reaches(place.broker, end);
            let ledger = self.ledgers.entry(place.broker).or_default();
            if let Err(wrong) = ledger.acknowledge(place.offset, run) {
                tell_wrong(place.broker, wrong, &mut self.violations);
            }
            self.enter_excused(place.broker);
        } else {
            // Looked for wherever it is, unless the chief passed over something.
            let told = self.told.entry(run.origin).or_default();
            told.unplaced
                .merge(&Ranges::of(run.number, run.number + run.count));
        }
    }

    /// The publisher was told that these messages are not stored.
    pub fn not_stored(&mut self, run: Run) {
        self.given_up(run);
        let told = self.told.entry(run.origin).or_default();
        told.not_stored.insert(run.number, run.count);
    }

    /// The publisher was told that these messages may be stored or not.
    pub fn given_up(&mut self, run: Run) {
        self.settle(run.origin, run.count);
        let told = self.told.entry(run.origin).or_default();
        told.given_up.insert(run.number, run.count);
    }

    /// The publisher ended in good order after `published` messages.
    pub fn ended(&mut self, origin: Origin, published: u64) {
        self.told.entry(origin).or_default().ended = Some(published);
    }

    /// Something that is no check failed.
    pub fn fail(&mut self, kind: Kind, text: impl std::fmt::Display) {
        self.violations.add(kind, text);
    }

    /// Behind the highest position that anybody saw of each stream.
    pub fn ends(&self) -> impl Iterator<Item = (Option<u32>, u64)> + '_ {
        let ends = self.truths.iter();
        ends.map(|(broker, truth)| (*broker, truth.end()))
    }

    /// Messages that a reader was given, and those of them that were repeated although that is allowed.
    pub fn messages(&self, reader: usize) -> (u64, u64) {
        let trail = &self.trails[reader];
        (trail.messages(), trail.repeated())
    }

    /// Whether a reader began with the first message there ever was.
    pub fn is_whole(&self, reader: usize) -> bool {
        self.trails[reader].is_whole()
    }

    /// Whether the chief saw everything that was acknowledged, and everything of those who ended.
    pub fn is_complete(&self) -> bool {
        self.told
            .iter()
            .all(|(origin, told)| self.missing(*origin, told).is_empty())
    }

    /// What of one origin must be there and was not seen by the chief.
    fn missing(&self, origin: Origin, told: &Told) -> Vec<(u64, u64)> {
        let chief = self.trails[CHIEF].seen(origin);
        let mut expected = told.acknowledged.clone();
        // Without acknowledgements nobody is promised that a message outlives the broker that it was sent to.
        if let (true, Some(published)) = (self.acknowledging, told.ended) {
            let open = told.given_up.missing_in(0, published);
            open.into_iter()
                .for_each(|(first, end)| expected.merge(&Ranges::of(first, end)));
        }
        let mut found = chief.cloned().unwrap_or_default();
        if self.trails[CHIEF].skips() > 0 {
            found.merge(&told.excused);
            found.merge(&told.unplaced);
        }
        let expected = expected.iter();
        expected
            .flat_map(|(first, end)| found.missing_in(first, end))
            .collect()
    }

    /// Judges what can be judged only at the end. `last` is a reader that read everything retained after all was
    /// published; its end must be everybody's.
    pub fn finish(&mut self, last: Option<usize>) {
        let mut found = Violations::default();
        for (broker, ledger) in &self.ledgers {
            for wrong in ledger.unseen() {
                tell_wrong(*broker, wrong, &mut found);
            }
        }
        for (origin, told) in &self.told {
            for (first, end) in self.missing(*origin, told) {
                let text = format!("messages {first} to {} of {origin} are not there", end - 1);
                found.add(Kind::Lost, text);
            }
        }
        self.judge_origins(&mut found);
        if let Some(last) = last {
            for (broker, end) in self.ends() {
                let next = self.trails[last].next(broker);
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

    /// What the chief saw of each origin: nothing that was never sent, and no hole in what promises none.
    fn judge_origins(&self, found: &mut Violations) {
        for (origin, seen) in self.trails[CHIEF].origins() {
            let told = self.told.get(origin);
            let announced = told.map_or(0, |told| told.announced);
            if seen.end() > announced {
                found.add(
                    Kind::NeverSent,
                    format_args!(
                        "message {} of {origin} is there, which published none above {announced}",
                        seen.end() - 1
                    ),
                );
            }
            let Some(told) = told else { continue };
            for (first, end) in told.not_stored.iter() {
                if seen.missing_in(first, end) != [(first, end)] {
                    let text = format!(
                        "messages {first} to {} of {origin} were told to be not stored, and some of them are there",
                        end - 1
                    );
                    found.add(Kind::NotStored, text);
                }
            }
            if !self.promise.publishers {
                continue;
            }
            // One that ended was looked at as a whole.
            if told.ended.is_some() {
                continue;
            }
            let mut known = self.trails[CHIEF].passed_over(*origin);
            known.merge(seen);
            for (first, end) in known.missing_in(0, seen.end()) {
                for (first, end) in told.given_up.missing_in(first, end) {
                    let text = format!(
                        "messages {first} to {} of {origin} are left out, and later ones are there",
                        end - 1
                    );
                    found.add(Kind::Lost, text);
                }
            }
        }
    }

    /// What was found so far.
    pub fn violations(&self) -> &Violations {
        &self.violations
    }
}

fn tell_wrong(broker: Option<u32>, wrong: Wrong, violations: &mut Violations) {
    let Wrong { offset, run } = wrong;
    violations.add(
        Kind::Acknowledgement,
        format_args!(
            "messages {} to {} of {} were acknowledged at {}, and are not there",
            run.number,
            run.number + run.count - 1,
            run.origin,
            Place { broker, offset }
        ),
    );
}

#[cfg(test)]
#[path = "checker/tests.rs"]
mod tests;
