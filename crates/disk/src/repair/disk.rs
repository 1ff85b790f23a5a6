//! Repairs all that was found to be damaged on a disk.

use std::collections::BTreeMap;
use std::io;

use super::copies::Copies;
use super::segment::{SegmentDamage, repair_segment};
use super::{Fix, header};
use crate::aligned::AlignedBuffer;
use crate::format::{ALIGN_BYTES, Before, SegmentIndex, index_name, segment_name};
use crate::indexing::Indexing;
use crate::journal::store_index;
use crate::recover::index_of;
use crate::scan::{Depth, Scan};
use crate::storage::{Storage, StoredFile};
use crate::verify::{Damage, Segment, Verified, Wrong};

/// Something that is damaged, and what can be done.
#[derive(Debug)]
pub struct Repair<'a> {
    /// The file.
    pub file: &'a str,
    /// What is damaged there: all of a commit, or of an index.
    pub damage: Vec<&'a Damage>,
    /// What can be done.
    pub action: Action<'a>,
}

/// What can be done about damage.
#[derive(Clone, Copy, Debug)]
pub enum Action<'a> {
    /// Write these bytes.
    Write(&'a Fix),
    /// Make an index from its segment again.
    Index,
    /// Nothing.
    Nothing,
}

/// Goes through the damage that `verify` found on a disk, of which `copies` has copies. What `decide` returns true for is done at
/// once.
///
/// # Errors
/// What the system says of a file, with its name.
pub fn repair_disk<S: Storage>(
    storage: &S,
    disk: &[u8; 16],
    verified: &Verified,
    copies: &mut dyn Copies,
    decide: &mut dyn FnMut(&Repair<'_>) -> bool,
) -> io::Result<()> {
    let mut by_file: BTreeMap<&str, Vec<&Damage>> = BTreeMap::new();
    for damage in &verified.damage {
        by_file.entry(&damage.file).or_default().push(damage);
    }
    for (place, segment) in verified.segments.iter().enumerate() {
        let (name, index) = (segment_name(segment.number), index_name(segment.number));
        let mut outdated = false;
        if let Some(damage) = by_file.remove(&*name) {
            let mut work = Work {
                storage,
                disk,
                verified,
                place,
                copies: &mut *copies,
            };
            let done = work.segment(&name, &damage, decide);
            outdated = done.map_err(|error| named(&name, &error))?;
        }
        let is_damaged = match by_file.remove(&*index) {
            Some(damage) => decide(&Repair {
                file: &index,
                damage,
                action: Action::Index,
            }),
            None => false,
        };
        if is_damaged || outdated {
            let renewed = renew(storage, segment);
            renewed.map_err(|error| named(&index, &error))?;
        }
    }
    for (file, damage) in by_file {
        decide(&Repair {
            file,
            damage,
            action: Action::Nothing,
        });
    }
    Ok(())
}

fn named(name: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{name}: {error}"))
}

/// One segment of a disk.
struct Work<'a, S> {
    storage: &'a S,
    disk: &'a [u8; 16],
    verified: &'a Verified,
    place: usize,
    copies: &'a mut dyn Copies,
}

