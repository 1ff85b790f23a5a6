//! The places of a cluster: rows of its region that a broker may join in.

use embar_fabric::geometry::Geometry;
use embar_fabric::records::BrokerState;
use embar_fabric::region::Region;
use embar_memory::Memory;

/// The row of the head in every table of the region.
pub const HEAD: u16 = 0;

/// A place without a live broker. Those whose broker is missed most come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FreePlace {
    /// Its broker is dead, and what it stored cannot be read everywhere.
    Dead,
    /// Its broker was removed.
    Left,
    /// No broker ever joined there.
    Spare,
}

impl FreePlace {
    /// What a row that no live process holds is to a broker that joins.
    pub fn of<M: Memory>(region: &Region<M>, row: u16) -> Self {
        let found = region.broker_row(row).found();
        let state = found.and_then(|row| row.broker_state());
        match (region.incarnation(row), state) {
            (0, _) => Self::Spare,
            (_, Some(BrokerState::Left)) => Self::Left,
            _ => Self::Dead,
        }
    }
}

/// The rows that a broker may join in, in order.
pub fn rows_to_join(geometry: &Geometry, takes_data: bool) -> Vec<u16> {
    let rows = 0..geometry.brokers;
    rows.filter(|row| *row != HEAD && geometry.takes_data(*row) == takes_data)
        .collect()
}

/// A live broker holds each place of the kind that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    /// Of a standby.
    #[error("all {places} places of standbys are taken: start the cluster with more --standbys")]
    Standby {
        /// How many there are.
        places: u16,
    },
    /// Of a broker that takes data.
    #[error(
        "all {places} places of brokers that take data are taken, spares included: let one leave with `embar drain ID`, or start the cluster with more --spares"
    )]
    Data {
        /// How many there are.
        places: usize,
    },
}

impl NoPlace {
    /// That of a cluster of this shape.
    pub fn in_cluster(geometry: &Geometry, takes_data: bool) -> Self {
        if takes_data {
            let places = geometry.data_rows().count();
            Self::Data { places }
        } else {
            let places = geometry.standbys;
            Self::Standby { places }
        }
    }
}

/// A broker asked for a row that is none of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The rows of its kind have other numbers.
    #[error("broker id {id} is not one of {first} to {last}")]
    OutOfRange {
        /// The row that was asked for.
        id: u16,
        /// The first one of its kind.
        first: u16,
        /// The last one of its kind.
        last: u16,
    },
    /// The cluster was started without standbys.
    #[error("the cluster has no such place: start it with --standbys")]
    NoSuchPlace,
}

/// Whether a broker may ask for this row.
///
/// # Errors
/// [`RowError`] says which rows there are.
pub fn check_row(geometry: &Geometry, id: u16, takes_data: bool) -> Result<(), RowError> {
    let rows = rows_to_join(geometry, takes_data);
    if rows.contains(&id) {
        return Ok(());
    }
    Err(match (rows.first(), rows.last()) {
        (Some(&first), Some(&last)) => RowError::OutOfRange { id, first, last },
        _ => RowError::NoSuchPlace,
    })
}
