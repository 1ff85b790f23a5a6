//! Repairs the commits of one segment.

use std::collections::BTreeMap;
use std::io;

use super::Fix;
use super::copies::Copies;
use super::runs::restore;
use super::stand_in::{Hole, Own, Piece, stand_in};
use crate::aligned::AlignedBuffer;
use crate::bits::{flip, flipped_bit};
use crate::format::{
    ALIGN_BYTES, BatchRun, Before, COMMIT_HEADER_BYTES, Chain, CommitHeader, JUDGED_BYTES, Run,
    RunKind, SegmentIndex, check_runs, runs,
};
use crate::recover::chain_of;
use crate::scan::{Depth, Found, Mark, Scan};
use crate::storage::StoredFile;
use crate::verify::{Damage, Lost, Wrong};

/// A segment that has damaged commits.
#[derive(Clone, Copy, Debug)]
pub struct SegmentDamage<'a> {
    /// Its nonce.
    pub nonce: u64,
    /// How much of it counts, if another one says so.
    pub counts: Option<Before>,
    /// Its index, if that is whole.
    pub index: Option<&'a SegmentIndex>,
    /// No later segment says all facts again.
    pub has_newest_facts: bool,
    /// By chain, the position that comes next on the disk.
    pub ends: &'a BTreeMap<Chain, u64>,
    /// What is damaged in it.
    pub damage: &'a [&'a Damage],
}

/// Finds what to write in the place of each damaged commit. `on_fix` is given the number of the commit, and the bytes if they can be
/// had, with what is given up by them; it may write them at once.
///
/// # Errors
/// What the system says of the file, and what `on_fix` returns.
pub fn repair_segment<F: StoredFile>(
    file: &F,
    segment: &SegmentDamage<'_>,
    copies: &mut dyn Copies,
    on_fix: &mut dyn FnMut(u32, Option<Fix>) -> io::Result<()>,
) -> io::Result<()> {
    let mut wanted: BTreeMap<u32, &Damage> = BTreeMap::new();
    for damage in segment.damage {
        if let Wrong::Commits { first: commit, .. }
        | Wrong::Batches { commit, .. }
        | Wrong::Fact { commit, .. } = damage.what
        {
            wanted.insert(commit, damage);
        }
    }
    let mut scan = Scan::of_nonce(file, segment.nonce, Depth::Tables);
    let mut work = Work {
        file,
        segment,
        copies,
        has_all_facts: false,
    };
    let counts = |number: u32| segment.counts.is_none_or(|it| number < it.commits);
    while counts(scan.number())
        && let Some(last) = wanted.keys().next_back()
        && *last >= scan.number()
    {
        let mark = scan.mark();
        let damage = wanted.get(&mark.number()).copied();
        let mut bytes = Vec::new();
        let found = scan.next(&mut |_, all| {
            if damage.is_some() {
                bytes = all.to_vec();
            }
        })?;
        if let Some(found) = found {
            if damage.is_some() {
                let fix = work.commit(&found.header, &found.runs, found.at, found.crc, bytes);
                on_fix(mark.number(), fix)?;
            }
            work.has_all_facts |= found.header.completes_facts;
            continue;
        }
        let next = scan.find_behind(mark.bytes())?;
        let next = next.filter(|next| counts(next.header.number));
        if let (Some(damage), false) = (damage, is_same_place(&mark, next.as_ref())) {
            let fixes = work.commits(&mark, next.as_ref(), damage)?;
            if fixes.is_empty() {
                on_fix(mark.number(), None)?;
            }
            for fix in fixes {
                on_fix(mark.number(), Some(fix))?;
            }
        }
        match next {
            Some(next) => scan.resume_at(&next),
            None => break,
        }
    }
    Ok(())
}

/// Whether a commit is whole and only the one before it another than it was.
fn is_same_place(mark: &Mark, next: Option<&Found>) -> bool {
    next.is_some_and(|next| (next.at, next.header.number) == (mark.bytes(), mark.number()))
}

struct Work<'a, F> {
    file: &'a F,
    segment: &'a SegmentDamage<'a>,
    copies: &'a mut dyn Copies,
    /// All facts that hold were said before the present commit.
    has_all_facts: bool,
}

