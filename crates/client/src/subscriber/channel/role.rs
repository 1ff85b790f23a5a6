//! What a channel does for an order that several brokers may send together: how it begins and ends, and what it brought.

use embar_frame::Now;
use embar_wire::batch::BatchHeader;
use embar_wire::control::{Control, StartAt, Subscribe};
use embar_wire::share::Share;

use super::SubscribeChannel;
use crate::connection::Violation;
use crate::peer::Phase;
use crate::subscriber::arriving::SMALL_BYTES;
use crate::subscriber::model::{Delivered, SubscriberConfig};

/// What a channel does for an order. Where each broker counts its own offsets, all serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::subscriber) enum Role {
    /// Nothing.
    Free,
    /// It brings the order, or all that helpers do not bring.
    Serves,
    /// It brings large batches that its broker stores.
    Helps,
    /// Its connection is to end.
    Leaves,
}

/// Which batches may be delivered in one buffer.
#[derive(Debug, Clone, Copy)]
pub(in crate::subscriber) struct Joins {
    /// Those of at least so many bytes may come from another broker, too. So each is delivered alone.
    pub(super) large_bytes: u32,
    /// Others may bring what lies between two batches.
    pub(super) sparse: bool,
}

impl Joins {
    /// Whether a batch may join those of a run.
    pub(in crate::subscriber) fn allow(&self, run: &Delivered, header: &BatchHeader) -> bool {
        let is_alone = |header: &BatchHeader| header.frame_len() >= self.large_bytes;
        let is_next = !self.sparse || run.next == header.base_offset();
        is_next && !is_alone(&run.header) && !is_alone(header)
    }

    /// Whether small batches may not always be joined.
    pub(in crate::subscriber) fn are_limited(&self) -> bool {
        self.sparse || self.large_bytes as usize <= SMALL_BYTES
    }
}

impl SubscribeChannel {
    /// From now on batches of at least so many bytes are delivered alone.
    pub(in crate::subscriber) fn set_large(&mut self, bytes: u32) {
        if self.ordered {
            self.joins.large_bytes = bytes;
        }
    }

    /// Goes on where another one stood.
    pub(in crate::subscriber) fn take_over(&mut self, from: &mut Self) {
        self.position = from.position;
        self.end = from.end;
        self.topic_id = from.topic_id;
        self.damaged = from.damaged;
        self.lost_since = from.lost_since.take();
        self.out_of_reach = std::mem::take(&mut from.out_of_reach);
    }

    /// Brings a share of the order, of which another one serves the rest, from the position that comes next on.
    pub(in crate::subscriber) fn help(&mut self, server: &Self, next: Option<u64>, share: Share) {
        (self.position, self.end, self.topic_id) = (next, server.end, server.topic_id);
        (self.role, self.share, self.joins.sparse) = (Role::Helps, share, true);
    }

    /// Brings all of the order, from `next` on if that is known.
    pub(in crate::subscriber) fn serve(&mut self, next: Option<u64>) {
        self.position = next.or(self.position);
        (self.role, self.share, self.joins.sparse) = (Role::Serves, Share::All, false);
    }

    /// Whether it is one of those that bring an order.
    pub(in crate::subscriber) fn is_in_group(&self) -> bool {
        matches!(self.role, Role::Serves | Role::Helps) && self.peer.phase == Phase::Open
    }

    /// The connection has ended, and no other is wanted.
    pub(in crate::subscriber) fn retire(&mut self) {
        self.role = Role::Free;
        self.peer.phase = Phase::Parked;
    }

    /// From where the connection stands, it is to bring this share.
    pub(in crate::subscriber) fn ask_for(
        &mut self,
        config: &SubscriberConfig,
        share: Share,
    ) -> Result<(), Violation> {
        (self.share, self.joins.sparse) = (share, true);
        self.renewals += 1;
        self.peer.connection.send(&Control::Subscribe(Subscribe {
            topic: config.topic.clone(),
            start: StartAt::Latest,
            topic_id: self.topic_id.unwrap_or(0),
            share,
            isolation: config.isolation,
        }))
    }

    /// Bytes of payloads that came on this channel.
    fn came(&self) -> u64 {
        self.accepted_bytes + self.arriving.as_ref().map_or(0, |batch| batch.came as u64)
    }

    /// Counts anew, from 0.
    pub(in crate::subscriber) fn count_what_comes(&mut self) {
        self.counted_from = self.came();
    }

    /// Bytes of payloads that came since the count began.
    pub(in crate::subscriber) fn came_since(&self) -> u64 {
        self.came().saturating_sub(self.counted_from)
    }

    /// The broker's silence counts from now on.
    pub(in crate::subscriber) fn forget_silence(&mut self, config: &SubscriberConfig, now: Now) {
        if !self.is_starved(config) {
            self.peer.connection.renew_time(now);
        }
    }
}
