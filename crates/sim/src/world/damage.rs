//! Memory that goes bad while it is in use: wrong bits, and lines that are lost.
//!
//! What is kept twice loses one copy at most, and what repairs itself is wrong once: then nothing is missing, and
//! no rule is suspended. Only where a candidate died as it stored its row, the lost copy may be the last one that
//! showed the highest epoch; then lower ones show until the next takeover. A page of an index or of the order that
//! loses a record costs its topic, which the oracle notes: nothing else may be missing, and every client that
//! misses it must learn that.
//!
//! A line that was just written to a lane, or to its notices, is lost now and then before any host reads it: chance
//! alone hardly ever hits such lines while they matter. Half of them lose their laps, too, so that no reader knows
//! that there was a line: no client may wait for it all the same. The newest record of the order is lost in both of
//! these ways, too.

use std::collections::BTreeMap;
use std::ops::Range;

use embar_fabric::geometry::INDEX_PAGE_BYTES;
use embar_fabric::goi::PAGE_RECORDS;
use embar_fabric::layout::{Table, TableId};
use embar_fabric::records::{PageHeader, Record};
use embar_fabric::slot::{self, Body};
use embar_fabric::{GoiPage, Layout, Seen};
use embar_memory::canary::without_canary;
use embar_memory::{LINE_BYTES, Memory};
use embar_order::Leadership;

use super::World;
use crate::check::device::Moment;
use crate::oracle::Counted;
use crate::violation::Check;

/// The content of a lost line.
const GARBAGE: u8 = 0xC3;
/// Bytes of one of the two places in the line of a row's incarnation.
const INCARNATION_BYTES: usize = 8;
/// Of a line, the body of its record; the check and the lap are behind it.
const BODY_BYTES: usize = LINE_BYTES as usize - 8;

/// A kind of what lies in the control file.
struct Kind {
    /// None for the superblock.
    table: Option<TableId>,
    name: &'static str,
    range: Range<u64>,
    /// Bytes of what is wrong in one place at most: a record, or both copies of one.
    unit: u64,
    /// Bytes of what is lost at once.
    copy: usize,
}

/// What is missing when a line is lost.
#[derive(Debug)]
enum Cost {
    Nothing,
    /// Records of a topic, of one broker or of all.
    Topic(Counted),
    /// The chain that it belonged to cannot be found any more.
    Unknown,
}

impl Kind {
    fn superblock(tables: &[Table]) -> Self {
        let bytes = tables[0].offset;
        Self {
            table: None,
            name: "superblock",
            range: 0..bytes,
            unit: bytes,
            copy: LINE_BYTES as usize,
        }
    }

    fn of(table: &Table) -> Self {
        Self {
            table: Some(table.id),
            name: table.id.name(),
            range: table.offset..table.offset + table.bytes(),
            unit: match table.id {
                TableId::IndexPages | TableId::GoiPages => LINE_BYTES,
                // Two rows, each kept twice.
                TableId::Sessions => table.entry_bytes / 2,
                _ => table.entry_bytes,
            },
            copy: match table.id {
                TableId::Owners => INCARNATION_BYTES,
                _ => LINE_BYTES as usize,
            },
        }
    }

    /// Where the unit begins that a line lies in.
    fn unit_of(&self, line: u64) -> u64 {
        line - (line - self.range.start) % self.unit
    }
}

impl World {
    /// One bit of a line in use is wrong from now on, until a host stores to it.
    pub(super) fn flip(&mut self) {
        let Some((kind, at)) = self.any_line() else {
            return;
        };
        let bit = self.random.below(8 * LINE_BYTES);
        self.devices.control.damage(at, |line| {
            line[bit as usize / 8] ^= 1 << (bit % 8);
        });
        self.spoil(&kind, at);
        self.figures.flipped += 1;
        let name = kind.name;
        self.note(format_args!(
            "{name}: bit {bit} of the line at {at} is wrong"
        ));
    }

