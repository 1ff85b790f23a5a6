//! Brings the disks of a lost region to one length before anybody writes them again: what one has of a topic and another lacks
//! is copied, commit by commit, in the order in which it was written.
//!
//! A batch that only one of two disks has was never acknowledged at level 2. It may have been read all the same, and its publisher
//! may have been told that it is readable, so it stays.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;

use embar_disk::format::{BatchRun, Run, RunKind, check_runs, segment_name};
use embar_disk::recover::{RecoverError, Segment};
use embar_disk::scan::{Depth, Scan};
use embar_disk::{
    AlignedBuffer, Chain, CommitBuilder, Journal, Progress, Refused, Storage, StoredFile,
    begin_segment, make_segment,
};
use embar_memory::canary::{Canary, injected};
use embar_wire::batch::BatchHeader;
use embar_wire::limits::BATCH_HEADER_BYTES;

use super::facts::{
    ABOUT_ARRIVING, ABOUT_SESSION, ABOUT_TOPIC, ABOUT_TOPIC_IDS, decode_session, encode_session,
};
use super::found::{Found, holding};
use super::sessions::{KnownSession, Sessions};
use super::writer::COMMIT_BYTES;
use crate::topics::Topic;

/// A disk, and what was found on it.
pub struct Disk<'a, S> {
    /// Its number.
    pub number: u16,
    /// Its files.
    pub storage: &'a S,
    /// What it has.
    pub found: Found,
}

/// By chain, what a disk has to get, and of which topic.
type Missing = BTreeMap<Chain, Topic>;

