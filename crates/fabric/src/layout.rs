//! Where every table of the control file lies, and a printout of it all.

use std::fmt;

use embar_memory::LINE_BYTES;
use embar_memory::payload::ORDER_MAX;
use embar_memory::payload::UNIT_BYTES;

use crate::geometry::{Geometry, INDEX_PAGE_BYTES};
use crate::news::News;
use crate::records::{
    Attached, BrokerRow, ControlRow, DiskRow, Field, Frontier, GoiPage, GoiRecord, GoiRoot,
    IndexRecord, LaneGrant, LaneStart, NewsCount, NewsLine, Notice, PageHeader, PbrRecord, Record,
    SequencerRow, SessionOwner, SessionRow, Window,
};
use crate::sessions::SESSION_BYTES;
use crate::slot::{BODY_BYTES, PAIR_BYTES, SLOT_BYTES};
use crate::topic_record::{TOPIC_RECORD_BYTES, TOPIC_RECORD_PAYLOAD_BYTES_MAX};

/// Version of everything in the region. A change of any layout raises it.
pub const VERSION: u32 = 11;

/// Bytes set aside for the superblock.
pub const SUPERBLOCK_BYTES: u64 = 4096;

/// Tables start at multiples of this.
const TABLE_ALIGN: u64 = 4096;

/// The tables of the control file, in the order in which they lie there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableId {
    /// Incarnation and process id of each row's owner.
    Owners,
    /// [`ControlRow`]s.
    Control,
    /// [`BrokerRow`]s.
    Brokers,
    /// [`Window`]s, per broker and topic.
    Windows,
    /// Topic records of the head.
    TopicRecords,
    /// [`LaneStart`]s, per lane.
    LaneStarts,
    /// [`PbrRecord`]s, per lane.
    LaneSlots,
    /// Pages of [`IndexRecord`]s, per data broker.
    IndexPages,
    /// Whether a thread sleeps and wants to be woken, per row.
    Sleepers,
    /// [`SequencerRow`]s, per area.
    Sequencers,
    /// [`GoiRoot`]s, per area and topic.
    GoiRoots,
    /// [`LaneGrant`]s, per area and lane.
    LaneGrants,
    /// [`Notice`]s, per area and lane, each kept twice.
    Notices,
    /// [`SessionRow`]s and their [`SessionOwner`]s, per area.
    Sessions,
    /// [`Attached`] rows, per broker.
    Attached,
    /// Pages of [`GoiRecord`]s, per area.
    GoiPages,
    /// [`DiskRow`]s, per area and disk.
    Disks,
    /// [`Frontier`]s, per area, disk, topic and data row.
    Frontiers,
    /// [`NewsCount`]s, one for each [`News`].
    NewsCounts,
    /// [`NewsLine`]s, as many for each [`News`] as a lane has slots.
    NewsLines,
}

/// Number of tables.
pub const TABLES: usize = 20;

