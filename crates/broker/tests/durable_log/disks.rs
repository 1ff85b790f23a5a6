//! What lies on the disks, read without the log.

use std::collections::BTreeMap;

use embar_broker::journal::Found;
use embar_broker::journal::facts::ABOUT_TOPIC;
use embar_broker::topics::TopicTable;
use embar_disk::format::{BatchRun, Run, RunKind, SegmentHeader, check_runs, segment_name};
use embar_disk::recover::{RecoverError, Recovered};
use embar_disk::scan::{Depth, Found as Commit, Scan};
use embar_disk::verify::verify;
use embar_disk::{AlignedBuffer, Simulated as Disk, Storage, StoredFile};
use embar_fabric::{Frontier, Region};
use embar_memory::Simulated;
use embar_order::Leadership;
use embar_wire::batch::BatchHeader;
use fastrand::Rng;

use super::memory::{CANDIDATES, DISKS, TOPICS};

/// The name of a disk.
pub fn disk_id(number: u16) -> [u8; 16] {
    [number as u8 + 1; 16]
}

/// A batch on a disk, with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub header: BatchHeader,
    pub frame: Vec<u8>,
}

/// What a disk has of a topic.
#[derive(Default)]
struct Chain {
    batches: Vec<Stored>,
    next: u64,
}

/// By topic, the batches that count, in the order of their positions. A position that was written twice has to have the same
/// batch both times, unless the journal said in between that the chain goes on below it.
pub fn batches_on(disk: &Disk, recovered: &Recovered) -> BTreeMap<u32, Vec<Stored>> {
    let mut chains = BTreeMap::new();
    for segment in &recovered.segments {
        let file = disk.open(&segment_name(segment.header.number));
        let file = file.expect("it was found");
        let mut scan = Scan::new(&file, segment.header, Depth::Tables);
        while scan.number() < segment.counted.commits {
            let commit = scan.next(&mut |commit, bytes| {
                let mut commit = commit.clone();
                commit.runs.retain(|run| is_there(run, recovered));
                check_runs(&commit.runs, bytes).expect("what counts is whole");
                take(&mut chains, &commit, bytes);
            });
            assert!(
                commit.expect("no fault").is_some(),
                "what counts is not whole"
            );
        }
    }
    let chains = chains.into_iter();
    chains
        .map(|(topic, chain)| (topic, chain.batches))
        .collect()
}

/// Whether a run is a fact, or of a topic that is there. Of others the batches are given back at some time.
fn is_there(run: &Run, recovered: &Recovered) -> bool {
    let key = (ABOUT_TOPIC, run.chain.into());
    run.kind == RunKind::Fact || recovered.facts.contains_key(&key)
}

/// Who verifies a disk that nobody writes finds no damage, whatever was given back.
pub fn check_verified(disk: &Disk, number: u16) {
    let verified = verify(disk, &disk_id(number), Depth::Payloads, &|_| {});
    let mut damage = verified.expect("no fault").damage;
    // A power cut may tear an index, which can be made again.
    damage.retain(|damage| !damage.file.ends_with(".index"));
    assert!(damage.is_empty(), "disk {number}: {damage:?}");
}

fn take(chains: &mut BTreeMap<u32, Chain>, commit: &Commit, bytes: &[u8]) {
    for run in &commit.runs {
        match run.kind {
            // It is not on the disk any more; later it may come again from another disk.
            RunKind::Fact if run.row == ABOUT_TOPIC && run.bytes == 0 => {
                chains.remove(&(run.first as u32));
            }
            RunKind::Fact => {}
            RunKind::Next => {
                let chain = chains.entry(run.chain).or_default();
                chain
                    .batches
                    .retain(|it| it.header.base_offset() < run.first);
                // Of a topic that was deleted, what came before may be removed; and what memory had evicted before this disk was
                // to have it, another one has.
                assert!(
                    chain.batches.is_empty() || end_of(&chain.batches) <= run.first,
                    "a chain goes on where it ended, or above"
                );
                chain.next = run.first;
            }
            RunKind::Batches => {
                let chain = chains.entry(run.chain).or_default();
                append(chain, run, bytes);
            }
        }
    }
}

fn append(chain: &mut Chain, run: &Run, bytes: &[u8]) {
    let bytes = &bytes[run.at as usize..(run.at + run.bytes) as usize];
    for (header, frame) in BatchRun::new(run, bytes) {
        let stored = Stored {
            header,
            frame: frame.to_vec(),
        };
        let base = stored.header.base_offset();
        let mut batches = chain.batches.iter();
        match batches.find(|it| it.header.base_offset() == base) {
            Some(before) => assert_eq!(*before, stored, "position {base} has one batch"),
            None => {
                assert_eq!(chain.next, base, "positions are dense");
                chain.batches.push(stored);
                chain.next = end_of(&chain.batches);
            }
        }
    }
}

fn end_of(batches: &[Stored]) -> u64 {
    batches.last().map_or(0, |last| {
        last.header.base_offset() + u64::from(last.header.message_count())
    })
}

