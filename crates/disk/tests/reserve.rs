//! A reserve becomes a segment where there is no room for one.

use std::io::ErrorKind;

use embar_disk::format::{ALIGN_BYTES, segment_name};
use embar_disk::recover::recover;
use embar_disk::{
    AlignedBuffer, CommitBuilder, Journal, Position, RESERVE, Simulated, Storage, StoredFile,
    begin_segment, keep_reserve, make_segment, take_reserve,
};

const DISK: [u8; 16] = [7; 16];
const PAGE: u64 = ALIGN_BYTES as u64;
const ABOUT: u16 = 1;

/// Says one fact, in the segment that this file has.
fn say(journal: &mut Journal, file: &impl StoredFile, key: u64) {
    let mut builder = CommitBuilder::new(AlignedBuffer::new(ALIGN_BYTES));
    builder.fact(ABOUT, key, b"so").expect("room");
    let commit = journal.seal(builder, 1);
    let written = file.write_synced(commit.at, &commit.buffer, commit.len);
    written.expect("no fault");
    journal.synced(commit.ticket, &mut Vec::new());
}

#[test]
fn a_reserve_is_a_segment_as_long_as_it_is() {
    let disk = Simulated::new();
    let mut journal = Journal::new(DISK, (1, 1), 16 * PAGE, Position::default());
    let none = take_reserve(&disk, &mut journal).expect_err("there is none");
    assert_eq!(none.kind(), ErrorKind::NotFound);
    let file = make_segment(&disk, &mut journal).expect("room");
    begin_segment(&mut journal, &file, 11, 1).expect("no fault");
    say(&mut journal, &file, 1);
    keep_reserve(&disk, 2 * PAGE).expect("room");
    keep_reserve(&disk, 2 * PAGE).expect("it is there");
    // A deposed writer has taken the number.
    let next = journal.next_segment().0;
    disk.create(&segment_name(next), PAGE).expect("room");
    let file = take_reserve(&disk, &mut journal).expect("it is there");
    let names = disk.names().expect("no fault");
    assert!(!names.contains(&RESERVE.to_owned()), "{names:?}");
    begin_segment(&mut journal, &file, 12, 1).expect("no fault");
    assert_eq!(journal.room() as u64, PAGE, "behind the header");
    say(&mut journal, &file, 2);
    assert_eq!(journal.room(), 0);
    assert!(
        take_reserve(&disk, &mut journal).is_err(),
        "it was given up"
    );

    let found = recover(&disk, &DISK, &mut |_| {}).expect("whole");
    let keys: Vec<u64> = found.facts.keys().map(|(_, key)| *key).collect();
    assert_eq!(keys, [1, 2]);
    let numbers = found.segments.iter().map(|it| it.header.number);
    assert_eq!(numbers.collect::<Vec<_>>(), [next - 1, next + 1]);
}

#[test]
fn a_reserve_that_finds_no_room_is_none() {
    let disk = Simulated::new();
    disk.fail_after(0, ErrorKind::StorageFull);
    let full = keep_reserve(&disk, PAGE).expect_err("full");
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    assert!(disk.names().expect("no fault").is_empty());
}
