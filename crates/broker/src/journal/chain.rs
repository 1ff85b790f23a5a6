//! One chain on its way to the disk: what is ordered, or in a broker's index, and not in the journal yet.

use std::collections::VecDeque;

use embar_disk::Chain as ChainName;
use embar_disk::format::Run;
use embar_fabric::region::Region;
use embar_fabric::{GoiRecord, IndexCursor, IndexRecord};
use embar_memory::Memory;
use embar_order::follower::Found;
use embar_order::{Follower, Term};
use embar_wire::batch::BatchHeader;

use super::indexes::Indexes;
use crate::log::{indexed_header, ordered_header};

/// Records that are read at once.
const RECORDS: usize = 64;

/// A chain that is written to the disk.
pub(super) struct Chain<M: Memory> {
    name: ChainName,
    source: Source<M>,
    /// What comes next.
    ahead: VecDeque<Batch>,
    /// It waits for its turn.
    pub is_queued: bool,
    /// What comes next cannot be had: nothing more is written in this term.
    pub is_stuck: bool,
    /// Another disk has taken this one's place: nothing more of it is written here.
    pub is_over: bool,
}

/// Where it is read, with records of that kind that are kept for their memory.
enum Source<M: Memory> {
    /// The order.
    Order(Box<Follower<M>>, Vec<GoiRecord>),
    /// A broker's index.
    Index(IndexCursor, Vec<IndexRecord>),
}

/// A batch, as the order or an index describes it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Batch {
    /// At orders 2 and 5.
    Ordered(GoiRecord),
    /// At orders 0 and 1.
    Indexed(IndexRecord),
}

/// Whether a chain has something to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ahead {
    /// The next record.
    Some,
    /// Nothing, for now.
    None,
    /// What comes next is not kept any more, or cannot be read, at least in this term.
    Gone,
}

impl Batch {
    /// Bytes, header included.
    pub fn len(&self) -> u32 {
        match self {
            Self::Ordered(record) => record.len,
            Self::Indexed(record) => record.len,
        }
    }

    /// Where it lies: the broker in whose payload file, and the offset in that.
    pub fn place(&self, chain: ChainName) -> (u16, u64) {
        match self {
            Self::Ordered(record) => (record.row.into(), record.payload_at),
            Self::Indexed(record) => (chain.row, record.payload_at),
        }
    }

    /// The header that `bytes` begin with, as it goes to the disk, if it is that of this batch.
    pub fn header_in(&self, bytes: &[u8], chain: ChainName) -> Option<BatchHeader> {
        match self {
            Self::Ordered(record) => {
                let mut header = ordered_header(record, chain.topic, bytes)?;
                let append_time = header.append_time();
                header.stamp(record.base, append_time);
                header.set_stored_by(record.row.into());
                Some(header)
            }
            Self::Indexed(record) => indexed_header(record, chain.topic, bytes),
        }
    }
}

impl<M: Memory> Chain<M> {
    /// The chain from `next` on.
    pub fn new(region: &Region<M>, name: ChainName, next: u64) -> Self {
        let source = match name.row {
            Run::ORDERED => {
                let follower = Follower::new(region, name.topic, next);
                Source::Order(Box::new(follower), Vec::new())
            }
            _ => Source::Index(IndexCursor::new(name.topic, next), Vec::new()),
        };
        Self {
            name,
            source,
            ahead: VecDeque::new(),
            is_queued: false,
            is_stuck: false,
            is_over: false,
        }
    }

    /// Looks what comes next. It counts only if the term lasts afterwards.
    pub fn look(&mut self, term: Term, indexes: &mut Indexes<M>) -> Ahead {
        if !self.ahead.is_empty() {
            return Ahead::Some;
        }
        let found = match &mut self.source {
            Source::Order(follower, read) => {
                let found = follower.read(term, RECORDS, read);
                self.ahead.extend(read.drain(..).map(Batch::Ordered));
                match found {
                    Found::Gone { .. } => Ahead::Gone,
                    Found::End | Found::More if follower.is_damaged() => Ahead::Gone,
                    Found::End | Found::More => Ahead::None,
                }
            }
            Source::Index(cursor, read) => {
                let found = indexes.read(self.name.row, cursor, RECORDS, read);
                self.ahead.extend(read.drain(..).map(Batch::Indexed));
                found.map_or(Ahead::Gone, |()| Ahead::None)
            }
        };
        match self.ahead.is_empty() {
            true => found,
            false => Ahead::Some,
        }
    }

    /// The next batch.
    pub fn first(&self) -> Option<&Batch> {
        self.ahead.front()
    }

    /// The next batch is in the journal.
    pub fn pass(&mut self) {
        self.ahead.pop_front();
    }
}