    /// A line in use, or one copy of what is kept twice in it, is lost.
    pub(super) fn lose(&mut self) -> Check {
        let Some((kind, at)) = self.any_line() else {
            return Ok(());
        };
        let hurt = match kind.table {
            Some(TableId::IndexPages) => self.page_of_index(&kind, at),
            Some(TableId::GoiPages) => self.page_of_order(&kind, at),
            _ => Cost::Nothing,
        };
        if let Cost::Unknown = hurt {
            return Ok(());
        }
        if let Cost::Topic(counted) = hurt {
            self.hurt(counted)?;
        }
        let copies = LINE_BYTES.min(2 * kind.copy as u64) as usize / kind.copy;
        let from = kind.copy * self.random.below(copies as u64) as usize;
        self.devices.control.damage(at, |line| {
            line[from..from + kind.copy].fill(GARBAGE);
        });
        if kind.table == Some(TableId::Sequencers) {
            without_canary(|| self.orders.lose_row());
        }
        self.spoil(&kind, at);
        self.figures.lost += 1;
        let name = kind.name;
        self.note(format_args!("{name}: the line at {at} is lost, {hurt:?}"));
        Ok(())
    }

    /// The newest entry of a lane of this row, or of what was said of one, is lost now and then.
    pub(super) fn lose_unread(&mut self, table: TableId, row: u16) {
        if self.healed || !self.random.one_in(self.plan.faults.lose_unread) {
            return;
        }
        let layout = Layout::new(&self.plan.geometry);
        let lines = 0..layout.tables()[table as usize].entry_bytes / LINE_BYTES;
        let newest = self.newest_lines(table, row);
        let Some(at) = newest.get(self.random.below(newest.len().max(1) as u64) as usize) else {
            return;
        };
        let bytes = self.bytes_lost();
        // Of what is kept twice, now and then both copies: then its content is lost for good.
        let first = self.random.below(lines.end);
        let lines = if self.random.one_in(2) {
            lines
        } else {
            first..first + 1
        };
        for line in lines {
            self.devices.control.damage(at + line * LINE_BYTES, |line| {
                line[..bytes].fill(GARBAGE);
            });
        }
        *self.damaged.entry(table.name()).or_default() += 1;
        self.figures.lost_unread += 1;
        let name = table.name();
        self.note(format_args!(
            "{name}: what is at {at} is lost, as the newest of broker {row}"
        ));
    }

    /// Loses a line: all of it, or its body, so that its lap still shows that it was there.
    fn bytes_lost(&mut self) -> usize {
        match self.random.one_in(2) {
            true => LINE_BYTES as usize,
            false => BODY_BYTES,
        }
    }

    /// The newest entry of each ring that a table has for a row's lanes.
    fn newest_lines(&self, table: TableId, row: u16) -> Vec<u64> {
        let geometry = &self.plan.geometry;
        let layout = Layout::new(geometry);
        let table = layout.tables()[table as usize];
        let (slots, lanes) = (u64::from(geometry.lane_slots), u64::from(geometry.lanes));
        let of_row = |ring: &u64| ring / lanes % u64::from(geometry.brokers) == u64::from(row);
        let (control, nonce) = (self.devices.control.view(), self.devices.raw().nonce());
        let newest = |ring: u64| {
            let lines = (0..slots).map(|i| table.offset + (ring * slots + i) * table.entry_bytes);
            let laps =
                lines.filter_map(|at| Some((slot::peek(&control, at, nonce).found()?.0, at)));
            laps.max().map(|(_, at)| at)
        };
        (0..table.entries / slots)
            .filter(of_row)
            .filter_map(newest)
            .collect()
    }

    /// The newest record of a topic's order is lost now and then.
    pub(super) fn lose_newest_record(&mut self) -> Check {
        if self.healed || !self.random.one_in(self.plan.faults.lose_newest) {
            return Ok(());
        }
        let newest = self.newest_records();
        let Some(at) = newest.get(self.random.below(newest.len().max(1) as u64) as usize) else {
            return Ok(());
        };
        let kind = Kind::of(&Layout::new(&self.plan.geometry).tables()[TableId::GoiPages as usize]);
        let Cost::Topic(counted) = self.page_of_order(&kind, *at) else {
            return Ok(());
        };
        self.hurt(counted)?;
        let bytes = self.bytes_lost();
        self.devices
            .control
            .damage(*at, |line| line[..bytes].fill(GARBAGE));
        self.spoil(&kind, *at);
        self.figures.lost_unread += 1;
        self.note(format_args!(
            "GOI pages: the record at {at} is lost, as the newest of topic {}",
            counted.0
        ));
        Ok(())
    }

