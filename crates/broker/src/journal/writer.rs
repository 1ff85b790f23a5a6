//! What to write to one disk in one term. The term's sequencer is in this process, so what it has ordered is read as brokers
//! read it, and what is not ordered from the brokers' indexes; the payload is copied from where brokers received it into the memory from which the disk is written.
//!
//! Invariants
//! - Nothing is gathered of an order that a higher epoch may have cut: after the records were read, the term lasted.
//! - A frontier is stored after the row that says how much of the journal counts, and that after the sync.
//! - Before the first batch of a session's epoch the journal says what the session is, and how far.
//! - After a write or a sync has failed nothing counts any more in this term: what it left nobody knows.

mod adopt;
mod aging;
mod due;
mod full;
mod removal;
mod topics;
mod written;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::Duration;

use embar_disk::format::{Run, SegmentIndex};
use embar_disk::{
    AlignedBuffer, Chain as ChainName, Commit, CommitBuilder, Journal, Progress, Refused, Storage,
    StoredFile,
};
use embar_fabric::owner::Claim;
use embar_fabric::region::Region;
use embar_fabric::{DiskRow, DiskState, FrontierTable, GoiRecord, RowWriter, SharedNews};
use embar_frame::Now;
use embar_memory::Memory;
use embar_memory::canary::{Canary, injected};
use embar_order::{ChangedChains, Term};
use embar_wire::limits::BATCH_HEADER_BYTES;

use super::age_clock::AgeClock;
use super::chain::{Ahead, Batch, Chain};
use super::indexes::Indexes;
use super::kept::Kept;
use super::sessions::{KnownSession, Sessions};
use crate::clock::Timestamp;
use crate::topics::TopicTable;
use due::{Due, say_session};

/// Most bytes that one commit gathers, unless a single batch is larger.
pub const COMMIT_BYTES: usize = 4 << 20;
/// Commits that are on their way at once.
pub const IN_FLIGHT_MAX: usize = 2;
/// Bytes that one chain puts into a commit before others have their turn.
const TURN_BYTES: u64 = 1 << 20;
/// Room for facts beside a largest batch, and for the largest fact.
const FACT_BYTES: usize = 4 << 10;

/// What came of [`Writer::gather`].
#[derive(Debug)]
pub enum Gathered {
    /// Write this.
    Commit(Commit),
    /// There is nothing to write.
    Nothing(AlignedBuffer),
    /// As many commits are on their way as may be, or a segment is full and not all of it is synced: come again after the next sync.
    Busy(AlignedBuffer),
    /// A segment is to be begun.
    Segment(AlignedBuffer),
    /// The term is over. Nothing is to be written any more.
    Deposed,
}

/// The writer of one disk in one term.
pub struct Writer<M: Memory> {
    region: Region<M>,
    term: Term,
    number: u16,
    journal: Journal,
    /// Of segments that are over, and that are not stored yet.
    unindexed: Vec<SegmentIndex>,
    topics: TopicTable<M>,
    highest_id: u32,
    firsts: BTreeMap<ChainName, u64>,
    sessions: Sessions,
    news: ChangedChains<M>,
    indexes: Indexes<M>,
    chains: BTreeMap<ChainName, Chain<M>>,
    /// Chains that may have something to write, in their turn.
    turns: VecDeque<ChainName>,
    due: VecDeque<Due>,
    /// All facts were said in the present segment.
    is_complete: bool,
    has_failed: bool,
    /// The disk has no room for a segment, so batches wait.
    is_full: bool,
    kept: Kept,
    limits: Limits,
    ages: AgeClock,
    /// When it was last looked what has come of age, and when a segment was last ended for its age.
    looked_at_ages: Option<Now>,
    ended_for_age: Option<Now>,
    /// The present segment has nothing but what is too old: another one is to be begun.
    ends_segment: bool,
    /// Something happened by which segments may be needless.
    looks_what_is_kept: bool,
    /// The commit that says which segment is the first that is kept, until it counts, and which.
    first_kept_said: Option<(u64, u64)>,
    removals: Vec<u64>,
    /// Files that were no part of the journal when it was found.
    dead: Vec<u64>,
    /// The commit with which all facts are said in the present segment, once it is made.
    complete_said: Option<u64>,
    /// There may be batches of topics that are gone.
    looks_what_is_gone: bool,
    /// Topics that are not on the disk any more once this commit counts.
    gone_said: VecDeque<(u64, u32)>,
    /// By chain, where the present segment begins...
    segment_begins: BTreeMap<ChainName, u64>,
    /// ...and up to where it is synced.
    synced: BTreeMap<ChainName, u64>,
    row: RowWriter<M, DiskRow>,
    said: DiskRow,
    frontiers: FrontierTable<M>,
    frontier_news: SharedNews<M>,
    /// Kept for their memory.
    counted: Vec<Progress>,
    changed: Vec<u32>,
    grown: Vec<ChainName>,
}

