//! The writer's side of a disk, without I/O but for the functions beside [`Journal`]: which bytes come next, where they belong, and from when on they count.
//!
//! A writer begins a segment and says all facts that hold; then it makes commits of what has come. Several may be on their
//! way to the disk at once, but they count in their order: [`Journal::synced`] tells how far each chain is on the disk.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use embar_memory::canary::{Canary, injected};

use crate::aligned::AlignedBuffer;
use crate::format::{
    ABOUT_SEGMENTS, ALIGN_BYTES, Before, Chain, Part, SEGMENT_HEADER_BYTES, SegmentHeader,
    SegmentIndex, encode_first_kept, index_name, segment_name,
};
use crate::indexing::Indexing;
use crate::names::RESERVE;
use crate::storage::{Storage, StoredFile};

mod builder;

pub use builder::{CommitBuilder, Refused};

/// A chain is on the disk up to a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The chain.
    pub chain: Chain,
    /// Position after the last message that counts.
    pub next: u64,
}

/// A commit that is to be written.
#[derive(Debug)]
pub struct Commit {
    /// Its segment.
    pub segment: u64,
    /// Where it begins in the segment.
    pub at: u64,
    /// Its bytes, at the beginning of this buffer...
    pub buffer: AlignedBuffer,
    /// ...and how many.
    pub len: usize,
    /// Bytes of the payloads in it.
    pub payload_bytes: u64,
    /// Names it in [`Journal::synced`].
    pub ticket: u64,
}

/// What a journal goes on from: nothing, or what was found on the disk, or what the region says that counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The segment that was written last, and how much of it counts.
    pub before: Option<Before>,
    /// The next segment's number, above all that are there.
    pub segment: u64,
    /// Segments below this one were removed, or may be.
    pub first_kept: u64,
    /// By chain, the position after the last message that counts.
    pub chains: BTreeMap<Chain, u64>,
}

/// The journal of one disk in one term.
#[derive(Debug)]
pub struct Journal {
    disk: [u8; 16],
    epoch: u32,
    region: u32,
    segment_bytes: u64,
    open: Option<Open>,
    before: Option<Before>,
    next_segment: u64,
    first_kept: u64,
    chains: BTreeMap<Chain, u64>,
    in_flight: VecDeque<InFlight>,
    next_ticket: u64,
    /// Of the segment that is over, until it is taken.
    index: Option<SegmentIndex>,
}

/// The segment that is being written.
#[derive(Debug)]
struct Open {
    number: u64,
    nonce: u64,
    /// Bytes of its file that may be used.
    bytes: u64,
    /// Where the next commit begins.
    at: u64,
    commits: u32,
    last_crc: u32,
    last_is_empty: bool,
    /// Commits that count, and the checksum of the last of them.
    synced: u32,
    synced_crc: u32,
    indexing: Indexing,
}

#[derive(Debug)]
struct InFlight {
    ticket: u64,
    is_synced: bool,
    crc: u32,
    progress: Vec<Progress>,
}

impl Journal {
    /// The journal of `disk` in the term `epoch` of a region, which goes on from `position`. Its segments have
    /// `segment_bytes`.
    ///
    /// # Panics
    /// When a segment has no room for a commit, or does not end on a multiple of [`ALIGN_BYTES`].
    #[must_use]
    pub fn new(
        disk: [u8; 16],
        (epoch, region): (u32, u32),
        segment_bytes: u64,
        position: Position,
    ) -> Self {
        assert!(
            segment_bytes > SEGMENT_HEADER_BYTES as u64
                && segment_bytes.is_multiple_of(ALIGN_BYTES as u64),
            "a segment of {segment_bytes} bytes has no room for a commit"
        );
        Self {
            disk,
            epoch,
            region,
            segment_bytes,
            open: None,
            before: position.before,
            next_segment: position.segment,
            first_kept: position.first_kept,
            chains: position.chains,
            in_flight: VecDeque::new(),
            next_ticket: 0,
            index: None,
        }
    }

    /// The number that the next segment gets, and the bytes to reserve for it.
    #[must_use]
    pub fn next_segment(&self) -> (u64, u64) {
        (self.next_segment, self.segment_bytes)
    }

    /// The next position of each chain, as written.
    pub fn chains(&self) -> impl Iterator<Item = Progress> {
        let chains = self.chains.iter();
        chains.map(|(chain, next)| Progress {
            chain: *chain,
            next: *next,
        })
    }

    /// The next position of a chain; 0 for one that was never written.
    #[must_use]
    pub fn next_of(&self, chain: Chain) -> u64 {
        self.chains.get(&chain).copied().unwrap_or(0)
    }

    /// A chain goes on at a position above its end: what lies between is nowhere any more. To be
    /// [said](CommitBuilder::next) before its next batch.
    pub fn skip_to(&mut self, chain: Chain, next: u64) {
        let at = self.chains.entry(chain).or_insert(next);
        *at = next.max(*at);
    }

