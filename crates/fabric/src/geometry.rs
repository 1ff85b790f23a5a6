//! How many of everything a region has, and the limits of that.

use std::ops::Range;

use embar_memory::LINE_BYTES;
use embar_memory::payload::{BLOCK_BYTES_MAX, UNIT_BYTES};

use crate::error::RegionError;
use crate::sessions::SESSION_BYTES;

/// Most rows (processes) of a region.
pub const ROWS_MAX: u16 = 128;
/// Most topics (cells) of a region.
pub const TOPICS_MAX: u16 = 1 << 14;
/// The topic cell that a chain belongs to: the low bits of its number.
pub const fn cell_of(chain: u32) -> u16 {
    (chain & (TOPICS_MAX as u32 - 1)) as u16
}
/// Most lanes of a broker: ordered records name their lane in 4 bits.
pub const LANES_MAX: u16 = 16;
/// Most slots of a lane.
pub const LANE_SLOTS_MAX: u32 = 1 << 20;
/// Most index pages of a broker (4 GiB of them).
pub const INDEX_PAGES_MAX: u32 = 1 << 20;
/// Most standbys: candidates for sequencing beside the head.
pub const STANDBYS_MAX: u16 = 7;
/// Most pages of an area's order index (16 GiB of them).
pub const GOI_PAGES_MAX: u32 = 1 << 22;
/// Fewest pages of an area's order index.
pub const GOI_PAGES_MIN: u32 = 4;
/// Most sessions that a sequencer knows.
pub const SESSIONS_MAX: u32 = 1 << 20;
/// Most payload bytes of a broker.
pub const BLOG_BYTES_MAX: u64 = 1 << 44;
/// Bytes of an index page.
pub const INDEX_PAGE_BYTES: u64 = 4096;

/// Payload bytes per index page that [`Geometry::for_cluster`] plans with: 63 batches of 4 KiB
/// fill a page as fast as its share of the payload.
const BLOG_BYTES_PER_INDEX_PAGE: u64 = 256 << 10;
/// Index pages that even a small region gets.
const INDEX_PAGES_MIN: u32 = 512;
/// Bytes of a region for each topic that [`Geometry::for_cluster`] plans with, unless told how many...
const REGION_BYTES_PER_TOPIC: u64 = 1 << 20;
/// ...and topics that even a small region gets.
const TOPICS_MIN: u16 = 256;
/// Sessions that [`Geometry::for_cluster`] plans with...
const SESSIONS: u32 = 100_000;
/// ...where they take no more of the region than one part of so many.
const SESSIONS_SHARE: u64 = 16;
/// Sessions that one row says of whether a broker holds them.
pub const SESSIONS_PER_ROW: u32 = 384;

const _: () = assert!(TOPICS_MAX.is_power_of_two());
const _: () = assert!(BLOCK_BYTES_MAX.is_multiple_of(UNIT_BYTES));
const _: () = assert!(INDEX_PAGE_BYTES.is_multiple_of(LINE_BYTES));

/// The shape of a region, fixed when it is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// Rows, one per process, 1 to 128. Row 0 is the head, which takes data only when it is alone.
    pub brokers: u16,
    /// Topics: cells, and window rows per broker.
    pub topics: u16,
    /// Lanes per broker.
    pub lanes: u16,
    /// Slots per lane, a power of two of at least 2.
    pub lane_slots: u32,
    /// Index pages of 4 KiB per data broker.
    pub index_pages: u32,
    /// Payload bytes per data broker: a multiple of 16 MiB, or, when smaller, of 64 KiB.
    pub blog_bytes: u64,
    /// Rows, the last ones, that take no data and sequence when the head cannot.
    pub standbys: u16,
    /// Data rows, the last of them, for brokers that join later: their payload files are made when
    /// they are first claimed.
    pub spares: u16,
    /// Pages of 4 KiB of each candidate's order index.
    pub goi_pages: u32,
    /// Sessions that each candidate has rows for.
    pub sessions: u32,
}

impl Default for Geometry {
    /// A head and one data broker with 1 GiB.
    fn default() -> Self {
        Self {
            brokers: 2,
            topics: 256,
            lanes: 8,
            lane_slots: 1024,
            index_pages: 4096,
            blog_bytes: 1 << 30,
            standbys: 0,
            spares: 0,
            goi_pages: 4096,
            sessions: 4096,
        }
    }
}

