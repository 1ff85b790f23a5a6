//! A data broker's log: admits batches, gives them offsets or has them ordered, evicts, reads.
//!
//! Orders 0 and 1: a batch gets its offset when its last byte was checked, in the order in which
//! batches complete on this broker. Orders 2 and 5: it goes to the sequencer then, and what becomes
//! of it is told by [`Log::poll_order`].
//!
//! Invariants
//! - An index or lane record is published only after every line of its batch, header
//!   included, was written back (I2).
//! - The index and the window, or the global order, tell of a batch before it is acknowledged (I6).
//! - A topic's window excludes an offset, and the index has released it,
//!   before the extent that holds it goes back to the allocator (I7).
//! - What is retained goes only for bytes that are there, or are sure to come soon: see `intake`.
//!   While the log is full, at most an eighth of it is claimed by batches that are being received, and
//!   what nobody can read or ever will is bounded: see [`Log::use_of`].

mod batch_record;
mod block;
mod chain;
mod claims;
mod doubt;
mod elsewhere;
mod expected;
mod export;
mod extents;
mod intact;
mod intake;
mod leftovers;
mod order;
mod ordered;
mod ranks;
mod recover;
mod room;
mod share;
mod sizes;
mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use embar_fabric::index::IndexWriter;
use embar_fabric::owner::Claim;
use embar_fabric::records::IndexRecord;
use embar_fabric::region::Region;
use embar_memory::{Memory, PayloadFile, Reservation, Span};
use embar_meter::profile::Recorder;
use embar_transport::Pieces;
use embar_wire::batch::BatchHeader;
use embar_wire::time::WallNs;

use crate::config::BrokerConfig;
use crate::profile::Stage;
use crate::topics::Topic;
use block::NoBlock;
use chain::{Chain, Entry};
use elsewhere::Elsewhere;
use extents::Extents;
pub use intact::is_intact;
pub(crate) use intake::ASIDE_BYTES_MIN;
use intake::Intake;
pub use intake::Sender;
use order::Ordering;
pub use order::{Answer, Rejoin, Settled, Ticket};
use ordered::Ordered;
use ranks::Ranks;
pub use recover::Recovered;
use sizes::Sizes;
pub use usage::Use;

/// Shares of the log that batches on their way may hold.
#[derive(Clone, Copy, Debug)]
pub struct Watermarks {
    /// Admit nothing above this many bytes...
    pub high_bytes: u64,
    /// ...until no more than this many are held.
    pub low_bytes: u64,
}

/// Where a batch that comes goes.
pub enum Admitted<M: Memory> {
    /// To its room in the log.
    Claimed(Claimed<M>),
    /// To memory beside the log, of which there is so much at first. It must come back by
    /// [`Log::put_back`]; the batch gets its room by [`Log::place`] when it is whole.
    Aside(u32),
}

/// Room for one batch, given out by [`Log::admit`] and [`Log::place`]. It must come back by
/// [`Log::append`], [`Log::submit`] or [`Log::abandon`].
pub struct Claimed<M: Memory> {
    /// Where the batch goes: header, then payload.
    pub reservation: Reservation<M>,
    /// Whose extent it lies in.
    pub place: Place,
}

/// Which chain and extent a reservation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    topic: u32,
    /// The extent's number in its chain.
    serial: u64,
    /// Bytes reserved.
    len: u32,
    /// The extent's size, as the index tells it.
    order: u8,
    /// Whether the batch will be ordered.
    ordered: bool,
}

/// Why a batch was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// Batches on their way hold too much: wait until they fall below the low watermark.
    Congested,
    /// Nothing more can be evicted at this moment.
    Full,
    /// The topic was deleted.
    UnknownTopic,
    /// The topic's order is damaged: nothing more can be stored.
    Damaged,
}

/// How much was freed so far: see [`Log::freed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    changes: u64,
    /// Submissions that the sequencer has not taken: fewer leave room in their lanes.
    unjudged: usize,
    free_bytes: u64,
}

