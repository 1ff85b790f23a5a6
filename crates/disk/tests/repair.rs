//! What is damaged on a disk is put back from another one, bit by bit; and what no disk has is given up, and nothing else.

mod written;

use std::collections::BTreeMap;

use embar_disk::format::{index_name, segment_name};
use embar_disk::history::{History, HistoryError, Span};
use embar_disk::recover::recover;
use embar_disk::repair::{Action, Copy, OtherDisks, repair_disk};
use embar_disk::scan::Depth;
use embar_disk::verify::{Lost, Verified, Wrong, verify};
use embar_disk::{AlignedBuffer, CommitBuilder, Position, Simulated, Storage, StoredFile};
use written::{CHAINS, DISK, Writer, found_in, index_all, verified, written};

const OTHER: [u8; 16] = *b"another of these";

/// A disk with the same messages in other commits.
fn other() -> Simulated {
    let disk = Simulated::new();
    let mut writer = Writer::of(&disk, OTHER, 1, Position::default());
    (0..4).for_each(|_| writer.commit());
    writer.begin_segment();
    (0..5).for_each(|_| writer.commit());
    disk
}

/// All files of a disk.
fn bytes_of(disk: &Simulated) -> BTreeMap<String, Vec<u8>> {
    let names = disk.names().expect("no fault");
    let files = names.into_iter().map(|name| {
        let file = disk.open(&name).expect("there");
        let mut bytes = AlignedBuffer::new(file.size().expect("known") as usize);
        let came = file.read(0, &mut bytes).expect("no fault");
        let bytes = bytes[..came].to_vec();
        (name, bytes)
    });
    files.collect()
}

fn overwrite(disk: &Simulated, name: &str, at: u64, len: usize) {
    let file = disk.open(name).expect("there");
    let mut bytes = AlignedBuffer::new(len);
    bytes.fill(0xa5);
    file.write_synced(at, &bytes, len).expect("no fault");
}

/// What a repair came to.
#[derive(Debug, Default, PartialEq)]
struct Done {
    exact: u32,
    made: u32,
    indexes: u32,
    nothing: u32,
    lost: Vec<Lost>,
}

/// Repairs a disk, with what others have; does what loses something only if that is given up.
fn repair(disk: &Simulated, others: &[&Simulated], gives_up: bool) -> Done {
    let own = verified(disk);
    let all: Vec<Verified> = { others.iter() }
        .map(|it| verify(*it, &OTHER, Depth::Payloads, &|_| {}).expect("no fault"))
        .collect();
    let mut copies: Vec<_> = { others.iter().zip(&all) }
        .filter_map(|(disk, verified)| Copy::of(*disk, OTHER, verified))
        .collect();
    copies.extend(Copy::of(disk, DISK, &own));
    let mut copies = OtherDisks::new(copies);
    let mut done = Done::default();
    repair_disk(disk, &DISK, &own, &mut copies, &mut |repair| {
        match repair.action {
            Action::Write(fix) if fix.is_exact => done.exact += 1,
            Action::Write(fix) => {
                let loses = !fix.lost.is_empty() || fix.lost_facts;
                if loses && !gives_up {
                    done.nothing += 1;
                    return false;
                }
                done.made += 1;
                done.lost.extend(&fix.lost);
            }
            Action::Index => done.indexes += 1,
            Action::Nothing => done.nothing += 1,
        }
        true
    })
    .expect("no fault");
    done
}

/// Repairs until nothing more can be done.
fn repair_all(disk: &Simulated, others: &[&Simulated], gives_up: bool) -> Done {
    let mut all = Done::default();
    loop {
        let done = repair(disk, others, gives_up);
        all.lost.extend(&done.lost);
        all.nothing = done.nothing;
        all.exact += done.exact;
        all.made += done.made;
        if (done.exact, done.made, done.indexes) == (0, 0, 0) {
            return all;
        }
    }
}

#[test]
fn each_byte_of_what_counts_is_put_back_as_it_was() {
    let (disk, mut writer) = written();
    // An empty one says that the last with batches counted.
    writer.write(CommitBuilder::new(AlignedBuffer::new(4096)));
    index_all(&disk);
    let copy = other();
    let whole = bytes_of(&disk);
    for (segment, step) in [(0, 31), (1, 47), (2, 61)] {
        let name = segment_name(segment);
        let end = verified(&disk).segments[segment as usize].end - 4096;
        for at in (0..end).step_by(step) {
            disk.flip(&name, 8 * at + at % 8);
            if verified(&disk).damage.is_empty() {
                disk.flip(&name, 8 * at + at % 8);
                continue;
            }
            let done = repair_all(&disk, &[&copy], false);
            assert_eq!((done.exact, done.nothing), (1, 0), "{name}, byte {at}");
            assert!(bytes_of(&disk) == whole, "{name}, byte {at}");
        }
    }
    for segment in 0..2 {
        let name = index_name(segment);
        for at in 0..whole[&name].len() as u64 {
            disk.flip(&name, 8 * at + at % 8);
            if verified(&disk).damage.is_empty() {
                disk.flip(&name, 8 * at + at % 8);
                continue;
            }
            repair_all(&disk, &[], false);
            let index = &bytes_of(&disk)[&name];
            assert!(index.starts_with(&whole[&name]), "{name}, byte {at}");
        }
    }
}

