//! Makes the header of a segment again.

use std::io;

use super::Fix;
use crate::aligned::AlignedBuffer;
use crate::format::{Before, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::storage::StoredFile;
use crate::verify::Segment;

/// The header of the segment at `place`: as it was if one bit flipped, and otherwise from what the segments around say. `before` is
/// how much counts of the one before, if that is known.
pub(super) fn restored(
    file: &impl StoredFile,
    disk: &[u8; 16],
    segments: &[Segment],
    place: usize,
    before: Option<Before>,
) -> io::Result<Option<Fix>> {
    let segment = &segments[place];
    let mut page = AlignedBuffer::new(SEGMENT_HEADER_BYTES);
    // A page that cannot be read is written again, too.
    let came = file.read(0, &mut page).unwrap_or(0);
    let is_it = |it: &SegmentHeader| {
        (it.disk, it.number, it.nonce) == (*disk, segment.number, segment.nonce)
    };
    let exact = SegmentHeader::restored(&page[..came]).filter(is_it);
    let is_exact = exact.is_some();
    let Some(header) = exact.or_else(|| from_neighbours(disk, segments, place, before)) else {
        return Ok(None);
    };
    page.copy_from_slice(&header.encode());
    Ok(Some(fix(page, is_exact)))
}

/// The header of a segment of which so much counts, as it was before one bit of it flipped; `None` where more is wrong.
///
/// # Errors
/// What the system says.
pub fn repair_header(
    file: &impl StoredFile,
    disk: &[u8; 16],
    counts: &Before,
) -> io::Result<Option<Fix>> {
    let mut page = AlignedBuffer::new(SEGMENT_HEADER_BYTES);
    let came = file.read(0, &mut page)?;
    let header = SegmentHeader::restored(&page[..came])
        .filter(|it| (it.disk, it.number, it.nonce) == (*disk, counts.number, counts.nonce));
    Ok(header.map(|header| {
        page.copy_from_slice(&header.encode());
        fix(page, true)
    }))
}

fn fix(page: AlignedBuffer, is_exact: bool) -> Fix {
    Fix {
        at: 0,
        bytes: page,
        len: SEGMENT_HEADER_BYTES,
        commits: None,
        is_exact,
        lost: Vec::new(),
        lost_facts: false,
    }
}

fn from_neighbours(
    disk: &[u8; 16],
    segments: &[Segment],
    place: usize,
    before: Option<Before>,
) -> Option<SegmentHeader> {
    let segment = &segments[place];
    let before = match place {
        // What was before it is not kept any more.
        0 => None,
        _ => Some(before?),
    };
    // Whichever of these it was, the order of the segments is the same. Where there is none, any term is later.
    let mut below = segments[..place].iter().rev().filter_map(|it| it.header);
    let mut above = segments[place + 1..].iter().filter_map(|it| it.header);
    let like = below.next().or_else(|| above.next());
    Some(SegmentHeader {
        disk: *disk,
        number: segment.number,
        nonce: segment.nonce,
        epoch: like.map_or(0, |it| it.epoch),
        region: like.map_or(0, |it| it.region),
        before,
        created: like.map_or(0, |it| it.created),
    })
}
