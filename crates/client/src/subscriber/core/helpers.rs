//! Helpers: brokers that send a subscriber the large batches which they store, beside the broker that serves the order.
//!
//! One broker *serves* the order, as ever. When its batches are large, the subscriber connects to others, and asks each for
//! what it stores itself. As soon as such a *helper* answers, the server is asked to leave these batches out. What both send
//! until then comes twice, and is delivered once.
//!
//! Invariants:
//! - Each batch from the position of [`Merge`](super::super::merge::Merge) on is in the share of a connection that stands,
//!   or of the server alone.
//! - Help ends when the server does. Once the server was asked to leave anything out, all of these connections end
//!   together, whichever ends. A broker then serves alone, from the position that comes next. So only the word of one that
//!   serves alone counts: on evictions, damage, or topics that are gone.
//! - A helper that hangs holds the order up for [`STALL`] if something is ahead, for [`SILENCE_MAX`] in any case. Time in
//!   which it may be waiting for the consumer does not count.

use std::time::Duration;

use embar_frame::Now;
use embar_wire::control::{ErrorCode, ErrorReply};
use embar_wire::share::{BrokerSet, Share};

use super::super::channel::{Interruption, Role, SubscribeChannel};
use super::SubscriberCore;
use crate::connection::ConnectionError;
use crate::peer::Phase;

/// So many brokers help at most: with the one that serves they are as many as there are I/O threads.
const HELPERS_MAX: usize = 3;
/// Large batches in a row that show that help pays.
const LARGE_IN_A_ROW: u32 = 4;
/// Small ones that show that it does not...
const SMALL_IN_A_ROW: u32 = 64;
/// ...when no large one has come for so long. Until then help costs less than its end and its beginning.
const SMALL_FOR: Duration = Duration::from_secs(5);
/// How long batches may be ahead while hardly anything comes that is not.
const STALL: Duration = Duration::from_secs(2);
/// In this time a batch that is waited for comes on by so much: 256 KiB/s, which brokers want of publishers, too.
const STALL_BYTES: u64 = 512 << 10;
/// A look that comes so late says nothing of the brokers: this process stood still.
const LATE: Duration = Duration::from_millis(500);
/// How long a helper may be silent. Nobody knows whether it has something to send.
const SILENCE_MAX: Duration = Duration::from_secs(4);
/// Between the end of one group of connections and the next, at first. It doubles when a group ends in trouble...
const PAUSE: Duration = Duration::from_secs(1);
/// ...up to this.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A group that lasted so long was no mistake: the pause is the first one again.
const SOUND_AFTER: Duration = Duration::from_secs(30);

/// Why this side ends connections that nothing is wrong with.
const ALONE: ConnectionError = ConnectionError::Local("a broker goes on alone");
/// Ranks from here on are of brokers that held the order up.
pub(super) const LAST_RANK: u64 = 1 << 63;

/// The state of those who help.
#[derive(Debug, Default)]
pub(super) struct Helpers {
    /// Whose large batches the server was asked to leave out.
    relieved_by: BrokerSet,
    /// Since when it leaves any out.
    relieved_since: Option<Now>,
    /// Not before this time.
    not_before: Now,
    /// The last one.
    pause: Duration,
    /// While batches are ahead.
    watch: Option<Watch>,
    /// Large batches that were delivered, and when their number was last seen to change.
    large: (u64, Now),
    /// Brokers that held the order up. They go to the end of the line.
    last_rank: u64,
}

/// What was there when a stall may have begun.
#[derive(Debug)]
struct Watch {
    /// When to look again.
    until: Now,
    delivered: u64,
}