impl Geometry {
    /// A head, `data_brokers` others and `standbys` that together use at most `region_bytes`,
    /// control file included. With 0 data brokers the head is alone and takes the data itself.
    /// `spares` more may join later: their tables are among these bytes, and their payload, as much
    /// as each other's, is not. Without a number of `topics` there is one for each MiB of the region, at
    /// least 256 and at most [`TOPICS_MAX`].
    ///
    /// A topic takes a cell, and a row for each broker and candidate. Pages of the index and of the order
    /// belong to no topic before it holds data; there are so many that all topics may, as far as the
    /// payload has room for an extent of each.
    pub fn for_cluster(
        region_bytes: u64,
        data_brokers: u16,
        standbys: u16,
        spares: u16,
        topics: Option<u16>,
    ) -> Result<Self, RegionError> {
        let members = data_brokers.saturating_add(standbys).saturating_add(spares);
        if members >= ROWS_MAX || standbys > STANDBYS_MAX {
            return Err(invalid(format!(
                "{data_brokers} data brokers, {spares} spares and {standbys} standbys; at most {} in all, and {STANDBYS_MAX} standbys",
                ROWS_MAX - 1
            )));
        }
        let by_size = region_bytes / REGION_BYTES_PER_TOPIC;
        let by_size = by_size.clamp(TOPICS_MIN.into(), TOPICS_MAX.into()) as u16;
        let mut geometry = Self {
            brokers: members + 1,
            topics: topics.unwrap_or(by_size),
            standbys,
            spares,
            ..Self::default()
        };
        within("topics", geometry.topics.into(), 1, TOPICS_MAX.into())?;
        let room = region_bytes / SESSIONS_SHARE / u64::from(geometry.areas()) / SESSION_BYTES;
        geometry.sessions = room.clamp(1, SESSIONS.into()) as u32;
        geometry.check_spares()?;
        let sharers = u64::from(data_brokers.max(1));
        let mut blocks = region_bytes.min(BLOG_BYTES_MAX) / sharers / BLOCK_BYTES_MAX;
        // The index grows with the payload, so step down to what fits beside it.
        while blocks > 0 {
            geometry.blog_bytes = blocks * BLOCK_BYTES_MAX;
            let pages = geometry.blog_bytes / BLOG_BYTES_PER_INDEX_PAGE;
            let pages = pages.clamp(INDEX_PAGES_MIN.into(), INDEX_PAGES_MAX.into());
            // Each topic that holds anything takes an extent, a page of the index, and one of the order.
            let held =
                |blogs| u64::from(geometry.topics).min(blogs * geometry.blog_bytes / UNIT_BYTES);
            // As many records as all brokers' indexes together, those that join included.
            let blogs = sharers + u64::from(spares);
            let goi_pages = (pages * blogs).max(held(blogs));
            let index_pages = pages.max(held(1));
            geometry.index_pages = index_pages as u32;
            geometry.goi_pages = goi_pages.min(GOI_PAGES_MAX.into()) as u32;
            let total = geometry.total_bytes();
            if total <= region_bytes {
                return Ok(geometry);
            }
            let excess = total - region_bytes;
            blocks = blocks.saturating_sub((excess / sharers / BLOCK_BYTES_MAX).max(1));
        }
        Err(invalid(format!(
            "{region_bytes} bytes are too few for {sharers} data broker(s): each needs 16 MiB beside the control file"
        )))
    }

    /// Whether the process of this row takes data, that is, has a blog.
    pub fn takes_data(&self, row: u16) -> bool {
        self.data_range().contains(&row)
    }

    /// The rows that take data, in order.
    pub fn data_rows(&self) -> impl Iterator<Item = u16> + use<> {
        self.data_range()
    }

    /// Whether a row's payload file is made when the row is first claimed.
    pub fn is_spare(&self, row: u16) -> bool {
        let end = self.data_range().end;
        (end - self.spares..end).contains(&row)
    }

    fn data_range(&self) -> Range<u16> {
        let end = self.brokers - self.standbys;
        u16::from(end > 1)..end
    }

    /// The rows that may sequence, by area: the head, then the standbys.
    pub fn candidates(&self) -> impl Iterator<Item = u16> + use<> {
        std::iter::once(0).chain(self.brokers - self.standbys..self.brokers)
    }

    /// The area that a candidate's row alone writes.
    pub fn area_of(&self, row: u16) -> Option<u16> {
        let area = self.candidates().position(|candidate| candidate == row)?;
        u16::try_from(area).ok()
    }

    /// Areas: one for each candidate.
    pub fn areas(&self) -> u16 {
        1 + self.standbys
    }

    /// Rows in which a broker says which sessions it holds.
    pub fn attached_rows(&self) -> u32 {
        self.sessions.div_ceil(SESSIONS_PER_ROW)
    }

    /// Bytes of all files that are made with the region.
    pub fn total_bytes(&self) -> u64 {
        let blogs = self.data_rows().filter(|row| !self.is_spare(*row)).count() as u64;
        crate::layout::Layout::new(self).control_bytes() + blogs * self.blog_bytes
    }

