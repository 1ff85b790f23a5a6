//! Reads the commits of one segment, in their order.

use std::io;

use crate::aligned::AlignedBuffer;
use crate::format::{
    ALIGN_BYTES, CommitHeader, Run, SEGMENT_HEADER_BYTES, SegmentHeader, check_runs, runs,
};
use crate::storage::StoredFile;
use crate::window::Window;

/// Bytes that are read at once where no commit is larger.
const READ_BYTES: usize = 4 << 20;

/// A commit that is whole, as far as was looked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where it begins in the segment.
    pub at: u64,
    /// Its header.
    pub header: CommitHeader,
    /// Its table.
    pub runs: Vec<Run>,
    /// Its checksum.
    pub crc: u32,
}

/// What is checked of each commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Header and table.
    Tables,
    /// All bytes.
    Payloads,
}

/// A place in a segment, between two commits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    at: u64,
    number: u32,
    before: u32,
}

impl Mark {
    /// Bytes before it.
    pub fn bytes(&self) -> u64 {
        self.at
    }

    /// Number of the commit behind it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Checksum of the commit before it.
    pub fn before(&self) -> u32 {
        self.before
    }

    /// Where a commit begins, whatever is before it.
    fn at(found: &Found) -> Self {
        Self {
            at: found.at,
            number: found.header.number,
            before: found.header.before,
        }
    }
}

/// Goes through a segment, commit by commit.
pub struct Scan<'a, F> {
    file: &'a F,
    /// The segment's nonce.
    nonce: u64,
    depth: Depth,
    /// Where the next commit begins...
    at: u64,
    /// ...its number, and the checksum of the one before it.
    number: u32,
    before: u32,
    window: Window,
}

impl<'a, F: StoredFile> Scan<'a, F> {
    /// From the first commit on.
    #[must_use]
    pub fn new(file: &'a F, segment: SegmentHeader, depth: Depth) -> Self {
        Self::of_nonce(file, segment.nonce, depth)
    }

    /// From the first commit on, of a segment that has this nonce.
    pub(crate) fn of_nonce(file: &'a F, nonce: u64, depth: Depth) -> Self {
        Self {
            file,
            nonce,
            depth,
            at: SEGMENT_HEADER_BYTES as u64,
            number: 0,
            before: 0,
            window: Window::new(READ_BYTES),
        }
    }

    /// Number of the next commit.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Where the next commit begins.
    #[must_use]
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Where it is.
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            at: self.at,
            number: self.number,
            before: self.before,
        }
    }

    /// Goes on from a place, and reads again what it has read.
    pub(crate) fn go_to(&mut self, mark: Mark) {
        (self.at, self.number, self.before) = (mark.at, mark.number, mark.before);
        self.window.forget();
    }

    /// The next commit, if it is whole. `see` is shown its bytes if they were read.
    ///
    /// # Errors
    /// What the system says.
    pub fn next(&mut self, see: &mut dyn FnMut(&Found, &[u8])) -> io::Result<Option<Found>> {
        let (at, number, before) = (self.at, self.number, self.before);
        let follows = |header: &CommitHeader| header.number == number && header.before == before;
        let Some(found) = self.commit_at(at, &follows, self.depth, see)? else {
            return Ok(None);
        };
        self.at = found.at + u64::from(found.header.bytes);
        self.number += 1;
        self.before = found.crc;
        Ok(Some(found))
    }

    /// The first commit from `at` on that is whole and not older than the next one, if there is any.
    ///
    /// # Errors
    /// What the system says.
    pub fn find_behind(&mut self, at: u64) -> io::Result<Option<Found>> {
        let end = self.file.size()?;
        let number = self.number;
        let is_later = |header: &CommitHeader| header.number >= number;
        let mut at = at;
        while at < end {
            if let Some(found) = self.commit_at(at, &is_later, Depth::Tables, &mut |_, _| {})? {
                return Ok(Some(found));
            }
            at += ALIGN_BYTES as u64;
        }
        Ok(None)
    }

    /// Goes on with a commit that [`Scan::find_behind`] found.
    pub fn resume_at(&mut self, found: &Found) {
        self.go_to(Mark::at(found));
    }

    fn commit_at(
        &mut self,
        at: u64,
        is_wanted: &dyn Fn(&CommitHeader) -> bool,
        depth: Depth,
        see: &mut dyn FnMut(&Found, &[u8]),
    ) -> io::Result<Option<Found>> {
        let first = self.window.load(self.file, at, ALIGN_BYTES)?;
        let header = CommitHeader::peek(first)
            .filter(|header| header.segment == self.nonce && is_wanted(header));
        let Some(header) = header else {
            return Ok(None);
        };
        let bytes = self.window.load(self.file, at, header.bytes as usize)?;
        if bytes.len() < header.bytes as usize {
            return Ok(None);
        }
        let table_at = header.table_at as usize;
        let table = &bytes[table_at..table_at + header.table_bytes()];
        let Some(crc) = CommitHeader::check(bytes, table) else {
            return Ok(None);
        };
        let Ok(runs) = runs(&header, table) else {
            return Ok(None);
        };
        if depth == Depth::Payloads && check_runs(&runs, bytes).is_err() {
            return Ok(None);
        }
        let found = Found {
            at,
            header,
            runs,
            crc,
        };
        see(&found, bytes);
        Ok(Some(found))
    }
}

/// The nonce that the first commit of a segment has, if that is whole. Then the segment's header was whole, too: it was synced
/// before.
///
/// # Errors
/// What the system says.
pub(crate) fn first_nonce<F: StoredFile>(file: &F) -> io::Result<Option<u64>> {
    let mut first = AlignedBuffer::new(ALIGN_BYTES);
    let came = file.read(SEGMENT_HEADER_BYTES as u64, &mut first)?;
    let Some(header) = CommitHeader::peek(&first[..came]) else {
        return Ok(None);
    };
    let mut scan = Scan::of_nonce(file, header.segment, Depth::Tables);
    Ok(scan.next(&mut |_, _| {})?.map(|_| header.segment))
}
