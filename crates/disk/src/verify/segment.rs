//! Goes through one segment, and on behind what is damaged in it.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use crate::format::Chain;
use crate::format::{Before, Run, RunKind, SegmentIndex};
use crate::indexing::Indexing;
use crate::positions::Positions;
use crate::recover::{Gap, Replay, chain_of};
use crate::scan::{Depth, Found, Mark, Scan};
use crate::storage::StoredFile;

use super::damage::{Damage, Lost, Wrong};
use super::runs::{CheckedRun, check};

/// A segment that is to be read.
pub(super) struct Part<'a> {
    pub name: &'a str,
    pub number: u64,
    pub nonce: u64,
    /// How much of it counts, if another one says so; all that is whole otherwise.
    pub counts: Option<Before>,
    /// Its index, if there is one.
    pub index: Option<&'a SegmentIndex>,
}

/// What was found in it.
pub(super) struct Read {
    pub counted: Before,
    /// Where that ends.
    pub end: u64,
    pub indexing: Indexing,
    pub torn_bytes: u64,
    pub says_all_facts: bool,
}

/// What was found so far, over all segments.
#[derive(Default)]
pub(super) struct Walk {
    pub replay: Replay,
    pub whole: BTreeMap<Chain, Positions>,
    pub damage: Vec<Damage>,
    pub commits: u64,
    pub batches: u64,
    /// Places in `damage` of batches that are not there because they were given back, if their topic is gone.
    pub holes: Vec<usize>,
    /// Places in `damage` of which nothing says what was there, and by chain how many of them there were when it was last seen.
    unknown: Vec<usize>,
    seen: BTreeMap<Chain, usize>,
}

/// What a commit that is not whole is.
enum Unwhole {
    /// It counted. The next one that is whole, if there is one.
    Damaged(Option<Found>),
    /// A crash tore it, and so many bytes.
    Torn(u64),
}

impl Walk {
    /// Notes damage of which nothing says what was there.
    pub fn miss(&mut self, file: &str, what: Wrong) {
        self.unknown.push(self.damage.len());
        self.note(file, what, Vec::new());
        self.damage.last_mut().expect("it was noted").may_be_more = true;
        self.replay.miss();
    }

    /// Notes damage.
    pub fn note(&mut self, file: &str, what: Wrong, lost: Vec<Lost>) {
        let file = file.to_owned();
        self.damage.push(Damage {
            file,
            what,
            was_there: lost.clone(),
            lost,
            unseen_behind: Vec::new(),
            may_be_more: false,
        });
    }

    /// All was read: what is not seen behind a place may have been there.
    pub fn end(&mut self) {
        for (number, place) in self.unknown.iter().enumerate() {
            let chains = self.replay.state.chains.keys();
            let unseen =
                chains.filter(|chain| self.seen.get(chain).is_none_or(|seen| *seen <= number));
            self.damage[*place].unseen_behind.extend(unseen);
        }
    }

    /// Reads a segment.
    pub fn read<F: StoredFile>(
        &mut self,
        part: &Part<'_>,
        file: &F,
        depth: Depth,
    ) -> io::Result<Read> {
        let mut scan = Scan::of_nonce(file, part.nonce, Depth::Tables);
        let (mut indexing, mut torn_bytes, mut crc) = (Indexing::default(), 0, None);
        // Of a segment that is being written, what was not there yet may be by now.
        let mut is_second_look = false;
        let mut says_all_facts = false;
        self.replay.begin_segment();
        while part.counts.is_none_or(|it| scan.number() < it.commits) {
            let mark = scan.mark();
            let mut runs = Vec::new();
            let found = scan.next(&mut |found, bytes| runs = check(found, bytes, depth))?;
            let is_whole = found.is_some() && runs.iter().all(|run| run.is_whole);
            if !is_whole {
                match look_behind(&mut scan, &mark, found.as_ref(), part)? {
                    Unwhole::Torn(bytes) => {
                        torn_bytes = bytes;
                        scan.go_to(mark);
                        break;
                    }
                    Unwhole::Damaged(_) if !is_second_look => {
                        is_second_look = true;
                        scan.go_to(mark);
                        continue;
                    }
                    Unwhole::Damaged(next) if found.is_none() => {
                        crc = None;
                        match self.skip(&mut scan, &mark, next.as_ref(), part) {
                            true => continue,
                            false => break,
                        }
                    }
                    Unwhole::Damaged(_) => {}
                }
            }
            is_second_look = false;
            let Some(found) = found else {
                continue;
            };
            self.take(part.name, &found, &runs);
            indexing.add(&found.header, &found.runs, found.at);
            says_all_facts |= found.header.completes_facts;
            crc = Some(found.crc);
        }
        let commits = scan.number();
        if let (Some(counts), Some(crc)) = (part.counts, crc)
            && crc != counts.crc
        {
            let commit = commits.saturating_sub(1);
            self.note(part.name, Wrong::Replaced { commit }, Vec::new());
        }
        Ok(Read {
            counted: part.counts.unwrap_or(Before {
                number: part.number,
                nonce: part.nonce,
                commits,
                crc: crc.unwrap_or(0),
            }),
            end: scan.at(),
            indexing,
            torn_bytes,
            says_all_facts,
        })
    }

