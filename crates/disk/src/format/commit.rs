//! A commit: what is written at once, and counts as one.

use std::mem::offset_of;
use std::ops::Range;

use embar_frame::{Crc, crc32c};
use embar_wire::batch::BatchHeader;
use embar_wire::limits::{BATCH_HEADER_BYTES, LINE_BYTES, MAX_BATCH_BYTES};
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::ALIGN_BYTES;
use super::layout::Layout;

const MAGIC: u32 = u32::from_le_bytes(*b"ECOM");
/// With this commit, all facts that hold have been said in its segment.
const FLAG_COMPLETE: u32 = 1;

/// Bytes of a commit's header.
pub const COMMIT_HEADER_BYTES: usize = LINE_BYTES;
/// Bytes of an entry of its table.
pub const RUN_BYTES: usize = 32;

/// The first bytes of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitHeader {
    /// The nonce of its segment.
    pub segment: u64,
    /// Its number in the segment, from 0.
    pub number: u32,
    /// Bytes of all of it: a multiple of [`ALIGN_BYTES`].
    pub bytes: u32,
    /// Where its table begins.
    pub table_at: u32,
    /// Entries of the table.
    pub runs: u32,
    /// Checksum of the commit before it in the segment; 0 for the first.
    pub before: u32,
    /// How many commits of the segment were known to be synced when this one was made.
    pub synced: u32,
    /// With it, all facts that hold have been said in its segment.
    pub completes_facts: bool,
    /// When it was made, in nanoseconds since the Unix epoch.
    pub time: u64,
}

crate::layout! {
    /// The first bytes of a commit, which begins at a multiple of 4096 in its segment. Runs follow, each from a multiple of
    /// 64 on, then the table, and zeros up to a multiple of 4096.
    RawHeader, "commit header", 64 {
        /// `ECOM`.
        0 magic: U32,
        /// Checksum of this header, in which it counts as zero, and the table.
        4 crc: U32,
        /// The nonce of its segment.
        8 segment: U64,
        /// The commit's number in the segment, from 0.
        16 number: U32,
        /// Bytes of all of it: a multiple of 4096.
        20 bytes: U32,
        /// Where its table begins in it.
        24 table_at: U32,
        /// Entries of the table.
        28 runs: U32,
        /// Checksum of the commit before it in the segment; 0 for the first.
        32 before: U32,
        /// How many commits of the segment were known to be synced when this one was made.
        36 synced: U32,
        /// Bit 0: with this commit all facts that hold have been said in its segment. Others are zero.
        40 flags: U32,
        /// Zero, or what gives a commit that a repair made the checksum of the one in whose place it is.
        44 balance: U32,
        /// When it was made, in nanoseconds since the Unix epoch.
        48 time: U64,
        /// Zero.
        56 reserved: U64,
    }
}

/// What lies where in a commit's header.
pub(super) const HEADER_LAYOUT: Layout = RawHeader::LAYOUT;

const CRC_AT: usize = offset_of!(RawHeader, crc);
/// The part of a header by which nothing is a commit if it is damaged: where the table is, and what has few values.
pub(crate) const JUDGED_BYTES: Range<usize> =
    offset_of!(RawHeader, table_at)..offset_of!(RawHeader, balance);
const _: () = assert!(size_of::<RawHeader>() == COMMIT_HEADER_BYTES);

/// What a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunKind {
    /// Batches of one chain that follow each other.
    Batches,
    /// A fact: the newest of its key holds, and one without bytes says that none holds any more.
    Fact,
    /// The next position of a chain, and no bytes: so far it was written, wherever that went.
    Next,
}

/// An entry of a commit's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// What it is.
    pub kind: RunKind,
    /// Of batches: the broker's row at orders 0 and 1, [`Run::ORDERED`] at orders 2 and 5. Of a fact: what it is about.
    pub row: u16,
    /// The chain. Of a fact 0.
    pub chain: u32,
    /// Position of the first message, or the next position. Of a fact its key.
    pub first: u64,
    /// Messages; 0 if they are no batches.
    pub count: u32,
    /// Where its bytes begin in the commit.
    pub at: u32,
    /// How many there are.
    pub bytes: u32,
    /// Checksum of a fact, or of the headers of batches, each of which has that of its payload.
    pub crc: u32,
}