    /// A chain is over: nothing is said of it any more.
    pub fn forget(&mut self, topic: u32) {
        self.chains.retain(|chain, _| chain.topic != topic);
    }

    /// Segments below this one may be removed once a commit that says so counts: see [`Journal::say_first_kept`].
    pub fn keep_from(&mut self, segment: u64) {
        self.first_kept = self.first_kept.max(segment);
    }

    /// Adds to a commit which segment is the first that is kept.
    ///
    /// # Errors
    /// [`Refused::Full`]
    pub fn say_first_kept(&self, builder: &mut CommitBuilder) -> Result<(), Refused> {
        builder.fact(ABOUT_SEGMENTS, 0, &encode_first_kept(self.first_kept))
    }

    /// Commits that are on their way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Bytes that the segment has room for; 0 while there is none.
    #[must_use]
    pub fn room(&self) -> usize {
        let open = self.open.as_ref();
        open.map_or(0, |open| {
            usize::try_from(open.bytes.saturating_sub(open.at)).unwrap_or(usize::MAX)
        })
    }

    /// Begins the next segment. Its header is to be written and synced, as the file's name is, before any commit. All facts
    /// that hold are to be said in it before anything else. `nonce` is random and not 0.
    ///
    /// # Panics
    /// When commits are on their way: a segment begins when all before it count.
    #[must_use]
    pub fn begin_segment(&mut self, nonce: u64, time: u64) -> SegmentHeader {
        assert!(self.in_flight.is_empty(), "commits are on their way");
        if let Some(open) = self.open.take() {
            self.before = Some(open.counted());
            self.index = Some(SegmentIndex {
                segment: open.counted(),
                end: open.at,
                entries: open.indexing.entries,
            });
        }
        let header = SegmentHeader {
            disk: self.disk,
            number: self.next_segment,
            nonce,
            epoch: self.epoch,
            region: self.region,
            before: self.before,
            created: time,
        };
        self.open = Some(Open {
            number: header.number,
            nonce,
            bytes: self.segment_bytes,
            at: SEGMENT_HEADER_BYTES as u64,
            commits: 0,
            last_crc: 0,
            last_is_empty: true,
            synced: 0,
            synced_crc: 0,
            indexing: Indexing::default(),
        });
        self.next_segment += 1;
        header
    }

    /// The index of the segment that was over when the present one began, once. It is to be stored beside the segment, at any
    /// time.
    pub fn take_index(&mut self) -> Option<SegmentIndex> {
        self.index.take()
    }

    /// What the present segment has of each chain, as written.
    pub fn present(&self) -> impl Iterator<Item = (&Chain, &Part)> {
        let open = self.open.iter();
        open.flat_map(|open| &open.indexing.chains)
    }

    /// How much of the journal counts: what the next term goes on from.
    #[must_use]
    pub fn counted(&self) -> Option<Before> {
        let open = self.open.as_ref();
        open.map(Open::counted).or(self.before)
    }

    /// Whether the segment has room for what a builder holds; not before the first one.
    #[must_use]
    pub fn fits(&self, builder: &CommitBuilder) -> bool {
        builder.bytes() <= self.room()
    }

    /// Makes a commit of what a builder holds. It belongs to the disk at once.
    ///
    /// # Panics
    /// When it does not [fit](Journal::fits), or a run does not go on where its chain ended.
    #[must_use]
    pub fn seal(&mut self, builder: CommitBuilder, time: u64) -> Commit {
        assert!(self.fits(&builder), "the segment has room");
        let len = builder.bytes();
        let open = self.open.as_mut().expect("there is room in it");
        let progress = builder.progress();
        for (first, progress) in &progress {
            let next = self.chains.entry(progress.chain).or_insert(0);
            assert_eq!(*next, *first, "{:?} goes on where it ended", progress.chain);
            *next = progress.next;
        }
        let (is_empty, payload_bytes) = (builder.is_empty(), builder.payload_bytes());
        let completes = builder.has_completed_facts();
        open.indexing
            .add_runs(builder.runs(), open.at, time, completes);
        let (number, before, synced) = (open.commits, open.last_crc, open.synced);
        let (buffer, crc) = builder.seal(open.nonce, number, before, synced, time);
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let commit = Commit {
            segment: open.number,
            at: open.at,
            buffer,
            len,
            payload_bytes,
            ticket,
        };
        open.at += len as u64;
        open.commits += 1;
        open.last_crc = crc;
        open.last_is_empty = is_empty;
        self.in_flight.push_back(InFlight {
            ticket,
            is_synced: false,
            crc,
            progress: progress.into_iter().map(|(_, progress)| progress).collect(),
        });
        commit
    }