/// What a disk may have at most: then the oldest segments go, whatever topics are to retain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all segments that are over.
    pub bytes: u64,
    /// Nanoseconds since a batch was written; 0 for no limit.
    pub age_ns: u64,
}

impl Limits {
    /// As much as topics are to retain.
    pub const NONE: Self = Self {
        bytes: u64::MAX,
        age_ns: 0,
    };

    /// What the settings of a broker say.
    pub(crate) fn of(bytes: Option<u64>, age: Option<Duration>) -> Self {
        let age_ns = |age: Duration| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        Self {
            bytes: bytes.unwrap_or(Self::NONE.bytes),
            age_ns: age.map_or(Self::NONE.age_ns, age_ns),
        }
    }
}

/// What a writer goes on from.
pub struct Start<M: Memory> {
    /// The journal, as it was found.
    pub journal: Journal,
    /// By chain, the first position that it has.
    pub firsts: BTreeMap<ChainName, u64>,
    /// Indexes that its segments lack.
    pub unindexed: Vec<SegmentIndex>,
    /// Its segments.
    pub(super) kept: Kept,
    /// Numbers of segments that are no part of it.
    pub(super) dead: Vec<u64>,
    /// What it may have at most.
    pub limits: Limits,
    /// The sessions, as they are in it.
    pub sessions: Sessions,
    /// The highest id that a topic of it ever had.
    pub highest_id: u32,
    /// The first half of the disk's identity.
    pub disk: u64,
    /// Where the writers of all disks announce how far chains are.
    pub news: SharedNews<M>,
}

impl<M: Memory> Writer<M> {
    /// Of the disk with this number, in a term of the claimed candidate. `region` is a value of its own, with which no payload
    /// file is claimed.
    pub fn new(
        region: &Region<M>,
        claim: &Claim,
        term: Term,
        number: u16,
        start: Start<M>,
    ) -> Self {
        Self {
            region: region.clone(),
            term,
            number,
            journal: start.journal,
            unindexed: start.unindexed,
            firsts: start.firsts,
            topics: TopicTable::attach(region, None),
            highest_id: start.highest_id,
            sessions: start.sessions,
            news: ChangedChains::of_order(),
            indexes: Indexes::new(region),
            chains: BTreeMap::new(),
            turns: VecDeque::new(),
            due: VecDeque::new(),
            is_complete: false,
            has_failed: false,
            is_full: false,
            ages: AgeClock::new(start.kept.newest()),
            kept: start.kept,
            limits: start.limits,
            looked_at_ages: None,
            ended_for_age: None,
            ends_segment: false,
            looks_what_is_kept: true,
            first_kept_said: None,
            removals: Vec::new(),
            dead: start.dead,
            complete_said: None,
            looks_what_is_gone: false,
            gone_said: VecDeque::new(),
            segment_begins: BTreeMap::new(),
            synced: BTreeMap::new(),
            row: region.disk_row_writer(claim, number),
            said: DiskRow {
                epoch: term.epoch,
                state: DiskState::Opens as u32,
                disk: start.disk,
                ..DiskRow::default()
            },
            frontiers: region.frontier_table(claim, number),
            frontier_news: start.news,
            counted: Vec::new(),
            changed: Vec::new(),
            grown: Vec::new(),
        }
    }

