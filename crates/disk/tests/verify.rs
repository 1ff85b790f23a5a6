//! What is damaged on a disk is found, named, and said what was lost by it; what never counted is no damage.

mod written;

use embar_disk::format::{index_name, segment_name};
use embar_disk::recover::recover;
use embar_disk::scan::Depth;
use embar_disk::verify::{Damage, Wrong, verify};
use embar_disk::{AlignedBuffer, CommitBuilder, Position, Simulated, Storage, StoredFile};
use written::{CHAINS, DISK, SEGMENT_BYTES, Writer, found_in, index_all, verified, written};

/// What is wrong after one bit of a byte was flipped, which is put right again.
fn with_flip(disk: &Simulated, file: &str, at: u64) -> Vec<Damage> {
    disk.flip(file, 8 * at + 3);
    let damage = verified(disk).damage;
    disk.flip(file, 8 * at + 3);
    damage
}

fn lost(damage: &Damage) -> Vec<(u32, u64, u64)> {
    let lost = damage.lost.iter();
    lost.map(|it| (it.chain.topic, it.first, it.next)).collect()
}

#[test]
fn what_is_whole_is_counted_and_agrees_with_what_recovery_finds() {
    let (disk, _) = written();
    index_all(&disk);
    let recovered = recover(&disk, &DISK, &mut |_| {}).expect("whole");
    let verified = verified(&disk);
    assert_eq!(verified.damage, []);
    assert_eq!((verified.commits, verified.batches), (12, 36));
    assert_eq!((verified.torn_bytes, verified.epoch), (0, 1));
    assert_eq!(verified.facts, recovered.facts);
    for chain in CHAINS {
        let all = 0..recovered.position.chains[&chain];
        assert!(verified.whole[&chain].ranges().eq([all]));
    }
    let ends = |it: &embar_disk::recover::Segment| (it.counted, it.end, it.chains.clone());
    let found: Vec<_> = { verified.segments.iter() }
        .map(|it| (it.counted, it.end, it.chains.clone()))
        .collect();
    let expected: Vec<_> = recovered.segments.iter().map(ends).collect();
    assert_eq!(found, expected);
}

#[test]
fn each_kind_of_byte_that_is_wrong_is_named_with_what_is_lost() {
    let (disk, _) = written();
    let name = segment_name(1);
    let commit = &found_in(&disk, 1)[2];
    // Two batches of each chain in a commit, two messages in each batch: this one has positions 16 to 19 of both.
    let (a, b) = ((1, 16, 20), (2, 16, 20));
    let whole_commit = Wrong::Commits { first: 2, last: 2 };
    let batches = |run| Wrong::Batches { commit: 2, run };
    let run = commit.runs[1];
    let table = commit.at + u64::from(commit.header.table_at);
    let batch_bytes = u64::from(run.bytes) / 2;
    for (at, what, gone) in [
        (commit.at, whole_commit.clone(), vec![a, b]),
        (commit.at + 4, whole_commit.clone(), vec![a, b]),
        (commit.at + 36, whole_commit.clone(), vec![a, b]),
        (table + 40, whole_commit, vec![a, b]),
        // The header of the run's first batch, and of its second.
        (commit.at + u64::from(run.at) + 30, batches(1), vec![b]),
        (
            commit.at + u64::from(run.at) + batch_bytes + 30,
            batches(1),
            vec![(2, 18, 20)],
        ),
        // Its payloads, and one of the other chain.
        (
            commit.at + u64::from(run.at) + 70,
            batches(1),
            vec![(2, 16, 18)],
        ),
        (
            commit.at + u64::from(run.at + run.bytes) - 1,
            batches(1),
            vec![(2, 18, 20)],
        ),
        (
            commit.at + u64::from(commit.runs[0].at) + 70,
            batches(0),
            vec![(1, 16, 18)],
        ),
    ] {
        let damage = with_flip(&disk, &name, at);
        let [only] = &damage[..] else {
            panic!("{at}: {damage:?}");
        };
        assert_eq!((&only.file, &only.what), (&name, &what), "byte {at}");
        assert_eq!(lost(only), gone, "byte {at}");
    }
    // What lies between a segment's header and its commits means nothing, as what is behind a table.
    for at in [200, commit.at + u64::from(commit.header.bytes) - 1] {
        assert_eq!(with_flip(&disk, &name, at), []);
    }
    let fact = with_flip(&disk, &name, 4096 + 64);
    assert_eq!(fact.len(), 1);
    assert_eq!(fact[0].what, Wrong::Fact { commit: 0, run: 0 });
    assert_eq!(verified(&disk).damage, [], "all is as it was");
}

