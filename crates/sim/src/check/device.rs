//! The topics of orders 0 and 1 of one broker, as any other host could read them at this moment: from
//! the devices alone.

use std::collections::{BTreeMap, BTreeSet};

use embar_broker::topics::Topic;
use embar_fabric::{IndexRecord, Region, Window};
use embar_memory::Simulated;

use super::bytes::PayloadFiles;
use crate::host::Devices;
use crate::oracle::{History, Name, Oracle, Visible};
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

/// Reads one broker's topics from the devices, and compares them with all that was visible before.
pub struct Inspector {
    row: u16,
    raw: Region<Simulated>,
    payload_files: PayloadFiles,
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
            payload_files: PayloadFiles::new(devices, first_row),
            incarnation: 0,
            windows: BTreeMap::new(),
            born: false,
            raw,
        }
    }

    /// Checks what is visible now, and enters what is new into the oracle.
    pub fn look(&mut self, topics: &[Topic], oracle: &mut Oracle, moment: Moment) -> Check {
        self.owner(moment)?;
        let mut found: BTreeMap<u32, Vec<IndexRecord>> =
            self.raw.index_reader(self.row).scan().into_iter().collect();
        for topic in topics.iter().filter(|topic| !topic.is_ordered()) {
            let records = found.remove(&topic.id).unwrap_or_default();
            let is_hurt = oracle.hurt.contains(&(topic.id, Some(self.row)));
            let window = self.window(topic, moment, is_hurt)?;
            self.retained(topic, window, &records, oracle, moment)?;
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
        let window = self.raw.window(self.row, topic.record()).found();
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
        oracle: &mut Oracle,
        moment: Moment,
    ) -> Check {
        let name = format!("{} of broker {}", topic.name, self.row);
        let counted = (topic.id, Some(self.row));
        let is_hurt = oracle.hurt.contains(&counted);
        let mut history = oracle.histories.remove(&counted).unwrap_or_default();
        for record in records {
            self.record(topic, record, &mut history, oracle, moment)?;
        }
        if is_hurt && moment == Moment::Birth && window.first > history.first {
            history.lost_below = window.first;
        }
        history.first = window.first;
        if is_hurt {
            history.next = history.next.max(window.next);
            oracle.histories.insert(counted, history);
            return Ok(());
        }
        let bases: BTreeSet<u64> = records.iter().map(|r| r.base).collect();
        let promised = history.batches.range(window.first..);
        let missing = promised.into_iter().find(|(base, _)| !bases.contains(base));
        if let Some((base, visible)) = missing {
            let is_acknowledged = visible.name.is_some_and(|it| oracle.is_acknowledged(it));
            // Without a recovery between, it was released while the window still promises it.
            let invariant = match (self.born, is_acknowledged) {
                (false, _) => Invariant::I7,
                (true, true) => Invariant::I6,
                (true, false) => Invariant::I3,
            };
            let what = format!(
                "{name}: {visible:?} at offset {base} is gone, the window is {window:?} ({moment:?})"
            );
            return Err(Violation { invariant, what });
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
        oracle.histories.insert(counted, history);
        Ok(())
    }

    /// A record that is visible now: the same as ever, or the next one.
    fn record(
        &self,
        topic: &Topic,
        record: &IndexRecord,
        history: &mut History,
        oracle: &Oracle,
        moment: Moment,
    ) -> Check {
        let name = || format!("{} of broker {}", topic.name, self.row);
        let mut visible = self.visible(record);
        let base = record.base;
        if let Some(known) = history.batches.get(&base) {
            let before = Visible {
                name: None,
                ..*known
            };
            return ensure(Invariant::I3, before == visible, || {
                let name = name();
                format!("{name}: offset {base} changed from {known:?} to {visible:?}")
            });
        }
        let is_hurt = oracle.hurt.contains(&(topic.id, Some(self.row)));
        let behind = is_hurt && base > history.next;
        ensure(Invariant::I3, base == history.next || behind, || {
            let (name, next) = (name(), history.next);
            format!("{name}: {visible:?} appears at offset {base}, where {next} comes next")
        })?;
        ensure(Invariant::I8, moment != Moment::Birth, || {
            let name = name();
            format!("{name}: {visible:?} at offset {base} appears by recovery")
        })?;
        visible.name = self.bytes_of(topic.id, record, oracle, Invariant::I2)?;
        history.next = base + u64::from(record.count);
        history.batches.insert(base, visible);
        Ok(())
    }

    /// Checks all bytes that are retained: they never change.
    pub fn reread(&self, topics: &[Topic], oracle: &Oracle) -> Check {
        for (chain, records) in self.raw.index_reader(self.row).scan() {
            let topic = topics.iter().find(|t| t.id == chain);
            let first = topic.map_or(u64::MAX, |topic| self.first_now(topic));
            for record in records.iter().filter(|r| r.base >= first) {
                self.bytes_of(chain, record, oracle, Invariant::I7)?;
            }
        }
        Ok(())
    }

    /// The first offset that may be read. Its broker may be in the middle of a turn, and have raised it since
    /// the last look.
    fn first_now(&self, topic: &Topic) -> u64 {
        let now = self.raw.window(self.row, topic.record()).found();
        let now = now.filter(|window| window.chain == topic.id);
        let known = self.windows.get(&topic.id);
        let firsts = now.iter().chain(known).map(|window| window.first);
        firsts.max().unwrap_or(u64::MAX)
    }

    fn bytes_of(
        &self,
        chain: u32,
        record: &IndexRecord,
        oracle: &Oracle,
        invariant: Invariant,
    ) -> Result<Option<Name>, Violation> {
        let found = self
            .payload_files
            .batch((self.row, record.payload_at), record.len, oracle);
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
            place: (self.row, record.payload_at),
            len: record.len,
            flags: record.flags,
            session_epoch: 0,
        }
    }
}
