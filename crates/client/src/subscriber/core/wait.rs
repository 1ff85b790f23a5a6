//! What the subscriber waits for, looked up when somebody asks.

use embar_frame::Now;

use super::super::channel::SubscribeChannel;
use super::SubscriberCore;
use crate::peer::{Peer, Phase};
use crate::wait::{Party, Wait, WaitReason};

impl SubscriberCore {
    /// Whom it waits for: to be opened, to come back, or to have more messages. `None` once it has ended, and while it is
    /// the consumer who does not take what came.
    ///
    /// `delivered_at` is when the last batch was delivered.
    pub fn waiting_for(&self, delivered_at: Now, now: Now) -> Option<Wait> {
        if self.ended.is_some() || self.is_starved() {
            return None;
        }
        if !self.opened {
            let left = self.open_by?.since(now);
            return Some(Wait {
                parties: self.absent(),
                elapsed: self.config.open_timeout.saturating_sub(left),
                remaining: Some(left),
            });
        }
        let lost = self
            .channels
            .iter()
            .filter_map(|channel| self.lost_since(channel));
        if let Some(since) = lost.min() {
            let by = since.after(self.config.loss_timeout);
            return Some(Wait {
                parties: self.absent(),
                elapsed: now.since(since),
                remaining: Some(by.since(now)),
            });
        }
        let channels = self.channels.iter().map(|channel| &channel.peer);
        let open = channels.filter(|peer| peer.phase == Phase::Open);
        let parties: Vec<Party> = open.map(|peer| peer.party(WaitReason::Messages)).collect();
        (!parties.is_empty()).then(|| Wait {
            parties,
            elapsed: now.since(delivered_at),
            remaining: None,
        })
    }

    /// Who has no connection that can be used.
    fn absent(&self) -> Vec<Party> {
        if let Some(head) = self.directory.awaited_head() {
            return vec![head];
        }
        let is_absent = |channel: &&SubscribeChannel| match channel.peer.phase {
            Phase::Done => false,
            // It answers, and cannot get at what comes next.
            Phase::Open => channel.out_of_reach,
            _ => !channel.peer.has_left(),
        };
        let absent = self.channels.iter().filter(is_absent);
        let mut absent: Vec<&Peer> = absent.map(|channel| &channel.peer).collect();
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
