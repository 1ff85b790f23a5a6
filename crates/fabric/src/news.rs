//! News: of which chains something has changed, for readers that would otherwise look at all of them.
//!
//! A ring of lines that name chains, and a row that counts the lines. The writer stores a change first, then
//! the lines that name it, then the row, so a reader that looks at what is named finds it. The writer waits
//! for no reader: one that was overtaken, that comes new, or that does not find a line where one was counted
//! has to look at everything. So have all readers when a new writer begins, because the one before may have
//! died between a change and its line.

use std::sync::{Arc, Mutex, PoisonError};

use embar_memory::Memory;

use crate::records::{NewsCount, NewsLine, Record};
use crate::ring::Ring;
use crate::rows::{self, RowWriter};
use crate::slot::Seen;

/// Chains that one line names at most.
const NAMES: usize = NewsLine::NAMES;

/// The writers of news, and what changes they announce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// The head: topic records.
    TopicRecords,
    /// A broker's row: chains whose window it has raised.
    Windows(u16),
    /// An area's candidate: chains that have grown.
    Order(u16),
    /// An area's candidate: chains of which it has given something up.
    GivenUp(u16),
    /// An area's candidate: chains of which more is on a disk.
    Frontiers(u16),
    /// A broker's row, in a region with disks: pages of its index that have got records of chains which disks have. These news name
    /// pages, and no chains.
    IndexPages(u16),
}

/// The writing end; there is only one.
#[derive(Debug)]
pub struct NewsWriter<M> {
    ring: Ring<M>,
    row: RowWriter<M, NewsCount>,
    lines: u64,
}

impl<M: Memory> NewsWriter<M> {
    /// Goes on so far above everything that was written here that all readers are overtaken.
    pub(crate) fn attach(ring: Ring<M>, row: RowWriter<M, NewsCount>) -> Self {
        let found: Option<NewsCount> = row.read().found();
        let above = ring.above_all().max(found.map_or(0, |found| found.lines));
        let mut writer = Self {
            lines: above + u64::from(ring.slots) + 1,
            ring,
            row,
        };
        writer.count();
        writer
    }

    /// Names chains that have changed. The changes were stored before, and settled.
    pub fn announce(&mut self, chains: &[u32]) {
        if chains.is_empty() {
            return;
        }
        for named in chains.chunks(NAMES) {
            let mut line = NewsLine {
                names: named.len() as u32,
                ..NewsLine::default()
            };
            line.chains[..named.len()].copy_from_slice(named);
            self.ring.publish(self.lines, &line.to_body());
            self.lines += 1;
        }
        self.count();
    }

    fn count(&mut self) {
        self.row.store(&NewsCount {
            lines: self.lines,
            ..NewsCount::default()
        });
    }
}

/// The writing end, for several that each announce what they change.
#[derive(Debug)]
pub struct SharedNews<M>(Arc<Mutex<NewsWriter<M>>>);

impl<M> Clone for SharedNews<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: Memory> SharedNews<M> {
    /// Shares a writer.
    pub fn new(writer: NewsWriter<M>) -> Self {
        Self(Arc::new(Mutex::new(writer)))
    }

    /// As [`NewsWriter::announce`].
    pub fn announce(&self, chains: &[u32]) {
        // A line that was written and not counted is written again: that costs its readers nothing else.
        let mut writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        writer.announce(chains);
    }
}

/// A reading end; there may be any number.
#[derive(Debug)]
pub struct NewsReader<M> {
    ring: Ring<M>,
    row_at: u64,
    /// Lines that were read; none before the first look.
    read: Option<u64>,
}

impl<M: Memory> NewsReader<M> {
    pub(crate) fn new(ring: Ring<M>, row_at: u64) -> Self {
        Self {
            ring,
            row_at,
            read: None,
        }
    }

    /// Appends the chains that were named since the last call, some perhaps more than once. False when
    /// any chain may have changed: then the caller looks at everything, after this call.
    #[must_use = "when it is false, everything is to be looked at"]
    pub fn take(&mut self, chains: &mut Vec<u32>) -> bool {
        let memory = &*self.ring.memory;
        let count: Seen<NewsCount> = rows::read(memory, self.row_at, self.ring.nonce);
        let lines = count.found().map_or(0, |count| count.lines);
        let Some(read) = self.read.replace(lines) else {
            return false;
        };
        if read == lines {
            return true;
        }
        // Numbers only grow, unless memory is damaged.
        let new = lines.checked_sub(read);
        if new.is_none_or(|new| new > self.ring.slots.into()) {
            return false;
        }
        for number in read..lines {
            let Seen::Found(body) = self.ring.observe_closely(number) else {
                return false;
            };
            let line = NewsLine::from_body(&body);
            let Some(named) = line.chains.get(..line.names as usize) else {
                return false;
            };
            chains.extend_from_slice(named);
        }
        true
    }
}
