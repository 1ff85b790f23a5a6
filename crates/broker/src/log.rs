//! A data broker's log: admits batches, gives them offsets, evicts, reads.
//!
//! Order 0 and 1 alike: a batch gets its offset when its last byte was checked,
//! in the order in which batches complete on this broker.
//!
//! Invariants
//! - A lane record is published only after every line of its batch, header
//!   included, was written back (I2).
//! - The index and the window tell of a batch before its lane slot counts as
//!   completed, and an acknowledgement follows only then (I6).
//! - A topic's window excludes an offset, and the index has released it,
//!   before the extent that holds it goes back to the allocator (I7).
//! - Bytes reserved by batches on their way never exceed the high watermark
//!   by more than one batch (I9).

#[cfg(feature = "canary")]
pub mod canary;
mod chain;
mod recover;

use std::collections::BTreeMap;
use std::sync::Arc;

use embar_fabric::blog::{Blog, Reservation, Span};
use embar_fabric::index::IndexWriter;
use embar_fabric::lane::{LaneProgress, LaneReader, LaneWriter, ProgressWriter};
use embar_fabric::memory::Memory;
use embar_fabric::owner::Claim;
use embar_fabric::records::{IndexRecord, PbrRecord};
use embar_fabric::region::Region;
use embar_meter::profile::Recorder;
use embar_wire::batch::BatchHeader;
use embar_wire::time::WallNs;

use crate::config::BrokerConfig;
use crate::profile::Stage;
use crate::topics::Topic;
use chain::{Chain, Entry};
pub use recover::Recovered;

/// Shares of the log that batches on their way may hold.
#[derive(Clone, Copy, Debug)]
pub struct Watermarks {
    /// Admit nothing above this many bytes...
    pub high_bytes: u64,
    /// ...until no more than this many are held.
    pub low_bytes: u64,
}

/// Room for one batch, given out by [`Log::admit`]. It must come back by
/// [`Log::append`] or [`Log::abandon`].
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
}

/// A network thread's lane, and the connection whose batch it appends.
pub struct Lane<M: Memory> {
    /// Its number on this broker, and its place among them.
    pub number: usize,
    /// Only its thread writes to it.
    pub writer: LaneWriter<M>,
    /// Goes into the lane's records, for whoever reads them.
    pub connection: u64,
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
    /// Nothing there yet.
    End,
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
pub struct Extents {
    /// First offset that can be read.
    pub first: u64,
    /// Offset that the next message gets.
    pub next: u64,
    /// Bytes of readable batches.
    pub bytes: u64,
    /// Readable batches.
    pub batches: u64,
}

/// See the module.
pub struct Log<M: Memory> {
    region: Region<M>,
    claim: Arc<Claim>,
    blog: Blog<M>,
    index: IndexWriter<M>,
    /// One per network thread: its records, and how far they were taken.
    lanes: Vec<(LaneReader<M>, ProgressWriter<M>)>,
    chains: BTreeMap<u32, Chain<M>>,
    marks: Watermarks,
    reserved_bytes: u64,
    /// Batches admitted and neither appended nor abandoned.
    on_their_way: u32,
    congested: bool,
    evictions: u64,
    #[cfg(feature = "canary")]
    canary: canary::Canary,
}

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

    /// Bytes reserved by batches that are still being received.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Makes a topic known; an old one keeps what it holds.
    pub fn open_topic(&mut self, topic: &Topic) {
        self.chains.entry(topic.id).or_insert_with(|| {
            let window = self.region.window_writer(&self.claim, topic.cell());
            let mut chain = Chain::new(topic.id, topic.retention_bytes, window);
            chain.publish_window();
            chain
        });
    }

    /// Forgets every topic for which `exists` is false, and frees its memory.
    pub fn retain_topics(&mut self, exists: impl Fn(u32) -> bool) {
        let gone: Vec<u32> = self
            .chains
            .keys()
            .copied()
            .filter(|id| !exists(*id))
            .collect();
        for id in gone {
            // Readers in other processes find the topic's cell empty.
            self.index.drop_chain(id);
            self.chains.remove(&id);
            self.evictions += 1;
        }
    }