/// What a reader gets.
pub enum Read<M: Memory> {
    /// Whole batches, ready to be sent, and the offset after them.
    Batches {
        /// Their bytes.
        span: Span<M>,
        /// Offset after the last message in it.
        next: u64,
    },
    /// Whole batches of an ordered topic, ready to be sent, and the position after them.
    Pieces {
        /// Their bytes.
        pieces: Box<Pieces<M>>,
        /// Position after the last message in them.
        next: u64,
        /// Whose memory they lie in besides this broker's: by row, the lowest position.
        foreign: Vec<(u16, u64)>,
    },
    /// Nothing there yet.
    End,
    /// The order cannot be followed here, or what it tells of is not there: memory is damaged.
    Damaged,
    /// What comes next lies in the memory of another broker, which cannot be mapped at the moment.
    OutOfReach {
        /// That broker.
        broker: u16,
    },
    /// The offset was evicted.
    Evicted {
        /// The first one that can be read.
        first: u64,
    },
    /// The topic was deleted.
    UnknownTopic,
}

/// A topic's figures on this broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// First offset that can be read.
    pub first: u64,
    /// Offset that the next message gets.
    pub next: u64,
    /// Bytes of readable batches in this broker's memory.
    pub bytes: u64,
    /// Those batches.
    pub batches: u64,
}

/// See the module.
pub struct Log<M: Memory> {
    region: Region<M>,
    claim: Arc<Claim>,
    blog: PayloadFile<M>,
    index: IndexWriter<M>,
    /// Topics of orders 0 and 1.
    chains: BTreeMap<u32, Chain<M>>,
    /// Topics of orders 2 and 5.
    ordered: BTreeMap<u32, Ordered<M>>,
    ordering: Ordering<M>,
    elsewhere: Elsewhere<M>,
    intake: Intake,
    sizes: Sizes,
    /// How many pages of the index each topic has.
    pages: Ranks<u32>,
    /// Batches of orders 0 and 1 admitted and neither appended nor abandoned.
    on_their_way: u32,
    evictions: u64,
    recalls: u64,
    /// Why no block could be cleared when one was last looked for.
    no_block: Option<NoBlock>,
    recovered: Recovered,
    /// Topics of which it is not known what was in them: their windows and their index are damaged.
    unknown: BTreeSet<u32>,
    /// Topics of orders 0 and 1 whose windows were lost, and what the index has of them, until
    /// [`Log::rejoin`] is done.
    unsure: Vec<(Topic, Vec<IndexRecord>)>,
}

/// A batch is late when so many sixteenths of the log were begun after its extent: more than all claims
/// hold together...
const LATE_SIXTEENTHS: u64 = 3;
/// ...or that part of the limit of its topic.
const LATE_PART_OF_TOPIC: u64 = 8;

impl Watermarks {
    /// The shares that a broker's settings name, of a log of `total` bytes.
    pub fn of(total: u64, config: &BrokerConfig) -> Self {
        let share = |percent: u8| total / 100 * u64::from(percent);
        Self {
            high_bytes: share(config.high_watermark_percent),
            low_bytes: share(config.low_watermark_percent),
        }
    }
}

impl<M: Memory> Log<M> {
    /// Whatever happens to the extents of a deleted topic or an overtaken
    /// reader, this number has changed: exporters compare it to know when to look.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Free and total bytes of the payload file.
    pub fn space(&self) -> (u64, u64) {
        (self.blog.free_bytes(), self.blog.total_bytes())
    }

    /// Room for batches that are being received, or wait for their place in the order.
    pub fn reserved_bytes(&self) -> u64 {
        self.intake.reserved_bytes()
    }

    /// Another number when rooms that batches are received into are wanted for others: then
    /// [`Log::is_late`] tells which. Their batches go on aside.
    pub fn recalls(&self) -> u64 {
        self.recalls
    }

