//! A region's readers and writers of what the sequencer and the brokers share: lanes with their grants and notices,
//! rows of candidates, the GOI, news, and sessions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use embar_memory::Memory;

use super::Region;
use crate::goi::{GoiReader, GoiWriter};
use crate::lane::{LaneReader, LaneWriter};
use crate::news::{News, NewsReader, NewsWriter, SharedNews};
use crate::notice::{NoticeReader, NoticeWriter};
use crate::owner::Claim;
use crate::pages::Pages;
use crate::records::{
    Attached, GoiRoot, LaneGrant, LaneStart, SequencerRow, SessionOwner, SessionRow,
};
use crate::ring::Ring;
use crate::rows::RowWriter;
use crate::sessions::{OWNER_AT, SESSION_BYTES, SessionTable};
use crate::slot::{PAIR_BYTES, SLOT_BYTES, Seen};
use crate::sync::fence;

impl<M: Memory> Region<M> {
    fn ring(&self, slots_at: u64) -> Ring<M> {
        self.ring_of(slots_at, SLOT_BYTES)
    }

    /// Both copies of a ring whose records are kept twice, next to each other.
    fn twin_rings(&self, pairs_at: u64) -> [Ring<M>; 2] {
        [0, SLOT_BYTES].map(|copy| self.ring_of(pairs_at + copy, PAIR_BYTES))
    }

    fn ring_of(&self, slots_at: u64, stride: u64) -> Ring<M> {
        Ring {
            memory: Arc::clone(&self.parts.control),
            slots_at,
            stride,
            slots: self.geometry().lane_slots,
            nonce: self.parts.nonce,
        }
    }

    /// The area of the claimed row.
    ///
    /// # Panics
    /// When the row is not a candidate's.
    pub(super) fn area(&self, claim: &Claim) -> u16 {
        let area = self.geometry().area_of(claim.row());
        area.expect("only candidates have an area")
    }

    /// The writing end of a lane of the claimed row, for one thread.
    pub fn lane_writer(&self, claim: &Claim, lane: u16) -> LaneWriter<M> {
        let row = claim.row();
        // Numbers are not used again, even where memory has lost every record of the ring.
        let areas = 0..self.geometry().areas();
        let grants = areas.filter_map(|area| self.lane_grant(area, row, lane).found());
        let granted = grants.map(|grant| grant.consumed).max().unwrap_or(0);
        let start = self.lane_start(row, lane).found();
        LaneWriter::attach(
            self.ring(self.parts.layout.lane_slots(row, lane)),
            self.row_writer(self.parts.layout.lane_start(row, lane)),
            start.map_or(0, |start| start.start).max(granted),
            claim.incarnation(),
        )
    }

    /// The reading end of a lane, at number 0.
    pub fn lane_reader(&self, row: u16, lane: u16) -> LaneReader<M> {
        LaneReader::attach(self.ring(self.parts.layout.lane_slots(row, lane)))
    }

    /// From which number on a lane is meant for which epoch; nothing before it was used.
    pub fn lane_start(&self, row: u16, lane: u16) -> Seen<LaneStart> {
        self.read_row(self.parts.layout.lane_start(row, lane))
    }

    /// The claimed candidate's row of a lane.
    pub fn lane_grant_writer(&self, claim: &Claim, row: u16, lane: u16) -> RowWriter<M, LaneGrant> {
        self.row_writer(self.parts.layout.lane_grant(self.area(claim), row, lane))
    }

    /// How far the sequencer of an area has taken a lane; nothing before it said so. It says of
    /// which epoch.
    pub fn lane_grant(&self, area: u16, row: u16, lane: u16) -> Seen<LaneGrant> {
        self.read_row(self.parts.layout.lane_grant(area, row, lane))
    }

    /// The claimed candidate's notices to a lane.
    pub fn notice_writer(&self, claim: &Claim, row: u16, lane: u16) -> NoticeWriter<M> {
        let at = self.parts.layout.notices(self.area(claim), row, lane);
        NoticeWriter::attach(self.twin_rings(at))
    }

    /// An area's notices to a lane, from number `from` on.
    pub fn notice_reader(&self, area: u16, row: u16, lane: u16, from: u64) -> NoticeReader<M> {
        let at = self.parts.layout.notices(area, row, lane);
        NoticeReader::attach(self.twin_rings(at), from)
    }

    /// The claimed candidate's row.
    pub fn sequencer_row_writer(&self, claim: &Claim) -> RowWriter<M, SequencerRow> {
        self.row_writer(self.parts.layout.sequencer(self.area(claim)))
    }