impl<S: Storage> Work<'_, S> {
    /// Returns whether the segment's index may say something else now than the segment.
    fn segment(
        &mut self,
        name: &str,
        damage: &[&Damage],
        decide: &mut dyn FnMut(&Repair<'_>) -> bool,
    ) -> io::Result<bool> {
        let segments = &self.verified.segments;
        let segment = &segments[self.place];
        let file = self.storage.open(name)?;
        let mut outdated = false;
        let of_commits = |it: &&Damage| it.what.commit().is_some();
        let (commits, others): (Vec<&Damage>, Vec<&Damage>) =
            damage.iter().copied().partition(of_commits);
        for damage in others {
            let fix = match damage.what {
                Wrong::Header => {
                    let before = self
                        .place
                        .checked_sub(1)
                        .and_then(|it| self.index_of(&segments[it]));
                    let before = before
                        .map(|index| index.segment)
                        .or_else(|| self.all_of_previous());
                    header::restored(&file, self.disk, segments, self.place, before)?
                }
                // What lies there is put back with the commit that it is part of.
                Wrong::Unreadable { .. } => continue,
                _ => None,
            };
            let repair = Repair {
                file: name,
                damage: vec![damage],
                action: fix.as_ref().map_or(Action::Nothing, Action::Write),
            };
            if decide(&repair)
                && let Some(fix) = &fix
            {
                fix.write(&file)?;
            }
        }
        let index = self.index_of(segment);
        let later = &segments[self.place + 1..];
        let what = SegmentDamage {
            nonce: segment.nonce,
            counts: segment.counts,
            index: index.as_ref(),
            has_newest_facts: later.iter().all(|it| !it.says_all_facts),
            ends: &self.verified.chains,
            damage: &commits,
        };
        let mut left = commits.clone();
        repair_segment(&file, &what, self.copies, &mut |commit, fix| {
            let is_it = |it: &&Damage| it.what.commit() == Some(commit);
            let of_it = commits.iter().copied().filter(is_it).collect();
            left.retain(|it| !is_it(it));
            let repair = Repair {
                file: name,
                damage: of_it,
                action: fix.as_ref().map_or(Action::Nothing, Action::Write),
            };
            if decide(&repair)
                && let Some(fix) = &fix
            {
                outdated |= !fix.is_exact;
                fix.write(&file)?;
            }
            Ok(())
        })?;
        for damage in left {
            decide(&Repair {
                file: name,
                damage: vec![damage],
                action: Action::Nothing,
            });
        }
        Ok(outdated && self.verified.indexes.contains(&segment.number))
    }

    fn index_of(&self, segment: &Segment) -> Option<SegmentIndex> {
        let counts = segment.counts.or_else(|| self.said_by_index(segment))?;
        index_of(self.storage, &counts).ok().flatten()
    }

    /// How much counts of the segment before where that is all that is whole: of one term, with nothing behind that may be damaged.
    fn all_of_previous(&self) -> Option<Before> {
        let segments = &self.verified.segments;
        let previous = &segments[self.place.checked_sub(1)?];
        let (header, next) = (previous.header?, segments.get(self.place + 1)?.header?);
        let file = self.storage.open(&segment_name(previous.number)).ok()?;
        let mut page = AlignedBuffer::new(ALIGN_BYTES);
        let came = file.read(previous.end, &mut page).ok()?;
        let is_blank = page[..came].iter().all(|byte| *byte == 0);
        (is_blank && header.epoch == next.epoch).then_some(previous.counted)
    }

    /// How much of a segment counts by its own index, where the next one cannot be read.
    fn said_by_index(&self, segment: &Segment) -> Option<Before> {
        let counts = stored_index(self.storage, segment.number)?.segment;
        (counts.nonce == segment.nonce).then_some(counts)
    }
}

fn stored_index<S: Storage>(storage: &S, number: u64) -> Option<SegmentIndex> {
    let file = storage.open(&index_name(number)).ok()?;
    let mut bytes = AlignedBuffer::new(usize::try_from(file.size().ok()?).ok()?.max(1));
    let came = file.read(0, &mut bytes).ok()?;
    SegmentIndex::decode(&bytes[..came])
}

/// Makes the index of a segment again; where that cannot be, removes it: it is made when the disk is used next.
fn renew<S: Storage>(storage: &S, segment: &Segment) -> io::Result<()> {
    let said = || Some(stored_index(storage, segment.number)?.segment);
    let counts = segment.counts.or_else(said);
    if let Some(counts) = counts.filter(|it| it.nonce == segment.nonce)
        && renew_index(storage, &counts)?
    {
        return Ok(());
    }
    match storage.remove(&index_name(segment.number)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => storage.sync_names(),
    }
}

/// Makes the index of a segment of which so much counts again. False, and nothing is done, where the segment is damaged.
///
/// # Errors
/// What the system says.
pub fn renew_index<S: Storage>(storage: &S, counts: &Before) -> io::Result<bool> {
    let file = storage.open(&segment_name(counts.number))?;
    let mut scan = Scan::of_nonce(&file, counts.nonce, Depth::Tables);
    let (mut indexing, mut crc) = (Indexing::default(), 0);
    while scan.number() < counts.commits {
        let Some(found) = scan.next(&mut |_, _| {})? else {
            return Ok(false);
        };
        indexing.add(&found.header, &found.runs, found.at);
        crc = found.crc;
    }
    if crc != counts.crc {
        return Ok(false);
    }
    let index = SegmentIndex {
        segment: *counts,
        end: scan.at(),
        entries: indexing.entries,
    };
    store_index(storage, &index)?;
    Ok(true)
}