#[test]
fn the_header_of_a_segment_is_missed_and_its_commits_are_read() {
    let (disk, _) = written();
    for segment in 0..3 {
        let damage = with_flip(&disk, &segment_name(segment), 50);
        let [only] = &damage[..] else {
            panic!("{segment}: {damage:?}");
        };
        assert_eq!(only.file, segment_name(segment));
        assert_eq!((&only.what, lost(only)), (&Wrong::Header, vec![]));
        assert_eq!(verified(&disk).batches, 36);
    }
}

#[test]
fn several_places_are_all_told() {
    let (disk, _) = written();
    for segment in 1..3 {
        let commits = found_in(&disk, segment);
        for commit in [1, 2] {
            disk.flip(&segment_name(segment), 8 * (commits[commit].at + 20));
        }
    }
    let damage = verified(&disk).damage;
    let told: Vec<_> = damage.iter().map(|it| (&it.what, lost(it))).collect();
    let what = Wrong::Commits { first: 1, last: 2 };
    assert_eq!(
        told,
        [
            (&what, vec![(1, 12, 20), (2, 12, 20)]),
            (&what, vec![(1, 24, 32), (2, 24, 32)])
        ]
    );
}

#[test]
fn a_torn_end_is_no_damage_and_one_that_counted_is() {
    let (disk, mut writer) = written();
    let commits = found_in(&disk, 2);
    let last = commits[3].at;
    for at in [last, last + 8, last + 100] {
        let name = segment_name(2);
        disk.flip(&name, 8 * at);
        let torn = verified(&disk);
        assert_eq!(torn.damage, [], "byte {at}");
        assert_eq!((torn.commits, torn.batches), (11, 32));
        disk.flip(&name, 8 * at);
    }
    // An empty commit says that the last one counted.
    let builder = CommitBuilder::new(AlignedBuffer::new(4096));
    writer.write(builder);
    let damage = with_flip(&disk, &segment_name(2), last + 100);
    assert_eq!(damage[0].what, Wrong::Batches { commit: 3, run: 0 });
    let damage = with_flip(&disk, &segment_name(2), last + 8);
    assert_eq!(damage[0].what, Wrong::Commits { first: 3, last: 3 });
    assert_eq!(lost(&damage[0]), []);
    assert!(damage[0].may_be_more, "nothing says what was there");
    // In a segment that is over, it counted too.
    let last = found_in(&disk, 0)[3].at;
    let damage = with_flip(&disk, &segment_name(0), last + 8);
    assert_eq!(damage[0].what, Wrong::Commits { first: 3, last: 3 });
    assert_eq!(lost(&damage[0]), [(1, 8, 12), (2, 8, 12)]);
}

#[test]
fn what_a_deposed_writer_left_is_dead_and_not_looked_at() {
    let (disk, mut writer) = written();
    let counted = recover(&disk, &DISK, &mut |_| {}).expect("whole").position;
    let mut next = Writer::new(&disk, 2, counted);
    next.commit();
    // It does not know yet, and goes on in its segment.
    writer.commit();
    let other = Position {
        segment: 5,
        ..Position::default()
    };
    let mut deposed = Writer::new(&disk, 1, other);
    deposed.commit();
    disk.flip(&segment_name(5), 8 * (4096 + 70));
    // Writers that died before they had reserved room, and before they wrote the header.
    disk.create(&segment_name(6), 0).expect("new");
    disk.create(&segment_name(7), SEGMENT_BYTES).expect("new");
    let verified = verified(&disk);
    assert_eq!(verified.damage, []);
    assert_eq!(verified.dead, [5, 6, 7]);
    assert_eq!(verified.segments.len(), 4);
    assert_eq!(
        verified.batches, 40,
        "what is behind the end does not exist"
    );
}

#[test]
fn segments_that_are_missing_or_of_another_disk_are_named() {
    let (disk, writer) = written();
    disk.remove(&segment_name(1)).expect("there");
    let missing = verified(&disk).damage;
    assert_eq!(missing.len(), 1);
    assert_eq!(
        (&missing[0].file, &missing[0].what),
        (&segment_name(1), &Wrong::Missing)
    );
    assert_eq!(lost(&missing[0]), [(1, 12, 24), (2, 12, 24)]);
    let foreign = verify(&disk, &[0; 16], Depth::Payloads, &|_| {}).expect("no fault");
    assert!(foreign.damage.iter().all(|it| it.what == Wrong::Foreign));
    assert_eq!(foreign.damage.len(), 2);
    // What is said to be kept no more is not missed.
    let mut writer = writer;
    writer.journal.keep_from(2);
    writer.begin_segment();
    assert_eq!(verified(&disk).damage, []);
}