    /// Makes a commit of what is to be written.
    pub fn gather(&mut self, buffer: AlignedBuffer, time: Timestamp) -> Gathered {
        if self.has_failed {
            return Gathered::Nothing(buffer);
        }
        if self.journal.in_flight() >= IN_FLIGHT_MAX {
            return Gathered::Busy(buffer);
        }
        self.refresh_topics();
        self.refresh_chains();
        self.look_at_ages(time);
        let first = match self.is_full {
            true => None,
            false => self.first_batch_bytes(),
        };
        // Only now: what was read counts if no higher epoch was raised before this look.
        if !self.term.lasts(&self.region) {
            return Gathered::Deposed;
        }
        let is_begun = self.journal.room() > 0;
        let ends = self.ends_segment && !self.is_full || self.is_freed_by_ending();
        if is_begun && self.due.is_empty() && first.is_none() && !ends {
            return Gathered::Nothing(buffer);
        }
        let needed = FACT_BYTES + first.map_or(0, CommitBuilder::bytes_for);
        if self.journal.room() < needed || ends {
            if self.is_full && !self.has_facts_that_free() {
                return Gathered::Nothing(buffer);
            }
            return match self.journal.in_flight() {
                0 => Gathered::Segment(buffer),
                _ => Gathered::Busy(buffer),
            };
        }
        let buffer = match buffer.len() < needed {
            true => AlignedBuffer::new(needed),
            false => buffer,
        };
        let mut builder = CommitBuilder::within(buffer, self.journal.room());
        let mut said = self.say_facts(&mut builder);
        let mut completes = false;
        if self.due.is_empty() {
            completes = !std::mem::replace(&mut self.is_complete, true);
            if completes {
                if builder.is_empty() {
                    // What was due last does not hold any more, and a commit has to say that this was all.
                    self.due.push_back(Due::FirstKept);
                    said = self.say_facts(&mut builder);
                }
                builder.complete_facts();
            }
            if !self.is_full {
                self.take_batches(&mut builder);
            }
        }
        if builder.is_empty() {
            return Gathered::Nothing(builder.into_buffer());
        }
        let commit = self.journal.seal(builder, time.wall.0);
        if completes {
            self.complete_said = Some(commit.ticket);
        }
        if said.first_kept {
            // More may be known to be needless before it counts.
            self.first_kept_said = Some((commit.ticket, self.journal.first_kept()));
        }
        let gone = said.gone.into_iter();
        self.gone_said
            .extend(gone.map(|topic| (commit.ticket, topic)));
        if injected(Canary::CommitSync) {
            self.counted.extend(self.journal.chains());
            self.store_frontiers();
        }
        Gathered::Commit(commit)
    }

    /// A commit without anything in it, where one says that the last one counts.
    pub fn confirm(&mut self, buffer: AlignedBuffer, time: u64) -> Gathered {
        let builder = CommitBuilder::new(buffer);
        if self.has_failed || !self.journal.wants_confirmation() || !self.journal.fits(&builder) {
            return Gathered::Nothing(builder.into_buffer());
        }
        Gathered::Commit(self.journal.seal(builder, time))
    }

    /// The next segment's number, and its bytes.
    pub fn next_segment(&self) -> (u64, u64) {
        self.journal.next_segment()
    }

    /// Bytes that the present segment has room for.
    pub fn room(&self) -> u64 {
        self.journal.room() as u64
    }

    /// Whether the next segment will be wanted soon.
    pub fn wants_segment_soon(&self) -> bool {
        let (_, bytes) = self.journal.next_segment();
        self.journal.used() > bytes / 2
    }

    /// Makes the file of the next segment. Its number may be higher than [`Writer::next_segment`] says: others may have taken that.
    ///
    /// # Errors
    /// What the system says: that the disk is full, perhaps.
    pub fn make_segment<S: Storage>(&mut self, storage: &S) -> io::Result<S::File> {
        embar_disk::make_segment(storage, &mut self.journal)
    }