    /// Another value when a batch that found no room may find some: something was given back or evicted,
    /// the sequencer answered, or a reader let go of memory that was evicted.
    pub fn freed(&self) -> Freed {
        Freed {
            changes: self.intake.given_back() + self.evictions + self.ordering.seen(),
            unjudged: self.ordering.unjudged(),
            free_bytes: self.blog.free_bytes(),
        }
    }

    /// Whether no batch of any topic may begin, until something is given back.
    pub fn is_congested(&mut self) -> bool {
        self.intake.is_congested()
    }

    /// Makes a topic known; an old one keeps what it holds.
    pub fn open_topic(&mut self, topic: &Topic) {
        if topic.is_ordered() {
            return self.open_ordered(topic);
        }
        if !self.chains.contains_key(&topic.id) {
            let mut chain = self.chain_of(topic);
            chain.publish_window(0);
            self.chains.insert(topic.id, chain);
        }
    }

    /// Forgets a topic, which was deleted, and frees its memory. False when it was not known.
    pub fn close_topic(&mut self, id: u32) -> bool {
        self.unknown.remove(&id);
        // Readers in other processes find the topic's cell empty.
        let known = self.chains.remove(&id).is_some() | self.close_ordered(id);
        if known {
            self.index.drop_chain(id);
            self.paged(id);
            self.resized(id);
            self.evictions += 1;
        }
        known
    }

    /// A topic's figures, if this broker has opened it.
    pub fn kept(&self, topic: u32) -> Option<Kept> {
        let ordered = self.ordered.get(&topic).map(|c| Kept {
            first: c.first,
            next: c.next,
            bytes: c.bytes,
            batches: c.batches,
        });
        ordered.or_else(|| {
            self.chains.get(&topic).map(|c| Kept {
                first: c.first,
                next: c.next,
                bytes: c.bytes,
                batches: c.batches(),
            })
        })
    }

    /// Lets a batch of `len` bytes, header included, begin to come.
    ///
    /// # Errors
    /// [`NoRoom`]: nothing was taken.
    pub fn admit(&mut self, topic: u32, len: u32, by: &Sender) -> Result<Admitted<M>, NoRoom> {
        self.extents_of(topic)?;
        if self.is_damaged(topic) {
            return Err(NoRoom::Damaged);
        }
        if self.is_congested() {
            return Err(NoRoom::Congested);
        }
        if self.intake.may_claim(len, by) {
            return self.place(topic, len).map(Admitted::Claimed);
        }
        let first = len.min(ASIDE_BYTES_MIN);
        self.intake.lay_aside(first, by)?;
        Ok(Admitted::Aside(first))
    }

    /// Memory for so many bytes more of a batch that is received aside.
    ///
    /// # Errors
    /// [`NoRoom::Congested`]: others come first.
    pub fn lay_aside(&mut self, bytes: u32, by: &Sender) -> Result<(), NoRoom> {
        self.intake.lay_aside(bytes, by)
    }

    /// Gives back the memory of a batch that was received aside, all of it.
    pub fn put_back(&mut self, bytes: u32, by: &Sender) {
        self.intake.put_back(bytes, by);
    }

    /// The room of a batch that is being received goes, and its bytes are in memory aside now. That may
    /// be more than there should be: they were in the log before.
    pub fn move_aside(&mut self, claimed: Claimed<M>, bytes: u32, by: &Sender) {
        self.abandon(claimed);
        self.intake.move_aside(bytes, by);
    }

    /// Finds room for a batch of `len` bytes, header included, and makes it if it must: `room` says at
    /// whose cost.
    ///
    /// # Errors
    /// [`NoRoom`]: nothing was taken.
    pub fn place(&mut self, topic: u32, len: u32) -> Result<Claimed<M>, NoRoom> {
        self.extents_of(topic)?;
        if self.is_damaged(topic) {
            return Err(NoRoom::Damaged);
        }
        if self.ordered.contains_key(&topic) {
            self.promise_lane()?;
        } else {
            self.promise_index()?;
        }
        let placed = match self.extents_of(topic)?.place(len) {
            Some(placed) => placed,
            None => {
                self.extend(topic, len)?;
                let placed = self.extents_of(topic)?.place(len);
                placed.expect("a fresh extent has room for the batch")
            }
        };
        self.intake.claim(len);
        self.begun(topic);
        let (reservation, place) = placed;
        Ok(Claimed { reservation, place })
    }