    /// Goes on behind commits whose headers or tables are damaged, with `next`. False if there is nothing that counts.
    fn skip<F: StoredFile>(
        &mut self,
        scan: &mut Scan<'_, F>,
        mark: &Mark,
        next: Option<&Found>,
        part: &Part<'_>,
    ) -> bool {
        let first = mark.number();
        let counts = part.counts.map_or(first + 1, |it| it.commits);
        let next = next.filter(|next| part.counts.is_none() || next.header.number < counts);
        let end = next.map_or(u64::MAX, |next| next.at);
        let behind = next.map_or(counts, |next| next.header.number);
        if let Some(next) = next {
            scan.resume_at(next);
            if (next.at, next.header.number) == (mark.bytes(), first) {
                let commit = first.saturating_sub(1);
                self.note(part.name, Wrong::Replaced { commit }, Vec::new());
                return true;
            }
        }
        let last = behind.saturating_sub(1).max(first);
        let what = Wrong::Commits { first, last };
        match part.index {
            Some(index) => {
                let lost = lost_in(index, mark.bytes()..end);
                for lost in &lost {
                    self.replay.skip_to(lost.chain, lost.next);
                }
                self.note(part.name, what, lost);
                self.replay.miss();
            }
            None => self.miss(part.name, what),
        }
        next.is_some()
    }

    /// Takes in a commit whose table is whole.
    fn take(&mut self, file: &str, found: &Found, checked: &[CheckedRun]) {
        let commit = found.header.number;
        self.commits += 1;
        for ((number, run), checked) in (0..).zip(&found.runs).zip(checked) {
            match run.kind {
                RunKind::Fact if !checked.is_whole => {
                    let what = Wrong::Fact {
                        commit,
                        run: number,
                    };
                    self.note(file, what, Vec::new());
                    self.replay.miss();
                    continue;
                }
                RunKind::Fact => {}
                RunKind::Batches | RunKind::Next => self.see_chain(file, commit, run),
            }
            // With no bytes of batches, which were looked at already.
            let taken = self.replay.take_run(run, &checked.fact, &mut |_| {});
            debug_assert!(taken.is_ok(), "the chain was made to go on there");
            if run.kind != RunKind::Batches {
                continue;
            }
            let chain = chain_of(run);
            self.batches += checked.batches;
            let whole = self.whole.entry(chain).or_default();
            checked.whole.iter().for_each(|it| whole.add(it.clone()));
            if !checked.is_whole {
                let what = Wrong::Batches {
                    commit,
                    run: number,
                };
                let lost = checked.lost.iter();
                let lost = lost.map(|it| Lost::new(chain, it.clone())).collect();
                if checked.has_hole {
                    self.holes.push(self.damage.len());
                }
                self.note(file, what, lost);
            }
        }
        self.replay.end_commit(found.header.completes_facts);
    }

    /// A chain is where a run says. What is missing before was in what cannot be read, if there is such.
    fn see_chain(&mut self, file: &str, commit: u32, run: &Run) {
        let chain = chain_of(run);
        let seen = self.seen.insert(chain, self.unknown.len()).unwrap_or(0);
        let Err(Gap {
            expected, found, ..
        }) = self.replay.goes_on(chain, run.first)
        else {
            return;
        };
        let lost = Lost::new(chain, expected..found);
        match self.unknown.get(seen) {
            Some(place) => {
                let damage = &mut self.damage[*place];
                damage.lost.push(lost);
                damage.was_there.push(lost);
            }
            // It may go on behind what only other disks have, and says so.
            None if run.kind == RunKind::Next => {}
            None => self.note(file, Wrong::Gap { commit }, vec![lost]),
        }
        self.replay.skip_to(chain, found);
    }
}

/// What an index says that was in a part of its segment.
fn lost_in(index: &SegmentIndex, bytes: Range<u64>) -> Vec<Lost> {
    let entries = index.entries.iter();
    let entries = entries.filter(|it| it.count > 0 && bytes.contains(&it.at));
    let lost = entries.map(|it| {
        let chain = Chain {
            topic: it.topic,
            row: it.row,
        };
        Lost::new(chain, it.first..it.end())
    });
    lost.collect()
}

/// Finds out whether a commit counted that is not whole: where `found` has only its table, or nothing is at `mark`.
fn look_behind<F: StoredFile>(
    scan: &mut Scan<'_, F>,
    mark: &Mark,
    found: Option<&Found>,
    part: &Part<'_>,
) -> io::Result<Unwhole> {
    let end_of = |it: &Found| it.at + u64::from(it.header.bytes);
    let begin = found.map_or(mark.bytes(), end_of);
    if part.counts.is_some() {
        let next = match found {
            Some(_) => None,
            None => scan.find_behind(begin)?,
        };
        return Ok(Unwhole::Damaged(next));
    }
    let (mut from, mut next) = (begin, None);
    while let Some(behind) = scan.find_behind(from)? {
        if behind.header.synced > mark.number() {
            return Ok(Unwhole::Damaged(next.or(Some(behind))));
        }
        from = end_of(&behind);
        next.get_or_insert(behind);
    }
    Ok(Unwhole::Torn(from - mark.bytes()))
}