impl<F: StoredFile> Work<'_, F> {
    /// A commit whose header and table are whole.
    fn commit(
        &mut self,
        header: &CommitHeader,
        runs: &[Run],
        at: u64,
        crc: u32,
        mut bytes: Vec<u8>,
    ) -> Option<Fix> {
        let (first, last) = (header.number, header.number);
        if restore(runs, &mut bytes, self.copies) {
            return Some(exact(at, &bytes, (first, last)));
        }
        let hole = Hole {
            nonce: self.segment.nonce,
            first,
            last,
            at,
            end: Some(at + u64::from(header.bytes)),
            before: header.before,
            crc,
            time: header.time,
            completes_facts: header.completes_facts,
        };
        let (mut pieces, mut own, mut lost_facts) = (Vec::new(), Own::new(), false);
        for run in runs {
            let run_bytes = &bytes[run.at as usize..(run.at + run.bytes) as usize];
            match run.kind {
                RunKind::Batches => {
                    take_whole(run, run_bytes, &mut own);
                    pieces.push(Piece::Messages(chain_of(run), run.first..run.end()));
                }
                RunKind::Next => pieces.push(Piece::Next(chain_of(run), run.first)),
                RunKind::Fact if check_runs(std::slice::from_ref(run), &bytes).is_ok() => {
                    pieces.push(Piece::Fact(run.row, run.first, run_bytes.to_vec()));
                }
                // As it was said elsewhere. Newer facts are said in later segments.
                RunKind::Fact => {
                    lost_facts |= self.segment.has_newest_facts;
                    if let Some(said) = self.copies.facts(run.row, run.first).first() {
                        pieces.push(Piece::Fact(run.row, run.first, said.to_vec()));
                    }
                }
            }
        }
        let mut fixes = stand_in(&hole, pieces, &own, self.copies)?;
        let mut fix = fixes.pop()?;
        fix.lost_facts = lost_facts;
        Some(fix)
    }

    /// Commits whose headers or tables are damaged, up to `next`.
    fn commits(
        &mut self,
        mark: &Mark,
        next: Option<&Found>,
        damage: &Damage,
    ) -> io::Result<Vec<Fix>> {
        let counts = self.segment.counts;
        let (behind, crc) = match (next, counts) {
            (Some(next), _) => (next.header.number, next.header.before),
            (None, Some(counts)) => (counts.commits, counts.crc),
            // Then it does not count.
            (None, None) => return Ok(Vec::new()),
        };
        let index_end = self.segment.index.map(|index| index.end);
        let end = next.map(|next| next.at).or(index_end);
        let end = end.filter(|end| *end > mark.bytes() && end.is_multiple_of(ALIGN_BYTES as u64));
        let Some(last) = behind.checked_sub(1).filter(|last| *last >= mark.number()) else {
            return Ok(Vec::new());
        };
        let mut hole = Hole {
            nonce: self.segment.nonce,
            first: mark.number(),
            last,
            at: mark.bytes(),
            end,
            before: mark.before(),
            crc,
            time: next.map_or(0, |next| next.header.time),
            completes_facts: false,
        };
        let mut bytes = self.read(hole.at, hole.end)?;
        let mut left: Vec<Lost> = damage.was_there.clone();
        let mut ends: BTreeMap<Chain, u64> = { damage.unseen_behind.iter() }
            .filter_map(|chain| Some((*chain, *self.segment.ends.get(chain)?)))
            .collect();
        let mut fixes = Vec::new();
        // As many as can be had again from their own bytes.
        while let Some((header, table)) = restored_head(&mut bytes, &hole) {
            let rest = bytes.split_off(header.bytes as usize);
            let number = hole.first;
            let crc = crc_of_head(&bytes, &header);
            let Some(fix) = self.commit(&header, &table, hole.at, crc, bytes) else {
                return Ok(Vec::new());
            };
            hole.at += u64::from(header.bytes);
            hole.before = crc;
            self.has_all_facts |= header.completes_facts;
            for run in &table {
                let of_it = left.iter_mut().filter(|it| it.chain == chain_of(run));
                of_it.for_each(|it| it.first = it.first.max(run.end().min(it.next)));
                if let Some(end) = ends.get_mut(&chain_of(run)) {
                    *end = run.end().max(*end);
                }
            }
            fixes.push(fix);
            if number == hole.last {
                return Ok(fixes);
            }
            hole.first = number + 1;
            bytes = rest;
        }
        // What says all facts cannot be made anew.
        if self.segment.has_newest_facts && !self.has_all_facts {
            return Ok(Vec::new());
        }
        hole.completes_facts = !self.has_all_facts;
        let own = self.own_of(&hole, &bytes);
        let pieces = left
            .iter()
            .map(|it| Piece::Messages(it.chain, it.positions()));
        let more = { ends.into_iter() }.map(|(chain, from)| Piece::More(chain, from));
        let pieces = pieces.chain(more);
        let Some(mut made) = stand_in(&hole, pieces, &own, self.copies) else {
            return Ok(Vec::new());
        };
        for fix in &mut made {
            fix.lost_facts = self.segment.has_newest_facts;
        }
        fixes.extend(made);
        Ok(fixes)
    }

    /// Bytes of a hole, those that can be read; zeros for the others.
    fn read(&self, at: u64, end: Option<u64>) -> io::Result<Vec<u8>> {
        let most = at + u64::from(CommitHeader::BYTES_MAX);
        let end = end.unwrap_or(most).min(self.file.size()?);
        let mut bytes = Vec::new();
        let mut page = AlignedBuffer::new(ALIGN_BYTES);
        let mut place = at;
        while place < end {
            let came = self.file.read(place, &mut page).unwrap_or(0);
            page[came..].fill(0);
            bytes.extend_from_slice(&page);
            place += ALIGN_BYTES as u64;
        }
        Ok(bytes)
    }

    /// Batches of a hole that are whole, where the index says they are: what else looks like one may be a part of a message.
    fn own_of(&self, hole: &Hole, bytes: &[u8]) -> Own {
        let mut own = Own::new();
        let entries = self.segment.index.into_iter().flat_map(|it| &it.entries);
        for entry in entries.filter(|entry| entry.count > 0 && entry.at >= hole.at) {
            let from = usize::try_from(entry.at - hole.at).unwrap_or(usize::MAX);
            let Some(run_bytes) = bytes
                .get(from..)
                .and_then(|it| it.get(..entry.bytes as usize))
            else {
                continue;
            };
            let run = Run {
                kind: RunKind::Batches,
                row: entry.row,
                chain: entry.topic,
                first: entry.first,
                count: entry.count,
                at: 0,
                bytes: entry.bytes,
                crc: 0,
            };
            take_whole(&run, run_bytes, &mut own);
        }
        own
    }
}