#[test]
fn an_index_says_what_is_in_its_segment() {
    let (disk, mut writer) = written();
    let indexes = index_all(&disk);
    assert_eq!(indexes.len(), 2);
    let name = index_name(0);
    let damage = with_flip(&disk, &name, 70);
    assert_eq!((&damage[0].file, &damage[0].what), (&name, &Wrong::Index));
    // What a damaged commit had is known from it, also where no later one goes on.
    writer.begin_segment();
    let segment = found_in(&disk, 1);
    let damage = with_flip(&disk, &segment_name(1), segment[3].at + 8);
    assert_eq!(lost(&damage[0]), [(1, 20, 24), (2, 20, 24)]);
    assert!(!damage[0].may_be_more);
    let mut other = indexes[1].clone();
    other.entries[1].first += 1;
    let mut bytes = AlignedBuffer::new(4096);
    let file = other.encode();
    bytes[..file.len()].copy_from_slice(&file);
    let stored = disk.open(&index_name(1)).expect("there");
    stored.write_synced(0, &bytes, 4096).expect("no fault");
    let damage = verified(&disk).damage;
    assert_eq!(damage.len(), 1);
    assert_eq!(
        (&damage[0].file, &damage[0].what),
        (&index_name(1), &Wrong::OtherIndex)
    );
}

#[test]
fn a_page_that_cannot_be_read_costs_its_commit() {
    let (disk, _) = written();
    let (name, at) = (segment_name(1), found_in(&disk, 1)[2].at);
    disk.wear_out(&name, Some(at));
    let damage = verified(&disk).damage;
    let told: Vec<_> = damage.iter().map(|it| (it.what.name(), lost(it))).collect();
    let commit = ("commits", vec![(1, 16, 20), (2, 16, 20)]);
    assert_eq!(told, [commit, ("unreadable", vec![])]);
    let why = damage[1].what.to_string();
    assert!(
        why.starts_with(&format!("1 pages from byte {at} on cannot be read: ")),
        "{why}"
    );
    disk.wear_out(&name, Some(0));
    let damage = verified(&disk).damage;
    assert_eq!(damage[0].what, Wrong::Header);
    assert_eq!(verified(&disk).batches, 36);
}

#[test]
fn positions_that_were_written_again_are_not_lost() {
    let (disk, _) = written();
    let mut counted = recover(&disk, &DISK, &mut |_| {}).expect("whole").position;
    // As when the region knows of less than the disk has.
    counted.chains.values_mut().for_each(|next| *next = 16);
    let mut writer = Writer::new(&disk, 2, counted);
    (0..3).for_each(|_| writer.commit());
    let at = found_in(&disk, 1)[2].at;
    let damage = with_flip(&disk, &segment_name(1), at + 8);
    assert_eq!(damage.len(), 1);
    assert_eq!(lost(&damage[0]), []);
}

#[test]
fn no_byte_of_what_counts_is_wrong_unnoticed() {
    let (disk, _) = written();
    let expected = verified(&disk);
    let end = expected.segments[0].end;
    for at in (0..end).step_by(61) {
        disk.flip(&segment_name(0), 8 * at + at % 8);
        let found = verified(&disk);
        // Zeros that fill up a header, a run or a commit mean nothing.
        if found.damage.is_empty() {
            assert_eq!(found.whole, expected.whole, "byte {at}");
            assert_eq!(found.facts, expected.facts, "byte {at}");
        }
        disk.flip(&segment_name(0), 8 * at + at % 8);
    }
}

#[test]
fn whatever_is_damaged_what_is_lost_was_there_and_what_is_whole_is_not_lost() {
    for seed in 0..100 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (disk, _) = written();
        if random.bool() {
            index_all(&disk);
        }
        let all = verified(&disk).whole;
        let names = disk.names().expect("no fault");
        for _ in 0..random.usize(1..6) {
            let name = &names[random.usize(..names.len())];
            let bytes = disk.open(name).and_then(|file| file.size()).expect("there");
            disk.flip(name, random.u64(..8 * bytes.min(20 << 10)));
        }
        let found = verified(&disk);
        for (chain, whole) in &found.whole {
            for range in whole.ranges() {
                assert!(
                    all[chain].within(&range).ranges().eq([range]),
                    "seed {seed}"
                );
            }
        }
        for lost in found.damage.iter().flat_map(|damage| &damage.lost) {
            let positions = lost.positions();
            assert!(
                all[&lost.chain]
                    .within(&positions)
                    .ranges()
                    .eq([positions.clone()])
            );
            let whole = found.whole.get(&lost.chain);
            assert!(whole.is_none_or(|it| it.within(&positions).ranges().next().is_none()));
        }
    }
}
