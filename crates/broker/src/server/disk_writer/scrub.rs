//! Reads the segments of one disk that are over, again and again, and puts back from other disks what is damaged.
//!
//! It writes what was there, bit by bit. A commit whose table is gone is made anew only where its index says what it had, and every
//! message of that can be had: then all processes would write the same bytes. So a process that was deposed at the last moment
//! makes nothing worse. Others do not begin to: the term is looked at before each write.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use embar_disk::format::{Before, SEGMENT_HEADER_BYTES, SegmentHeader, segment_name};
use embar_disk::repair::{
    Copy, Fix, OtherDisks, SegmentDamage, renew_index, repair_header, repair_segment,
    says_all_facts,
};
use embar_disk::verify::{Damage, SegmentVerified, Wrong, verify_segment};
use embar_disk::{AlignedBuffer, Directory, Storage, StoredFile};
use embar_meter::profile::Recorder;
use embar_order::Term;

use super::super::counted::counted;
use super::{Health, Shared, lock};
use crate::profile::disk::Counter;
use crate::topics::TopicTable;

/// How long it waits when it has read all, or there is nothing to read yet.
const REST: Duration = Duration::from_secs(30);
/// How long it waits for the first segment of a term.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What became of damage.
#[derive(Default)]
struct Outcome {
    repaired: u64,
    unrepaired: u64,
    is_other: bool,
}

impl Shared {
    /// Until the disk is closed.
    pub(super) fn scrub(&self) {
        let recorder = self.disks.profile().recorder();
        // Where it goes on; at first anywhere, so that processes that live shortly come to all segments, too.
        let mut next = RandomState::new().hash_one(self.number);
        let mut told = BTreeSet::new();
        let mut rest = Duration::ZERO;
        while self.wait_as_scrub(rest) {
            let Some(term) = self.scrub_term() else {
                rest = LOOK_EVERY;
                continue;
            };
            let segments = match self.segments_over(term) {
                Ok(segments) if segments.is_empty() => {
                    rest = LOOK_EVERY;
                    continue;
                }
                Ok(segments) => segments,
                Err(error) => {
                    tracing::warn!(
                        disk = self.number,
                        "the scrub cannot read the disk: {error}"
                    );
                    rest = REST;
                    continue;
                }
            };
            next %= segments[0].number + 1;
            let place = segments.iter().rposition(|it| it.number >= next);
            let counts = segments[place.unwrap_or(segments.len() - 1)];
            // Once around, from the oldest to the newest.
            rest = match counts.number == segments[0].number {
                true => REST,
                false => Duration::ZERO,
            };
            if let Err(error) = self.scrub_segment(term, &counts, &recorder, &mut told) {
                tracing::warn!(
                    disk = self.number,
                    segment = counts.number,
                    "the scrub cannot read a segment: {error}"
                );
            }
            next = counts.number + 1;
        }
    }

    /// Waits for so long. False if all is to end.
    fn wait_as_scrub(&self, most: Duration) -> bool {
        let until = Instant::now() + most;
        let mut state = lock(&self.state);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if state.is_stopped || left.is_zero() {
                return !state.is_stopped;
            }
            let waited = self.scrub_changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The term in which the disk is written by this process and takes what comes.
    fn scrub_term(&self) -> Option<Term> {
        let state = lock(&self.state);
        let open = state
            .open
            .as_ref()
            .filter(|open| open.health == Health::Good)?;
        let is_wanted = !state.is_stopped && *lock(&self.wanted) == Some(open.term);
        is_wanted.then_some(open.term)
    }

    /// Whether the scrub may go on in this term, and write.
    fn may_scrub(&self, term: Term) -> bool {
        self.scrub_term() == Some(term) && term.lasts(&self.region)
    }

    /// The segments before the one that is being written, the newest first.
    fn segments_over(&self, term: Term) -> io::Result<Vec<Before>> {
        let mut segments = Vec::new();
        let Some(mut counts) = counted(&self.region, term, self.number) else {
            return Ok(segments);
        };
        let mut buffer = AlignedBuffer::new(SEGMENT_HEADER_BYTES);
        loop {
            let file = match self.directory().open(&segment_name(counts.number)) {
                // It was removed, as all before it were.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    segments.pop();
                    return Ok(segments);
                }
                opened => opened?,
            };
            let came = file.read(0, &mut buffer).unwrap_or(0);
            let header = SegmentHeader::decode(&buffer[..came]);
            // Where a header is damaged, that segment is the last that it comes to.
            let header = header.filter(|it| it.nonce == counts.nonce);
            match header.and_then(|header| header.before) {
                Some(before) => {
                    segments.push(before);
                    counts = before;
                }
                None => return Ok(segments),
            }
        }
    }