    /// Begins the next segment, in a file that was prepared for it. All that holds is said in it again.
    ///
    /// # Errors
    /// What the system says. Then nothing is to be written any more.
    ///
    /// # Panics
    /// While commits are on their way.
    pub fn begin_segment(
        &mut self,
        file: &impl StoredFile,
        nonce: u64,
        time: u64,
    ) -> io::Result<()> {
        let begun = embar_disk::begin_segment(&mut self.journal, file, nonce, time);
        self.has_failed |= begun.is_err();
        begun?;
        if let Some(index) = self.journal.take_index() {
            self.kept.push_index(&index);
            self.unindexed.push(index);
        }
        // A successor that found the disk as it was before may take one of them for a part of the journal: one that was begun since.
        // Whoever becomes one from now on finds this segment, and no dead one leads to that.
        let dead = std::mem::take(&mut self.dead);
        if self.term.lasts(&self.region) {
            self.removals.extend(dead);
        }
        self.looks_what_is_kept = true;
        self.prune_sessions();
        let gone = self.due.iter().filter(|due| matches!(due, Due::NoTopic(_)));
        let gone: Vec<Due> = gone.copied().collect();
        self.due.clear();
        self.due.push_back(Due::FirstKept);
        self.due.push_back(Due::TopicIds);
        let mut said = None;
        for chain in self.chains.keys() {
            if said.replace(chain.topic) != Some(chain.topic) {
                self.due.push_back(Due::Topic(chain.topic));
            }
            self.due.push_back(Due::Chain(*chain));
        }
        self.due.extend(self.sessions.places().map(Due::Session));
        // Somebody waits until they are said to be gone.
        self.due.extend(gone);
        (self.is_complete, self.complete_said) = (false, None);
        (self.looks_what_is_gone, self.ends_segment) = (true, false);
        let chains = self.chains.keys();
        let begins = chains.map(|chain| (*chain, self.journal.next_of(*chain)));
        self.segment_begins = begins.collect();
        Ok(())
    }

    /// The index of a segment that is over, once. It is to be stored beside the segment, at any time.
    pub fn take_index(&mut self) -> Option<SegmentIndex> {
        self.unindexed.pop()
    }

    /// Commits that are on their way.
    pub fn in_flight(&self) -> usize {
        self.journal.in_flight()
    }

    /// Takes in which chains have grown.
    fn refresh_chains(&mut self) {
        let mut grown = std::mem::take(&mut self.grown);
        if self.news.take(&self.region, self.term, &mut self.changed) {
            grown.extend(self.changed.iter().copied().map(chain_of));
        } else {
            grown.extend(self.chains.keys());
        }
        self.changed.clear();
        self.indexes.take_grown(&mut grown);
        for name in grown.drain(..) {
            if let Some(chain) = self.chains.get_mut(&name)
                && !std::mem::replace(&mut chain.is_queued, true)
            {
                self.turns.push_back(name);
            }
        }
        self.grown = grown;
    }

    /// Bytes of the batch that comes next, if any does.
    fn first_batch_bytes(&mut self) -> Option<u32> {
        let chain = self.next_turn()?;
        self.chains[&chain].first().map(Batch::len)
    }

    /// The chain whose turn it is, which has something to write.
    fn next_turn(&mut self) -> Option<ChainName> {
        loop {
            let name = *self.turns.front()?;
            if let Some(chain) = self.chains.get_mut(&name) {
                let ahead = match chain.is_stuck || chain.is_over {
                    true => Ahead::None,
                    false => chain.look(self.term, &mut self.indexes),
                };
                match ahead {
                    Ahead::Some => return Some(name),
                    Ahead::None => {}
                    Ahead::Gone => self.get_stuck(name),
                }
            }
            self.turns.pop_front();
            if let Some(chain) = self.chains.get_mut(&name) {
                chain.is_queued = false;
            }
        }
    }

    /// Nothing more of a chain is written.
    fn stop(&mut self, name: ChainName) {
        if let Some(chain) = self.chains.get_mut(&name) {
            chain.is_over = true;
        }
    }

    /// What comes next in a chain cannot be had.
    fn get_stuck(&mut self, name: ChainName) {
        // A successor's frontier lets brokers use memory again that this one has not read.
        if !self.term.lasts(&self.region) {
            return;
        }
        if self.begin_again(name) {
            return;
        }
        let topic = self.topics.by_id(name.topic);
        let topic = topic.map(|topic| topic.name.clone());
        if let Some(chain) = self.chains.get_mut(&name)
            && !std::mem::replace(&mut chain.is_stuck, true)
        {
            tracing::error!(
                topic,
                broker = (name.row != Run::ORDERED).then_some(name.row),
                disk = self.number,
                "a batch cannot be read: memory is damaged, and nothing more of this topic is written to the disk; publish to another topic"
            );
        }
    }