    /// A topic's figures, if this broker has opened it.
    pub fn extents(&self, topic: u32) -> Option<Extents> {
        self.chains.get(&topic).map(|c| Extents {
            first: c.first,
            next: c.next,
            bytes: c.bytes,
            batches: c.batches(),
        })
    }

    /// Finds room for a batch of `len` bytes, header included, evicting the
    /// oldest batches of the topic that holds most if it must.
    pub fn admit(&mut self, topic: u32, len: u32) -> Result<Claimed<M>, NoRoom> {
        if self.is_congested() {
            return Err(NoRoom::Congested);
        }
        // Tiny batches fill the index before they fill the log. Each batch on
        // its way may open one more page; no eviction makes room for more of
        // them than there are pages, so it must not begin.
        if self.on_their_way >= self.region.geometry().index_pages / 2 {
            return Err(NoRoom::Congested);
        }
        while self.index.free_pages() <= self.on_their_way {
            self.evict_largest().ok_or(NoRoom::Full)?;
        }
        let chain = self.chains.get_mut(&topic).ok_or(NoRoom::UnknownTopic)?;
        let placed = match chain.place(len) {
            Some(placed) => placed,
            None => {
                self.extend(topic, len)?;
                let chain = self
                    .chains
                    .get_mut(&topic)
                    .expect("extend does not remove it");
                chain
                    .place(len)
                    .expect("a fresh extent has room for the batch")
            }
        };
        self.reserved_bytes += u64::from(len);
        self.on_their_way += 1;
        let (reservation, place) = placed;
        Ok(Claimed { reservation, place })
    }

    /// One batch less is on its way.
    fn settle(&mut self, len: u32) {
        self.reserved_bytes -= u64::from(len);
        self.on_their_way -= 1;
    }

    fn is_congested(&mut self) -> bool {
        let limit = if self.congested {
            self.marks.low_bytes
        } else {
            self.marks.high_bytes
        };
        self.congested = self.reserved_bytes > limit;
        self.congested
    }

    /// Gives `topic` one more extent with room for `len` bytes.
    fn extend(&mut self, topic: u32, len: u32) -> Result<(), NoRoom> {
        let chain = self.chains.get(&topic).ok_or(NoRoom::UnknownTopic)?;
        let wanted = chain.wanted_extent_bytes(len);
        let mut evicted = 0;
        let extent = loop {
            if let Some(extent) = self.blog.allocate(wanted) {
                break extent;
            }
            // What was evicted may lie apart: a smaller extent then fits where
            // the wanted one does not.
            if evicted >= u64::from(wanted)
                && let Some(extent) = self.blog.allocate(len)
            {
                break extent;
            }
            match self.evict_largest() {
                Some(bytes) => evicted += bytes,
                None => break self.blog.allocate(len).ok_or(NoRoom::Full)?,
            }
        };
        let chain = self.chains.get_mut(&topic).ok_or(NoRoom::UnknownTopic)?;
        chain.push_extent(extent);
        Ok(())
    }

    /// Evicts from the topic that occupies most; returns the bytes it gave back.
    fn evict_largest(&mut self) -> Option<u64> {
        let mut by_size: Vec<(u64, u32)> = self
            .chains
            .values()
            .map(|c| (c.occupied(), c.id))
            .filter(|c| c.0 > 0)
            .collect();
        by_size.sort_unstable_by(|a, b| b.cmp(a));
        by_size.into_iter().find_map(|(_, id)| self.evict_from(id))
    }

    fn evict_from(&mut self, topic: u32) -> Option<u64> {
        let chain = self.chains.get_mut(&topic)?;
        let evicted = chain.evict_oldest()?;
        self.index.release_before(topic, evicted.first);
        self.evictions += 1;
        Some(evicted.extents.iter().map(|e| u64::from(e.len())).sum())
    }