impl TableId {
    /// All tables in order.
    pub const ALL: [Self; TABLES] = [
        Self::Owners,
        Self::Control,
        Self::Brokers,
        Self::Windows,
        Self::TopicRecords,
        Self::LaneStarts,
        Self::LaneSlots,
        Self::IndexPages,
        Self::Sleepers,
        Self::Sequencers,
        Self::GoiRoots,
        Self::LaneGrants,
        Self::Notices,
        Self::Sessions,
        Self::Attached,
        Self::GoiPages,
        Self::Disks,
        Self::Frontiers,
        Self::NewsCounts,
        Self::NewsLines,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Owners => "owners",
            Self::Control => "control rows",
            Self::Brokers => "broker rows",
            Self::Windows => "windows",
            Self::TopicRecords => "cells",
            Self::LaneStarts => "lane starts",
            Self::LaneSlots => "lane slots",
            Self::IndexPages => "index pages",
            Self::Sleepers => "sleepers",
            Self::Sequencers => "sequencers",
            Self::GoiRoots => "GOI roots",
            Self::LaneGrants => "lane grants",
            Self::Notices => "notices",
            Self::Sessions => "sessions",
            Self::Attached => "attached",
            Self::GoiPages => "GOI pages",
            Self::Disks => "disks",
            Self::Frontiers => "frontiers",
            Self::NewsCounts => "news counts",
            Self::NewsLines => "news lines",
        }
    }

    /// The one writer of an entry.
    pub fn writer(self) -> &'static str {
        match self {
            Self::Owners => "who claims the row",
            Self::Control | Self::Brokers => "the row's process",
            Self::Windows | Self::IndexPages | Self::Attached => "the broker",
            Self::TopicRecords => "the head",
            Self::LaneStarts | Self::LaneSlots => "the lane's thread",
            Self::Sleepers => "who sleeps",
            Self::Sequencers
            | Self::GoiRoots
            | Self::LaneGrants
            | Self::Notices
            | Self::Sessions
            | Self::GoiPages
            | Self::Disks
            | Self::Frontiers => "the area's candidate",
            Self::NewsCounts | Self::NewsLines => "who has news",
        }
    }

    fn entry_bytes(self) -> u64 {
        match self {
            Self::Sleepers => LINE_BYTES,
            Self::Owners
            | Self::Control
            | Self::Brokers
            | Self::Windows
            | Self::LaneStarts
            | Self::Sequencers
            | Self::GoiRoots
            | Self::LaneGrants
            | Self::Notices
            | Self::Attached
            | Self::Disks
            | Self::Frontiers
            | Self::NewsCounts => PAIR_BYTES,
            Self::Sessions => SESSION_BYTES,
            Self::TopicRecords => TOPIC_RECORD_BYTES,
            Self::LaneSlots | Self::NewsLines => SLOT_BYTES,
            Self::IndexPages | Self::GoiPages => INDEX_PAGE_BYTES,
        }
    }

    fn entries(self, g: &Geometry) -> u64 {
        let brokers = u64::from(g.brokers);
        let lanes = brokers * u64::from(g.lanes);
        let areas = u64::from(g.areas());
        let index_news = if g.disks > 0 { brokers } else { 0 };
        let news = 1 + brokers + 3 * areas + index_news;
        let disks = areas * u64::from(g.disks);
        match self {
            Self::Owners | Self::Control | Self::Brokers => brokers,
            Self::Windows => brokers * u64::from(g.topics),
            Self::TopicRecords => u64::from(g.topics),
            Self::LaneStarts => lanes,
            Self::LaneSlots => lanes * u64::from(g.lane_slots),
            Self::Sleepers => brokers * (u64::from(g.lanes) + 1),
            Self::Sequencers => areas,
            Self::GoiRoots => areas * u64::from(g.topics),
            Self::LaneGrants => areas * lanes,
            Self::Notices => areas * lanes * u64::from(g.lane_slots),
            Self::Sessions => areas * u64::from(g.sessions),
            Self::Attached => brokers * u64::from(g.attached_rows()),
            Self::GoiPages => areas * u64::from(g.goi_pages),
            Self::Disks => disks,
            Self::Frontiers => disks * u64::from(g.topics) * u64::from(g.frontiers()),
            Self::NewsCounts => news,
            Self::NewsLines => news * u64::from(g.lane_slots),
            Self::IndexPages => g.data_rows().count() as u64 * u64::from(g.index_pages),
        }
    }
}

/// One table: `entries` of `entry_bytes` each, from `offset` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Which one.
    pub id: TableId,
    /// Bytes from the start of the control file.
    pub offset: u64,
    /// Bytes of one entry.
    pub entry_bytes: u64,
    /// Number of entries.
    pub entries: u64,
}

impl Table {
    /// Bytes of the table.
    pub fn bytes(&self) -> u64 {
        self.entry_bytes * self.entries
    }

    /// Offset of entry `i`. Panics when there is no such entry.
    fn entry(&self, i: u64) -> u64 {
        assert!(
            i < self.entries,
            "{} has {} entries, not {i}",
            self.id.name(),
            self.entries
        );
        self.offset + i * self.entry_bytes
    }
}

/// The offsets that follow from a [`Geometry`]. Its `Display` is what `embar layout` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    geometry: Geometry,
    tables: [Table; TABLES],
}

impl Layout {
    /// The layout of a region of this shape.
    pub fn new(geometry: &Geometry) -> Self {
        let mut offset = SUPERBLOCK_BYTES;
        let tables = TableId::ALL.map(|id| {
            let table = Table {
                id,
                offset,
                entry_bytes: id.entry_bytes(),
                entries: id.entries(geometry),
            };
            offset = (offset + table.bytes()).next_multiple_of(TABLE_ALIGN);
            table
        });
        Self {
            geometry: geometry.clone(),
            tables,
        }
    }

    /// The shape it follows from.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// All tables in order.
    pub fn tables(&self) -> &[Table; TABLES] {
        &self.tables
    }

    /// Bytes of the control file.
    pub fn control_bytes(&self) -> u64 {
        let last = self.tables[TABLES - 1];
        (last.offset + last.bytes()).next_multiple_of(TABLE_ALIGN)
    }

    /// The table and the entry that lie at an offset.
    pub(crate) fn name_of(&self, at: u64) -> (&'static str, u64) {
        let holds = |table: &&Table| (table.offset..table.offset + table.bytes()).contains(&at);
        let table = self.tables.iter().find(holds);
        table.map_or(("superblock", 0), |table| {
            (table.id.name(), (at - table.offset) / table.entry_bytes)
        })
    }

    fn table(&self, id: TableId) -> &Table {
        &self.tables[id as usize]
    }

