//! A disk with three segments, written as a broker writes it.

#![allow(dead_code, reason = "each test uses a part of it")]

use embar_disk::format::{
    Run, SEGMENT_HEADER_BYTES, SegmentHeader, SegmentIndex, index_name, segment_name,
};
use embar_disk::recover::recover;
use embar_disk::scan::{Depth, Found, Scan};
use embar_disk::verify::{Verified, verify};
use embar_disk::{
    AlignedBuffer, Chain, CommitBuilder, Journal, Position, Progress, Simulated, Storage,
    StoredFile, begin_segment, prepare_segment,
};
use embar_wire::batch::{BatchHeader, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};
use embar_wire::time::WallNs;

pub const DISK: [u8; 16] = *b"a disk for tests";
pub const SEGMENT_BYTES: u64 = 64 << 10;
pub const CHAINS: [Chain; 2] = [
    Chain {
        topic: 1,
        row: Run::ORDERED,
    },
    Chain { topic: 2, row: 3 },
];
/// Messages of each batch.
pub const MESSAGES: u64 = 2;
pub const FACT: u16 = 1;

/// A batch with its place.
pub fn batch(chain: Chain, first: u64) -> (BatchHeader, Vec<u8>) {
    let mut builder = BatchBuilder::new(Vec::new(), 8 << 10);
    for message in 0..MESSAGES {
        let value = [first as u8, message as u8].repeat(40);
        builder.try_push(None, &[], &value).expect("it fits");
    }
    let fields = SealFields {
        topic: chain.topic,
        ..SealFields::default()
    };
    let frame: Vec<u8> = builder.seal(fields).into();
    let mut header = BatchHeader::parse(&frame, MAX_BATCH_BYTES).expect("sealed");
    header.stamp(first, WallNs(1));
    (header, frame[BATCH_HEADER_BYTES..].to_vec())
}

/// A writer whose commits are synced at once.
pub struct Writer {
    pub disk: Simulated,
    pub journal: Journal,
    pub file: <Simulated as Storage>::File,
}

impl Writer {
    /// Begins a segment and says all facts in it.
    pub fn new(disk: &Simulated, epoch: u32, position: Position) -> Self {
        Self::of(disk, DISK, epoch, position)
    }

    /// As [`Writer::new`], of another disk of the log.
    pub fn of(disk: &Simulated, id: [u8; 16], epoch: u32, position: Position) -> Self {
        let mut journal = Journal::new(id, (epoch, 1), SEGMENT_BYTES, position);
        let file = prepare_segment(disk, journal.next_segment()).expect("no fault");
        let begun = begin_segment(&mut journal, &file, u64::from(epoch) << 8 | 1, 1);
        begun.expect("no fault");
        let mut writer = Self {
            disk: disk.clone(),
            file,
            journal,
        };
        writer.say_facts();
        writer
    }

    pub fn say_facts(&mut self) {
        let mut builder = CommitBuilder::new(AlignedBuffer::new(16 << 10));
        self.journal.say_first_kept(&mut builder).expect("room");
        builder.fact(FACT, 7, b"a fact").expect("room");
        for progress in self.journal.chains() {
            builder.next(&progress).expect("room");
        }
        builder.complete_facts();
        self.write(builder);
    }

    pub fn begin_segment(&mut self) {
        let nonce = self.journal.next_segment().0 + 1000;
        let next = self.journal.next_segment();
        self.file = prepare_segment(&self.disk, next).expect("no fault");
        let begun = begin_segment(&mut self.journal, &self.file, nonce, 1);
        begun.expect("no fault");
        self.say_facts();
    }

    /// Writes a commit with two batches of each chain.
    pub fn commit(&mut self) {
        let mut builder = CommitBuilder::new(AlignedBuffer::new(16 << 10));
        for chain in CHAINS {
            let mut next = self.journal.next_of(chain);
            for _ in 0..2 {
                let (header, payload) = batch(chain, next);
                let fill = |room: &mut [u8]| room.copy_from_slice(&payload);
                builder.batch(chain.row, &header, fill).expect("room");
                next += MESSAGES;
            }
        }
        self.write(builder);
    }

    pub fn write(&mut self, builder: CommitBuilder) {
        let commit = self.journal.seal(builder, 1);
        self.file
            .write_synced(commit.at, &commit.buffer, commit.len)
            .expect("no fault");
        let mut counts: Vec<Progress> = Vec::new();
        self.journal.synced(commit.ticket, &mut counts);
    }
}

/// Three segments with one commit of facts and three of batches in each, the last of which nothing confirms.
pub fn written() -> (Simulated, Writer) {
    let disk = Simulated::new();
    let mut writer = Writer::new(&disk, 1, Position::default());
    for segment in 0..3 {
        if segment > 0 {
            writer.begin_segment();
        }
        (0..3).for_each(|_| writer.commit());
    }
    (disk, writer)
}

pub fn verified(disk: &Simulated) -> Verified {
    verify(disk, &DISK, Depth::Payloads, &|_| {}).expect("no fault")
}

pub fn found_in(disk: &Simulated, segment: u64) -> Vec<Found> {
    let file = disk.open(&segment_name(segment)).expect("there");
    let mut first = AlignedBuffer::new(SEGMENT_HEADER_BYTES);
    file.read(0, &mut first).expect("no fault");
    let header = SegmentHeader::decode(&first).expect("written");
    let mut scan = Scan::new(&file, header, Depth::Payloads);
    let mut all = Vec::new();
    while let Some(found) = scan.next(&mut |_, _| {}).expect("no fault") {
        all.push(found);
    }
    all
}

/// Stores the indexes of the segments that are over.
pub fn index_all(disk: &Simulated) -> Vec<SegmentIndex> {
    let recovered = recover(disk, &DISK, &mut |_| {}).expect("whole");
    for index in &recovered.unindexed {
        let file = index.encode();
        let stored = disk.create(&index_name(index.segment.number), file.len() as u64);
        let mut bytes = AlignedBuffer::new(file.len());
        bytes[..file.len()].copy_from_slice(&file);
        let (stored, len) = (stored.expect("new"), bytes.len());
        stored.write_synced(0, &bytes, len).expect("no fault");
    }
    recovered.unindexed
}
