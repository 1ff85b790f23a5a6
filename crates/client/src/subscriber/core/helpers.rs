//! Helpers: brokers that send a subscriber the large batches which they store, beside the broker that serves the order.
//!
//! One broker *serves* the order, as ever. When its batches are large, the subscriber connects to others, and asks each for
//! what it stores itself. As soon as such a *helper* answers, the server is asked to leave these batches out. What both send
//! until then comes twice, and is delivered once.
//!
//! Invariants:
//! - Each batch from the position that comes next on is in the share of a connection that stands,
//!   or of the server alone.
//! - Once the server was asked to leave anything out, all of these connections end together, whichever ends. A broker then
//!   serves alone, from the position that comes next. So only the word of one that serves alone counts: on evictions,
//!   damage, or topics that are gone.
//! - A helper that hangs holds the order up for [`STALL`], and not longer.

use std::time::Duration;

use embar_frame::Now;
use embar_wire::share::{BrokerSet, Share};

use super::super::channel::{Interruption, Role};
use super::SubscriberCore;
use crate::connection::ConnectionError;
use crate::peer::Phase;

/// So many brokers help at most: with the one that serves they are as many as there are I/O threads.
const HELPERS_MAX: usize = 3;
/// Large batches in a row that show that help pays.
const LARGE_IN_A_ROW: u32 = 4;
/// Small ones that show that it does not: helpers would wake for each of them.
const SMALL_IN_A_ROW: u32 = 64;
/// How long batches may be ahead while nothing comes.
const STALL: Duration = Duration::from_secs(2);
/// Between the end of one group of connections and the next.
const PAUSE: Duration = Duration::from_secs(1);

/// The state of those who help.
#[derive(Debug, Default)]
pub(super) struct Helpers {
    /// Whose large batches the server was asked to leave out.
    relieved_by: BrokerSet,
    /// Not before this time.
    not_before: Now,
    /// Since when batches are ahead and nothing came, and a measure of what had come by then.
    stalled: Option<(Now, u64)>,
}

impl SubscriberCore {
    /// Whether several brokers serve the one order of the topic together.
    pub fn is_shared(&self) -> bool {
        !self.helpers.relieved_by.is_empty()
    }

    /// Takes batches into their order. Buffers of those that came twice go back.
    pub(super) fn put_in_order(&mut self, now: Now) {
        if self.ordered != Some(true) {
            return;
        }
        self.merge.take(&mut self.events);
        while let Some(surplus) = self.merge.next_surplus() {
            let Some(index) = surplus.channel.data_index() else {
                continue;
            };
            let channel = &mut self.channels[index];
            let read = channel.returned(surplus.payload, &self.config, now, &mut self.events);
            self.merge.take(&mut self.events);
            match read {
                Ok(()) => {}
                Err(Interruption::Retry(violation)) => {
                    self.channels[index].reject(&violation, now);
                }
                Err(Interruption::Fatal(error)) => self.fail(error, now),
            }
        }
    }

    /// Looks for help where it pays, and gives it up where it does not.
    pub(super) fn share_out(&mut self, now: Now) {
        if self.ordered != Some(true) || self.ended.is_some() {
            return;
        }
        self.watch_stall(now);
        if self.is_shared() && self.merge.small_in_a_row() >= SMALL_IN_A_ROW {
            self.serve_alone(now);
        }
        let Some(server) = self.server() else { return };
        if self.merge.large_in_a_row() >= LARGE_IN_A_ROW && now >= self.helpers.not_before {
            self.ask_for_help(server, now);
        }
        self.relieve(server, now);
    }

    /// The channel that serves the order.
    fn server(&self) -> Option<usize> {
        let server = self.chosen?;
        let channel = &self.channels[server];
        (channel.role == Role::Serves && channel.peer.phase == Phase::Open).then_some(server)
    }