crate::layout! {
    /// An entry of a commit's table, one for each run.
    RawRun, "run", 32 {
        /// 1: batches of one chain that follow each other. 2: a fact. 3: the next position of a chain, and no bytes.
        0 kind: u8,
        /// Zero.
        1 reserved: u8,
        /// Of a chain: the row of its broker at orders 0 and 1, 65535 at orders 2 and 5. Of a fact: what it is about.
        2 row: U16,
        /// The topic's id; 0 of a fact.
        4 chain: U32,
        /// Position of the first message, or the next position; of a fact its key.
        8 first: U64,
        /// Messages; 0 if they are no batches.
        16 count: U32,
        /// Where its bytes begin in the commit.
        20 at: U32,
        /// How many there are; 0 says of a fact that it does not hold any more.
        24 bytes: U32,
        /// Checksum of a fact, or of the headers of batches, each of which has that of its payload.
        28 crc: U32,
    }
}

/// What lies where in an entry of a commit's table.
pub(super) const RUN_LAYOUT: Layout = RawRun::LAYOUT;

const _: () = assert!(size_of::<RawRun>() == RUN_BYTES);

/// What is wrong with a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Damaged {
    /// Its header or its table.
    #[error("no commit begins there, or its header or its table is damaged")]
    Commit,
    /// The bytes of a run.
    #[error("the bytes of its run {run} are damaged")]
    Run {
        /// Its place in the table.
        run: u32,
    },
}

impl Run {
    /// The row of chains that the sequencer orders: they have one position over all brokers.
    pub const ORDERED: u16 = u16::MAX;

    /// Position after its last message.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.first.saturating_add(self.count.into())
    }

    fn encode(&self) -> RawRun {
        RawRun {
            kind: match self.kind {
                RunKind::Batches => 1,
                RunKind::Fact => 2,
                RunKind::Next => 3,
            },
            reserved: 0,
            row: self.row.into(),
            chain: self.chain.into(),
            first: self.first.into(),
            count: self.count.into(),
            at: self.at.into(),
            bytes: self.bytes.into(),
            crc: self.crc.into(),
        }
    }

    fn decode(raw: &RawRun) -> Option<Self> {
        let kind = match raw.kind {
            1 => RunKind::Batches,
            2 => RunKind::Fact,
            3 => RunKind::Next,
            _ => return None,
        };
        Some(Self {
            kind,
            row: raw.row.get(),
            chain: raw.chain.get(),
            first: raw.first.get(),
            count: raw.count.get(),
            at: raw.at.get(),
            bytes: raw.bytes.get(),
            crc: raw.crc.get(),
        })
    }
}

impl CommitHeader {
    /// Most bytes of a commit: a largest batch, and what is around it.
    pub const BYTES_MAX: u32 = MAX_BATCH_BYTES + 2 * ALIGN_BYTES as u32;

    /// Writes header and table into `commit`, which has all of its bytes and whose runs are there. Returns its checksum.
    ///
    /// # Panics
    /// When the table does not fit where the header says that it is.
    pub(crate) fn seal(&self, table: &[Run], commit: &mut [u8]) -> u32 {
        assert!(table.len() == self.runs as usize && commit.len() == self.bytes as usize);
        let table_at = self.table_at as usize;
        let (_, tail) = commit.split_at_mut(table_at);
        let mut entries = tail.chunks_exact_mut(RUN_BYTES);
        for run in table {
            let entry = entries.next().expect("the table was given room");
            entry.copy_from_slice(run.encode().as_bytes());
        }
        let mut raw = self.encode();
        let table_bytes = table.len() * RUN_BYTES;
        let crc = crc_of(&raw, &commit[table_at..table_at + table_bytes]);
        raw.crc = crc.into();
        commit[..COMMIT_HEADER_BYTES].copy_from_slice(raw.as_bytes());
        crc
    }

    /// As [`CommitHeader::seal`], so that the checksum becomes this one: what names it goes on to be right.
    pub(crate) fn seal_as(&self, crc: u32, table: &[Run], commit: &mut [u8]) {
        let plain = self.seal(table, commit);
        let table_at = self.table_at as usize;
        let (head, tail) = commit.split_at_mut(table_at);
        let table = &tail[..self.table_bytes()];
        let mut raw = self.encode();
        let bits = std::array::from_fn(|bit| {
            raw.balance = (1 << bit).into();
            crc_of(&raw, table) ^ plain
        });
        raw.balance = balance(&bits, plain ^ crc).into();
        raw.crc = crc.into();
        debug_assert_eq!(crc_of(&raw, table), crc);
        head[..COMMIT_HEADER_BYTES].copy_from_slice(raw.as_bytes());
    }