#[test]
fn a_table_that_is_gone_is_made_anew_with_all_messages() {
    for is_indexed in [true, false] {
        let (disk, _) = written();
        if is_indexed {
            index_all(&disk);
        }
        let before = verified(&disk);
        let commit = &found_in(&disk, 1)[2];
        overwrite(
            &disk,
            &segment_name(1),
            commit.at,
            commit.header.bytes as usize,
        );
        assert_eq!(verified(&disk).damage.len(), 1);
        let done = repair_all(&disk, &[&other()], false);
        assert_eq!((done.made, done.nothing), (1, 0));
        let after = verified(&disk);
        assert_eq!((after.damage, after.whole), (vec![], before.whole));
        recover(&disk, &DISK, &mut |_| {}).expect("whole");
    }
}

#[test]
fn batches_that_are_whole_are_kept_where_only_the_table_is_gone() {
    let (disk, _) = written();
    index_all(&disk);
    let before = verified(&disk);
    let commit = &found_in(&disk, 1)[2];
    // More than one bit, so there is nothing to find.
    for bit in [3, 70, 200, 301] {
        let table = commit.at + u64::from(commit.header.table_at);
        disk.flip(&segment_name(1), 8 * table + bit);
    }
    let done = repair_all(&disk, &[], false);
    assert_eq!((done.made, done.nothing), (1, 0));
    let after = verified(&disk);
    assert_eq!((after.damage, after.whole), (vec![], before.whole));
}

#[test]
fn several_commits_in_a_row_and_all_of_a_segment_are_made_anew() {
    let (disk, _) = written();
    index_all(&disk);
    let before = verified(&disk);
    let commits = found_in(&disk, 1);
    let len = (before.segments[1].end - commits[1].at) as usize;
    overwrite(&disk, &segment_name(1), commits[1].at, len);
    let done = repair_all(&disk, &[&other()], false);
    assert_eq!((done.made, done.nothing), (3, 0));
    assert_eq!(verified(&disk).damage, []);
    assert_eq!(verified(&disk).whole, before.whole);
    let len = (before.segments[1].end - commits[0].at) as usize;
    overwrite(&disk, &segment_name(1), commits[0].at, len);
    let done = repair_all(&disk, &[&other()], false);
    assert_eq!((done.made, done.nothing), (4, 0));
    let after = verified(&disk);
    assert_eq!((after.damage, after.whole), (vec![], before.whole));
    recover(&disk, &DISK, &mut |_| {}).expect("whole");
}

#[test]
fn the_header_of_a_segment_comes_from_those_around_it() {
    for segment in 0..3 {
        let (disk, _) = written();
        index_all(&disk);
        let whole = recover(&disk, &DISK, &mut |_| {}).expect("whole");
        overwrite(&disk, &segment_name(segment), 0, 4096);
        let done = repair_all(&disk, &[], false);
        assert_eq!((done.made, done.nothing), (1, 0), "segment {segment}");
        assert_eq!(verified(&disk).damage, []);
        let again = recover(&disk, &DISK, &mut |_| {}).expect("whole");
        assert_eq!(again.position, whole.position);
    }
}

#[test]
fn what_no_disk_has_is_named_and_given_up_alone() {
    for is_indexed in [true, false] {
        let (disk, mut writer) = written();
        if is_indexed {
            index_all(&disk);
        }
        writer.write(CommitBuilder::new(AlignedBuffer::new(4096)));
        let before = verified(&disk);
        // One batch in a segment that is over, and one in the last.
        let mut gone = Vec::new();
        for (segment, run) in [(1, 0), (2, 1)] {
            let commit = &found_in(&disk, segment)[2];
            let run = commit.runs[run];
            let bit = 8 * (commit.at + u64::from(run.at) + 70);
            disk.flip(&segment_name(segment), bit);
            let chain = CHAINS[(run.chain - 1) as usize];
            gone.push((chain, run.first, run.first + 2));
        }
        let damaged = bytes_of(&disk);
        let refused = repair_all(&disk, &[], false);
        assert_eq!((refused.nothing, refused.made, refused.exact), (2, 0, 0));
        assert!(bytes_of(&disk) == damaged, "nothing was changed");
        let done = repair_all(&disk, &[], true);
        assert_eq!((done.nothing, done.made), (0, 2));
        let lost: Vec<_> = { done.lost.iter() }
            .map(|it| (it.chain, it.first, it.next))
            .collect();
        assert_eq!(lost, gone);
        let after = verified(&disk);
        assert_eq!(after.damage, []);
        assert_eq!(after.chains, before.chains, "no position shifts");
        let recovered = recover(&disk, &DISK, &mut |_| {}).expect("usable");
        assert_eq!(recovered.position.chains, before.chains);
        for (chain, whole) in &before.whole {
            for range in whole.ranges() {
                let missing = after.whole[chain].missing_in(&range);
                let of_it = gone.iter().filter(|it| it.0 == *chain).map(|it| it.1..it.2);
                assert!(missing.ranges().eq(of_it));
            }
        }
        // Readers are told where to go on, and a segment of which all is lost is passed by its index.
        let counts = after.segments.last().expect("some").counted;
        let mut history = History::new(DISK);
        history.follow(&disk, &counts).expect("no fault");
        let (chain, first, next) = gone[0];
        let span = Span {
            chain,
            from: first,
            end: u64::MAX,
            bytes: 1,
        };
        let read = history.read(&disk, &span, &mut |_| true);
        assert!(
            matches!(read, Err(HistoryError::Gone { first }) if first == next),
            "{read:?}"
        );
    }
}

