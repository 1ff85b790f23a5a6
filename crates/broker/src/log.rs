//! A data broker's log: admits batches, gives them offsets or has them ordered, evicts, reads.
//!
//! Orders 0 and 1: a batch gets its offset when its last byte was checked, in the order in which
//! batches complete on this broker. Orders 2 and 5: it goes to the sequencer then, and
//! [`Log::poll_order`] takes in what became of it.
//!
//! Invariants
//! - An index or lane record is published only after every line of its batch, header
//!   included, was written back (I2).
//! - The index and the window, or the global order, have a batch before it is acknowledged (I6).
//! - A topic's window excludes an offset, and the index has released it,
//!   before the extent that holds it goes back to the allocator (I7).
//! - What is retained is evicted only for bytes that are there, or are sure to come soon: see `admission`.
//!   While the log is full, batches that are being received hold at most an eighth of it, and
//!   what can never be read is bounded: see [`Log::usage`].

mod admission;
mod batch_record;
mod clear_block;
mod damage;
mod durable;
mod expected;
mod extents;
mod intact;
mod local_topic;
mod on_disks;
mod order;
mod ordered_topic;
mod ranks;
mod read;
mod reclaim;
mod recover;
mod remote_windows;
mod session_quota;
mod sizes;
mod sorted;
mod stale;
mod topic_recovery;
mod undurable;
mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use embar_fabric::index::IndexWriter;
use embar_fabric::owner::Claim;
use embar_fabric::records::IndexRecord;
use embar_fabric::region::Region;
use embar_memory::{Extent, Memory, PayloadFile, Reservation, Span};
use embar_meter::profile::Recorder;
use embar_transport::Pieces;
use embar_wire::batch::BatchHeader;
use embar_wire::time::WallNs;

use crate::config::BrokerConfig;
use crate::profile::Stage;
use crate::topics::Topic;
use admission::Admission;
pub use admission::Sender;
pub(crate) use admission::{STAGING_BYTES_MIN, STAGING_CREDIT_BYTES};
pub(crate) use batch_record::{indexed_header, ordered_header};
use clear_block::NoBlock;
use durable::Frontiers;
pub(crate) use durable::{disk_row, frontier, is_gone};
use extents::Extents;
pub use intact::is_intact;
use local_topic::{LocalTopic, StoredBatch};
use order::OrderState;
pub use order::{Answer, Answered, Rejoin, Submitter};
use ordered_topic::OrderedTopic;
use ranks::Ranks;
pub use read::Wanted;
pub use recover::Recovered;
use remote_windows::RemoteWindows;
use sizes::Sizes;
pub use usage::{LaneSpace, LogSpace, LogUsage};

/// How much batches that are not readable yet may hold together, in the log and in staging memory.
#[derive(Clone, Copy, Debug)]
pub struct Watermarks {
    /// Admit nothing above this many bytes...
    pub high_bytes: u64,
    /// ...until no more than this many are held.
    pub low_bytes: u64,
}

/// Where an admitted batch is received.
pub enum Admitted<M: Memory> {
    /// In its space in the log.
    InLog(BatchSpace<M>),
    /// In staging memory, at first of this many bytes. The caller gives them back by [`Log::unstage`], and
    /// gets space in the log by [`Log::reserve`] when the batch is whole.
    Staged(u32),
}

/// Space in the log for one batch, from [`Log::admit`] or [`Log::reserve`]. The caller gives it back by
/// [`Log::append`], [`Log::submit`] or [`Log::abandon`].
pub struct BatchSpace<M: Memory> {
    /// The bytes: header, then payload.
    pub reservation: Reservation<M>,
    /// Whose extent they lie in.
    pub location: Location,
}

/// The topic and the extent that a reservation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    topic: u32,
    /// The extent's number in its topic.
    serial: u64,
    /// Bytes reserved.
    len: u32,
    /// Size of the extent: 64 KiB << order, as records store it.
    extent_order: u8,
    /// Whether the sequencer orders the topic.
    is_ordered: bool,
}

/// Why a batch is not admitted, or gets no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmitError {
    /// Batches in flight hold too much: wait until they fall below the low watermark.
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
    /// Submissions that the sequencer has not taken: when there are fewer, lanes have room.
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
        /// Where they begin, or what was asked for if that is in the first batch.
        first: u64,
        /// Position at which to go on.
        next: u64,
        /// The other brokers in whose memory some of them lie: by row, the lowest position there.
        foreign: Vec<(u16, u64)>,
    },
    /// As many batches of an ordered topic as could be passed over are not in the share. Look again behind them.
    Skipped {
        /// Position at which to go on: that which was asked for if nothing could be passed over.
        next: u64,
    },
    /// Nothing there yet.
    End,
    /// Memory is damaged: the order cannot be followed here, or the batch that it names is not there.
    Damaged,
    /// What comes next lies in the memory of another broker, which cannot be mapped at the moment.
    OutOfReach {
        /// That broker.
        broker: u16,
    },
    /// The offset was evicted, and disks of the topic have it.
    OnDisk {
        /// The first one that is in memory.
        first: u64,
    },
    /// The offset was evicted.
    Evicted {
        /// The first one that can be read.
        first: u64,
    },
    /// The topic was deleted.
    UnknownTopic,
}