    fn encode(&self) -> RawHeader {
        RawHeader {
            magic: MAGIC.into(),
            crc: U32::ZERO,
            segment: self.segment.into(),
            number: self.number.into(),
            bytes: self.bytes.into(),
            table_at: self.table_at.into(),
            runs: self.runs.into(),
            before: self.before.into(),
            synced: self.synced.into(),
            flags: u32::from(self.completes_facts).into(),
            balance: U32::ZERO,
            time: self.time.into(),
            reserved: U64::ZERO,
        }
    }

    /// What the first bytes of a commit say of where its parts are. Nothing of it is certain before [`CommitHeader::check`].
    #[must_use]
    pub fn peek(bytes: &[u8]) -> Option<Self> {
        let (raw, _) = RawHeader::read_from_prefix(bytes).ok()?;
        let header = Self {
            segment: raw.segment.get(),
            number: raw.number.get(),
            bytes: raw.bytes.get(),
            table_at: raw.table_at.get(),
            runs: raw.runs.get(),
            before: raw.before.get(),
            synced: raw.synced.get(),
            completes_facts: raw.flags.get() & FLAG_COMPLETE != 0,
            time: raw.time.get(),
        };
        let is_ours =
            raw.magic == MAGIC && raw.reserved == 0 && raw.flags.get() & !FLAG_COMPLETE == 0;
        let table_end = u64::from(header.table_at) + u64::from(header.runs) * RUN_BYTES as u64;
        let fits = (ALIGN_BYTES as u32..=Self::BYTES_MAX).contains(&header.bytes)
            && header.bytes.is_multiple_of(ALIGN_BYTES as u32)
            && header.table_at as usize >= COMMIT_HEADER_BYTES
            && (header.table_at as usize).is_multiple_of(LINE_BYTES)
            && table_end <= header.bytes.into()
            && header.synced <= header.number;
        (is_ours && fits).then_some(header)
    }

    /// The checksum of a commit, if its header and its table agree with it: `header` are its first bytes, `table` is its table.
    #[must_use]
    pub fn check(header: &[u8], table: &[u8]) -> Option<u32> {
        let (raw, _) = RawHeader::read_from_prefix(header).ok()?;
        let crc = crc_of(&raw, table);
        (raw.crc == crc).then_some(crc)
    }

    /// Puts into the first bytes of a commit what is known of it from elsewhere: its segment, its number, its bytes, and the
    /// checksums of it and of the one before it.
    pub(crate) fn restore(
        bytes: &mut [u8],
        (segment, number, len): (u64, u32, u32),
        (before, crc): (u32, u32),
    ) {
        let Ok((raw, _)) = RawHeader::mut_from_prefix(bytes) else {
            return;
        };
        raw.magic = MAGIC.into();
        raw.crc = crc.into();
        raw.segment = segment.into();
        raw.number = number.into();
        raw.bytes = len.into();
        raw.before = before.into();
        raw.reserved = U64::ZERO;
    }

    /// Header and table in one, as the checksum is made of them.
    pub(crate) fn checked(header: &[u8], table: &[u8]) -> Vec<u8> {
        let mut bytes = header[..COMMIT_HEADER_BYTES].to_vec();
        bytes[CRC_AT..CRC_AT + 4].fill(0);
        bytes.extend_from_slice(table);
        bytes
    }

    /// Bytes of its table.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        self.runs as usize * RUN_BYTES
    }
}

/// Which of 32 bits change a checksum by `change`, if each alone changes it as `bits` says: checksums are linear.
fn balance(bits: &[u32; 32], change: u32) -> u32 {
    // By their highest bit: a change, and which bits make it.
    let mut known = [(0_u32, 0_u32); 32];
    let highest = |change: u32| 31 - change.leading_zeros() as usize;
    for (bit, change) in bits.iter().enumerate() {
        let (mut change, mut made_by) = (*change, 1 << bit);
        while change != 0 {
            let place = &mut known[highest(change)];
            if place.0 == 0 {
                *place = (change, made_by);
                break;
            }
            change ^= place.0;
            made_by ^= place.1;
        }
    }
    let (mut rest, mut balance) = (change, 0);
    while rest != 0 {
        let (change, made_by) = known[highest(rest)];
        assert!(change != 0, "32 bits in a row make every change");
        rest ^= change;
        balance ^= made_by;
    }
    balance
}