    fn scrub_segment(
        &self,
        term: Term,
        counts: &Before,
        recorder: &Recorder,
        told: &mut BTreeSet<u64>,
    ) -> io::Result<()> {
        let directory = self.directory();
        let id = self.disks.get(self.number).identity().disk;
        let rate = self.limits.scrub_rate;
        let read = AtomicU64::new(0);
        let goes_on = |bytes: u64| {
            // Only counts: nothing else follows from it.
            read.fetch_add(bytes, Ordering::Relaxed);
            let pause = Duration::from_secs_f64(bytes as f64 / rate as f64);
            self.wait_as_scrub(pause) && self.scrub_term() == Some(term)
        };
        // Only once something is missing, and so after it was read: a deletion may have come meanwhile.
        let topics = OnceCell::new();
        let is_gone = |topic: u32| {
            let topics = topics.get_or_init(|| TopicTable::attach(&self.region, None));
            topics.damaged() == 0 && topics.by_id(topic).is_none()
        };
        let verified = verify_segment(directory, &id, counts, &is_gone, &goes_on);
        recorder.count(Counter::ScrubbedBytes as usize, read.into_inner());
        let verified = match verified {
            // Nobody needs it any more.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            verified => verified?,
        };
        let Some(verified) = verified else {
            return Ok(());
        };
        if verified.damage.is_empty() {
            // Those of this term get theirs from the writer, and others had none when they were over.
            let is_older = verified.header.is_some_and(|it| it.epoch < term.epoch);
            if verified.index.is_none() && is_older && self.may_scrub(term) {
                renew_index(directory, counts)?;
            }
            return Ok(());
        }
        let outcome = self.repair(term, counts, &verified)?;
        recorder.count(Counter::Repaired as usize, outcome.repaired);
        let path = directory.path().display();
        if outcome.repaired > 0 {
            tracing::warn!(
                disk = self.number,
                directory = %path,
                segment = counts.number,
                places = outcome.repaired,
                "the disk had damaged places, which the scrub has put back: look in the kernel's log whether the disk fails"
            );
        }
        if outcome.unrepaired > 0 && told.insert(counts.number) {
            recorder.count(Counter::Unrepaired as usize, outcome.unrepaired);
            let what: Vec<String> = verified
                .damage
                .iter()
                .map(|it| it.what.to_string())
                .collect();
            tracing::error!(
                disk = self.number,
                directory = %path,
                segment = counts.number,
                places = outcome.unrepaired,
                what = what.join("; "),
                "the disk has damaged places that the scrub cannot put back: `embar data verify` says what is lost by them; stop the cluster and give all directories to `embar data repair`"
            );
        }
        Ok(())
    }

    fn repair(
        &self,
        term: Term,
        counts: &Before,
        verified: &SegmentVerified,
    ) -> io::Result<Outcome> {
        let directory = self.directory();
        let file = directory.open(&segment_name(counts.number))?;
        let mut outcome = Outcome::default();
        let is_known = |fix: &Fix| {
            let loses = !fix.lost.is_empty() || fix.lost_facts;
            fix.is_exact || (verified.index.is_some() && !loses)
        };
        let put = |fix: Option<Fix>, outcome: &mut Outcome| -> io::Result<()> {
            match fix.filter(is_known) {
                Some(fix) if self.may_scrub(term) => {
                    fix.write(&file)?;
                    outcome.repaired += 1;
                    outcome.is_other |= !fix.is_exact;
                }
                // Who comes next finds it.
                Some(_) => {}
                None => outcome.unrepaired += 1,
            }
            Ok(())
        };
        let has = |what: fn(&Wrong) -> bool| verified.damage.iter().any(|it| what(&it.what));
        if has(|it| *it == Wrong::Header) {
            let id = self.disks.get(self.number).identity().disk;
            put(repair_header(&file, &id, counts)?, &mut outcome)?;
        }
        outcome.unrepaired += { verified.damage.iter() }
            .filter(|it| matches!(it.what, Wrong::Replaced { .. } | Wrong::Gap { .. }))
            .count() as u64;
        let commits: Vec<&Damage> = { verified.damage.iter() }
            .filter(|it| it.what.commit().is_some())
            .collect();
        let present = counted(&self.region, term, self.number);
        let says_all = match present.filter(|present| present.number != counts.number) {
            Some(present) => {
                let file = directory.open(&segment_name(present.number))?;
                says_all_facts(&file, &present)?
            }
            None => false,
        };
        let damage = SegmentDamage {
            nonce: counts.nonce,
            counts: Some(*counts),
            index: verified.index.as_ref(),
            has_newest_facts: !says_all,
            ends: &BTreeMap::new(),
            damage: &commits,
        };
        let mut copies = OtherDisks::new(self.copies(term));
        repair_segment(&file, &damage, &mut copies, &mut |_, fix| {
            put(fix, &mut outcome)
        })?;
        let is_index = |it: &Wrong| matches!(it, Wrong::Index | Wrong::OtherIndex);
        let is_renewed = (has(is_index) || outcome.is_other)
            && self.may_scrub(term)
            && renew_index(directory, counts)?;
        outcome.repaired += u64::from(has(is_index) && is_renewed);
        Ok(outcome)
    }

    /// All other disks, as far as they count.
    fn copies(&self, term: Term) -> Vec<Copy<'_, Directory>> {
        let others = self
            .disks
            .iter()
            .filter(|disk| disk.number() != self.number);
        let copies = others.filter_map(|disk| {
            let counts = counted(&self.region, term, disk.number())?;
            Some(Copy::new(disk.directory(), disk.identity().disk, &counts))
        });
        copies.collect()
    }
}
