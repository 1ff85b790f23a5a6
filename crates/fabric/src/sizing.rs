//! How large a region is, and the shape of one that fits into so many bytes.

use embar_memory::payload::{BLOCK_BYTES_MAX, UNIT_BYTES};

use crate::error::RegionError;
use crate::geometry::{
    DISKS_MAX, GOI_PAGES_MAX, Geometry, INDEX_PAGES_MAX, PAYLOAD_BYTES_MAX, ROWS_MAX, STANDBYS_MAX,
    TOPICS_MAX, invalid, within,
};
use crate::layout::Layout;
use crate::sessions::SESSION_BYTES;

/// Payload bytes per index page that [`Geometry::for_cluster`] plans with: 63 batches of 4 KiB
/// fill a page as fast as its share of the payload.
const PAYLOAD_BYTES_PER_INDEX_PAGE: u64 = 256 << 10;
/// Index pages that even a small region gets.
const INDEX_PAGES_MIN: u32 = 512;
/// Bytes of a region for each topic that [`Geometry::for_cluster`] plans with, unless its caller says how many...
const REGION_BYTES_PER_TOPIC: u64 = 1 << 20;
/// ...and topics that even a small region gets.
const TOPICS_MIN: u16 = 256;
/// Sessions that [`Geometry::for_cluster`] plans with...
const SESSIONS: u32 = 100_000;
/// ...where they take no more of the region than one part of so many.
const SESSIONS_SHARE: u64 = 16;

/// What a cluster is to have, as far as its region depends on it. Without a field it has none of that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterShape {
    /// Bytes of the region, control file included.
    pub region_bytes: u64,
    /// Brokers beside the head that take data. With 0 the head is alone and takes the data itself.
    pub data_brokers: u16,
    /// Processes beside these that sequence when the head cannot, at most [`STANDBYS_MAX`].
    pub standbys: u16,
    /// Data brokers that may join later: their tables are among the bytes of the region, and their payload, as much as that of
    /// each other one, is not.
    pub spares: u16,
    /// Topics that there may be at the same time, at most [`TOPICS_MAX`]; `None` for one for each MiB of the region, and at
    /// least 256.
    pub topics: Option<u16>,
    /// Disks that topics may be on, at most [`DISKS_MAX`].
    pub disks: u16,
}