    /// Whether a batch would outlive what was received beside it, in an extent that others could use.
    pub fn is_late(&mut self, place: &Place) -> bool {
        let of_log = self.blog.total_bytes() / 16 * LATE_SIXTEENTHS;
        let Ok(extents) = self.extents_of(place.topic) else {
            return false;
        };
        let late = match extents.retention_bytes() {
            0 => of_log,
            limit => of_log.min(limit / LATE_PART_OF_TOPIC),
        };
        extents.is_late(place, late)
    }

    fn extents_of(&mut self, topic: u32) -> Result<&mut Extents<M>, NoRoom> {
        let kept = self.chains.get_mut(&topic).map(|c| &mut c.extents);
        let ordered = self.ordered.get_mut(&topic).map(|c| &mut c.extents);
        kept.or(ordered).ok_or(NoRoom::UnknownTopic)
    }

    /// One batch more is on its way.
    fn begun(&mut self, topic: u32) {
        if self.ordered.contains_key(&topic) {
            self.ordering.begun();
        } else {
            self.on_their_way += 1;
        }
    }

    /// A connection died while its batch was on its way.
    pub fn abandon(&mut self, claimed: Claimed<M>) {
        let Claimed { reservation, place } = claimed;
        self.received(&place);
        self.intake.settle(place.len);
        if let Ok(extents) = self.extents_of(place.topic) {
            extents.abandon(&place, reservation);
            self.resized(place.topic);
        }
    }

    /// A batch is not on its way any more, whatever became of it or of its topic.
    fn received(&mut self, place: &Place) {
        self.intake.receive(place.len);
        if place.ordered {
            self.ordering.ended();
        } else {
            self.on_their_way -= 1;
        }
    }

    /// Orders 0 and 1: gives a received and checked batch its offsets and makes it readable.
    /// `header` is as it came; base offset and append time are filled in here. Returns the base
    /// offset, or the claim's end when the topic was deleted meanwhile.
    pub fn append(
        &mut self,
        claimed: Claimed<M>,
        mut header: BatchHeader,
        wall: WallNs,
        meter: &Recorder,
    ) -> Option<u64> {
        let Claimed {
            mut reservation,
            place,
        } = claimed;
        self.received(&place);
        self.intake.settle(place.len);
        let chain = self.chains.get(&place.topic)?;
        let base = chain.next;
        let mut lap = meter.start();
        header.stamp(base, wall);
        reservation.write(0, header.as_bytes());
        let at = reservation.at();
        let span = reservation.commit();
        meter.lap(Stage::CompleteBatchInCxl as usize, &mut lap);
        let indexed = IndexRecord {
            base,
            blog_at: at,
            producer: header.producer(),
            sequence: header.sequence(),
            append_time: wall.0,
            len: place.len,
            count: header.message_count(),
            flags: header.flags().bits(),
            extent_order: place.order,
            reserved: [0; 5],
        };
        let free_pages = self.index.free_pages();
        let indexed = self.index.append(place.topic, &indexed);
        indexed.expect("admit keeps a page free for every batch on its way");
        let chain = self.chains.get_mut(&place.topic);
        let chain = chain.expect("the topic was there a moment ago");
        let count = header.message_count();
        chain.append(&place, Entry { base, count, span });
        meter.stop(Stage::ReservePbrSlotAndWriteEntry as usize, lap);
        let pins_changed = chain.extents.take_pins_changed();
        if self.index.free_pages() != free_pages {
            self.paged(place.topic);
        }
        if pins_changed {
            self.resized(place.topic);
        }
        while self.chains[&place.topic].exceeds_retention() && self.evict_oldest(place.topic) {}
        Some(base)
    }
}