    /// What the candidate of an area says of itself; nothing before it does.
    ///
    /// What was read before this call, and is not of an epoch below the one found, is also read by
    /// a candidate that raises a higher one later.
    pub fn sequencer_row(&self, area: u16) -> Seen<SequencerRow> {
        // Partner: the fence in `RowWriter::raise`.
        fence(Ordering::SeqCst);
        self.read_row(self.parts.layout.sequencer(area))
    }

    /// The claimed candidate's GOI, for an epoch.
    pub fn goi_writer(&self, claim: &Claim, epoch: u32) -> GoiWriter<M> {
        let area = self.area(claim);
        GoiWriter::attach(self.goi_pages(area), area, epoch)
    }

    /// The claimed candidate's root of the chain in a topic's record.
    pub fn goi_root_writer(&self, claim: &Claim, topic: u16) -> RowWriter<M, GoiRoot> {
        self.row_writer(self.parts.layout.goi_root(self.area(claim), topic))
    }

    /// An area's root of the chain in a topic's record; nothing before there is one. It says of which
    /// chain and epoch.
    pub fn goi_root(&self, area: u16, topic: u16) -> Seen<GoiRoot> {
        self.read_row(self.parts.layout.goi_root(area, topic))
    }

    /// An area's GOI pages.
    pub fn goi_reader(&self, area: u16) -> GoiReader<M> {
        GoiReader::new(self.goi_pages(area))
    }

    fn goi_pages(&self, area: u16) -> Pages<M> {
        Pages {
            memory: Arc::clone(&self.parts.control),
            at: self.parts.layout.goi_pages(area),
            pages: self.geometry().goi_pages,
            nonce: self.parts.nonce,
        }
    }

    fn news_ring(&self, news: News) -> Ring<M> {
        self.ring(self.parts.layout.news_lines(news))
    }

    pub(super) fn news_writer(&self, news: News) -> NewsWriter<M> {
        let row = self.row_writer(self.parts.layout.news_count(news));
        NewsWriter::attach(self.news_ring(news), row)
    }

    /// Names the chains whose windows the claimed row raises.
    pub fn window_news_writer(&self, claim: &Claim) -> SharedNews<M> {
        SharedNews::new(self.news_writer(News::Windows(claim.row())))
    }

    /// Chains that the claimed candidate orders.
    pub fn order_news_writer(&self, claim: &Claim) -> NewsWriter<M> {
        self.news_writer(News::Order(self.area(claim)))
    }

    /// Chains of which the claimed candidate gives something up.
    pub fn given_up_writer(&self, claim: &Claim) -> NewsWriter<M> {
        self.news_writer(News::GivenUp(self.area(claim)))
    }

    /// News of others, from now on: the first look says that anything may have changed.
    ///
    /// # Panics
    /// When there is no such row or area.
    pub fn news(&self, news: News) -> NewsReader<M> {
        NewsReader::new(self.news_ring(news), self.parts.layout.news_count(news))
    }

    /// The claimed candidate's session table.
    pub fn session_table(&self, claim: &Claim) -> SessionTable<M> {
        SessionTable::attach(
            Arc::clone(&self.parts.control),
            self.parts.layout.sessions(self.area(claim)),
            self.parts.nonce,
            self.geometry().sessions,
        )
    }

    /// A row of an area's session table; nothing before it was first stored.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn session_row(&self, area: u16, slot: u32) -> Seen<SessionRow> {
        self.read_row(self.session_at(area, slot))
    }

    /// Whose a session of an area's table is, or was; nothing before it was first stored.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn session_owner(&self, area: u16, slot: u32) -> Seen<SessionOwner> {
        self.read_row(self.session_at(area, slot) + OWNER_AT)
    }

    fn session_at(&self, area: u16, slot: u32) -> u64 {
        assert!(slot < self.geometry().sessions, "no session {slot}");
        self.parts.layout.sessions(area) + u64::from(slot) * SESSION_BYTES
    }

    /// One of the rows in which the claimed broker says which sessions it holds:
    /// [`SESSIONS_PER_ROW`](crate::geometry::SESSIONS_PER_ROW) in each.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn attached_writer(&self, claim: &Claim, number: u32) -> RowWriter<M, Attached> {
        self.row_writer(self.parts.layout.attached(claim.row(), number))
    }

    /// Such a row of a broker; nothing before it was first stored. It says of which incarnation.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn attached(&self, row: u16, number: u32) -> Seen<Attached> {
        self.read_row(self.parts.layout.attached(row, number))
    }
}
