//! Starts a cluster over a region in which processes of an earlier command still hold rows.
//!
//! A broker ends by itself when its supervisor is gone, but not while it is paused. So the supervisor watches each row
//! that such a process holds, and starts a broker there once the row is free. If it is the head that does not answer,
//! the supervisor waits before it starts the others: without a head no cluster is whole.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use embar_broker::StartError;
use embar_client::Admin;
use embar_console::context::Context;
use embar_console::interrupt::Interrupted;
use embar_fabric::{ClusterShape, Geometry};

use super::child::ChildEvent;
use super::cluster::Cluster;
use super::occupancy::{Occupancy, RowSnapshot};

/// Between two looks whether the head answers, or is gone.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a head may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// A head that answers for so long stays: one whose supervisor is gone notices that sooner.
const STAYS_AFTER: Duration = Duration::from_secs(1);
/// The user learns of a head that has not answered for so long.
const SPEAK_AFTER: Duration = Duration::from_secs(1);

impl Cluster {
    /// Whether there is a head that stays and that the others can join. Waits for one that does not answer until it does,
    /// or is gone.
    pub(super) fn finds_head(&mut self, context: &Context) -> Result<bool> {
        // If the region is in use and is to be made anew, the new head fails and says why.
        if self.plan.fresh {
            return Ok(false);
        }
        let began = Instant::now();
        let (mut answers_since, mut spoken) = (None, false);
        loop {
            let Some(snapshot) = RowSnapshot::look(&self.plan.region) else {
                return Ok(false);
            };
            let Occupancy::Held {
                pid,
                address,
                serves,
            } = snapshot.of(0)
            else {
                return Ok(false);
            };
            self.check_shape(snapshot.region().geometry())?;
            match address.filter(|address| serves && answers(*address)) {
                Some(address) => {
                    if answers_since.get_or_insert_with(Instant::now).elapsed() >= STAYS_AFTER {
                        self.slots[0].address = Some(address);
                        self.foreign.insert(0, pid);
                        return Ok(true);
                    }
                }
                None => answers_since = None,
            }
            if !spoken && answers_since.is_none() && began.elapsed() >= SPEAK_AFTER {
                spoken = true;
                context.note(format_args!(
                    "the head of this region (pid {pid}) lives, does not answer, and was not started by this command: \
                     waiting until it answers or ends (`kill -CONT {pid}` if it is stopped); Ctrl-C stops"
                ));
            }
            if let Ok(ChildEvent::Interrupted) = self.next_event(Some(Instant::now() + LOOK_EVERY))
            {
                return Err(Interrupted.into());
            }
        }
    }

    /// An error unless the region has the shape that the plan asks for.
    fn check_shape(&self, found: &Geometry) -> Result<()> {
        let plan = &self.plan;
        let wanted = Geometry::for_cluster(ClusterShape {
            region_bytes: plan.region_bytes,
            data_brokers: plan.brokers - 1,
            standbys: plan.standbys,
            spares: plan.spares,
            topics: plan.topics,
            disks: plan.config.disks(),
        })?;
        if *found == wanted {
            return Ok(());
        }
        Err(StartError::other_shape(&plan.region, found).into())
    }

    /// The rows of brokers to start, the head aside. Left out are spares that no broker joined, or that brokers have left,
    /// and rows that processes of another command hold, which are remembered.
    pub(super) fn rows_to_start(&mut self) -> Vec<u16> {
        let Some(snapshot) = RowSnapshot::look(&self.plan.region) else {
            return Vec::new();
        };
        let mut rows = Vec::new();
        for id in 1..self.plan.rows() {
            let is_spare = self.plan.spare_rows().contains(&id);
            match snapshot.of(id) {
                Occupancy::Held { pid, .. } => drop(self.foreign.insert(id, pid)),
                Occupancy::Left | Occupancy::Free { is_unused: true } if is_spare => {}
                Occupancy::Left | Occupancy::Free { .. } => rows.push(id),
            }
        }
        rows
    }
}

fn answers(head: SocketAddr) -> bool {
    let admin = Admin::connect(&head.to_string());
    admin.is_ok_and(|admin| admin.timeout(ANSWER_WITHIN).metadata().wait().is_ok())
}
