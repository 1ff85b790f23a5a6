//! Ends a cluster: in order, or at once.

use std::time::{Duration, Instant};

use embar_fabric::{Probe, Region};

use super::cluster::{Cluster, Slot};
use crate::regions;

/// What a broker may take beyond its grace before it is killed.
const BEYOND_GRACE: Duration = Duration::from_secs(2);

/// How long a start that is given up may take to end.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(1);

/// Between two looks for ended processes: a shutdown takes at most this much longer than it must.
const LOOK_EVERY: Duration = Duration::from_millis(2);

impl Cluster {
    /// Drains all brokers: data brokers first, so that what they received is still ordered, and the head can tell
    /// clients where to go; the head last. Returns the rows of those that did not end in time and were killed.
    pub fn stop(mut self) -> Vec<u16> {
        let patience = self.plan.grace + BEYOND_GRACE;
        let data_end = self.plan.data_end();
        let (head, others) = self.slots.split_at_mut(1);
        let (data, standbys) = others.split_at_mut(usize::from(data_end) - 1);
        let mut killed = drain(data, 1, patience);
        killed.extend(drain(standbys, data_end, patience));
        killed.extend(drain(head, 0, patience));
        killed
    }

    /// Ends a cluster whose start failed or was interrupted. Brokers that do not listen yet, as they reserve memory or
    /// recover, are killed after a moment.
    pub(super) fn give_up(mut self) {
        drain(&mut self.slots, 0, GIVEN_UP_WITHIN);
    }
}

fn drain(slots: &mut [Slot], first_row: u16, patience: Duration) -> Vec<u16> {
    let mut children: Vec<_> = (first_row..)
        .zip(slots)
        .filter_map(|(row, slot)| Some((row, slot.child.take()?)))
        .collect();
    for (_, child) in &mut children {
        child.terminate();
    }
    let deadline = Instant::now() + patience;
    loop {
        children.retain_mut(|(_, child)| child.try_wait().is_none());
        if children.is_empty() || Instant::now() >= deadline {
            // Dropping a child kills it.
            return children.into_iter().map(|(row, _)| row).collect();
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for slot in &mut self.slots {
            slot.child = None;
        }
        if self.plan.temporary {
            // The head did it unless it was killed.
            regions::remove(&self.plan.region);
            regions::tidy(&self.plan.region);
        } else if Region::probe(&self.plan.region) == Probe::Unfinished {
            // The head was killed while it made the region. No other process makes one: we hold the lock on its directory.
            let _made_anew_next_time = Region::discard(&self.plan.region);
        }
    }
}
