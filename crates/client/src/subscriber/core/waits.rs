//! What the subscriber waits for, looked up when somebody asks.

use embar_frame::Now;

use super::super::lane::SubscribeLane;
use super::SubscriberCore;
use crate::peer::{Peer, Phase};
use crate::waiting::{Party, Reason, Waits};

impl SubscriberCore {
    /// Whom it waits for: to be opened, to come back, or to have more messages. `None` once it has ended, and while it is
    /// the consumer who does not take what came.
    ///
    /// `delivered_at` is when the last batch was delivered.
    pub fn waits(&self, delivered_at: Now, now: Now) -> Option<Waits> {
        if self.ended.is_some() || self.is_starved() {
            return None;
        }
        if !self.opened {
            let left = self.open_by?.since(now);
            return Some(Waits {
                parties: self.absent(),
                waited: self.config.open_timeout.saturating_sub(left),
                left: Some(left),
            });
        }
        let lost = self.lanes.iter().filter_map(|lane| lane.lost_since);
        if let Some(since) = lost.min() {
            let by = since.after(self.config.loss_timeout);
            return Some(Waits {
                parties: self.absent(),
                waited: now.since(since),
                left: Some(by.since(now)),
            });
        }
        let lanes = self.lanes.iter().map(|lane| &lane.peer);
        let open = lanes.filter(|peer| peer.phase == Phase::Open);
        let parties: Vec<Party> = open.map(|peer| peer.party(Reason::Messages)).collect();
        (!parties.is_empty()).then(|| Waits {
            parties,
            waited: now.since(delivered_at),
            left: None,
        })
    }

    /// Who has no connection that can be used.
    fn absent(&self) -> Vec<Party> {
        let is_absent = |lane: &&SubscribeLane| match lane.peer.phase {
            Phase::Done => false,
            // It answers, and cannot get at what comes next.
            Phase::Open => lane.out_of_reach,
            _ => !lane.peer.has_left(),
        };
        let absent = self.lanes.iter().filter(is_absent);
        let mut absent: Vec<&Peer> = absent.map(|lane| &lane.peer).collect();
        if self.ordered == Some(true) {
            // One of them is enough: whoever was tried says most about why none serves.
            let tried = |peer: &&Peer| peer.phase != Phase::Parked || peer.last_error().is_some();
            if absent.iter().any(tried) {
                absent.retain(tried);
            }
        }
        if absent.is_empty() {
            return self.directory.parties();
        }
        let parties = absent.into_iter().map(|peer| peer.party(peer.reason()));
        parties.collect()
    }
}