    fn ask_for_help(&mut self, server: usize, now: Now) {
        let Some(large_bytes) = self.config.shared_batch_bytes else {
            return;
        };
        let mut there = 0;
        for helper in self.channels.iter_mut().filter(|it| it.role == Role::Helps) {
            match helper.peer.phase {
                // The cluster said that it is not ready before it was connected.
                Phase::Parked => helper.role = Role::Free,
                _ => there += 1,
            }
        }
        let mut free: Vec<usize> = (0..self.channels.len())
            .filter(|index| {
                let channel = &self.channels[*index];
                channel.role == Role::Free
                    && channel.peer.phase == Phase::Parked
                    && channel.peer.is_ready()
                    && channel.peer.not_before() <= now
            })
            .collect();
        free.sort_by_key(|index| self.channels[*index].rank);
        free.truncate(HELPERS_MAX.saturating_sub(there));
        for index in free {
            let next = self.merge.next();
            if let Ok([server, helper]) = self.channels.get_disjoint_mut([server, index]) {
                helper.help(server, next, Share::Own { large_bytes });
                helper.peer.choose(now);
                helper.peer.tick(now);
            }
        }
    }

    /// Asks the server to leave out what helpers send.
    fn relieve(&mut self, server: usize, now: Now) {
        let Some(large_bytes) = self.config.shared_batch_bytes else {
            return;
        };
        let mut brokers = self.helpers.relieved_by;
        let helpers = self.channels.iter();
        let open = helpers.filter(|it| it.role == Role::Helps && it.peer.phase == Phase::Open);
        for helper in open {
            brokers.insert(helper.peer.broker);
        }
        if brokers == self.helpers.relieved_by {
            return;
        }
        self.helpers.relieved_by = brokers;
        let share = Share::Without {
            brokers,
            large_bytes,
        };
        let topic = self.config.topic.clone();
        if let Err(violation) = self.channels[server].ask_for(topic, share) {
            self.channels[server].reject(&violation, now);
        }
    }

    /// Ends all connections of the order, if several brokers serve it together. One of them goes on alone.
    pub(super) fn serve_alone(&mut self, now: Now) {
        if !self.is_shared() {
            return;
        }
        self.helpers = Helpers {
            not_before: now.after(PAUSE),
            ..Helpers::default()
        };
        let group = self.channels.iter_mut();
        for channel in group.filter(|it| matches!(it.role, Role::Serves | Role::Helps)) {
            channel.role = Role::Leaves;
            channel.leave(ConnectionError::Local("a broker goes on alone"), now);
            if channel.peer.phase == Phase::Parked {
                channel.role = Role::Free;
            }
        }
        self.merge.give_up_ahead();
        self.put_in_order(now);
        self.choose_broker(now);
    }

    /// The connection of a channel is gone that helped, or was to end. True if nobody else needs to look at it.
    pub(super) fn helper_gone(&mut self, index: usize, now: Now) -> bool {
        let channel = &mut self.channels[index];
        match channel.role {
            Role::Free | Role::Serves => false,
            Role::Helps if channel.peer.is_rerouted() => true,
            Role::Leaves => {
                channel.retire();
                channel.peer.forgive(now);
                self.choose_broker(now);
                true
            }
            Role::Helps => {
                channel.retire();
                let broker = channel.peer.broker;
                let why = channel.peer.last_error().map(ToString::to_string);
                tracing::info!(broker, why, "it helps no more to read an order");
                if self.helpers.relieved_by.contains(broker) {
                    self.serve_alone(now);
                }
                true
            }
        }
    }

    /// Gives up a group of connections of which one holds the order up.
    fn watch_stall(&mut self, now: Now) {
        let with_consumer: usize = self.channels.iter().map(|it| it.with_consumer()).sum();
        let is_held_up = self.is_shared()
            && self.merge.ahead() > 0
            // Otherwise a share may have no buffer because the consumer has it.
            && with_consumer == self.merge.ahead();
        let came: usize = self.channels.iter().map(|it| it.came()).sum();
        let progress = self.merge.delivered() + (self.merge.ahead() + came) as u64;
        match self.helpers.stalled {
            _ if !is_held_up => self.helpers.stalled = None,
            Some((since, before)) if before == progress => {
                if since.after(STALL) <= now {
                    tracing::info!("a broker holds the order up: another goes on alone");
                    self.serve_alone(now);
                }
            }
            _ => self.helpers.stalled = Some((now, progress)),
        }
    }

    /// When to look at the group again.
    pub(super) fn share_at(&self) -> Option<Now> {
        self.helpers.stalled.map(|(since, _)| since.after(STALL))
    }
}
