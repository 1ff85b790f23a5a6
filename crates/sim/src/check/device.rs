//! The topics of orders 0 and 1 of one broker, as any other host could read them at this moment: from
//! the devices alone.

use std::collections::BTreeMap;

use embar_broker::topics::Topic;
use embar_fabric::{IndexRecord, Region, Window};
use embar_memory::Simulated;

use super::bytes::Blogs;
use crate::books::{Books, Name, Visible};
use crate::host::Devices;
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
    row: u16,
    raw: Region<Simulated>,
    blogs: Blogs,
    incarnation: u32,
    windows: BTreeMap<u32, Window>,
    /// Some incarnation has recovered.
    born: bool,
}

impl Inspector {
    /// An inspector of a row of freshly formatted devices.
    pub fn new(devices: &Devices, row: u16) -> Self {
        let raw = devices.raw();
        let first_row = raw.geometry().data_rows().next().unwrap_or(0);
        Self {
            row,
            blogs: Blogs::new(devices, first_row),
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
            self.raw.index_reader(self.row).scan().into_iter().collect();
        for topic in topics.iter().filter(|topic| !topic.is_ordered()) {
            let records = found.remove(&topic.id).unwrap_or_default();
            let is_hurt = books.hurt.contains(&(topic.id, Some(self.row)));
            let window = self.window(topic, moment, is_hurt)?;
            self.retained(topic, window, &records, books, moment)?;
        }
        self.born |= moment == Moment::Birth;
        Ok(())
    }

    /// I1: incarnations only grow.
    fn owner(&mut self, moment: Moment) -> Check {
        let incarnation = self.raw.incarnation(self.row);
        let grows = if moment == Moment::Birth {
            incarnation > self.incarnation
        } else {
            incarnation >= self.incarnation
        };
        ensure(Invariant::I1, grows, || {
            format!("incarnation {incarnation} after {}", self.incarnation)
        })?;
        self.incarnation = incarnation;
        Ok(())
    }

    /// I1: windows only grow. I6: recovery takes nothing away, unless records of it were lost.
    fn window(
        &mut self,
        topic: &Topic,
        moment: Moment,
        is_hurt: bool,
    ) -> Result<Window, Violation> {
        let window = self.raw.window(self.row, topic.cell()).found();
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
            moment != Moment::Birth || window.first == before.first || is_hurt,
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
        let name = format!("{} of broker {}", topic.name, self.row);
        let counted = (topic.id, Some(self.row));
        let is_hurt = books.hurt.contains(&counted);
        let mut history = books.histories.remove(&counted).unwrap_or_default();
        for record in records {
            let mut visible = self.visible(record);
            match history.batches.get(&record.base) {
                Some(known) => ensure(
                    Invariant::I3,
                    Visible {
                        name: None,
                        ..*known
                    } == visible,
                    || {
                        format!(
                            "{name}: offset {} changed from {known:?} to {visible:?}",
                            record.base
                        )
                    },
                )?,
                None => {
                    let follows = record.base == history.next;
                    let behind = is_hurt && record.base > history.next;
                    ensure(Invariant::I3, follows || behind, || {
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
                    visible.name = self.bytes_of(topic.id, record, books, Invariant::I2)?;
                    history.next = record.base + u64::from(record.count);
                    history.batches.insert(record.base, visible);
                }
            }
        }
        if is_hurt && moment == Moment::Birth && window.first > history.first {
            history.lost_below = window.first;
        }
        history.first = window.first;
        if is_hurt {
            history.next = history.next.max(window.next);
            books.histories.insert(counted, history);
            return Ok(());
        }
        let bases: std::collections::BTreeSet<u64> = records.iter().map(|r| r.base).collect();
        let missing = history
            .batches
            .range(window.first..)
            .find(|(base, _)| !bases.contains(base));
        if let Some((base, visible)) = missing {
            // Without a recovery between, it was released while the window still promises it.
            let invariant = match (
                self.born,
                visible.name.is_some_and(|name| books.is_acknowledged(name)),
            ) {
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
        books.histories.insert(counted, history);
        Ok(())
    }

    /// Checks all bytes that are retained: they never change.
    pub fn reread(&self, topics: &[Topic], books: &Books) -> Check {
        for (chain, records) in self.raw.index_reader(self.row).scan() {
            let topic = topics.iter().find(|t| t.id == chain);
            let first = topic.map_or(u64::MAX, |topic| self.first_now(topic));
            for record in records.iter().filter(|r| r.base >= first) {
                self.bytes_of(chain, record, books, Invariant::I7)?;
            }
        }
        Ok(())
    }

    /// The first offset that may be read. Its broker may be in the middle of a turn, and have raised it since
    /// the last look.
    fn first_now(&self, topic: &Topic) -> u64 {
        let now = self.raw.window(self.row, topic.cell()).found();
        let now = now.filter(|window| window.chain == topic.id);
        let known = self.windows.get(&topic.id);
        let firsts = now.iter().chain(known).map(|window| window.first);
        firsts.max().unwrap_or(u64::MAX)
    }

    fn bytes_of(
        &self,
        chain: u32,
        record: &IndexRecord,
        books: &Books,
        invariant: Invariant,
    ) -> Result<Option<Name>, Violation> {
        let found = self
            .blogs
            .batch((self.row, record.blog_at), record.len, books);
        let sound = found.as_ref().is_ok_and(|(h, name)| {
            h.topic() == chain
                && h.base_offset() == record.base
                && h.message_count() == record.count
                && (h.producer(), h.sequence()) == (record.producer, record.sequence)
                && h.flags().bits() == record.flags
                && name.is_some()
        });
        ensure(invariant, sound, || {
            format!(
                "chain {chain} of broker {}: {record:?} points to {found:?} on the device",
                self.row
            )
        })?;
        Ok(found.ok().and_then(|(_, name)| name))
    }

    fn visible(&self, record: &IndexRecord) -> Visible {
        Visible {
            name: None,
            numbered: (record.producer, record.sequence),
            count: record.count,
            place: (self.row, record.blog_at),
            len: record.len,
            flags: record.flags,
            session_epoch: 0,
        }
    }
}