    /// A commit is synced. Appends what counts by that: nothing while one before it is not.
    ///
    /// # Panics
    /// When it is not on its way.
    pub fn synced(&mut self, ticket: u64, counts: &mut Vec<Progress>) {
        let commit = self.in_flight.iter_mut().find(|it| it.ticket == ticket);
        let commit = commit.expect("it was sealed, and is synced once");
        commit.is_synced = true;
        if injected(Canary::CommitsBefore) {
            counts.extend(&commit.progress);
        }
        while let Some(commit) = self.in_flight.pop_front_if(|first| first.is_synced) {
            let open = self.open.as_mut().expect("a segment outlives its commits");
            open.synced += 1;
            open.synced_crc = commit.crc;
            counts.extend(commit.progress);
        }
    }

    /// Whether a commit counts that was sealed.
    #[must_use]
    pub fn counts(&self, ticket: u64) -> bool {
        let first = self.in_flight.front();
        first.is_none_or(|first| first.ticket > ticket)
    }

    /// The first segment that is kept.
    #[must_use]
    pub fn first_kept(&self) -> u64 {
        self.first_kept
    }

    /// Bytes of the present segment that are in use; 0 before the first.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.at)
    }

    /// Whether all commits count, and no commit says so of the last. An empty one would: then a last commit that is lost
    /// later is told from one that a crash tore.
    #[must_use]
    pub fn wants_confirmation(&self) -> bool {
        let open = self.open.as_ref();
        self.in_flight.is_empty() && open.is_some_and(|open| !open.last_is_empty)
    }
}

/// Makes the file of the next segment, which may take long on a busy disk. On return its name is synced; nothing in it counts.
///
/// # Errors
/// What the system says: that the disk is full, perhaps.
pub fn prepare_segment<S: Storage>(
    storage: &S,
    (number, bytes): (u64, u64),
) -> io::Result<S::File> {
    let file = storage.create(&segment_name(number), bytes)?;
    if !injected(Canary::SegmentName) {
        storage.sync_names()?;
    }
    Ok(file)
}

/// [Prepares](prepare_segment) the next segment of a journal. Numbers are passed over that a deposed writer took since the disk was
/// read, or one who prepares a segment at this moment.
///
/// # Errors
/// As [`prepare_segment`].
pub fn make_segment<S: Storage>(storage: &S, journal: &mut Journal) -> io::Result<S::File> {
    loop {
        match prepare_segment(storage, journal.next_segment()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => journal.next_segment += 1,
            made => return made,
        }
    }
}

/// Makes the [reserve](take_reserve), of so many bytes, unless it is there.
///
/// # Errors
/// What the system says: that the disk is full, perhaps.
pub fn keep_reserve<S: Storage>(storage: &S, bytes: u64) -> io::Result<()> {
    match storage.create(RESERVE, bytes) {
        Ok(_) => storage.sync_names(),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// As [`make_segment`], where the disk has no room for a segment: the reserve becomes one. It is small, and meant for facts by which
/// others become needless.
///
/// # Errors
/// What the system says: that there is no reserve, perhaps.
pub fn take_reserve<S: Storage>(storage: &S, journal: &mut Journal) -> io::Result<S::File> {
    loop {
        let name = segment_name(journal.next_segment);
        match storage.rename(RESERVE, &name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => journal.next_segment += 1,
            renamed => {
                renamed?;
                storage.sync_names()?;
                return storage.open(&name);
            }
        }
    }
}

/// Begins the next segment of a journal in a file that was [prepared](prepare_segment) for it, as [`Journal::begin_segment`] says: on
/// return its header is synced. It is no longer than the file.
///
/// # Errors
/// What the system says. Then the journal is not to be used any more.
///
/// # Panics
/// As [`Journal::begin_segment`].
pub fn begin_segment(
    journal: &mut Journal,
    file: &impl StoredFile,
    nonce: u64,
    time: u64,
) -> io::Result<()> {
    let mut header = AlignedBuffer::new(SEGMENT_HEADER_BYTES);
    let bytes = file.size()?;
    header.copy_from_slice(&journal.begin_segment(nonce, time).encode());
    if let Some(open) = &mut journal.open {
        open.bytes = open.bytes.min(bytes);
    }
    file.write_synced(0, &header, SEGMENT_HEADER_BYTES)
}

/// Stores the index of a segment that is over. Returns the bytes that it has.
///
/// # Errors
/// What the system says. Nothing depends on the index being there.
pub fn store_index<S: Storage>(storage: &S, index: &SegmentIndex) -> io::Result<usize> {
    let name = index_name(index.segment.number);
    let bytes = index.encode();
    let mut buffer = AlignedBuffer::new(bytes.len());
    buffer[..bytes.len()].copy_from_slice(&bytes);
    match storage.remove(&name) {
        // What an interrupted start left.
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let file = storage.create(&name, buffer.len() as u64)?;
    file.write_synced(0, &buffer, buffer.len())?;
    storage.sync_names()?;
    Ok(buffer.len())
}

impl Open {
    fn counted(&self) -> Before {
        Before {
            number: self.number,
            nonce: self.nonce,
            commits: self.synced,
            crc: self.synced_crc,
        }
    }
}