    fn check_spares(&self) -> Result<(), RegionError> {
        let rows = self.brokers - self.standbys;
        if self.spares == 0 || self.spares < rows.saturating_sub(1) {
            return Ok(());
        }
        Err(invalid(format!(
            "{} spares and no data broker beside them: a head that is alone takes the data itself, and nobody can join it to do so",
            self.spares
        )))
    }

    /// Checks every number against its limits.
    pub fn validate(&self) -> Result<(), RegionError> {
        within("brokers", self.brokers.into(), 1, ROWS_MAX.into())?;
        within("topics", self.topics.into(), 1, TOPICS_MAX.into())?;
        within("lanes", self.lanes.into(), 1, LANES_MAX.into())?;
        within(
            "lane_slots",
            self.lane_slots.into(),
            2,
            LANE_SLOTS_MAX.into(),
        )?;
        within(
            "index_pages",
            self.index_pages.into(),
            1,
            INDEX_PAGES_MAX.into(),
        )?;
        within("blog_bytes", self.blog_bytes, UNIT_BYTES, BLOG_BYTES_MAX)?;
        let most = STANDBYS_MAX.min(self.brokers - 1);
        within("standbys", self.standbys.into(), 0, most.into())?;
        self.check_spares()?;
        within(
            "goi_pages",
            self.goi_pages.into(),
            GOI_PAGES_MIN.into(),
            GOI_PAGES_MAX.into(),
        )?;
        within("sessions", self.sessions.into(), 1, SESSIONS_MAX.into())?;
        if !self.lane_slots.is_power_of_two() {
            return Err(invalid(format!(
                "lane_slots is {}; it must be a power of two",
                self.lane_slots
            )));
        }
        let step = if self.blog_bytes < BLOCK_BYTES_MAX {
            UNIT_BYTES
        } else {
            BLOCK_BYTES_MAX
        };
        if !self.blog_bytes.is_multiple_of(step) {
            return Err(invalid(format!(
                "blog_bytes is {}; it must be a multiple of {step}",
                self.blog_bytes
            )));
        }
        Ok(())
    }
}

fn within(name: &str, value: u64, min: u64, max: u64) -> Result<(), RegionError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(invalid(format!(
        "{name} is {value}; allowed are {min} to {max}"
    )))
}