/// What this broker has of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopicStats {
    /// First offset that can be read.
    pub first: u64,
    /// Offset that the next message gets.
    pub next: u64,
    /// Bytes of readable batches in this broker's memory.
    pub bytes: u64,
    /// Those batches.
    pub batches: u64,
    /// The first position that its disks have; that in memory if it is on none.
    pub first_on_disks: u64,
    /// Up to where all of its disks have it; the end of all positions if it is on none.
    pub durable: u64,
}

/// The log of one data broker: its payload, its index, and its part in the global order.
pub struct Log<M: Memory> {
    region: Region<M>,
    claim: Arc<Claim>,
    payload_file: PayloadFile<M>,
    index: IndexWriter<M>,
    /// Topics of orders 0 and 1.
    local: BTreeMap<u32, LocalTopic<M>>,
    /// Topics of orders 2 and 5.
    ordered: BTreeMap<u32, OrderedTopic<M>>,
    order: OrderState<M>,
    remote_windows: RemoteWindows<M>,
    frontiers: Frontiers<M>,
    /// The topic whose window was read back last: see [`Log::restore_windows`].
    window_read_back: Option<u32>,
    admission: Admission,
    sizes: Sizes,
    /// How many pages of the index each topic has.
    pages: Ranks<u32>,
    /// Batches of orders 0 and 1 admitted and neither appended nor abandoned.
    in_flight: u32,
    evictions: u64,
    /// Empty between two evictions; kept for its memory.
    evicted: Vec<Extent<M>>,
    recalls: u64,
    /// Why no block could be cleared when one was last looked for.
    no_block: Option<NoBlock>,
    recovered: Recovered,
    /// Topics of which nothing says what was in them: their windows and their index are damaged.
    unknown: BTreeSet<u32>,
    /// Topics of orders 0 and 1 whose windows were lost, and what the index has of them, until
    /// [`Log::rejoin`] is done.
    windowless: Vec<(Topic, Vec<IndexRecord>)>,
}

/// A batch is late when so many sixteenths of the log were begun after its extent: more than all batches that
/// are being received hold together...
const LATE_SIXTEENTHS: u64 = 3;
/// ...or this part of the limit of its topic.
const LATE_PART_OF_TOPIC: u64 = 8;

impl Watermarks {
    /// What a broker's settings allow in a log of `total` bytes.
    pub fn of(total: u64, config: &BrokerConfig) -> Self {
        let share = |percent: u8| total / 100 * u64::from(percent);
        Self {
            high_bytes: share(config.high_watermark_percent),
            low_bytes: share(config.low_watermark_percent),
        }
    }
}

impl<M: Memory> Log<M> {
    /// Counts what was evicted, and topics that were closed. Exporters look at their unfinished sends when it
    /// has changed.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Bytes of the payload file, by what becomes of them.
    pub fn space(&self) -> LogSpace {
        LogSpace {
            total_bytes: self.payload_file.total_bytes(),
            free_bytes: self.payload_file.free_bytes(),
            lent_bytes: self.payload_file.lent_bytes(),
            held_bytes: self.payload_file.held_bytes(),
        }
    }

    /// Bytes of batches that are being received into the log, or wait for their place in the order.
    pub fn reserved_bytes(&self) -> u64 {
        self.admission.reserved_bytes()
    }

    /// Counts how many times space that batches are received into became wanted for others. When it has
    /// changed, [`Log::is_late`] says whose space that is; these batches go on in staging memory.
    pub fn recalls(&self) -> u64 {
        self.recalls
    }

    /// Changes when a batch that found no space may find some: something was given back or evicted,
    /// the sequencer answered, or a reader let go of memory that was evicted.
    pub fn freed(&self) -> Freed {
        Freed {
            changes: self.admission.given_back()
                + self.evictions
                + self.order.events_seen()
                + self.frontiers.raised(),
            unjudged: self.order.unjudged(),
            free_bytes: self.payload_file.free_bytes(),
        }
    }

    /// Whether no batch of any topic may begin, until something is given back.
    pub fn is_congested(&mut self) -> bool {
        self.admission.is_congested()
    }

