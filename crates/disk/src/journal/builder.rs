//! Gathers what goes into one commit, in the memory from which it is written.

use embar_frame::{Crc, crc32c};
use embar_wire::batch::BatchHeader;
use embar_wire::limits::{BATCH_HEADER_BYTES, LINE_BYTES};
use thiserror::Error;

use super::Progress;
use crate::aligned::AlignedBuffer;
use crate::format::Chain;
use crate::format::{ALIGN_BYTES, COMMIT_HEADER_BYTES, CommitHeader, RUN_BYTES, Run, RunKind};

/// Why a builder does not take something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// It has no room left. A next commit may have.
    #[error("the commit is full")]
    Full,
    /// The payload is not what its header says: it was damaged, or its memory was used for something else.
    #[error("the payload does not have the checksum that its header has")]
    Damaged,
}

/// A commit that is being filled.
#[derive(Debug)]
pub struct CommitBuilder {
    buffer: AlignedBuffer,
    /// Where the next run begins.
    used: usize,
    table: Vec<Run>,
    /// Of the headers of the last run.
    crc: Crc,
    payload_bytes: u64,
    completes_facts: bool,
    limit: usize,
}

impl CommitBuilder {
    /// A commit in this memory, of which it takes no more than a largest commit has.
    #[must_use]
    pub fn new(buffer: AlignedBuffer) -> Self {
        let all = buffer.len();
        Self::within(buffer, all)
    }

    /// As [`CommitBuilder::new`], but of `limit` bytes at most.
    #[must_use]
    pub fn within(buffer: AlignedBuffer, limit: usize) -> Self {
        let most = buffer.len().min(CommitHeader::BYTES_MAX as usize);
        Self {
            limit: limit.min(most),
            buffer,
            used: COMMIT_HEADER_BYTES,
            table: Vec::new(),
            crc: Crc::new(),
            payload_bytes: 0,
            completes_facts: false,
        }
    }

    /// How much memory a commit needs that holds one batch of `frame_bytes`.
    #[must_use]
    pub fn bytes_for(frame_bytes: u32) -> usize {
        let bytes = COMMIT_HEADER_BYTES + frame_bytes as usize + RUN_BYTES;
        bytes.next_multiple_of(ALIGN_BYTES)
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Bytes that it will have.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let table_bytes = self.table.len() * RUN_BYTES;
        (self.used + table_bytes).next_multiple_of(ALIGN_BYTES)
    }

    /// Bytes of the payloads of all batches in it.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// Gives its memory back.
    #[must_use]
    pub fn into_buffer(self) -> AlignedBuffer {
        self.buffer
    }

    /// Whether so many bytes and one run more fit.
    fn fits(&self, bytes: usize) -> bool {
        let runs = (self.table.len() + 1) * RUN_BYTES;
        let end = self.used + bytes.next_multiple_of(LINE_BYTES) + runs;
        end.next_multiple_of(ALIGN_BYTES) <= self.limit
    }

    /// Adds a batch, whose header has its position. `fill` is given the memory for its payload.
    ///
    /// # Errors
    /// [`Refused`]; then it is as before.
    pub fn batch(
        &mut self,
        row: u16,
        header: &BatchHeader,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), Refused> {
        let bytes = header.frame_len();
        if !self.fits(bytes as usize) {
            return Err(Refused::Full);
        }
        let frame = &mut self.buffer[self.used..self.used + bytes as usize];
        let (head, payload) = frame.split_at_mut(BATCH_HEADER_BYTES);
        head.copy_from_slice(header.as_bytes());
        fill(payload);
        if header.check_payload(payload).is_err() {
            return Err(Refused::Damaged);
        }
        let run = Run {
            kind: RunKind::Batches,
            row,
            chain: header.topic(),
            first: header.base_offset(),
            count: header.message_count(),
            at: self.used as u32,
            bytes,
            crc: 0,
        };
        self.used += bytes as usize;
        self.payload_bytes += u64::from(bytes) - BATCH_HEADER_BYTES as u64;
        let follows = |last: &&mut Run| {
            last.kind == RunKind::Batches
                && (last.row, last.chain, last.end()) == (row, run.chain, run.first)
                // One run has no more messages than its entry can count.
                && last.count.checked_add(run.count).is_some()
        };
        if let Some(last) = self.table.last_mut().filter(follows) {
            last.count += run.count;
            last.bytes += bytes;
        } else {
            self.crc = Crc::new();
            self.table.push(run);
        }
        self.crc.update(header.as_bytes());
        self.table.last_mut().expect("a run").crc = self.crc.value();
        Ok(())
    }