/// Brings all disks to the length of the longest, topic by topic. Segments that it makes have `segment_bytes`, and a nonce from `nonce`;
/// `region` is the region's. `copied` is told the bytes of each commit. True if anything was missing: then the disks are to be read
/// again.
///
/// # Errors
/// What cannot be read or written, and where.
pub fn level<S: Storage>(
    disks: &[Disk<'_, S>],
    (segment_bytes, region): (u64, u32),
    nonce: &mut dyn FnMut() -> u64,
    copied: &mut dyn FnMut(u64),
) -> Result<bool, RecoverError> {
    let epochs = disks.iter().map(|disk| disk.found.recovered.epoch);
    let epoch = epochs.max().unwrap_or(0) + 1;
    if injected(Canary::LevelDisks) {
        return Ok(false);
    }
    let holding = holding(disks.iter().map(|disk| &disk.found));
    let mut has_changed = false;
    for target in disks {
        let mut sources: Vec<(&Disk<'_, S>, Missing)> = Vec::new();
        for source in disks.iter().filter(|it| it.number != target.number) {
            let missing = missing(target, source, (disks, &holding));
            if !missing.is_empty() {
                sources.push((source, missing));
            }
        }
        if sources.is_empty() {
            continue;
        }
        has_changed = true;
        let mut copy = Copy::begin(target, (epoch, region), segment_bytes, &sources, nonce)?;
        for (source, missing) in &sources {
            copy.all(source, missing, nonce, copied)?;
            copy.sessions_of(source, missing, nonce)?;
        }
        copy.say_arrived(nonce, copied)?;
    }
    Ok(has_changed)
}

/// The chains of a disk of which this source has more than any other, and the disk less.
fn missing<S>(
    target: &Disk<'_, S>,
    source: &Disk<'_, S>,
    (disks, holding): (&[Disk<'_, S>], &BTreeMap<u32, &Topic>),
) -> Missing {
    let mut missing = Missing::new();
    for (chain, next) in &source.found.recovered.position.chains {
        let topic = holding.get(&chain.topic).copied();
        let Some(topic) = topic.filter(|it| it.disks & 1 << target.number != 0) else {
            continue;
        };
        // Of those that are as long, one that did not get it from another one before that was cut short.
        let rank = |disk: &Disk<'_, S>| {
            let is_whole = !disk.found.arriving.contains(&topic.id);
            (disk.found.next_of(*chain), is_whole, Reverse(disk.number))
        };
        let having = disks.iter().filter(|it| it.found.has(topic.id));
        let is_longest =
            having.max_by_key(|it| rank(it)).map(|it| it.number) == Some(source.number);
        let is_whole = target.found.has(topic.id) && rank(target).1;
        if is_longest && (target.found.next_of(*chain) < *next || !is_whole) {
            missing.insert(*chain, topic.clone());
        }
    }
    missing
}

/// What is being copied to one disk.
struct Copy<'a, S: Storage> {
    storage: &'a S,
    number: u16,
    journal: Journal,
    file: S::File,
    builder: CommitBuilder,
    /// Bytes of a segment.
    segment_bytes: u64,
    /// As they are in the journal.
    sessions: Sessions,
    topics: BTreeMap<u32, Topic>,
    /// Those of which something is copied. The disk says so until it has all of it, and then the sessions: where this is cut short, it goes
    /// on the next time.
    arriving: BTreeMap<u32, Topic>,
    highest_id: u32,
    /// When the newest commit was made of which something was copied, in nanoseconds since the Unix epoch.
    time: u64,
}

impl<'a, S: Storage> Copy<'a, S> {
    fn begin(
        target: &Disk<'a, S>,
        term: (u32, u32),
        segment_bytes: u64,
        sources: &[(&Disk<'_, S>, Missing)],
        nonce: &mut dyn FnMut() -> u64,
    ) -> Result<Self, RecoverError> {
        let found = &target.found;
        let mut topics: BTreeMap<u32, Topic> =
            found.topics.iter().map(|it| (it.id, it.clone())).collect();
        let mut arriving = BTreeMap::new();
        for topic in sources.iter().flat_map(|(_, missing)| missing.values()) {
            if let Some(known) = topics.get_mut(&topic.id) {
                *known = topic.clone();
            }
            arriving.insert(topic.id, topic.clone());
        }
        let mut position = found.recovered.position.clone();
        position.chains.retain(|chain, _| {
            topics.contains_key(&chain.topic) || arriving.contains_key(&chain.topic)
        });
        let mut journal = Journal::new(found.disk(), term, segment_bytes, position);
        let file = make(target.storage, &mut journal, nonce)?;
        let highest = sources.iter().map(|(source, _)| source.found.highest_id);
        let mut copy = Self {
            storage: target.storage,
            number: target.number,
            journal,
            file,
            builder: CommitBuilder::new(AlignedBuffer::new(0)),
            segment_bytes,
            sessions: found.sessions.clone(),
            topics,
            arriving,
            highest_id: highest.max().unwrap_or(0).max(found.highest_id),
            time: 0,
        };
        copy.renew_builder();
        copy.say_all(nonce)?;
        Ok(copy)
    }

    /// Says all facts that hold, at the beginning of a segment.
    fn say_all(&mut self, nonce: &mut dyn FnMut() -> u64) -> Result<(), RecoverError> {
        let ids = self.highest_id.to_le_bytes();
        let mut facts = vec![(ABOUT_TOPIC_IDS, 0, ids.to_vec())];
        for (id, topic) in &self.topics {
            facts.push((ABOUT_TOPIC, u64::from(*id), topic.encode()));
        }
        for (id, topic) in &self.arriving {
            facts.push((ABOUT_ARRIVING, u64::from(*id), topic.encode()));
        }
        for place in self.sessions.places() {
            let known = self.sessions.get(place).expect("it has a place");
            let bytes = encode_session(&known.row, &known.owner).to_vec();
            facts.push((ABOUT_SESSION, u64::from(place), bytes));
        }
        for (about, key, bytes) in facts {
            self.put(nonce, |builder| builder.fact(about, key, &bytes))?;
        }
        for progress in self.journal.chains().collect::<Vec<_>>() {
            self.put(nonce, |builder| builder.next(&progress))?;
        }
        let first_kept = self.journal.first_kept();
        let about = embar_disk::format::ABOUT_SEGMENTS;
        self.put(nonce, |builder| {
            builder.fact(about, 0, &first_kept.to_le_bytes())
        })?;
        self.builder.complete_facts();
        Ok(())
    }

    /// Copies what is missing, from the segment on in which the first of it lies.
    fn all(
        &mut self,
        source: &Disk<'_, S>,
        missing: &Missing,
        nonce: &mut dyn FnMut() -> u64,
        copied: &mut dyn FnMut(u64),
    ) -> Result<(), RecoverError> {
        let lacks = |segment: &Segment| {
            missing.keys().any(|chain| {
                let part = segment.chains.get(chain);
                part.is_some_and(|part| part.next > self.journal.next_of(*chain))
            })
        };
        let segments = &source.found.recovered.segments;
        let Some(first) = segments.iter().position(lacks) else {
            return Ok(());
        };
        // Each segment begins with all that holds.
        let mut sessions = Sessions::default();
        for segment in &segments[first..] {
            let name = segment_name(segment.header.number);
            let file = source.storage.open(&name).map_err(io_error(&name))?;
            // What topics had that are gone may be given back, and is not read.
            let mut scan = Scan::new(&file, segment.header, Depth::Tables);
            while scan.number() < segment.counted.commits {
                let (commit, mut runs, mut is_whole) = (scan.number(), Vec::new(), false);
                let found = scan.next(&mut |found, bytes| {
                    let is_read = |run: &&Run| match run.kind {
                        RunKind::Batches => missing.contains_key(&chain_of(run)),
                        RunKind::Fact | RunKind::Next => true,
                    };
                    let read: Vec<Run> = found.runs.iter().filter(is_read).copied().collect();
                    is_whole = check_runs(&read, bytes).is_ok();
                    for run in &read {
                        let bytes = &bytes[run.at as usize..(run.at + run.bytes) as usize];
                        runs.push((*run, bytes.to_vec()));
                    }
                });
                let found = found.map_err(io_error(&name))?;
                let found = found.filter(|_| is_whole);
                let Some(found) = found else {
                    return Err(RecoverError::Damaged { name, commit });
                };
                // A batch is as old as on the disk from which it comes.
                self.time = self.time.max(found.header.time);
                for (run, bytes) in &runs {
                    self.run(run, bytes, &mut sessions, nonce)?;
                }
                copied(scan.at());
            }
        }
        Ok(())
    }

    /// All sessions of the chains that were copied are as they are on the source, also those of which no batch was copied.
    fn sessions_of(
        &mut self,
        source: &Disk<'_, S>,
        missing: &Missing,
        nonce: &mut dyn FnMut() -> u64,
    ) -> Result<(), RecoverError> {
        let is_copied = |known: &KnownSession| missing.values().any(|it| it.id == known.row.chain);
        let sessions = source.found.sessions.iter();
        for (place, known) in sessions.filter(|(_, known)| is_copied(known)) {
            let own = self.sessions.of(known.row.chain, known.row.producer);
            if own.is_none_or(|(_, own)| own != known) {
                self.session(place, known, nonce)?;
            }
        }
        Ok(())
    }

    /// The disk has all that was copied.
    fn say_arrived(
        &mut self,
        nonce: &mut dyn FnMut() -> u64,
        copied: &mut dyn FnMut(u64),
    ) -> Result<(), RecoverError> {
        // What it has is there before anything says so.
        self.flush(copied)?;
        while let Some((id, topic)) = self.arriving.pop_first() {
            let bytes = topic.encode();
            self.topics.insert(id, topic);
            self.put(nonce, |builder| {
                builder.fact(ABOUT_TOPIC, id.into(), &bytes)
            })?;
            self.put(nonce, |builder| {
                builder.fact(ABOUT_ARRIVING, id.into(), &[])
            })?;
        }
        self.flush(copied)
    }

    fn session(
        &mut self,
        place: u32,
        known: &KnownSession,
        nonce: &mut dyn FnMut() -> u64,
    ) -> Result<(), RecoverError> {
        let place = self.sessions.place_for(place, known);
        let bytes = encode_session(&known.row, &known.owner);
        self.put(nonce, |builder| {
            builder.fact(ABOUT_SESSION, place.into(), &bytes)
        })?;
        self.sessions.put(place, *known);
        Ok(())
    }

    fn run(
        &mut self,
        run: &Run,
        bytes: &[u8],
        sessions: &mut Sessions,
        nonce: &mut dyn FnMut() -> u64,
    ) -> Result<(), RecoverError> {
        match run.kind {
            RunKind::Fact if run.row == ABOUT_SESSION => {
                if let (Ok(place), Some((row, owner))) =
                    (u32::try_from(run.first), decode_session(bytes))
                {
                    sessions.put(place, KnownSession { row, owner });
                }
            }
            RunKind::Batches => {
                for (header, batch) in BatchRun::new(run, bytes) {
                    self.batch(run.row, &header, batch, sessions, nonce)?;
                    let (topic, producer) = (header.topic(), header.producer());
                    sessions.place(topic, producer, header.epoch(), header.sequence());
                }
            }
            RunKind::Fact | RunKind::Next => {}
        }
        Ok(())
    }

    fn batch(
        &mut self,
        row: u16,
        header: &BatchHeader,
        batch: &[u8],
        sessions: &Sessions,
        nonce: &mut dyn FnMut() -> u64,
    ) -> Result<(), RecoverError> {
        let (topic, producer) = (header.topic(), header.producer());
        // What is in the commit that is being filled counts as there.
        let chain = Chain { topic, row };
        let next = self.builder_next(chain);
        if header.base_offset() < next {
            return Ok(());
        }
        if header.base_offset() > next {
            // The source has given up what lies between, as it had enough of the topic.
            let next = header.base_offset();
            self.flush(&mut |_| {})?;
            self.journal.skip_to(chain, next);
            self.put(nonce, |builder| builder.next(&Progress { chain, next }))?;
        }
        if let Some((place, known)) = sessions.of(topic, producer)
            && known.row.epoch == header.epoch()
            && self
                .sessions
                .of(topic, producer)
                .is_none_or(|(_, own)| own.row.epoch < header.epoch())
        {
            self.session(place, known, nonce)?;
        }
        self.put(nonce, |builder| {
            builder.batch(row, header, |room| {
                room.copy_from_slice(&batch[BATCH_HEADER_BYTES..])
            })
        })?;
        self.sessions
            .place(topic, producer, header.epoch(), header.sequence());
        Ok(())
    }

    /// The next position of a chain, behind what the commit that is being filled has of it.
    fn builder_next(&self, chain: Chain) -> u64 {
        self.builder
            .next_of(chain)
            .unwrap_or(self.journal.next_of(chain))
    }

    /// Puts something into the commit that is being filled, or into the one after it. A segment begins when nothing waits for it: what
    /// is said at its beginning holds of what is on the disk.
    fn put(
        &mut self,
        nonce: &mut dyn FnMut() -> u64,
        mut put: impl FnMut(&mut CommitBuilder) -> Result<(), Refused>,
    ) -> Result<(), RecoverError> {
        for looks in 0.. {
            match put(&mut self.builder) {
                Ok(()) => return Ok(()),
                Err(Refused::Full) if looks == 0 => self.flush(&mut |_| {})?,
                Err(Refused::Full) if looks == 1 => self.enlarge_builder(),
                Err(Refused::Full) if looks == 2 => self.begin_segment(nonce)?,
                Err(Refused::Full) if looks == 3 => {
                    self.flush(&mut |_| {})?;
                    self.enlarge_builder();
                }
                Err(Refused::Full | Refused::Damaged) => break,
            }
        }
        let name = format!("disk {}", self.number);
        let error = io::Error::other("a batch has not the checksum that its header has");
        Err(RecoverError::Io { name, error })
    }

    /// Begins the next segment, in which all that holds comes first; it never takes all of it.
    fn begin_segment(&mut self, nonce: &mut dyn FnMut() -> u64) -> Result<(), RecoverError> {
        self.file = make(self.storage, &mut self.journal, nonce)?;
        self.renew_builder();
        self.say_all(nonce)
    }

    /// An empty commit of the usual size, of which a segment has several, and for which there is room.
    fn renew_builder(&mut self) {
        self.set_builder(COMMIT_BYTES, self.segment_bytes / 2);
    }

    /// An empty commit for what is larger than usual.
    fn enlarge_builder(&mut self) {
        let most = embar_disk::format::CommitHeader::BYTES_MAX as usize;
        // Facts come before it.
        self.set_builder(most, self.segment_bytes / 4 * 3);
    }

    fn set_builder(&mut self, bytes: usize, limit: u64) {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let limit = limit.min(self.journal.room());
        self.builder = CommitBuilder::within(AlignedBuffer::new(bytes.min(limit)), limit);
    }

    /// Writes the commit that is being filled.
    fn flush(&mut self, copied: &mut dyn FnMut(u64)) -> Result<(), RecoverError> {
        if !self.builder.is_empty() {
            let next = CommitBuilder::new(AlignedBuffer::new(0));
            let full = std::mem::replace(&mut self.builder, next);
            self.write(full, copied)?;
        }
        self.renew_builder();
        Ok(())
    }

    fn write(
        &mut self,
        builder: CommitBuilder,
        copied: &mut dyn FnMut(u64),
    ) -> Result<(), RecoverError> {
        let commit = self.journal.seal(builder, self.time);
        let name = segment_name(commit.segment);
        let written = self
            .file
            .write_synced(commit.at, &commit.buffer, commit.len);
        written.map_err(io_error(&name))?;
        copied(commit.len as u64);
        self.journal.synced(commit.ticket, &mut Vec::new());
        Ok(())
    }
}

fn chain_of(run: &Run) -> Chain {
    Chain {
        topic: run.chain,
        row: run.row,
    }
}

/// Begins a segment.
fn make<S: Storage>(
    storage: &S,
    journal: &mut Journal,
    nonce: &mut dyn FnMut() -> u64,
) -> Result<S::File, RecoverError> {
    let made = make_segment(storage, journal);
    let name = segment_name(journal.next_segment().0);
    let file = made.map_err(io_error(&name))?;
    begin_segment(journal, &file, nonce(), 0).map_err(io_error(&name))?;
    Ok(file)
}

fn io_error(name: &str) -> impl Fn(io::Error) -> RecoverError + use<> {
    let name = name.to_owned();
    move |error| RecoverError::Io {
        name: name.clone(),
        error,
    }
}