    /// Opens a topic. One that is open already keeps what it holds.
    pub fn open_topic(&mut self, topic: &Topic) {
        if topic.is_ordered() {
            return self.open_ordered(topic);
        }
        if !self.local.contains_key(&topic.id) {
            let mut local = self.local_topic(topic);
            local.publish_window(0);
            self.insert_local(local);
        }
    }

    fn insert_local(&mut self, local: LocalTopic<M>) {
        let (id, disks, all_disks) = (local.id, local.disks(), local.all_disks());
        self.local.insert(id, local);
        if disks != all_disks {
            self.frontiers.follow_moved(id);
        }
        if disks != 0 {
            self.frontiers.follow(id);
            if let Some(term) = self.term() {
                self.refresh_frontier(id, term);
            }
        }
    }

    /// Forgets a topic, which was deleted, and frees its memory. False when it was not open.
    pub fn close_topic(&mut self, id: u32) -> bool {
        self.unknown.remove(&id);
        self.frontiers.unfollow(id);
        // Readers in other processes find the topic's record empty.
        let was_open = self.local.remove(&id).is_some() | self.close_ordered(id);
        if was_open {
            self.index.drop_chain(id);
            self.update_pages(id);
            self.update_size(id);
            self.evictions += 1;
        }
        was_open
    }

    /// What this broker has of a topic, if it has opened it.
    pub fn topic_stats(&self, topic: u32) -> Option<TopicStats> {
        let ordered = self.ordered.get(&topic).map(|topic| TopicStats {
            first: topic.first,
            next: topic.next,
            bytes: topic.bytes,
            batches: topic.batches,
            first_on_disks: topic.first_on_disks(),
            durable: topic.durable(),
        });
        ordered.or_else(|| {
            self.local.get(&topic).map(|topic| TopicStats {
                first: topic.first,
                next: topic.next,
                bytes: topic.bytes,
                batches: topic.batches(),
                first_on_disks: topic.first_on_disks(),
                durable: topic.durable(),
            })
        })
    }

    /// Admits a batch of `len` bytes, header included, of which the first `came` are here. What is here as a whole
    /// needs no credit.
    ///
    /// # Errors
    /// [`AdmitError`]: nothing was taken.
    pub fn admit(
        &mut self,
        topic: u32,
        len: u32,
        came: u32,
        by: &Sender,
    ) -> Result<Admitted<M>, AdmitError> {
        self.extents_of(topic)?;
        if self.is_damaged(topic) {
            return Err(AdmitError::Damaged);
        }
        if self.is_congested() {
            return Err(AdmitError::Congested);
        }
        if came == len || self.admission.may_reserve(len, by) {
            return self.reserve(topic, len).map(Admitted::InLog);
        }
        let first = len.min(STAGING_BYTES_MIN.max(came.saturating_mul(2)));
        self.admission.stage(first, by)?;
        Ok(Admitted::Staged(first))
    }

    /// As [`Log::admit`], for a broker that receives everything into staging memory. A connection with credit
    /// gets memory for all of a batch of up to 2 MiB at once.
    ///
    /// # Errors
    /// [`AdmitError`]: nothing was taken.
    pub fn admit_staged(
        &mut self,
        topic: u32,
        len: u32,
        came: u32,
        by: &Sender,
    ) -> Result<u32, AdmitError> {
        self.extents_of(topic)?;
        if self.is_damaged(topic) {
            return Err(AdmitError::Damaged);
        }
        if self.is_congested() {
            return Err(AdmitError::Congested);
        }
        let has_credit = u64::from(len) <= by.credit_bytes;
        let first = if has_credit {
            len.min(STAGING_CREDIT_BYTES)
        } else {
            len.min(STAGING_BYTES_MIN.max(came.saturating_mul(2)))
        };
        self.admission.stage(first, by)?;
        Ok(first)
    }

    /// More staging memory for a batch.
    ///
    /// # Errors
    /// [`AdmitError::Congested`]: others come first.
    pub fn stage(&mut self, bytes: u32, by: &Sender) -> Result<(), AdmitError> {
        self.admission.stage(bytes, by)
    }

    /// Gives back the staging memory of a batch, all of it.
    pub fn unstage(&mut self, bytes: u32, by: &Sender) {
        self.admission.unstage(bytes, by);
    }

    /// Gives back the space of a batch that is being received, whose bytes are in staging memory now. That may
    /// exceed the limit of such memory: the bytes were in the log before.
    pub fn move_to_staging(&mut self, space: BatchSpace<M>, bytes: u32, by: &Sender) {
        self.abandon(space);
        self.admission.move_to_staging(bytes, by);
    }