impl Geometry {
    /// A region for a cluster of this shape, in which the others that take data have as much payload as there is room for
    /// beside the tables.
    ///
    /// A topic takes a topic record, a row for each broker and candidate, and frontiers for each disk. Pages of the index and
    /// of the order belong to no topic before it holds data; there are so many that all topics may, as far as the
    /// payload has room for an extent of each.
    ///
    /// # Errors
    /// [`RegionError::InvalidGeometry`] says which number is too large, or that the bytes are too few.
    pub fn for_cluster(shape: ClusterShape) -> Result<Self, RegionError> {
        let ClusterShape {
            region_bytes,
            data_brokers,
            standbys,
            spares,
            ..
        } = shape;
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
            topics: shape.topics.unwrap_or(by_size),
            standbys,
            spares,
            disks: shape.disks,
            ..Self::default()
        };
        within("topics", geometry.topics.into(), 1, TOPICS_MAX.into())?;
        within("disks", geometry.disks.into(), 0, DISKS_MAX.into())?;
        let room = region_bytes / SESSIONS_SHARE / u64::from(geometry.areas()) / SESSION_BYTES;
        geometry.sessions = room.clamp(1, SESSIONS.into()) as u32;
        geometry.check_spares()?;
        let sharers = u64::from(data_brokers.max(1));
        let mut blocks = region_bytes.min(PAYLOAD_BYTES_MAX) / sharers / BLOCK_BYTES_MAX;
        // The index grows with the payload, so step down to what fits beside it.
        while blocks > 0 {
            geometry.payload_bytes = blocks * BLOCK_BYTES_MAX;
            let pages = geometry.payload_bytes / PAYLOAD_BYTES_PER_INDEX_PAGE;
            let pages = pages.clamp(INDEX_PAGES_MIN.into(), INDEX_PAGES_MAX.into());
            // Each topic that holds anything takes an extent, a page of the index, and one of the order.
            let held = |payload_files| {
                u64::from(geometry.topics).min(payload_files * geometry.payload_bytes / UNIT_BYTES)
            };
            // As many records as all brokers' indexes together, those that join included.
            let payload_files = sharers + u64::from(spares);
            let goi_pages = (pages * payload_files).max(held(payload_files));
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

    /// Bytes of all files that are made with the region.
    pub fn total_bytes(&self) -> u64 {
        let payload_files = self.data_rows().filter(|row| !self.is_spare(*row)).count() as u64;
        Layout::new(self).control_bytes() + payload_files * self.payload_bytes
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn shape(
        region_bytes: u64,
        (data_brokers, standbys, spares): (u16, u16, u16),
        topics: Option<u16>,
    ) -> ClusterShape {
        ClusterShape {
            region_bytes,
            data_brokers,
            standbys,
            spares,
            topics,
            disks: 0,
        }
    }

    #[test]
    fn a_cluster_fits_in_the_bytes_it_was_given() {
        for (bytes, data, standbys) in [
            (1 << 30, 3, 1),
            (12 << 30, 3, 0),
            (256 << 20, 0, 0),
            (8 << 30, 30, 1),
        ] {
            let geometry = Geometry::for_cluster(shape(bytes, (data, standbys, 0), None)).unwrap();
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
    fn a_gibibyte_has_room_for_100_000_sessions_beside_the_payload() {
        let geometry = Geometry::for_cluster(shape(1 << 30, (3, 1, 1), None)).unwrap();
        assert_eq!(geometry.sessions, 100_000);
        let small = Geometry::for_cluster(shape(128 << 20, (2, 1, 0), None)).unwrap();
        assert!(
            (4096..100_000).contains(&small.sessions),
            "{}",
            small.sessions
        );
    }

    #[test]
    fn too_little_is_refused() {
        assert!(Geometry::for_cluster(shape(32 << 20, (3, 0, 0), None)).is_err());
        let rows = ROWS_MAX;
        assert!(Geometry::for_cluster(shape(1 << 40, (rows - 1, 0, 0), None)).is_ok());
        for (data, standbys, spares) in [(rows, 0, 0), (rows - 1, 1, 0), (rows - 20, 1, 19)] {
            assert!(Geometry::for_cluster(shape(1 << 40, (data, standbys, spares), None)).is_err());
        }
        assert!(Geometry::for_cluster(shape(1 << 30, (3, 0, 0), Some(0))).is_err());
        assert!(Geometry::for_cluster(shape(1 << 30, (3, 0, 0), Some(TOPICS_MAX + 1))).is_err());
    }

    #[test]
    fn a_topic_costs_little_before_it_holds_data_and_all_may_hold_some() {
        let made = |bytes, topics| Geometry::for_cluster(shape(bytes, (3, 1, 1), topics)).unwrap();
        for (bytes, topics) in [(128 << 20, 256), (1 << 30, 1024), (32 << 30, TOPICS_MAX)] {
            assert_eq!(made(bytes, None).topics, topics);
        }
        let most = Some(TOPICS_MAX);
        // Topic record, windows of six rows, roots of two areas.
        let idle = 1024 + 6 * 128 + 2 * 128;
        for bytes in [1 << 30, 4 << 30] {
            let geometry = made(bytes, most);
            geometry.validate().unwrap();
            assert!(geometry.total_bytes() <= bytes);
            let extents = geometry.payload_bytes / UNIT_BYTES;
            let topics = u64::from(TOPICS_MAX);
            assert!(u64::from(geometry.index_pages) >= extents.min(topics));
            assert!(u64::from(geometry.goi_pages) >= (4 * extents).min(topics));
            let other = Geometry {
                topics: 1,
                ..geometry.clone()
            };
            let bytes = |g| Layout::new(g).control_bytes();
            let each = (bytes(&geometry) - bytes(&other)) / (topics - 1);
            assert!(each <= idle + 8, "{each} bytes for a topic without data");
        }
    }

    #[test]
    fn spares_are_the_last_data_rows_and_have_no_payload_yet() {
        let geometry = Geometry::for_cluster(shape(1 << 30, (3, 1, 2), None)).unwrap();
        geometry.validate().unwrap();
        assert_eq!(geometry.data_rows().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        let spares = (0..geometry.brokers).filter(|row| geometry.is_spare(*row));
        assert_eq!(spares.collect::<Vec<_>>(), [4, 5]);
        assert_eq!(geometry.candidates().collect::<Vec<_>>(), [0, 6]);
        assert!(geometry.total_bytes() <= 1 << 30);
        let without = Geometry::for_cluster(shape(1 << 30, (3, 1, 0), None)).unwrap();
        let lost = 1.0 - geometry.payload_bytes as f64 / without.payload_bytes as f64;
        assert!(
            lost < 0.16,
            "two spares cost the others {lost} of their payload"
        );
    }

    #[test]
    fn what_is_said_of_disks_is_among_the_bytes_of_the_region() {
        let on_disks = |disks| {
            let shape = shape(1 << 30, (3, 1, 1), None);
            Geometry::for_cluster(ClusterShape { disks, ..shape })
        };
        let without = on_disks(0).unwrap();
        for disks in [1, DISKS_MAX] {
            let with = on_disks(disks).unwrap();
            with.validate().unwrap();
            assert_eq!(with.disks, disks);
            assert!(with.total_bytes() <= 1 << 30);
            assert!(with.payload_bytes <= without.payload_bytes);
            let grown = Layout::new(&Geometry {
                disks,
                ..without.clone()
            })
            .control_bytes();
            let tables = grown - Layout::new(&without).control_bytes();
            // Of each of 1,024 topics two areas say how far each of four data rows is, in two lines.
            let frontiers = u64::from(disks) * 1024 * 2 * 4 * 128;
            // Each row has a ring of its own to name pages of its index.
            let news = u64::from(without.brokers) * u64::from(without.lane_slots) * 64;
            let least = frontiers + news;
            assert!((least..least + (64 << 10)).contains(&tables), "{tables}");
        }
        assert!(on_disks(DISKS_MAX + 1).is_err());
    }

    #[test]
    fn nobody_joins_a_head_that_is_alone() {
        let refused = Geometry::for_cluster(shape(1 << 30, (0, 1, 1), None)).unwrap_err();
        assert!(refused.to_string().contains("alone"), "{refused}");
    }
}
