//! The log as any other host could read it at this moment: from the devices alone.

use std::collections::BTreeMap;

use embar_broker::topics::Topic;
use embar_fabric::{
    Device, IndexRecord, LaneProgress, LaneReader, Memory, PbrRecord, Region, Simulated, Window,
};
use embar_wire::batch::{Batch, BatchHeader};
use embar_wire::limits::MAX_BATCH_BYTES;

use crate::books::{Books, Visible};
use crate::host::{Devices, ROW};
use crate::violation::{Check, Invariant, Violation, ensure};

/// What the broker was doing when the device is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// It finished a turn.
    Turn,
    /// It died, possibly in the middle of one.
    Death,
    /// It has just recovered.
    Birth,
}

/// See the module.
pub struct Inspector {
    raw: Region<Simulated>,
    blog: Simulated,
    lane: LaneReader<Simulated>,
    lane_slots: u64,
    progress: LaneProgress,
    incarnation: u32,
    windows: BTreeMap<u32, Window>,
    born: bool,
}

impl Inspector {
    /// An inspector of freshly formatted devices.
    pub fn new(devices: &Devices) -> Self {
        let raw = devices.raw();
        Self {
            blog: Device::view(&devices.blog),
            lane: raw.lane_reader(ROW, 0),
            lane_slots: raw.geometry().lane_slots.into(),
            progress: LaneProgress::default(),
            incarnation: 0,
            windows: BTreeMap::new(),
            born: false,
            raw,
        }
    }

    /// Checks what is visible now, and enters what is new into the books.
    pub fn look(&mut self, topics: &[Topic], books: &mut Books, moment: Moment) -> Check {
        self.owner(moment)?;
        let mut found: BTreeMap<u32, Vec<IndexRecord>> =
            self.raw.index_reader(ROW).scan().into_iter().collect();
        for topic in topics {
            let records = found.remove(&topic.id).unwrap_or_default();
            let window = self.window(topic, moment)?;
            self.retained(topic, window, &records, books, moment)?;
        }
        self.lane(books, moment)
    }

    /// I1: incarnations and progress only grow.
    fn owner(&mut self, moment: Moment) -> Check {
        let incarnation = self.raw.incarnation(ROW);
        let grows = if moment == Moment::Birth {
            incarnation > self.incarnation
        } else {
            incarnation >= self.incarnation
        };
        ensure(Invariant::I1, grows, || {
            format!("incarnation {incarnation} after {}", self.incarnation)
        })?;
        self.incarnation = incarnation;
        let progress = self.raw.lane_progress(ROW, 0);
        let before = self.progress;
        ensure(
            Invariant::I1,
            progress.consumed >= before.consumed
                && progress.completed >= before.completed
                && progress.completed <= progress.consumed,
            || format!("lane progress {progress:?} after {before:?}"),
        )?;
        self.progress = progress;
        Ok(())
    }

    /// I1: windows only grow. I6: recovery takes nothing away.
    fn window(&mut self, topic: &Topic, moment: Moment) -> Result<Window, Violation> {
        let window = self.raw.window(ROW, topic.cell());
        let window = window.filter(|w| w.chain == topic.id).unwrap_or_default();
        let before = self.windows.get(&topic.id).copied().unwrap_or_default();
        ensure(
            Invariant::I1,
            window.first >= before.first
                && window.next >= before.next
                && window.incarnation >= before.incarnation
                && window.first <= window.next,
            || format!("{}: {window:?} after {before:?}", topic.name),
        )?;
        ensure(
            Invariant::I6,
            moment != Moment::Birth || window.first == before.first,
            || {
                format!(
                    "{}: recovery dropped offsets {}..{}",
                    topic.name, before.first, window.first
                )
            },
        )?;
        self.windows.insert(topic.id, window);
        Ok(window)
    }

    fn retained(
        &self,
        topic: &Topic,
        window: Window,
        records: &[IndexRecord],
        books: &mut Books,
        moment: Moment,
    ) -> Check {
        let name = &topic.name;
        let mut history = books.topics.remove(&topic.id).unwrap_or_default();
        for record in records {
            let visible = visible(record);
            match history.batches.get(&record.base) {
                Some(known) => ensure(Invariant::I3, *known == visible, || {
                    format!(
                        "{name}: offset {} changed from {known:?} to {visible:?}",
                        record.base
                    )
                })?,
                None => {
                    ensure(Invariant::I3, record.base == history.next, || {
                        format!(
                            "{name}: {visible:?} appears at offset {}, where {} comes next",
                            record.base, history.next
                        )
                    })?;
                    ensure(Invariant::I8, moment != Moment::Birth, || {
                        format!(
                            "{name}: {visible:?} at offset {} appears by recovery",
                            record.base
                        )
                    })?;
                    self.bytes_of(topic.id, record, books, Invariant::I2)?;
                    history.next = record.base + u64::from(record.count);
                    history.batches.insert(record.base, visible);
                }
            }
        }
        history.first = window.first;
        let bases: std::collections::BTreeSet<u64> = records.iter().map(|r| r.base).collect();
        let missing = history
            .batches
            .range(window.first..)
            .find(|(base, _)| !bases.contains(base));
        if let Some((base, visible)) = missing {
            // Without a recovery between, it was released while the window still promises it.
            let invariant = match (self.born, books.is_acknowledged(visible.name)) {
                (false, _) => Invariant::I7,
                (true, true) => Invariant::I6,
                (true, false) => Invariant::I3,
            };
            return Err(Violation {
                invariant,
                what: format!(
                    "{name}: {visible:?} at offset {base} is gone, the window is {window:?} ({moment:?})"
                ),
            });
        }
        let exact = window.next == history.next;
        let cut_short = moment == Moment::Death && window.next < history.next;
        ensure(Invariant::I3, exact || cut_short, || {
            format!(
                "{name}: {window:?} where {} comes next ({moment:?})",
                history.next
            )
        })?;
        let starts = window.first == history.next || history.batches.contains_key(&window.first);
        ensure(Invariant::I3, starts, || {
            format!("{name}: {window:?} starts inside of a batch")
        })?;
        books.topics.insert(topic.id, history);
        Ok(())
    }