    /// Where the newest record of each topic lies that the term has ordered something of.
    fn newest_records(&self) -> Vec<u64> {
        let raw = self.devices.raw();
        let Some(term) = Leadership::observe(&raw).term else {
            return Vec::new();
        };
        let reader = raw.goi_reader(term.area);
        let pages = Layout::new(raw.geometry()).tables()[TableId::GoiPages as usize];
        let before = u64::from(term.area) * u64::from(reader.pages());
        let mut newest = BTreeMap::new();
        for page in 0..reader.pages() {
            let Some((generation, header)) = reader.page(page).found() else {
                continue;
            };
            if (header.in_use, header.epoch) != (1, term.epoch) {
                continue;
            }
            let is_there = |slot: &u32| reader.record(page, generation, *slot).found().is_some();
            let Some(slot) = (0..PAGE_RECORDS).rev().find(is_there) else {
                continue;
            };
            let page_at = pages.offset + (before + u64::from(page)) * INDEX_PAGE_BYTES;
            let place = (header.start, page_at + u64::from(slot + 1) * LINE_BYTES);
            let newest = newest.entry(header.chain).or_insert(place);
            *newest = place.max(*newest);
        }
        newest.into_values().map(|(_, at)| at).collect()
    }

    /// What can be seen of a topic until now was seen; from now on it may miss some of that.
    fn hurt(&mut self, counted: Counted) -> Check {
        match counted.1 {
            None => self.look_at_order()?,
            Some(row) if self.host(row).is_some() => self.look(row, Moment::Turn)?,
            Some(row) => self.look(row, Moment::Death)?,
        }
        self.figures.hurt += u64::from(self.oracle.hurt.insert(counted));
        Ok(())
    }

    fn page_of_index(&self, kind: &Kind, at: u64) -> Cost {
        let (page, seen) = self.header_of(kind, at);
        let header: Seen<PageHeader> = seen.map(|body| Record::from_body(&body));
        let geometry = &self.plan.geometry;
        let row = geometry
            .data_rows()
            .nth((page / u64::from(geometry.index_pages)) as usize);
        let of = header.map(|header| (header.in_use, (header.chain, row)));
        self.cost_of(of)
    }

    fn page_of_order(&self, kind: &Kind, at: u64) -> Cost {
        let (_, seen) = self.header_of(kind, at);
        let header: Seen<GoiPage> = seen.map(|body| Record::from_body(&body));
        let of = header.map(|header| (header.in_use.into(), (header.chain, None)));
        self.cost_of(of)
    }

    /// The page that a line lies in, and its header.
    fn header_of(&self, kind: &Kind, at: u64) -> (u64, Seen<Body>) {
        let page = (at - kind.range.start) / INDEX_PAGE_BYTES;
        let header_at = kind.range.start + page * INDEX_PAGE_BYTES;
        let control = self.devices.control.view();
        let seen = slot::peek(&control, header_at, self.devices.raw().nonce());
        (page, seen.map(|(_, body)| body))
    }

    /// What it costs to lose a record of a page.
    fn cost_of(&self, page: Seen<(u32, Counted)>) -> Cost {
        match page {
            Seen::Damaged => Cost::Unknown,
            Seen::Found((1, counted)) if self.topics.iter().any(|it| it.id == counted.0) => {
                Cost::Topic(counted)
            }
            Seen::Found(_) | Seen::Nothing => Cost::Nothing,
        }
    }

    fn spoil(&mut self, kind: &Kind, at: u64) {
        self.spoiled.insert(kind.unit_of(at));
        *self.damaged.entry(kind.name).or_default() += 1;
    }

    /// A line in use of any kind, each as likely as the others, in what was not damaged yet.
    fn any_line(&mut self) -> Option<(Kind, u64)> {
        let layout = Layout::new(&self.plan.geometry);
        let tables = layout.tables();
        let superblock = Kind::superblock(tables);
        let mut kinds: Vec<Kind> = tables.iter().map(Kind::of).chain([superblock]).collect();
        let kind = kinds.swap_remove(self.random.below(kinds.len() as u64) as usize);
        let control = self.devices.control.view();
        let sound = kind
            .range
            .clone()
            .step_by(LINE_BYTES as usize)
            .filter(|at| {
                let mut line = [0; LINE_BYTES as usize];
                control.read(*at, &mut line);
                line != [0; LINE_BYTES as usize] && !self.spoiled.contains(&kind.unit_of(*at))
            });
        let sound: Vec<u64> = sound.collect();
        let at = *sound.get(self.random.below(sound.len().max(1) as u64) as usize)?;
        Some((kind, at))
    }
}