    pub(crate) fn owner(&self, row: u16) -> u64 {
        self.table(TableId::Owners).entry(row.into())
    }

    pub(crate) fn control_row(&self, row: u16) -> u64 {
        self.table(TableId::Control).entry(row.into())
    }

    pub(crate) fn broker_row(&self, row: u16) -> u64 {
        self.table(TableId::Brokers).entry(row.into())
    }

    pub(crate) fn window(&self, row: u16, topic: u16) -> u64 {
        assert!(topic < self.geometry.topics, "no topic record {topic}");
        let i = u64::from(row) * u64::from(self.geometry.topics) + u64::from(topic);
        self.table(TableId::Windows).entry(i)
    }

    pub(crate) fn topic_record(&self, topic: u16) -> u64 {
        self.table(TableId::TopicRecords).entry(topic.into())
    }

    pub(crate) fn lane_start(&self, row: u16, lane: u16) -> u64 {
        self.table(TableId::LaneStarts).entry(self.lane(row, lane))
    }

    pub(crate) fn lane_slots(&self, row: u16, lane: u16) -> u64 {
        let first = self.lane(row, lane) * u64::from(self.geometry.lane_slots);
        self.table(TableId::LaneSlots).entry(first)
    }

    /// `None` for a row that takes no data.
    pub(crate) fn index_pages(&self, row: u16) -> Option<u64> {
        let i = self.geometry.data_rows().position(|data| data == row)? as u64;
        let first = i * u64::from(self.geometry.index_pages);
        Some(self.table(TableId::IndexPages).entry(first))
    }

    /// Word of sleeper `number` of a row: a lane's thread, or, behind those, the sequencer.
    pub(crate) fn sleeper(&self, row: u16, number: u16) -> u64 {
        assert!(number <= self.geometry.lanes, "no sleeper {number}");
        let i = u64::from(row) * (u64::from(self.geometry.lanes) + 1) + u64::from(number);
        self.table(TableId::Sleepers).entry(i)
    }

    pub(crate) fn sequencer(&self, area: u16) -> u64 {
        self.table(TableId::Sequencers).entry(area.into())
    }

    pub(crate) fn goi_root(&self, area: u16, topic: u16) -> u64 {
        assert!(topic < self.geometry.topics, "no topic record {topic}");
        let i = u64::from(area) * u64::from(self.geometry.topics) + u64::from(topic);
        self.table(TableId::GoiRoots).entry(i)
    }

    pub(crate) fn lane_grant(&self, area: u16, row: u16, lane: u16) -> u64 {
        let i = self.lane_of_area(area, row, lane);
        self.table(TableId::LaneGrants).entry(i)
    }

    pub(crate) fn notices(&self, area: u16, row: u16, lane: u16) -> u64 {
        let i = self.lane_of_area(area, row, lane) * u64::from(self.geometry.lane_slots);
        self.table(TableId::Notices).entry(i)
    }

    /// The first row of an area's session table.
    pub(crate) fn sessions(&self, area: u16) -> u64 {
        let first = u64::from(area) * u64::from(self.geometry.sessions);
        self.table(TableId::Sessions).entry(first)
    }

    /// Row `number` of those that say which sessions a broker holds.
    pub(crate) fn attached(&self, row: u16, number: u32) -> u64 {
        assert!(number < self.geometry.attached_rows(), "no row {number}");
        let first = u64::from(row) * u64::from(self.geometry.attached_rows());
        self.table(TableId::Attached)
            .entry(first + u64::from(number))
    }

    pub(crate) fn goi_pages(&self, area: u16) -> u64 {
        let first = u64::from(area) * u64::from(self.geometry.goi_pages);
        self.table(TableId::GoiPages).entry(first)
    }

    pub(crate) fn disk(&self, area: u16, disk: u16) -> u64 {
        let i = self.disk_of_area(area, disk);
        self.table(TableId::Disks).entry(i)
    }

    /// The first of a topic's frontiers on a disk, as an area has them.
    pub(crate) fn frontiers(&self, area: u16, disk: u16, topic: u16) -> u64 {
        assert!(topic < self.geometry.topics, "no topic record {topic}");
        let topics = self.disk_of_area(area, disk) * u64::from(self.geometry.topics);
        let i = (topics + u64::from(topic)) * u64::from(self.geometry.frontiers());
        self.table(TableId::Frontiers).entry(i)
    }

    fn disk_of_area(&self, area: u16, disk: u16) -> u64 {
        assert!(disk < self.geometry.disks, "no disk {disk}");
        u64::from(area) * u64::from(self.geometry.disks) + u64::from(disk)
    }

    pub(crate) fn news_count(&self, news: News) -> u64 {
        self.table(TableId::NewsCounts).entry(self.news(news))
    }

