//! The disk of a world, and its writer, each step by hand.

use embar_broker::clock::Timestamp;
use embar_broker::journal::{Found, Gathered, Limits, Writer};
use embar_disk::history::{Batches, History, HistoryError, Span};
use embar_disk::{AlignedBuffer, Chain, Commit, Storage, StoredFile, prepare_segment};
use embar_frame::Now;
use embar_memory::Simulated;
use embar_order::{Sequencer, Term};
use embar_wire::time::WallNs;

use super::world::World;

const ID: [u8; 16] = [3; 16];
const SEGMENT_BYTES: u64 = 1 << 20;
/// Nothing comes of age.
const TIME: Timestamp = Timestamp {
    now: Now(1),
    wall: WallNs(1),
};

type Disk = embar_disk::Simulated;

/// The writer of disk 0, in the term of a sequencer.
pub struct DiskWriter {
    disk: Disk,
    writer: Writer<Simulated>,
    file: Option<<Disk as Storage>::File>,
    nonce: u64,
}

/// What the disk has, read back.
pub fn found(disk: &Disk) -> Found {
    Found::read(disk, &ID).expect("nothing is damaged")
}

/// The batches of a chain from a position on, as a subscriber gets them.
pub fn history(disk: &Disk, chain: Chain, from: u64) -> Result<Batches, HistoryError> {
    let counted = found(disk).recovered.position.before;
    let mut history = History::new(ID);
    history.follow(disk, &counted.expect("something counts"))?;
    let span = Span {
        chain,
        from,
        end: u64::MAX,
        bytes: 1 << 20,
    };
    history.read(disk, &span, &mut |_| true)
}

impl DiskWriter {
    /// Goes on with what the disk has.
    pub fn open(world: &World, sequencer: &Sequencer<Simulated>, disk: &Disk) -> Self {
        let (region, epoch) = (world.host(), sequencer.epoch());
        let claim = region.claim_unlocked(0);
        let news = region.frontier_news_writer(&claim);
        let start = found(disk).start((epoch, region.nonce()), (SEGMENT_BYTES, Limits::NONE), news);
        let term = Term { epoch, area: 0 };
        Self {
            writer: Writer::new(&region, &claim, term, 0, start),
            disk: disk.clone(),
            file: None,
            nonce: u64::from(epoch) << 32,
        }
    }

    /// What comes next, if anything does.
    pub fn gather(&mut self) -> Option<Commit> {
        loop {
            match self.writer.gather(AlignedBuffer::new(1 << 16), TIME) {
                Gathered::Commit(commit) => return Some(commit),
                Gathered::Segment(_) => {
                    self.nonce += 1;
                    let next = self.writer.next_segment();
                    let file = prepare_segment(&self.disk, next);
                    let file = file.expect("a simulated disk has room");
                    let begun = self.writer.begin_segment(&file, self.nonce, 1);
                    begun.expect("a simulated disk takes everything");
                    self.file = Some(file);
                }
                Gathered::Nothing(_) | Gathered::Deposed => return None,
                Gathered::Busy(_) => panic!("nothing is on its way"),
            }
        }
    }

    /// A commit gets onto the disk.
    pub fn sync(&mut self, commit: Commit) {
        let file = self.file.as_ref().expect("a segment was begun");
        let written = file.write_synced(commit.at, &commit.buffer, commit.len);
        let counted = self.writer.written(commit.ticket, written);
        counted.expect("a simulated disk takes everything");
    }

    /// All that there is gets onto the disk.
    pub fn write(&mut self) {
        while let Some(commit) = self.gather() {
            self.sync(commit);
        }
    }
}