fn invalid(what: String) -> RegionError {
    RegionError::InvalidGeometry { what }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_fits_in_the_bytes_it_was_given() {
        for (bytes, data, standbys) in [
            (1 << 30, 3, 1),
            (12 << 30, 3, 0),
            (256 << 20, 0, 0),
            (8 << 30, 30, 1),
        ] {
            let geometry = Geometry::for_cluster(bytes, data, standbys, 0, None).unwrap();
            geometry.validate().unwrap();
            let total = geometry.total_bytes();
            assert!(total <= bytes, "{total} > {bytes}");
            let waste = (bytes - total) / u64::from(data.max(1));
            assert!(
                waste < 3 * BLOCK_BYTES_MAX,
                "{waste} bytes per broker unused"
            );
        }
    }

    #[test]
    fn a_gibibyte_has_room_for_a_hundred_thousand_sessions_beside_the_payload() {
        let geometry = Geometry::for_cluster(1 << 30, 3, 1, 1, None).unwrap();
        assert_eq!(geometry.sessions, 100_000);
        let small = Geometry::for_cluster(128 << 20, 2, 1, 0, None).unwrap();
        assert!(
            (4096..100_000).contains(&small.sessions),
            "{}",
            small.sessions
        );
    }

    #[test]
    fn too_little_is_refused() {
        assert!(Geometry::for_cluster(32 << 20, 3, 0, 0, None).is_err());
        let rows = ROWS_MAX;
        assert!(Geometry::for_cluster(1 << 40, rows - 1, 0, 0, None).is_ok());
        for (data, standbys, spares) in [(rows, 0, 0), (rows - 1, 1, 0), (rows - 20, 1, 19)] {
            assert!(Geometry::for_cluster(1 << 40, data, standbys, spares, None).is_err());
        }
        assert!(Geometry::for_cluster(1 << 30, 3, 0, 0, Some(0)).is_err());
        assert!(Geometry::for_cluster(1 << 30, 3, 0, 0, Some(TOPICS_MAX + 1)).is_err());
    }

    #[test]
    fn a_topic_costs_little_before_it_holds_data_and_all_may_hold_some() {
        let shape = |bytes, topics| Geometry::for_cluster(bytes, 3, 1, 1, topics).unwrap();
        for (bytes, topics) in [(128 << 20, 256), (1 << 30, 1024), (32 << 30, TOPICS_MAX)] {
            assert_eq!(shape(bytes, None).topics, topics);
        }
        let most = Some(TOPICS_MAX);
        // Cell, windows of six rows, roots of two areas.
        let idle = 1024 + 6 * 128 + 2 * 128;
        for bytes in [1 << 30, 4 << 30] {
            let geometry = shape(bytes, most);
            geometry.validate().unwrap();
            assert!(geometry.total_bytes() <= bytes);
            let extents = geometry.blog_bytes / UNIT_BYTES;
            let topics = u64::from(TOPICS_MAX);
            assert!(u64::from(geometry.index_pages) >= extents.min(topics));
            assert!(u64::from(geometry.goi_pages) >= (4 * extents).min(topics));
            let other = Geometry {
                topics: 1,
                ..geometry.clone()
            };
            let bytes = |g| crate::layout::Layout::new(g).control_bytes();
            let each = (bytes(&geometry) - bytes(&other)) / (topics - 1);
            assert!(each <= idle + 8, "{each} bytes for a topic without data");
        }
    }

    #[test]
    fn spares_are_the_last_data_rows_and_have_no_payload_yet() {
        let geometry = Geometry::for_cluster(1 << 30, 3, 1, 2, None).unwrap();
        geometry.validate().unwrap();
        assert_eq!(geometry.data_rows().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        let spares = (0..geometry.brokers).filter(|row| geometry.is_spare(*row));
        assert_eq!(spares.collect::<Vec<_>>(), [4, 5]);
        assert_eq!(geometry.candidates().collect::<Vec<_>>(), [0, 6]);
        assert!(geometry.total_bytes() <= 1 << 30);
        let without = Geometry::for_cluster(1 << 30, 3, 1, 0, None).unwrap();
        let lost = 1.0 - geometry.blog_bytes as f64 / without.blog_bytes as f64;
        assert!(
            lost < 0.16,
            "two spares cost the others {lost} of their payload"
        );
    }

    #[test]
    fn nobody_joins_a_head_that_is_alone() {
        let refused = Geometry::for_cluster(1 << 30, 0, 1, 1, None).unwrap_err();
        assert!(refused.to_string().contains("alone"), "{refused}");
    }

    #[test]
    fn every_limit_is_enforced() {
        let good = Geometry::default();
        good.validate().unwrap();
        for bad in [
            Geometry {
                brokers: 0,
                ..good.clone()
            },
            Geometry {
                brokers: ROWS_MAX + 1,
                ..good.clone()
            },
            Geometry {
                topics: 0,
                ..good.clone()
            },
            Geometry {
                lanes: 0,
                ..good.clone()
            },
            Geometry {
                lane_slots: 3,
                ..good.clone()
            },
            Geometry {
                lane_slots: 1,
                ..good.clone()
            },
            Geometry {
                index_pages: 0,
                ..good.clone()
            },
            Geometry {
                standbys: 2,
                ..good.clone()
            },
            Geometry {
                spares: 1,
                ..good.clone()
            },
            Geometry {
                spares: u16::MAX,
                ..good.clone()
            },
            Geometry {
                brokers: ROWS_MAX,
                standbys: STANDBYS_MAX + 1,
                ..good.clone()
            },
            Geometry {
                lanes: LANES_MAX + 1,
                ..good.clone()
            },
            Geometry {
                goi_pages: GOI_PAGES_MIN - 1,
                ..good.clone()
            },
            Geometry {
                goi_pages: GOI_PAGES_MAX + 1,
                ..good.clone()
            },
            Geometry {
                sessions: 0,
                ..good.clone()
            },
            Geometry {
                sessions: SESSIONS_MAX + 1,
                ..good.clone()
            },
            Geometry {
                blog_bytes: 100,
                ..good.clone()
            },
            Geometry {
                blog_bytes: (16 << 20) + (64 << 10),
                ..good.clone()
            },
        ] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_lone_head_takes_data() {
        let alone = Geometry {
            brokers: 1,
            ..Geometry::default()
        };
        assert_eq!(alone.data_rows().collect::<Vec<_>>(), [0]);
        let three = Geometry {
            brokers: 3,
            ..Geometry::default()
        };
        assert_eq!(three.data_rows().collect::<Vec<_>>(), [1, 2]);
        assert!(!three.takes_data(0) && three.takes_data(2) && !three.takes_data(3));
        let standing_by = Geometry {
            standbys: 1,
            ..three
        };
        assert_eq!(standing_by.data_rows().collect::<Vec<_>>(), [1]);
        assert_eq!(standing_by.candidates().collect::<Vec<_>>(), [0, 2]);
        assert_eq!(standing_by.area_of(2), Some(1));
        assert_eq!(standing_by.area_of(1), None);
    }
}