/// Takes the batches of a run that are whole.
fn take_whole(run: &Run, bytes: &[u8], own: &mut Own) {
    let chain: Chain = chain_of(run);
    for (header, batch) in BatchRun::new(run, bytes) {
        if super::runs::whole_batch(batch, chain, header.base_offset()).is_some() {
            own.insert((chain, header.base_offset()), batch.to_vec());
        }
    }
}

fn exact(at: u64, commit: &[u8], commits: (u32, u32)) -> Fix {
    let mut bytes = AlignedBuffer::new(commit.len());
    bytes[..commit.len()].copy_from_slice(commit);
    Fix {
        at,
        bytes,
        len: commit.len(),
        commits: Some(commits),
        is_exact: true,
        lost: Vec::new(),
        lost_facts: false,
    }
}

fn crc_of_head(commit: &[u8], header: &CommitHeader) -> u32 {
    let table_at = header.table_at as usize;
    let table = &commit[table_at..table_at + header.table_bytes()];
    CommitHeader::check(commit, table).expect("it was checked")
}

/// Puts header and table of the first commit of a hole back as they were, from what others say of it, or where one bit flipped.
fn restored_head(bytes: &mut [u8], hole: &Hole) -> Option<(CommitHeader, Vec<Run>)> {
    let own = bytes.get(..COMMIT_HEADER_BYTES)?;
    let field = |at: usize| u32::from_le_bytes(own[at..at + 4].try_into().expect("4 bytes"));
    let (own_crc, own_len) = (field(4), field(20));
    let is_only = hole.first == hole.last;
    let len = match (is_only, hole.end) {
        (true, Some(end)) => u32::try_from(end - hole.at).ok()?,
        _ => own_len,
    };
    let crc = if is_only { hole.crc } else { own_crc };
    let most = bytes.len().min(CommitHeader::BYTES_MAX as usize);
    let mut whole = bytes[..most].to_vec();
    let name = (hole.nonce, hole.first, len);
    CommitHeader::restore(&mut whole, name, (hole.before, crc));
    let found = checked_head(&whole).or_else(|| {
        let bits = 8 * JUDGED_BYTES.start..8 * JUDGED_BYTES.end;
        let found = bits.clone().find_map(|bit| {
            flip(&mut whole, bit);
            let found = checked_head(&whole);
            if found.is_none() {
                flip(&mut whole, bit);
            }
            found
        });
        found.or_else(|| {
            let header = CommitHeader::peek(&whole)?;
            let table_at = header.table_at as usize;
            let table = whole.get(table_at..table_at + header.table_bytes())?;
            let checked = CommitHeader::checked(&whole, table);
            let bit = flipped_bit(&checked, crc)?;
            let place = match bit.checked_sub(8 * COMMIT_HEADER_BYTES) {
                Some(behind) => 8 * table_at + behind,
                None => bit,
            };
            flip(&mut whole, place);
            checked_head(&whole)
        })
    })?;
    bytes[..most].copy_from_slice(&whole);
    Some(found)
}

fn checked_head(bytes: &[u8]) -> Option<(CommitHeader, Vec<Run>)> {
    let header = CommitHeader::peek(bytes)?;
    let commit = bytes.get(..header.bytes as usize)?;
    let table_at = header.table_at as usize;
    let table = commit.get(table_at..table_at + header.table_bytes())?;
    CommitHeader::check(commit, table)?;
    let runs = runs(&header, table).ok()?;
    Some((header, runs))
}

/// Whether a segment of which so many commits count says all facts that hold.
///
/// # Errors
/// What the system says.
pub fn says_all_facts(file: &impl StoredFile, counts: &Before) -> io::Result<bool> {
    let mut scan = Scan::of_nonce(file, counts.nonce, Depth::Tables);
    while scan.number() < counts.commits
        && let Some(found) = scan.next(&mut |_, _| {})?
    {
        if found.header.completes_facts {
            return Ok(true);
        }
    }
    Ok(false)
}
