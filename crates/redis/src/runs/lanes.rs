//! The lanes of a run, one for each connection.

use std::collections::HashMap;
use std::sync::Arc;

use super::lane::Lane;
use crate::engine::NodeConnection;

/// Up to so many lanes, to look through all is quicker than to hash.
const FEW: usize = 8;

/// The lanes of a run, in the order in which they were needed first.
#[derive(Default)]
pub(super) struct Lanes {
    pub all: Vec<Lane>,
    /// Their places, by the addresses of their connections, which live as long as the lanes. Empty while
    /// there are few.
    places: HashMap<usize, usize>,
    /// The place of the lane that was asked for last.
    last: usize,
}

impl Lanes {
    /// The lane of a connection. If it is new, it will probably have so many commands.
    #[inline]
    pub fn of(&mut self, connection: &Arc<NodeConnection>, expected: usize) -> &mut Lane {
        let is_last = |lane: &Lane| Arc::ptr_eq(lane.connection(), connection);
        if !self.all.get(self.last).is_some_and(is_last) {
            self.last = self.find_or_add(connection, expected);
        }
        &mut self.all[self.last]
    }

    fn find_or_add(&mut self, connection: &Arc<NodeConnection>, expected: usize) -> usize {
        let mut all = self.all.iter();
        let found = match self.places.is_empty() {
            true => all.position(|lane| Arc::ptr_eq(lane.connection(), connection)),
            false => self.places.get(&address(connection)).copied(),
        };
        if let Some(place) = found {
            return place;
        }
        self.all.push(Lane::new(connection, expected));
        if self.all.len() > FEW {
            let unknown = self.all.iter().enumerate().skip(self.places.len());
            let places = unknown.map(|(place, lane)| (address(lane.connection()), place));
            self.places.extend(places);
        }
        self.all.len() - 1
    }
}

fn address(connection: &Arc<NodeConnection>) -> usize {
    Arc::as_ptr(connection).addr()
}

#[cfg(test)]
mod tests {
    use embar_mux::MuxSettings;

    use super::*;
    use crate::config::{Config, Endpoint};
    use crate::engine::{Dialer, Drivers, Shared};

    #[test]
    fn each_connection_has_one_lane_however_many_there_are() {
        let drivers = Drivers::on_thread(&MuxSettings::default()).expect("a thread");
        let shared = Shared::new(Config::default(), Dialer::new(drivers, None, None));
        let connections: Vec<_> = (0..3 * FEW as u16)
            .map(|number| NodeConnection::dedicated(Endpoint::tcp("a", 1 + number), &shared))
            .collect();
        let mut lanes = Lanes::default();
        for turn in 0..3 {
            for (place, connection) in connections.iter().enumerate() {
                let lane = lanes.of(connection, 0);
                assert!(Arc::ptr_eq(lane.connection(), connection), "{turn}");
                if turn > 0 {
                    assert!(Arc::ptr_eq(lanes.all[place].connection(), connection));
                }
            }
        }
        assert_eq!(lanes.all.len(), connections.len());
    }
}