    /// Finds space for a batch of `len` bytes, header included, and evicts for it if it must: `reclaim` says
    /// at whose cost.
    ///
    /// # Errors
    /// [`AdmitError`]: nothing was taken.
    pub fn reserve(&mut self, topic: u32, len: u32) -> Result<BatchSpace<M>, AdmitError> {
        self.extents_of(topic)?;
        if self.is_damaged(topic) {
            return Err(AdmitError::Damaged);
        }
        if self.awaits_disks(topic) {
            return Err(AdmitError::Congested);
        }
        if self.ordered.contains_key(&topic) {
            self.ensure_lane_slot()?;
        } else {
            self.ensure_index_page()?;
        }
        let space = match self.extents_of(topic)?.reserve(len) {
            Some(space) => space,
            None => {
                self.extend(topic, len)?;
                let space = self.extents_of(topic)?.reserve(len);
                space.expect("a fresh extent has room for the batch")
            }
        };
        self.admission.reserve(len);
        if self.ordered.contains_key(&topic) {
            self.order.begin_batch();
        } else {
            self.in_flight += 1;
        }
        Ok(space)
    }

    /// Whether a batch would outlive what was received beside it, in an extent that others could use.
    pub fn is_late(&mut self, location: &Location) -> bool {
        let of_log = self.payload_file.total_bytes() / 16 * LATE_SIXTEENTHS;
        let Ok(extents) = self.extents_of(location.topic) else {
            return false;
        };
        let late = match extents.retention_bytes() {
            0 => of_log,
            limit => of_log.min(limit / LATE_PART_OF_TOPIC),
        };
        extents.is_late(location, late)
    }

    fn extents_of(&mut self, topic: u32) -> Result<&mut Extents<M>, AdmitError> {
        let local = self.local.get_mut(&topic).map(|topic| &mut topic.extents);
        let ordered = self.ordered.get_mut(&topic).map(|topic| &mut topic.extents);
        local.or(ordered).ok_or(AdmitError::UnknownTopic)
    }

    /// Gives back the space of a batch that will not be stored.
    pub fn abandon(&mut self, space: BatchSpace<M>) {
        let BatchSpace {
            reservation,
            location,
        } = space;
        self.end_batch(&location);
        self.admission.settle(location.len);
        if let Ok(extents) = self.extents_of(location.topic) {
            extents.abandon(&location, reservation);
            self.update_size(location.topic);
        }
    }

    /// A batch is not in flight any more, whatever became of it or of its topic.
    fn end_batch(&mut self, location: &Location) {
        self.admission.receive(location.len);
        if location.is_ordered {
            self.order.end_batch();
        } else {
            self.in_flight -= 1;
        }
    }

    /// Orders 0 and 1: gives a received and checked batch its offsets and makes it readable.
    /// `header` is as it came; base offset and append time are filled in here. Returns the base
    /// offset, or `None` when the topic was deleted meanwhile.
    pub fn append(
        &mut self,
        space: BatchSpace<M>,
        mut header: BatchHeader,
        wall: WallNs,
        meter: &Recorder,
    ) -> Option<u64> {
        let BatchSpace {
            mut reservation,
            location,
        } = space;
        self.end_batch(&location);
        self.admission.settle(location.len);
        let base = self.local.get(&location.topic)?.next;
        let mut lap = meter.start();
        header.stamp(base, wall);
        reservation.write(0, header.as_bytes());
        let at = reservation.at();
        let span = reservation.commit();
        meter.lap(Stage::CompleteBatchInCxl as usize, &mut lap);
        let record = IndexRecord {
            base,
            payload_at: at,
            producer: header.producer(),
            sequence: header.sequence(),
            append_time: wall.0,
            len: location.len,
            count: header.message_count(),
            flags: header.flags().bits(),
            extent_order: location.extent_order,
            reserved: [0; 5],
        };
        let free_pages = self.index.free_pages();
        let indexed = self.index.append(location.topic, &record);
        indexed.expect("`ensure_index_page` keeps a page free for every batch in flight");
        let has_new_page = self.index.free_pages() != free_pages;
        self.tell_disks(location.topic, has_new_page);
        let count = header.message_count();
        let topic = self.local.get_mut(&location.topic);
        let topic = topic.expect("the topic was there a moment ago");
        topic.append(&location, StoredBatch { base, count, span });
        meter.stop(Stage::ReservePbrSlotAndWriteEntry as usize, lap);
        let pins_changed = topic.extents.take_pins_changed();
        if has_new_page {
            self.update_pages(location.topic);
        }
        if pins_changed {
            self.update_size(location.topic);
        }
        while self.local[&location.topic].exceeds_retention() && self.evict_oldest(location.topic) {
        }
        Some(base)
    }
}