/// Why a group of connections ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// It does not pay any more.
    Idle,
    /// One of them ended, or hangs.
    Trouble,
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
            let read = channel.returned(
                surplus.payload.into_space(),
                &self.config,
                now,
                &mut self.events,
            );
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
        if self.merge.large() != self.helpers.large.0 {
            self.helpers.large = (self.merge.large(), now);
        }
        let are_small = self.merge.small_in_a_row() >= SMALL_IN_A_ROW;
        if are_small && self.helpers.large.1.after(SMALL_FOR) <= now {
            self.end_help(Ending::Idle, now);
        }
        let Some(server) = self.server() else { return };
        if self.merge.large_in_a_row() >= LARGE_IN_A_ROW && now >= self.helpers.not_before {
            self.ask_for_help(server, now);
        }
        if !are_small {
            self.relieve(server, now);
        }
    }

    /// The channel that serves the order.
    fn server(&self) -> Option<usize> {
        let server = self.chosen?;
        let channel = &self.channels[server];
        (channel.role == Role::Serves && channel.peer.phase == Phase::Open).then_some(server)
    }

    fn ask_for_help(&mut self, server: usize, now: Now) {
        let Some(large_bytes) = self.large_bytes else {
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
                let limit = match self.config.idle_timeout {
                    Duration::ZERO => SILENCE_MAX,
                    limit => limit.min(SILENCE_MAX),
                };
                helper.peer.connection.set_idle_timeout(limit);
                helper.peer.choose(now);
                helper.peer.tick(now);
            }
        }
    }

    /// Asks the server to leave out what helpers send.
    fn relieve(&mut self, server: usize, now: Now) {
        let Some(large_bytes) = self.large_bytes else {
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
        self.helpers.relieved_since.get_or_insert(now);
        let share = Share::Without {
            brokers,
            large_bytes,
        };
        if let Err(violation) = self.channels[server].ask_for(&self.config, share) {
            self.channels[server].reject(&violation, now);
        }
    }

    /// Ends the connections of all who help, and that of a server which leaves out what they send. A broker goes on
    /// alone.
    pub(super) fn end_help(&mut self, why: Ending, now: Now) {
        let relieved = self.is_shared();
        let ends = |it: &SubscribeChannel| match it.role {
            Role::Helps => true,
            Role::Serves => relieved,
            Role::Free | Role::Leaves => false,
        };
        if !self.channels.iter().any(ends) {
            return;
        }
        let since = self.helpers.relieved_since;
        let was_sound = since.is_some_and(|since| since.after(SOUND_AFTER) <= now);
        let pause = match why {
            Ending::Trouble if !was_sound => (2 * self.helpers.pause).clamp(PAUSE, PAUSE_MAX),
            Ending::Idle if !was_sound => self.helpers.pause,
            Ending::Trouble | Ending::Idle => PAUSE,
        };
        self.helpers = Helpers {
            not_before: now.after(pause.max(PAUSE)),
            pause,
            large: self.helpers.large,
            last_rank: self.helpers.last_rank,
            ..Helpers::default()
        };
        for channel in self.channels.iter_mut().filter(|it| ends(it)) {
            channel.role = Role::Leaves;
            channel.leave(ALONE, now);
            if channel.peer.phase == Phase::Parked {
                channel.role = Role::Free;
            }
        }
        self.merge.give_up_ahead();
        self.put_in_order(now);
        self.choose_broker(now);
    }

    /// The connection of a channel is gone that helped, or was to end. True if nobody else needs to look at it.
    pub(super) fn helper_gone(
        &mut self,
        index: usize,
        refusal: Option<&ErrorReply>,
        now: Now,
    ) -> bool {
        let channel = &mut self.channels[index];
        match channel.role {
            Role::Free | Role::Serves => false,
            Role::Helps if channel.peer.is_rerouted() => true,
            Role::Leaves => {
                channel.retire();
                if channel.peer.last_error() == Some(&ALONE) {
                    channel.peer.forgive(now);
                }
                self.choose_broker(now);
                true
            }
            Role::Helps => {
                channel.retire();
                let cannot = refusal.is_some_and(|it| it.code == ErrorCode::OutOfReach);
                if cannot {
                    // Nothing is wrong with it.
                    channel.peer.forgive(now);
                }
                if cannot && !self.is_shared() && self.helpers.not_before <= now {
                    // It would have to read it from a disk, and so would others.
                    self.helpers.pause = (2 * self.helpers.pause).clamp(PAUSE, PAUSE_MAX);
                    self.helpers.not_before = now.after(self.helpers.pause);
                }
                let channel = &self.channels[index];
                let broker = channel.peer.broker;
                let why = channel.peer.last_error().map(ToString::to_string);
                tracing::info!(broker, why, "it helps no more to read an order");
                if self.helpers.relieved_by.contains(broker) {
                    self.end_help(Ending::Trouble, now);
                }
                true
            }
        }
    }

    /// This process stood still: the silence of helpers counts from now on.
    pub(super) fn stood_still(&mut self, now: Now) {
        for channel in self.channels.iter_mut().filter(|it| it.role == Role::Helps) {
            channel.forget_silence(&self.config, now);
        }
    }

    /// Whether a look that was due then comes too late to say anything of brokers.
    pub(super) fn is_late(due: Now, now: Now) -> bool {
        due.after(LATE) < now
    }

    /// Gives up a group of connections of which one holds the order up.
    fn watch_stall(&mut self, now: Now) {
        if !self.is_shared() || self.merge.ahead() == 0 {
            self.helpers.watch = None;
            return;
        }
        let group = self.channels.iter();
        // Each sends in order. So what comes next is none of theirs of whom something is ahead.
        let owing = group.filter(|it| it.is_in_group() && !self.merge.is_ahead(it.channel));
        let (mut came, mut may_come) = (0, true);
        for channel in owing {
            came += channel.came_since();
            // Otherwise the consumer has what the next one needs.
            may_come &= !channel.may_wait_for_consumer(&self.config);
        }
        if !may_come {
            self.helpers.watch = None;
            return;
        }
        let delivered = self.merge.delivered();
        let watch = self.helpers.watch.as_ref();
        if let Some(watch) = watch.filter(|it| it.delivered == delivered) {
            if now < watch.until {
                return;
            }
            if came < STALL_BYTES && !Self::is_late(watch.until, now) {
                tracing::info!("a broker holds the order up: another goes on alone");
                self.put_last_who_owes();
                self.end_help(Ending::Trouble, now);
                return;
            }
        }
        for channel in &mut self.channels {
            channel.count_what_comes();
        }
        self.helpers.watch = Some(Watch {
            until: now.after(STALL),
            delivered,
        });
    }

    /// Whoever may hold the order up is chosen after all others.
    fn put_last_who_owes(&mut self) {
        for channel in &mut self.channels {
            if channel.is_in_group() && !self.merge.is_ahead(channel.channel) {
                self.helpers.last_rank += 1;
                channel.rank = LAST_RANK + self.helpers.last_rank;
            }
        }
    }

    /// When to look at the group again.
    pub(super) fn share_at(&self) -> Option<Now> {
        let watch = self.helpers.watch.as_ref()?;
        self.ended.is_none().then_some(watch.until)
    }
}