    pub(crate) fn news_lines(&self, news: News) -> u64 {
        let first = self.news(news) * u64::from(self.geometry.lane_slots);
        self.table(TableId::NewsLines).entry(first)
    }

    fn news(&self, news: News) -> u64 {
        let (brokers, areas) = (self.geometry.brokers, self.geometry.areas());
        let (i, end, before) = match news {
            News::TopicRecords => (0, 1, 0),
            News::Windows(row) => (row, brokers, 1),
            News::Order(area) => (area, areas, 1 + brokers),
            News::GivenUp(area) => (area, areas, 1 + brokers + areas),
            News::Frontiers(area) => (area, areas, 1 + brokers + 2 * areas),
            News::IndexPages(row) if self.geometry.disks > 0 => {
                (row, brokers, 1 + brokers + 3 * areas)
            }
            News::IndexPages(_) => (0, 0, 0),
        };
        assert!(i < end, "no {news:?}");
        u64::from(before + i)
    }

    fn lane_of_area(&self, area: u16, row: u16, lane: u16) -> u64 {
        let lanes = u64::from(self.geometry.brokers) * u64::from(self.geometry.lanes);
        u64::from(area) * lanes + self.lane(row, lane)
    }

    fn lane(&self, row: u16, lane: u16) -> u64 {
        assert!(lane < self.geometry.lanes, "no lane {lane}");
        u64::from(row) * u64::from(self.geometry.lanes) + u64::from(lane)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let g = &self.geometry;
        writeln!(
            f,
            "region layout, version {VERSION}; all numbers are bytes, little-endian"
        )?;
        writeln!(
            f,
            "{} rows ({} of them spares, {} standbys), {} topics, {} lanes of {} slots, {} index pages per data broker",
            g.brokers, g.spares, g.standbys, g.topics, g.lanes, g.lane_slots, g.index_pages
        )?;
        writeln!(
            f,
            "{} areas of {} sessions and {} GOI pages",
            g.areas(),
            g.sessions,
            g.goi_pages
        )?;
        writeln!(f, "\ncontrol: {} bytes", self.control_bytes())?;
        writeln!(
            f,
            "  {:<14} {:>12} {:>12} {:>6} {:>9}  writer",
            "table", "offset", "bytes", "entry", "entries"
        )?;
        writeln!(
            f,
            "  {:<14} {:>12} {SUPERBLOCK_BYTES:>12} {SUPERBLOCK_BYTES:>6} {:>9}  who creates the region",
            "superblock", 0, 1
        )?;
        for t in &self.tables {
            writeln!(
                f,
                "  {:<14} {:>12} {:>12} {:>6} {:>9}  {}",
                t.id.name(),
                t.offset,
                t.bytes(),
                t.entry_bytes,
                t.entries,
                t.id.writer()
            )?;
        }
        let first = g.data_rows().next().unwrap_or(0);
        let last = g.data_rows().last().unwrap_or(first);
        writeln!(
            f,
            "\npayload-{first} to payload-{last}: {} bytes each, extents of {UNIT_BYTES} to {}",
            g.payload_bytes,
            UNIT_BYTES << ORDER_MAX
        )?;
        if g.spares > 0 {
            let spare = last + 1 - g.spares;
            writeln!(
                f,
                "payload-{spare} to payload-{last} are of spares: made, and these bytes taken, when a broker first joins there; the tables above have room for them"
            )?;
        }
        writeln!(
            f,
            "\nslot: body 0..{BODY_BYTES}, commit word {BODY_BYTES}..{SLOT_BYTES} = check << 32 | lap; check: CRC-32C of body, lap, place and nonce"
        )?;
        writeln!(
            f,
            "row: two slots, cell: two copies of up to {TOPIC_RECORD_PAYLOAD_BYTES_MAX} bytes; even and odd versions, which say the same"
        )?;
        record::<PbrRecord>(f)?;
        record::<IndexRecord>(f)?;
        record::<PageHeader>(f)?;
        record::<Window>(f)?;
        record::<BrokerRow>(f)?;
        record::<ControlRow>(f)?;
        record::<LaneStart>(f)?;
        record::<LaneGrant>(f)?;
        record::<Notice>(f)?;
        record::<SequencerRow>(f)?;
        record::<SessionRow>(f)?;
        record::<SessionOwner>(f)?;
        record::<Attached>(f)?;
        record::<GoiRoot>(f)?;
        record::<GoiPage>(f)?;
        record::<GoiRecord>(f)?;
        record::<DiskRow>(f)?;
        record::<Frontier>(f)?;
        record::<NewsCount>(f)?;
        record::<NewsLine>(f)
    }
}

fn record<T: Record>(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "\n{}", T::NAME)?;
    for Field { name, offset, size } in T::FIELDS {
        writeln!(f, "  {offset:>3} {size:>3}  {name}")?;
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests;