    /// Adds a fact: `about` and `key` say which, the newest holds, and one without bytes says that none does.
    ///
    /// # Errors
    /// [`Refused::Full`]
    pub fn fact(&mut self, about: u16, key: u64, bytes: &[u8]) -> Result<(), Refused> {
        if !self.fits(bytes.len()) {
            return Err(Refused::Full);
        }
        self.buffer[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.table.push(Run {
            kind: RunKind::Fact,
            row: about,
            chain: 0,
            first: key,
            count: 0,
            at: self.used as u32,
            bytes: bytes.len() as u32,
            crc: crc32c(bytes),
        });
        let end = self.used + bytes.len();
        self.used = end.next_multiple_of(LINE_BYTES);
        self.buffer[end..self.used].fill(0);
        Ok(())
    }

    /// Says how far a chain was written.
    ///
    /// # Errors
    /// [`Refused::Full`]
    pub fn next(&mut self, progress: &Progress) -> Result<(), Refused> {
        if !self.fits(0) {
            return Err(Refused::Full);
        }
        self.table.push(Run {
            kind: RunKind::Next,
            row: progress.chain.row,
            chain: progress.chain.topic,
            first: progress.next,
            count: 0,
            at: self.used as u32,
            bytes: 0,
            crc: 0,
        });
        Ok(())
    }

    /// With this commit, all facts that hold have been said in the segment.
    pub fn complete_facts(&mut self) {
        self.completes_facts = true;
    }

    /// The position after the last batch of a chain in it.
    #[must_use]
    pub fn next_of(&self, chain: Chain) -> Option<u64> {
        let mut runs = self.table.iter().rev();
        let last = runs.find(|run| {
            run.kind == RunKind::Batches && (run.chain, run.row) == (chain.topic, chain.row)
        });
        last.map(Run::end)
    }

    pub(super) fn runs(&self) -> &[Run] {
        &self.table
    }

    pub(super) fn has_completed_facts(&self) -> bool {
        self.completes_facts
    }

    /// Of each chain that has batches here, or is said to be somewhere, the first position and how far it comes; by run.
    pub(super) fn progress(&self) -> Vec<(u64, Progress)> {
        let runs = self.table.iter();
        let runs = runs.filter(|run| run.kind != RunKind::Fact);
        let progress = runs.map(|run| {
            let chain = Chain {
                topic: run.chain,
                row: run.row,
            };
            let next = run.end();
            (run.first, Progress { chain, next })
        });
        progress.collect()
    }

    /// The bytes to write, and their checksum.
    pub(super) fn seal(
        mut self,
        segment: u64,
        number: u32,
        before: u32,
        synced: u32,
        time: u64,
    ) -> (AlignedBuffer, u32) {
        let bytes = self.bytes();
        let header = self.header(bytes, (segment, number), (before, synced), time);
        let crc = header.seal(&self.table, &mut self.buffer[..bytes]);
        (self.buffer, crc)
    }

    /// The bytes of a commit that stands in for one that was lost: as many as are to be there, and with the checksum that is named
    /// elsewhere, if one is. Says which it has.
    pub(crate) fn stand_in(
        mut self,
        bytes: usize,
        (segment, number): (u64, u32),
        before: u32,
        time: u64,
        crc: Option<u32>,
    ) -> (AlignedBuffer, u32) {
        // What counts was synced, and all before it.
        let header = self.header(bytes, (segment, number), (before, number), time);
        let commit = &mut self.buffer[..bytes];
        let crc = match crc {
            Some(crc) => {
                header.seal_as(crc, &self.table, commit);
                crc
            }
            None => header.seal(&self.table, commit),
        };
        (self.buffer, crc)
    }

    fn header(
        &mut self,
        bytes: usize,
        (segment, number): (u64, u32),
        (before, synced): (u32, u32),
        time: u64,
    ) -> CommitHeader {
        // Nothing that was there before goes to the disk.
        self.buffer[self.used..bytes].fill(0);
        CommitHeader {
            segment,
            number,
            bytes: bytes as u32,
            table_at: self.used as u32,
            runs: self.table.len() as u32,
            before,
            synced,
            completes_facts: self.completes_facts,
            time,
        }
    }
}