/// No frontier is above what the row of its disk says that counts: who follows the row finds all of it.
pub fn check_rows(region: &Region<Simulated>, disks: &[Disk]) {
    let topics = TopicTable::attach(region, None);
    let highest = Leadership::observe(region).highest;
    for area in 0..CANDIDATES.len() as u16 {
        for disk in 0..DISKS {
            let row = region.disk_row(area, disk).found();
            // Nothing counts before its first segment.
            let begun = row.filter(|row| row.nonce != 0);
            let counts = begun.and_then(|row| {
                let disk = &disks[usize::from(disk)];
                counted(disk, row.segment, row.commits)
            });
            // Successors remove segments that they do not need.
            if counts.is_none() && begun.is_some_and(|row| row.epoch < highest) {
                continue;
            }
            for record in 0..TOPICS {
                let frontier = region.frontier(area, disk, record, 0).found();
                // Those of deleted topics stay until another one has the record.
                let is_there = |frontier: &Frontier| topics.by_id(frontier.chain).is_some();
                let Some(frontier) = frontier.filter(is_there) else {
                    continue;
                };
                let epoch = row.map_or(0, |row| row.epoch);
                assert!(frontier.epoch <= epoch, "a frontier without a row");
                let chain = counts
                    .as_ref()
                    .and_then(|counts| counts.get(&frontier.chain));
                let counted = chain.copied().unwrap_or(0);
                assert!(
                    frontier.epoch < epoch || frontier.next <= counted,
                    "the row counts topic {} up to {counted}, and its frontier is {}",
                    frontier.chain,
                    frontier.next
                );
            }
        }
    }
}

/// How far the chains of a disk are where so many commits of a segment count, if it is there.
fn counted(disk: &Disk, segment: u64, commits: u32) -> Option<BTreeMap<u32, u64>> {
    let file = disk.open(&segment_name(segment)).ok()?;
    let header = header_of(&file);
    let before = header
        .before
        .and_then(|it| counted(disk, it.number, it.commits));
    // What was removed has nothing of a topic that is there.
    let mut chains = before.unwrap_or_default();
    let mut scan = Scan::new(&file, header, Depth::Tables);
    while scan.number() < commits {
        let commit = scan.next(&mut |_, _| {}).expect("no fault");
        let runs = commit.expect("what counts is whole").runs;
        let runs = runs.iter().filter(|run| run.kind != RunKind::Fact);
        chains.extend(runs.map(|run| (run.chain, run.end())));
    }
    Some(chains)
}

fn header_of(file: &impl StoredFile) -> SegmentHeader {
    let mut first = AlignedBuffer::new(1);
    file.read(0, &mut first).expect("no fault");
    SegmentHeader::decode(&first).expect("it was begun")
}

/// Damages a commit that a later one counts: that is never taken for the torn end.
pub fn check_damage(disk: &Disk, number: u16, found: &Found, random: &mut Rng) -> bool {
    let Some(last) = found.recovered.segments.last() else {
        return false;
    };
    let name = segment_name(last.header.number);
    let file = disk.open(&name).expect("it was found");
    let mut scan = Scan::new(&file, last.header, Depth::Payloads);
    let mut commits = Vec::new();
    while let Some(commit) = scan.next(&mut |_, _| {}).expect("no fault") {
        commits.push(commit);
    }
    let synced = commits.last().map_or(0, |commit| commit.header.synced);
    let Some(commit) = random.choice(&commits[..synced as usize]) else {
        return false;
    };
    let bytes = u64::from(commit.header.table_at) + commit.header.table_bytes() as u64;
    disk.flip(&name, 8 * commit.at + random.u64(..8 * bytes));
    match Found::read(disk, &disk_id(number)) {
        Err(RecoverError::Damaged { .. }) => {}
        // It was between two runs, where there is nothing.
        Ok(again) => assert_eq!(
            again.recovered.segments.last().map(|it| it.counted),
            Some(last.counted),
            "what counted is thrown away"
        ),
        Err(other) => panic!("{other}"),
    }
    true
}

/// A disk that had nothing of a topic has its publishers' sessions with it, whatever came between.
pub fn check_levelled(before: &[Found], after: &[Found]) {
    let has = |its: &Found, topic: u32| its.topics.iter().any(|it| it.id == topic);
    for (had, now) in before.iter().zip(after) {
        assert!(now.arriving.is_empty(), "{:?}", now.arriving);
        for topic in now.topics.iter().filter(|it| !has(had, it.id)) {
            let chain = embar_disk::Chain {
                topic: topic.id,
                row: Run::ORDERED,
            };
            let sources = before.iter().rev().filter(|its| has(its, topic.id));
            let Some(source) = sources.max_by_key(|its| its.next_of(chain)) else {
                continue;
            };
            let sessions = source.sessions.iter().map(|(_, known)| known);
            for known in sessions.filter(|known| known.row.chain == topic.id) {
                let same = now.sessions.of(topic.id, known.row.producer);
                assert_eq!(same.map(|(_, it)| it), Some(known), "in topic {}", topic.id);
            }
        }
    }
}
