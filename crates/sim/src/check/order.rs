//! The topics of orders 2 and 5, as any other host could read them at this moment: from the devices
//! alone.
//!
//! What the present term's order shows on the devices is what a successor will find there, so it
//! counts, and never changes.

use std::collections::BTreeMap;

use embar_broker::topics::Topic;
use embar_fabric::{GoiRecord, Region};
use embar_memory::Simulated;
use embar_order::follower::Found;
use embar_order::{Follower, Leadership, Term};

use super::bytes::PayloadFiles;
use crate::host::Devices;
use crate::oracle::{History, Oracle, Visible};
use crate::violation::{Check, Invariant, Violation, ensure};

/// Records read at once.
const RECORDS: usize = 4096;

/// Reads the order from the devices, and compares it with all that was visible before.
pub struct OrderInspector {
    raw: Region<Simulated>,
    payload_files: PayloadFiles,
    /// The highest that was seen.
    epoch: u32,
    /// An epoch that no row shows any more, as damage took it.
    untold: Option<u32>,
    followers: BTreeMap<u32, Follower<Simulated>>,
    /// By topic: where the term of an epoch starts.
    starts: BTreeMap<u32, (u32, u64)>,
}

impl OrderInspector {
    /// An inspector of freshly formatted devices.
    pub fn new(devices: &Devices) -> Self {
        let raw = devices.raw();
        let first_row = raw.geometry().data_rows().next().unwrap_or(0);
        Self {
            payload_files: PayloadFiles::new(devices, first_row),
            raw,
            epoch: 0,
            untold: None,
            followers: BTreeMap::new(),
            starts: BTreeMap::new(),
        }
    }

    /// Checks what is visible now, and enters what is new into the oracle.
    pub fn look(&mut self, topics: &[Topic], oracle: &mut Oracle) -> Check {
        let term = self.term()?;
        for topic in topics.iter().filter(|topic| topic.is_ordered()) {
            let mut history = oracle
                .histories
                .remove(&(topic.id, None))
                .unwrap_or_default();
            let checked = match term {
                // What lies behind lost records cannot be known.
                Some(_) if oracle.hurt.contains(&(topic.id, None)) => Ok(()),
                Some(term) => self.follow(topic, term, &mut history, oracle),
                None => Ok(()),
            };
            let first = self.first(topic, term);
            history.first = history.first.max(first.unwrap_or(0));
            history.next = history.next.max(history.first);
            oracle.histories.insert((topic.id, None), history);
            checked?;
        }
        Ok(())
    }

    /// A line of a candidate's row was lost just now. Where the candidate died as it stored the row, no other line
    /// may show the highest epoch.
    pub fn lose_row(&mut self) {
        if Leadership::observe(&self.raw).highest < self.epoch {
            self.untold = Some(self.epoch);
        }
    }

    /// The term of the active sequencer.
    fn term(&mut self) -> Result<Option<Term>, Violation> {
        let leadership = Leadership::observe(&self.raw);
        if leadership.highest < self.epoch && self.untold == Some(self.epoch) {
            // The term that shows is over. No candidate orders until a higher epoch is raised.
            return Ok(None);
        }
        ensure(Invariant::I1, leadership.highest >= self.epoch, || {
            format!("epoch {} after {}", leadership.highest, self.epoch)
        })?;
        self.epoch = leadership.highest;
        Ok(leadership.term)
    }

    /// The first position that everybody may still ask for.
    fn first(&self, topic: &Topic, term: Option<Term>) -> Option<u64> {
        let rows = self.raw.geometry().data_rows();
        let windows = rows.filter_map(|row| self.raw.window(row, topic.record()).found());
        let kept = windows.filter(|w| w.chain == topic.id).map(|w| w.first);
        let root = term.and_then(|term| self.raw.goi_root(term.area, topic.record()).found());
        let ordered = root
            .filter(|root| root.chain == topic.id)
            .map(|root| root.first);
        kept.chain(ordered).max()
    }

    fn follow(
        &mut self,
        topic: &Topic,
        term: Term,
        history: &mut History,
        oracle: &Oracle,
    ) -> Check {
        let follower = self
            .followers
            .entry(topic.id)
            .or_insert_with(|| Follower::new(&self.raw, topic.id, 0));
        // A cut below what was seen before takes back what a client may have been told.
        if let Some(start) = follower.start_of(term)
            && self.starts.insert(topic.id, (term.epoch, start)) != Some((term.epoch, start))
        {
            ensure(Invariant::I6, start >= history.next, || {
                format!(
                    "{}: epoch {} starts at {start}, and {} positions were seen",
                    topic.name, term.epoch, history.next
                )
            })?;
        }
        let mut records = Vec::new();
        while let Found::Gone { first } = follower.read(term, RECORDS, &mut records) {
            let next = follower.next();
            history.unseen.push((next, first));
            history.next = first;
            follower.seek(first);
        }
        for record in &records {
            self.enter(topic, record, history, oracle)?;
        }
        Ok(())
    }

    fn enter(
        &self,
        topic: &Topic,
        record: &GoiRecord,
        history: &mut History,
        oracle: &Oracle,
    ) -> Check {
        let name = &topic.name;
        ensure(Invariant::I3, record.base == history.next, || {
            format!(
                "{name}: {record:?} where position {} comes next",
                history.next
            )
        })?;
        history.next = record.end();
        let place = (u16::from(record.row), record.payload_at);
        let mut visible = Visible {
            name: None,
            numbered: (record.producer, record.sequence),
            count: record.count,
            place,
            len: record.len,
            flags: 0,
            session_epoch: record.session_epoch,
        };
        if self.is_kept(topic, record.base, &visible) {
            let (name, flags) =
                self.bytes_of(topic, record.base, &visible, oracle, Invariant::I2)?;
            (visible.name, visible.flags) = (Some(name), flags);
        }
        history.batches.insert(record.base, visible);
        Ok(())
    }

    /// Whether the memory of a batch may not have been used again.
    fn is_kept(&self, topic: &Topic, base: u64, visible: &Visible) -> bool {
        let window = self.raw.window(visible.place.0, topic.record()).found();
        window.is_some_and(|window| window.chain == topic.id && window.first <= base)
    }

    fn bytes_of(
        &self,
        topic: &Topic,
        base: u64,
        visible: &Visible,
        oracle: &Oracle,
        invariant: Invariant,
    ) -> Result<((u64, u64), u16), Violation> {
        let found = self.payload_files.batch(visible.place, visible.len, oracle);
        if let Ok((header, Some(name))) = &found
            && header.topic() == topic.id
            && (header.producer(), header.sequence()) == visible.numbered
            && header.message_count() == visible.count
            && header.epoch() == visible.session_epoch
            && visible.name.is_none_or(|before| before == *name)
        {
            return Ok((*name, header.flags().bits()));
        }
        Err(Violation {
            invariant,
            what: format!(
                "{}: {visible:?} at position {base}, but {found:?} is on the device",
                topic.name
            ),
        })
    }

    /// Checks all bytes that are retained: they never change.
    pub fn reread(&self, topics: &[Topic], oracle: &Oracle) -> Check {
        let is_hurt = |topic: &&Topic| oracle.hurt.contains(&(topic.id, None));
        let ordered = topics.iter().filter(|topic| topic.is_ordered());
        for topic in ordered.filter(|topic| !is_hurt(topic)) {
            let Some(history) = oracle.histories.get(&(topic.id, None)) else {
                continue;
            };
            for (base, visible) in history.batches.range(history.first..) {
                if self.is_kept(topic, *base, visible) {
                    self.bytes_of(topic, *base, visible, oracle, Invariant::I7)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