    /// Checks all bytes that are retained: they never change.
    pub fn reread(&self, topics: &[Topic], books: &Books) -> Check {
        for (chain, records) in self.raw.index_reader(ROW).scan() {
            let first = topics
                .iter()
                .find(|t| t.id == chain)
                .and_then(|t| self.windows.get(&t.id));
            let first = first.map_or(u64::MAX, |w| w.first);
            for record in records.iter().filter(|r| r.base >= first) {
                self.bytes_of(chain, record, books, Invariant::I7)?;
            }
        }
        Ok(())
    }

    fn bytes_of(
        &self,
        chain: u32,
        record: &IndexRecord,
        books: &Books,
        invariant: Invariant,
    ) -> Check {
        let header = self.batch_at(record.blog_at, record.len);
        let sound = header.as_ref().is_ok_and(|h| {
            h.topic() == chain
                && h.base_offset() == record.base
                && h.message_count() == record.count
                && (h.producer(), h.sequence()) == (record.producer, record.sequence)
                && h.flags().bits() == record.flags
                && books.is_genuine(h)
        });
        ensure(invariant, sound, || {
            format!("chain {chain}: {record:?} points to {header:?} on the device")
        })
    }

    /// The whole batch at a place of the payload file, if its checksums are right.
    fn batch_at(&self, at: u64, len: u32) -> Result<BatchHeader, String> {
        let inside = at
            .checked_add(len.into())
            .is_some_and(|end| end <= self.blog.len());
        if !inside || !at.is_multiple_of(64) {
            return Err("no place in the file".into());
        }
        let mut bytes = vec![0; len as usize];
        self.blog.read(at, &mut bytes);
        let (batch, rest) =
            Batch::split_first(&bytes, MAX_BATCH_BYTES).map_err(|e| e.to_string())?;
        if rest.is_empty() {
            Ok(*batch.header())
        } else {
            Err(format!("{} more bytes than the batch has", rest.len()))
        }
    }

    /// I2 for lane records, as soon as they are visible; I8 for their incarnations.
    fn lane(&mut self, books: &Books, moment: Moment) -> Check {
        if moment == Moment::Birth {
            // What the dead writer left and nobody consumed is skipped by whoever comes now.
            self.lane = self.raw.lane_reader(ROW, 0);
            self.born = true;
            let stale = self.lane.next();
            return ensure(Invariant::I8, stale.is_none(), || {
                format!("a reader that starts now takes {stale:?} of a dead incarnation")
            });
        }
        if self.lane.position() + self.lane_slots < self.progress.consumed {
            // More were published in one turn than the ring holds; the index tells of them all.
            self.lane = self.raw.lane_reader(ROW, 0);
        }
        while let Some((sequence, record)) = self.lane.next() {
            ensure(
                Invariant::I8,
                record.incarnation == self.incarnation,
                || {
                    format!(
                        "lane record {sequence} is of another incarnation than {}: {record:?}",
                        self.incarnation
                    )
                },
            )?;
            self.lane_record(sequence, &record, books)?;
        }
        let position = self.lane.position();
        ensure(
            Invariant::I2,
            moment == Moment::Death || position >= self.progress.consumed,
            || format!("lane record {position} counts as consumed, and is not visible"),
        )
    }

    fn lane_record(&self, sequence: u64, record: &PbrRecord, books: &Books) -> Check {
        let history = books.topics.get(&record.chain);
        // Its memory may be in use for something else only after its offsets were evicted.
        let evicted = history.is_some_and(|h| {
            let evicted = h.batches.range(..h.first);
            evicted.rev().any(|(_, v)| {
                v.blog_at == record.blog_at && v.name == (record.producer, record.sequence)
            })
        });
        if evicted {
            return Ok(());
        }
        let header = self.batch_at(record.blog_at, record.len);
        let sound = header.as_ref().is_ok_and(|h| {
            books.is_genuine(h)
                && h.topic() == record.chain
                && (h.producer(), h.sequence()) == (record.producer, record.sequence)
                && h.payload_crc() == record.payload_crc
        });
        ensure(Invariant::I2, sound, || {
            format!("lane record {sequence} {record:?} points to {header:?} on the device")
        })
    }
}

fn visible(record: &IndexRecord) -> Visible {
    Visible {
        name: (record.producer, record.sequence),
        count: record.count,
        blog_at: record.blog_at,
        len: record.len,
        flags: record.flags,
    }
}
