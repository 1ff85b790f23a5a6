//! What readers get of a journal: all that is whole before what is not, however it is read.

mod written;

use embar_disk::format::{SEGMENT_HEADER_BYTES, segment_name};
use embar_disk::history::{Batches, History, HistoryError, Span};
use embar_disk::{AlignedBuffer, Chain, Position, Simulated};
use written::{CHAINS, DISK, MESSAGES, Writer, batch, found_in, index_all, verified};

const CHAIN: Chain = CHAINS[0];
const COMMITS: u64 = 12;

/// A disk with a segment of commits that is over, and what reads it.
fn disk() -> (Simulated, History) {
    let disk = Simulated::new();
    let mut writer = Writer::new(&disk, 1, Position::default());
    (0..COMMITS).for_each(|_| writer.commit());
    writer.begin_segment();
    // So it is known where batches lie, whatever becomes of the commits.
    index_all(&disk);
    let counts = verified(&disk).segments.last().expect("one").counted;
    let mut history = History::new(DISK);
    history.follow(&disk, &counts).expect("no fault");
    (disk, history)
}

fn span(from: u64) -> Span {
    Span {
        chain: CHAIN,
        from,
        end: u64::MAX,
        bytes: 1 << 20,
    }
}

/// All batches of the chain between two positions, as a subscriber gets them.
fn expected(from: u64, next: u64) -> Vec<u8> {
    let firsts = (from..next).step_by(MESSAGES as usize);
    let batches = firsts.flat_map(|first| {
        let (header, payload) = batch(CHAIN, first);
        [header.as_bytes().as_slice(), &payload].concat()
    });
    batches.collect()
}

fn read(disk: &Simulated, history: &mut History, from: u64) -> Result<Batches, HistoryError> {
    history.read(disk, &span(from), &mut |_| true)
}

#[test]
fn batches_before_one_that_is_damaged_are_read() {
    let end = 2 * COMMITS * MESSAGES;
    for commit in 1..=COMMITS as usize {
        let (disk, mut history) = disk();
        let found = &found_in(&disk, 0)[commit];
        let run = &found.runs[0];
        // Its second batch.
        let bit = 8 * (found.at + u64::from(run.at) + u64::from(run.bytes) - 1);
        disk.flip(&segment_name(0), bit);
        let damaged = run.first + MESSAGES;
        let before = read(&disk, &mut history, 0).expect("whole");
        assert_eq!(before.next, damaged);
        assert!(before.bytes == expected(0, damaged));
        let there = read(&disk, &mut history, damaged);
        assert!(
            matches!(there, Err(HistoryError::Damaged { .. })),
            "{there:?}"
        );
        if damaged + MESSAGES < end {
            let behind = read(&disk, &mut history, damaged + MESSAGES).expect("whole");
            assert!(behind.bytes == expected(damaged + MESSAGES, end));
        }
    }
}

#[test]
fn batches_are_read_beside_a_page_that_cannot_be() {
    let (disk, mut history) = disk();
    let commit = &found_in(&disk, 0)[COMMITS as usize - 1];
    disk.wear_out(&segment_name(0), Some(commit.at));
    let (mut from, mut came) = (0, 0);
    let worn = loop {
        match read(&disk, &mut history, from) {
            Ok(batches) => {
                assert!(batches.bytes == expected(from, batches.next));
                (from, came) = (batches.next, came + 1);
            }
            Err(HistoryError::Damaged { .. }) => break from,
            Err(error) => panic!("{from}: {error}"),
        }
    };
    assert!(came > 0 && worn <= commit.runs[0].first, "{worn}");
    let behind = commit.runs[0].first + 2 * MESSAGES;
    let batches = read(&disk, &mut history, behind).expect("whole");
    assert!(batches.bytes == expected(behind, batches.next));
}

#[test]
fn what_is_read_in_parts_is_the_same() {
    let (disk, mut history) = disk();
    let extent = history.find(&disk, &span(0)).expect("it is there");
    let mut whole = AlignedBuffer::new(extent.bytes());
    extent.read(&disk, &mut whole).expect("no fault");
    for pages in 1..20 {
        let mut buffer = AlignedBuffer::new(extent.bytes());
        let mut bytes = 0;
        let mut after = |part, _| bytes += part;
        let read = extent.read_in_parts(&disk, &mut buffer, pages * 4096, &mut after);
        read.expect("no fault");
        assert!(*buffer == *whole, "{pages} pages at once");
        assert_eq!(bytes, extent.bytes());
    }
    // Where a part cannot be read, all that can be is.
    disk.wear_out(&segment_name(0), Some(SEGMENT_HEADER_BYTES as u64));
    let mut buffer = AlignedBuffer::new(extent.bytes());
    extent.read(&disk, &mut whole).expect("in parts");
    let read = extent.read_in_parts(&disk, &mut buffer, 4096, &mut |_, _| {});
    read.expect("in parts");
    assert!(*buffer == *whole);
}