fn crc_of(raw: &RawHeader, table: &[u8]) -> u32 {
    let bytes = raw.as_bytes();
    let mut crc = Crc::new();
    crc.update(&bytes[..CRC_AT]);
    crc.update(&[0; 4]);
    crc.update(&bytes[CRC_AT + 4..]);
    crc.update(table);
    crc.value()
}

/// The entries of a table that was checked. The bytes of each lie between header and table.
///
/// # Errors
/// [`Damaged::Run`] of an entry that no writer makes.
pub fn runs(header: &CommitHeader, table: &[u8]) -> Result<Vec<Run>, Damaged> {
    let mut runs = Vec::with_capacity(table.len() / RUN_BYTES);
    for (number, entry) in (0..).zip(table.chunks_exact(RUN_BYTES)) {
        let raw = RawRun::read_from_bytes(entry).expect("as many bytes as an entry has");
        let run = Run::decode(&raw).filter(|run| {
            let end = run.at.checked_add(run.bytes);
            let is_inside = end.is_some_and(|end| end <= header.table_at)
                && run.at as usize >= COMMIT_HEADER_BYTES;
            let has_bytes = match run.kind {
                RunKind::Batches => run.count > 0 && run.bytes as usize > BATCH_HEADER_BYTES,
                RunKind::Fact => run.count == 0,
                RunKind::Next => run.count == 0 && run.bytes == 0,
            };
            is_inside && has_bytes && run.first.checked_add(run.count.into()).is_some()
        });
        runs.push(run.ok_or(Damaged::Run { run: number })?);
    }
    Ok(runs)
}

/// Checks the bytes of all runs of a commit.
///
/// # Errors
/// [`Damaged::Run`] of the first that is not whole.
pub fn check_runs(runs: &[Run], commit: &[u8]) -> Result<(), Damaged> {
    for (number, run) in (0..).zip(runs) {
        let bytes = commit.get(run.at as usize..run.at as usize + run.bytes as usize);
        let is_whole = bytes.is_some_and(|bytes| match run.kind {
            RunKind::Batches => BatchRun::new(run, bytes).check(),
            RunKind::Fact | RunKind::Next => crc32c(bytes) == run.crc,
        });
        if !is_whole {
            return Err(Damaged::Run { run: number });
        }
    }
    Ok(())
}

/// The batches of a run, one by one: each as its header and all of its bytes.
#[derive(Clone, Debug)]
pub struct BatchRun<'a> {
    chain: u32,
    next: u64,
    end: u64,
    crc: u32,
    rest: &'a [u8],
    is_damaged: bool,
}

impl<'a> BatchRun<'a> {
    /// Of the bytes of `run`.
    #[must_use]
    pub fn new(run: &Run, bytes: &'a [u8]) -> Self {
        Self {
            chain: run.chain,
            next: run.first,
            end: run.end(),
            crc: run.crc,
            rest: bytes,
            is_damaged: false,
        }
    }

    /// Whether each batch is there, in its place and as it was sealed.
    fn check(mut self) -> bool {
        let mut crc = Crc::new();
        for (header, batch) in &mut self {
            crc.update(header.as_bytes());
            if header.check_payload(&batch[BATCH_HEADER_BYTES..]).is_err() {
                return false;
            }
        }
        self.rest.is_empty() && !self.is_damaged && self.next == self.end && crc.value() == self.crc
    }
}

impl<'a> Iterator for BatchRun<'a> {
    type Item = (BatchHeader, &'a [u8]);

    /// The next batch. Its payload is not checked. None where the bytes are no batch that belongs there, too.
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() || self.is_damaged {
            return None;
        }
        let header = BatchHeader::parse(self.rest, MAX_BATCH_BYTES).ok();
        let header = header.filter(|header| {
            header.topic() == self.chain
                && header.base_offset() == self.next
                && header.frame_len() as usize <= self.rest.len()
        });
        let Some(header) = header else {
            self.is_damaged = true;
            return None;
        };
        let (batch, rest) = self.rest.split_at(header.frame_len() as usize);
        self.rest = rest;
        self.next = self.next.saturating_add(header.message_count().into());
        Some((header, batch))
    }
}
