//! Reads one segment that is over, slowly and until it is told to stop.

use std::io;

use crate::aligned::AlignedBuffer;
use crate::format::{
    Before, SEGMENT_HEADER_BYTES, SegmentHeader, SegmentIndex, index_name, segment_name,
};
use crate::recover::index_of;
use crate::scan::Depth;
use crate::storage::{Storage, StoredFile};

use super::agrees;
use super::damage::{Damage, Wrong};
use super::reading::Reading;
use super::segment::{Part, Walk};

/// What was found in one segment.
#[derive(Clone, Debug, Default)]
pub struct SegmentVerified {
    /// What is damaged.
    pub damage: Vec<Damage>,
    /// Its header, if that is whole.
    pub header: Option<SegmentHeader>,
    /// Its index, if it has one that is whole.
    pub index: Option<SegmentIndex>,
}

/// Reads a segment of the disk `disk` of which so much counts, and checks every checksum. Of topics that are gone, holes are no damage.
/// `goes_on` is called with the bytes of each read, and ends all where it returns false: then there is no result.
///
/// # Errors
/// What the system says of the file as a whole. Pages that cannot be read are damage.
pub fn verify_segment<S: Storage>(
    storage: &S,
    disk: &[u8; 16],
    counts: &Before,
    is_gone: &dyn Fn(u32) -> bool,
    goes_on: &(dyn Fn(u64) -> bool + Sync),
) -> io::Result<Option<SegmentVerified>> {
    let (name, index_name) = (segment_name(counts.number), index_name(counts.number));
    let has_index = match storage.open(&index_name) {
        Ok(_) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    let index = index_of(storage, counts).unwrap_or(None);
    let file = Stopping {
        file: Reading::new(storage.open(&name)?, &|_| {}),
        goes_on,
    };
    let mut walk = Walk::default();
    let mut first = AlignedBuffer::new(SEGMENT_HEADER_BYTES);
    let Ok(came) = file.read(0, &mut first) else {
        return Ok(None);
    };
    let header = SegmentHeader::decode(&first[..came])
        .filter(|it| (it.disk, it.number, it.nonce) == (*disk, counts.number, counts.nonce));
    if header.is_none() {
        walk.note(&name, Wrong::Header, Vec::new());
    }
    let part = Part {
        name: &name,
        number: counts.number,
        nonce: counts.nonce,
        counts: Some(*counts),
        index: index.as_ref(),
    };
    // What cannot be read is noted, so nothing else fails here.
    let Ok(read) = walk.read(&part, &file, Depth::Payloads) else {
        return Ok(None);
    };
    if let Some(what) = file.file.unreadable() {
        walk.note(&name, what, Vec::new());
    }
    let is_whole = walk.damage.is_empty();
    match &index {
        None if has_index => walk.note(&index_name, Wrong::Index, Vec::new()),
        Some(index) if !agrees(index, &read, is_whole) => {
            walk.note(&index_name, Wrong::OtherIndex, Vec::new());
        }
        _ => {}
    }
    let is_given_back = |place: usize, damage: &Damage| {
        walk.holes.contains(&place) && damage.lost.iter().all(|lost| is_gone(lost.chain.topic))
    };
    let damage = walk.damage.into_iter().enumerate();
    let damage = damage.filter(|(place, damage)| !is_given_back(*place, damage));
    Ok(Some(SegmentVerified {
        damage: damage.map(|(_, damage)| damage).collect(),
        header,
        index,
    }))
}

/// A file whose reads may be told to stop.
struct Stopping<'a, F> {
    file: F,
    goes_on: &'a (dyn Fn(u64) -> bool + Sync),
}

impl<F: StoredFile> StoredFile for Stopping<'_, F> {
    fn write_synced(&self, at: u64, bytes: &AlignedBuffer, len: usize) -> io::Result<()> {
        self.file.write_synced(at, bytes, len)
    }

    fn read(&self, at: u64, into: &mut AlignedBuffer) -> io::Result<usize> {
        match (self.goes_on)(into.len() as u64) {
            true => self.file.read(at, into),
            false => Err(io::ErrorKind::Interrupted.into()),
        }
    }

    fn punch_hole(&self, at: u64, bytes: u64) -> io::Result<()> {
        self.file.punch_hole(at, bytes)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
}