    /// A connection died while its batch was on its way.
    pub fn abandon(&mut self, claimed: Claimed<M>) {
        let Claimed { reservation, place } = claimed;
        self.settle(place.len);
        if let Some(chain) = self.chains.get_mut(&place.topic) {
            chain.abandon(&place, reservation);
        }
    }

    /// Gives a received and checked batch its offsets and makes it readable.
    /// `header` is as it came; base offset and append time are filled in here.
    /// Returns the base offset and the batch's number in `lane`, or the claim's
    /// end when the topic was deleted meanwhile.
    pub fn append(
        &mut self,
        claimed: Claimed<M>,
        mut header: BatchHeader,
        lane: &mut Lane<M>,
        wall: WallNs,
        meter: &Recorder,
    ) -> Option<(u64, u64)> {
        let Claimed {
            mut reservation,
            place,
        } = claimed;
        let Some(chain) = self.chains.get(&place.topic) else {
            self.settle(place.len);
            return None;
        };
        let base = chain.next;
        let mut lap = meter.start();
        header.stamp(base, wall);
        reservation.write(0, header.as_bytes());
        let at = reservation.at();
        let span = self.commit(reservation);
        meter.lap(Stage::CompleteBatchInCxl as usize, &mut lap);
        let slot = lane
            .writer
            .reserve()
            .expect("lanes of orders 0 and 1 are drained at every append");
        let sequence = lane.writer.publish(
            slot,
            &PbrRecord {
                blog_at: at,
                producer: header.producer(),
                sequence: header.sequence(),
                connection: lane.connection,
                chain: place.topic,
                len: place.len,
                count: header.message_count(),
                payload_crc: header.payload_crc(),
                incarnation: self.claim.incarnation(),
                flags: header.flags().bits(),
                extent_order: place.order,
                reserved: 0,
            },
        );
        self.drain(lane.number, &place, span, wall);
        meter.stop(Stage::ReservePbrSlotAndWriteEntry as usize, lap);
        while self.chains[&place.topic].exceeds_retention() {
            self.evict_from(place.topic);
        }
        Some((base, sequence))
    }

    /// Ends the writing of a batch: its bytes are where every host sees them.
    #[cfg(not(feature = "canary"))]
    fn commit(&self, reservation: Reservation<M>) -> Span<M> {
        reservation.commit()
    }

    /// Takes the record that was just published from its lane into the index.
    fn drain(&mut self, lane: usize, place: &Place, span: Span<M>, wall: WallNs) {
        let (reader, progress) = &mut self.lanes[lane];
        let (sequence, record) = reader.next().expect("a published record is visible");
        assert_eq!(
            (record.blog_at, record.incarnation),
            (span.at(), self.claim.incarnation()),
            "lanes hold nothing but what was just published"
        );
        let chain = self
            .chains
            .get_mut(&record.chain)
            .expect("the topic was there a moment ago");
        let base = chain.next;
        let indexed = IndexRecord {
            base,
            blog_at: record.blog_at,
            producer: record.producer,
            sequence: record.sequence,
            append_time: wall.0,
            len: record.len,
            count: record.count,
            flags: record.flags,
            extent_order: record.extent_order,
            reserved: [0; 5],
        };
        let indexed = self.index.append(record.chain, &indexed);
        indexed.expect("admit keeps a page free for every batch on its way");
        chain.append(
            place,
            Entry {
                base,
                count: record.count,
                span,
            },
        );
        progress.advance(LaneProgress {
            consumed: sequence + 1,
            completed: sequence + 1,
        });
        self.settle(place.len);
    }

    /// Whole batches from the one that contains `from`, at most `max_bytes` of
    /// them (one batch in any case).
    pub fn read(&self, topic: u32, from: u64, max_bytes: usize) -> Read<M> {
        let Some(chain) = self.chains.get(&topic) else {
            return Read::UnknownTopic;
        };
        if from < chain.first {
            return Read::Evicted { first: chain.first };
        }
        if from >= chain.next {
            return Read::End;
        }
        let (span, next) = chain.run(from, max_bytes);
        Read::Batches { span, next }
    }
}
