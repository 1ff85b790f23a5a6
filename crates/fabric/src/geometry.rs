//! The shape of a region: how many rows, topics, lanes, pages, sessions and payload bytes it has, and the limits of
//! these numbers.

use std::ops::Range;

use embar_memory::LINE_BYTES;
use embar_memory::payload::{BLOCK_BYTES_MAX, UNIT_BYTES};

use crate::error::RegionError;

/// Most rows (processes) of a region.
pub const ROWS_MAX: u16 = 128;
/// Most topics (topic records) of a region.
pub const TOPICS_MAX: u16 = 1 << 14;
/// The topic record that a chain belongs to: the low bits of its number.
pub const fn topic_record_of(chain: u32) -> u16 {
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
/// Most disks.
pub const DISKS_MAX: u16 = 8;
/// Most sessions that a sequencer knows.
pub const SESSIONS_MAX: u32 = 1 << 20;
/// Most payload bytes of a broker.
pub const PAYLOAD_BYTES_MAX: u64 = 1 << 44;
/// Bytes of an index page.
pub const INDEX_PAGE_BYTES: u64 = 4096;

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
    /// Topics: topic records, and window rows per broker.
    pub topics: u16,
    /// Lanes per broker.
    pub lanes: u16,
    /// Slots per lane, a power of two of at least 2.
    pub lane_slots: u32,
    /// Index pages of 4 KiB per data broker.
    pub index_pages: u32,
    /// Payload bytes per data broker: a multiple of 16 MiB, or, when smaller, of 64 KiB.
    pub payload_bytes: u64,
    /// Rows, the last ones, that take no data and sequence when the head cannot.
    pub standbys: u16,
    /// Data rows, the last of them, for brokers that join later: their payload files are made when
    /// they are first claimed.
    pub spares: u16,
    /// Pages of 4 KiB of each candidate's order index.
    pub goi_pages: u32,
    /// Sessions that each candidate has rows for.
    pub sessions: u32,
    /// Disks that topics may be on, 0 to 8.
    pub disks: u16,
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
            payload_bytes: 1 << 30,
            standbys: 0,
            spares: 0,
            goi_pages: 4096,
            sessions: 4096,
            disks: 0,
        }
    }
}

impl Geometry {
    /// Whether the process of this row takes data, that is, has a payload file.
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

    /// Frontiers of each topic on each disk: one for each data row, of which orders 2 and 5 use the first.
    pub fn frontiers(&self) -> u16 {
        self.data_range().len() as u16
    }

    /// Which of a topic's frontiers is that of a data row.
    pub fn frontier_of(&self, row: u16) -> Option<u16> {
        let range = self.data_range();
        range.contains(&row).then(|| row - range.start)
    }

    /// Rows in which a broker says which sessions it holds.
    pub fn attached_rows(&self) -> u32 {
        self.sessions.div_ceil(SESSIONS_PER_ROW)
    }

    pub(crate) fn check_spares(&self) -> Result<(), RegionError> {
        let rows = self.brokers - self.standbys;
        if self.spares == 0 || self.spares < rows.saturating_sub(1) {
            return Ok(());
        }
        Err(invalid(format!(
            "{} spares and no data broker beside them: a head that is alone takes the data itself, and no broker can join it to do so",
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
        within(
            "payload_bytes",
            self.payload_bytes,
            UNIT_BYTES,
            PAYLOAD_BYTES_MAX,
        )?;
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
        within("disks", self.disks.into(), 0, DISKS_MAX.into())?;
        if !self.lane_slots.is_power_of_two() {
            return Err(invalid(format!(
                "lane_slots is {}; it must be a power of two",
                self.lane_slots
            )));
        }
        let step = if self.payload_bytes < BLOCK_BYTES_MAX {
            UNIT_BYTES
        } else {
            BLOCK_BYTES_MAX
        };
        if !self.payload_bytes.is_multiple_of(step) {
            return Err(invalid(format!(
                "payload_bytes is {}; it must be a multiple of {step}",
                self.payload_bytes
            )));
        }
        Ok(())
    }
}

pub(crate) fn within(name: &str, value: u64, min: u64, max: u64) -> Result<(), RegionError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(invalid(format!(
        "{name} is {value}; allowed are {min} to {max}"
    )))
}

pub(crate) fn invalid(what: String) -> RegionError {
    RegionError::InvalidGeometry { what }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

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
                payload_bytes: 100,
                ..good.clone()
            },
            Geometry {
                payload_bytes: (16 << 20) + (64 << 10),
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
