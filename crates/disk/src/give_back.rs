//! Gives the disk back what it has of topics that are gone, in a segment that is over.
//!
//! Headers and tables of commits stay, so all that goes through a segment finds its way as before. Only whole parts of
//! [`ALIGN_BYTES`] within the batches of such topics become holes. To do it twice, or to be interrupted, does no harm.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;

use crate::aligned::AlignedBuffer;
use crate::format::{
    ALIGN_BYTES, Before, IndexEntry, SEGMENT_HEADER_BYTES, SegmentHeader, segment_name,
};
use crate::history::Segment;
use crate::storage::{Storage, StoredFile};

/// Gives back what the segment `counts` has of the topics `gone`, of which no fact holds any more in the journal. The segment is to be
/// over: nobody reads its last commits as those that a crash may have torn. `may_go_on` is asked before each hole. Returns how
/// many bytes were given back, now or before.
///
/// # Errors
/// What the system says: [`io::ErrorKind::Unsupported`] where the file system cannot, [`io::ErrorKind::InvalidData`] where the segment
/// is damaged.
pub fn give_back<S: Storage>(
    storage: &S,
    counts: &Before,
    gone: &BTreeSet<u32>,
    may_go_on: &mut dyn FnMut() -> bool,
) -> io::Result<u64> {
    let file = storage.open(&segment_name(counts.number))?;
    let mut first = AlignedBuffer::new(SEGMENT_HEADER_BYTES);
    let came = file.read(0, &mut first)?;
    let header = SegmentHeader::decode(&first[..came]);
    let header = header.filter(|it| (it.number, it.nonce) == (counts.number, counts.nonce));
    let header = header.ok_or(io::ErrorKind::InvalidData)?;
    let mut segment = Segment::new(header, *counts);
    if !segment.load(storage, &file)? {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let entries = segment.entries();
    let entries = entries.filter(|entry| gone.contains(&entry.topic));
    let mut bytes = 0;
    for hole in holes(entries.copied().collect()) {
        if !may_go_on() {
            break;
        }
        file.punch_hole(hole.start, hole.end - hole.start)?;
        bytes += hole.end - hole.start;
    }
    Ok(bytes)
}

/// The parts of [`ALIGN_BYTES`] that have nothing but these batches.
fn holes(mut entries: Vec<IndexEntry>) -> Vec<Range<u64>> {
    const LINE: u64 = embar_wire::limits::LINE_BYTES as u64;
    const PAGE: u64 = ALIGN_BYTES as u64;
    entries.sort_unstable_by_key(|entry| entry.at);
    let mut together: Vec<Range<u64>> = Vec::new();
    for entry in entries {
        let end = entry.at + u64::from(entry.bytes);
        match together.last_mut() {
            // The next run begins at the next multiple: what lies between is nobody's.
            Some(last) if entry.at <= last.end.next_multiple_of(LINE) => {
                last.end = last.end.max(end);
            }
            _ => together.push(entry.at..end),
        }
    }
    let whole = together.into_iter().map(|part| {
        let end = part.end / PAGE * PAGE;
        part.start.next_multiple_of(PAGE).min(end)..end
    });
    whole.filter(|hole| !hole.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(at: u64, bytes: u32) -> IndexEntry {
        IndexEntry {
            topic: 1,
            row: 0,
            first: 0,
            count: 1,
            bytes,
            at,
            time: 1,
        }
    }

    fn holes_of(entries: Vec<IndexEntry>) -> Vec<(u64, u64)> {
        let holes = holes(entries).into_iter();
        holes.map(|hole| (hole.start, hole.end)).collect()
    }

    #[test]
    fn a_hole_has_nothing_of_others() {
        assert_eq!(holes_of(vec![]), []);
        // A commit's header before it, its table behind it.
        assert_eq!(holes_of(vec![entry(4096 + 64, 4096)]), []);
        assert_eq!(holes_of(vec![entry(4096 + 64, 8128)]), [(8192, 12288)]);
        assert_eq!(holes_of(vec![entry(4096 + 64, 8127)]), []);
        assert_eq!(holes_of(vec![entry(8192, 4096)]), [(8192, 12288)]);
    }

    #[test]
    fn runs_beside_each_other_are_one_hole() {
        let beside = vec![entry(12160, 4096), entry(4096 + 64, 7990)];
        assert_eq!(holes_of(beside), [(8192, 12288)]);
        // Another one has 64 bytes between them.
        let apart = vec![entry(4096 + 64, 7990), entry(12160 + 64, 4032)];
        assert_eq!(holes_of(apart), []);
    }
}