#[test]
fn a_write_that_fails_or_is_torn_is_done_again() {
    let (disk, _) = written();
    index_all(&disk);
    let whole = bytes_of(&disk);
    let commit = &found_in(&disk, 1)[2];
    let name = segment_name(1);
    let at = commit.at + u64::from(commit.runs[0].at) + 70;
    for sectors in 0..8 {
        disk.flip(&name, 8 * at);
        disk.flip(&name, 8 * (at + 300));
        // A power cut let so many sectors of what was right come to the disk.
        let file = disk.open(&name).expect("there");
        let mut page = AlignedBuffer::new(4096);
        file.read(commit.at, &mut page).expect("no fault");
        let from = commit.at as usize;
        page[..sectors * 512].copy_from_slice(&whole[&name][from..from + sectors * 512]);
        file.write_synced(commit.at, &page, 4096).expect("no fault");
        repair_all(&disk, &[&other()], false);
        assert!(bytes_of(&disk) == whole, "{sectors} sectors");
    }
}

#[test]
fn facts_of_a_term_are_not_made_up() {
    let (disk, mut writer) = written();
    writer.write(CommitBuilder::new(AlignedBuffer::new(4096)));
    overwrite(&disk, &segment_name(2), 4096, 4096);
    let done = repair_all(&disk, &[&other()], true);
    assert_eq!((done.nothing, done.made), (1, 0));
    assert!(matches!(
        verified(&disk).damage[0].what,
        Wrong::Commits { first: 0, .. }
    ));
}

#[test]
fn whatever_is_damaged_a_repair_makes_nothing_worse_and_what_it_gives_up_was_damaged() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (disk, mut writer) = written();
        writer.write(CommitBuilder::new(AlignedBuffer::new(4096)));
        if random.bool() {
            index_all(&disk);
        }
        let before = verified(&disk);
        let copy = other();
        let names = disk.names().expect("no fault");
        // What says that the last batches counted stays: without it a crash may have torn them.
        let last = found_in(&disk, 2).pop().expect("some").at;
        for _ in 0..random.usize(1..8) {
            let name = &names[random.usize(..names.len())];
            let bytes = disk.open(name).and_then(|file| file.size()).expect("there");
            let most = bytes.min(20 << 10).min(last);
            match random.u8(..4) {
                0 if name.ends_with("segment") => {
                    overwrite(&disk, name, random.u64(..most / 4096) * 4096, 4096);
                }
                _ => disk.flip(name, random.u64(..8 * most)),
            }
        }
        let others: &[&Simulated] = if random.bool() { &[&copy] } else { &[] };
        let damaged = verified(&disk);
        let done = repair_all(&disk, others, true);
        let after = verified(&disk);
        for (chain, whole) in &damaged.whole {
            for range in whole.ranges() {
                let missing = after.whole[chain].missing_in(&range);
                assert!(missing.ranges().next().is_none(), "seed {seed}: {done:?}");
            }
        }
        for (chain, whole) in &after.whole {
            for range in whole.ranges() {
                assert!(
                    before.whole[chain]
                        .missing_in(&range)
                        .ranges()
                        .next()
                        .is_none(),
                    "seed {seed}"
                );
            }
        }
        if done.nothing == 0 {
            assert_eq!(after.damage, [], "seed {seed}: {done:?}");
            let recovered = recover(&disk, &DISK, &mut |_| {});
            let recovered = recovered.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            if !others.is_empty() {
                assert_eq!(
                    recovered.position.chains, before.chains,
                    "seed {seed}: {done:?}"
                );
                assert_eq!(done.lost, [], "seed {seed}");
            }
        }
    }
}
