//! The start of a cluster over a region that processes of an earlier one still have.
//!
//! A broker ends by itself when whoever started it is gone, but not while it is stopped. So its row is watched, and given
//! to a successor when it gets free. A head that does not answer is waited for: without it a cluster is not whole.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use embar_broker::StartError;
use embar_client::Admin;
use embar_console::context::Context;
use embar_console::interrupt::Interrupted;
use embar_fabric::Geometry;

use super::child::Event;
use super::cluster::Cluster;
use super::tenure::{Tenure, Tenures};

/// How often is looked whether the head answers, or is gone.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a head may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// A head that answers for so long stays: one whose supervisor is gone notices that sooner.
const STAYS_AFTER: Duration = Duration::from_secs(1);
/// A head that has not answered for so long is spoken of.
const SPEAK_AFTER: Duration = Duration::from_secs(1);

impl Cluster {
    /// Whether a head is there that stays, and that the others can join. One that does not answer is waited for, until it
    /// does or is gone.
    pub(super) fn finds_head(&mut self, context: &Context) -> Result<bool> {
        // A region that is in use and is to be made anew, the head itself refuses in so many words.
        if self.plan.fresh {
            return Ok(false);
        }
        let began = Instant::now();
        let (mut answers_since, mut spoken) = (None, false);
        loop {
            let Some(tenures) = Tenures::look(&self.plan.region) else {
                return Ok(false);
            };
            let Tenure::Held {
                pid,
                address,
                serves,
            } = tenures.of(0)
            else {
                return Ok(false);
            };
            self.check_shape(tenures.region().geometry())?;
            match address.filter(|address| serves && answers(*address)) {
                Some(address) => {
                    if answers_since.get_or_insert_with(Instant::now).elapsed() >= STAYS_AFTER {
                        self.slots[0].address = Some(address);
                        self.strangers.insert(0, pid);
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
            if let Ok(Event::Interrupted) = self.next_event(Some(Instant::now() + LOOK_EVERY)) {
                return Err(Interrupted.into());
            }
        }
    }

    /// Whether the region that is there is the one that was asked for.
    fn check_shape(&self, found: &Geometry) -> Result<()> {
        let plan = &self.plan;
        let wanted = Geometry::for_cluster(
            plan.region_bytes,
            plan.brokers - 1,
            plan.standbys,
            plan.spares,
            plan.topics,
        )?;
        if *found == wanted {
            return Ok(());
        }
        Err(StartError::OtherShape {
            dir: plan.region.clone(),
            found_mib: found.total_bytes() >> 20,
            found_brokers: found.brokers - found.standbys - found.spares,
            found_standbys: found.standbys,
            found_spares: found.spares,
            found_topics: found.topics,
        }
        .into())
    }

    /// All but the head's, but for spares that nobody joined in a region that was taken over, or that were left since,
    /// and for rows that strangers have, which are remembered.
    pub(super) fn rows_to_start(&mut self) -> Vec<u16> {
        let Some(tenures) = Tenures::look(&self.plan.region) else {
            return Vec::new();
        };
        let mut rows = Vec::new();
        for id in 1..self.plan.rows() {
            let is_spare = self.plan.spare_rows().contains(&id);
            match tenures.of(id) {
                Tenure::Held { pid, .. } => drop(self.strangers.insert(id, pid)),
                Tenure::Left | Tenure::Free { is_unused: true } if is_spare => {}
                Tenure::Left | Tenure::Free { .. } => rows.push(id),
            }
        }
        rows
    }
}

fn answers(head: SocketAddr) -> bool {
    let admin = Admin::connect(&head.to_string());
    admin.is_ok_and(|admin| admin.timeout(ANSWER_WITHIN).metadata().wait().is_ok())
}