    /// Takes batches, chain by chain, as far as there is room.
    fn take_batches(&mut self, builder: &mut CommitBuilder) {
        while let Some(chain) = self.next_turn() {
            // What this read since the last look.
            if !self.term.lasts(&self.region) {
                return;
            }
            let mut bytes = 0;
            while bytes < TURN_BYTES
                && let Some(batch) = self.chains[&chain].first().copied()
            {
                match self.take_batch(chain, &batch, builder) {
                    Ok(()) => bytes += u64::from(batch.len()),
                    Err(Refused::Full) => return,
                    Err(Refused::Damaged) => {
                        self.topics.refresh();
                        match self.topics.by_id(chain.topic) {
                            Some(_) => self.get_stuck(chain),
                            // Its memory went with it. The next look at the topics forgets it: what the builder holds has to go on
                            // where the journal is.
                            None => self.stop(chain),
                        }
                        break;
                    }
                }
                if let Some(chain) = self.chains.get_mut(&chain) {
                    chain.pass();
                }
            }
            self.turns.pop_front();
            if let Some(its) = self.chains.get_mut(&chain) {
                its.is_queued = !its.is_stuck && !its.is_over;
                if its.is_queued {
                    self.turns.push_back(chain);
                }
            }
        }
    }

    fn take_batch(
        &mut self,
        chain: ChainName,
        batch: &Batch,
        builder: &mut CommitBuilder,
    ) -> Result<(), Refused> {
        if let Batch::Ordered(record) = batch {
            self.introduce_session(chain.topic, record, builder)?;
        }
        let (row, at) = batch.place(chain);
        if self.region.reach(row).is_err() {
            // This process is short of mappings or descriptors: it may go well another time.
            return Err(Refused::Full);
        }
        let head = BATCH_HEADER_BYTES as u32;
        let payload_len = batch.len().checked_sub(head).ok_or(Refused::Damaged)?;
        let header = self.region.foreign(row, at, head).ok_or(Refused::Damaged)?;
        let payload = self.region.foreign(row, at + u64::from(head), payload_len);
        let payload = payload.ok_or(Refused::Damaged)?;
        header.invalidate();
        let mut bytes = [0; BATCH_HEADER_BYTES];
        header.copy_to(0, &mut bytes);
        let header = batch.header_in(&bytes, chain).ok_or(Refused::Damaged)?;
        builder.batch(chain.row, &header, |room| {
            payload.invalidate();
            payload.copy_to(0, room);
        })?;
        if let Batch::Ordered(record) = batch {
            let (epoch, number) = (record.session_epoch, record.sequence);
            let topic = chain.topic;
            self.sessions.place(topic, record.producer, epoch, number);
        }
        Ok(())
    }

    /// Says what the session of a batch is, unless the journal knows it.
    fn introduce_session(
        &mut self,
        topic: u32,
        record: &GoiRecord,
        builder: &mut CommitBuilder,
    ) -> Result<(), Refused> {
        if !self.sessions.knows(record, topic)
            && let Some(known) = self
                .sessions
                .before(record, topic, self.session(record.session))
        {
            say_session(builder, record.session, &known)?;
            if let Some(other) = self.sessions.put(record.session, known) {
                self.due.push_back(Due::NoSession(other));
            }
        }
        Ok(())
    }

    /// What the sequencer says of a place.
    fn session(&self, place: u32) -> Option<KnownSession> {
        if place >= self.region.geometry().sessions {
            return None;
        }
        let row = self.region.session_row(self.term.area, place).found()?;
        let owner = self.region.session_owner(self.term.area, place).found()?;
        Some(KnownSession { row, owner })
    }
}

pub(in crate::journal) fn chain_of(topic: u32) -> embar_disk::Chain {
    embar_disk::Chain {
        topic,
        row: Run::ORDERED,
    }
}
