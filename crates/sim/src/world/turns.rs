//! What a host does in one turn, and what others do in the middle of it.

use embar_broker::candidacy::{Outcome, Turn};
use embar_broker::clock::Timestamp;
use embar_broker::shard::{Action, Shard, TICK};
use embar_fabric::layout::TableId;
use embar_frame::Now;
use embar_memory::{Simulated, interrupt_after};
use embar_order::{Figures, Sequencer, Step};
use embar_transport::Peer;

use super::looks::claims;
use super::{WORLD, World, any_moment, depart, hosts, raise, shortage, topics, with};
use crate::candidate_host::CandidateHost;
use crate::check::bounds;
use crate::host::Broker;
use crate::network::{BrokerEvent, Id};
use crate::random::Random;
use crate::violation::Check;

/// Accesses after which an interruption is tried again that came where there is no turn.
const NOT_NOW: u64 = 1000;
/// Times others are let in before what goes on is over.
const INTERRUPTIONS_MAX: u32 = 6;
/// Turns in the middle of something at once.
const NESTED_MAX: u32 = 3;
/// A takeover comes in one of so many interruptions, where there are any.
const FORCED_TAKEOVER_ONE_IN: u64 = 6;
/// A wake-up arrives within this, in nanoseconds.
const HEARD_WITHIN_NS: u64 = 100_000;
/// Between two looks of a broker that nothing wakes, in nanoseconds.
const LOOK_EVERY_NS: u64 = TICK.as_nanos() as u64;

/// Lets other hosts take turns in the middle of one.
fn interruption() {
    // A copy for the network is not part of a turn.
    if WORLD.with(|world| world.try_borrow_mut().is_err()) {
        return interrupt_after(NOT_NOW, 1, interruption);
    }
    let turns = with(|world| {
        world.plan_interruption();
        if world.nested >= NESTED_MAX || world.nested == 0 {
            return 0;
        }
        world.figures.interruptions += 1;
        world.interruptions += 1;
        world.random.size(24)
    });
    let others = || {
        for row in with(World::forced_takeover) {
            candidate(row)?;
        }
        (0..turns).try_for_each(|_| any_host())
    };
    if turns > 0
        && let Err(violation) = others()
    {
        raise(violation);
    }
}

fn any_host() -> Check {
    let (row, is_candidate) = with(|world| {
        world.now += any_moment(&mut world.random);
        let row = world.random.below(world.plan.geometry.brokers.into()) as u16;
        (row, world.random.one_in(2))
    });
    if is_candidate {
        candidate(row)
    } else {
        broker(row)
    }
}

/// A turn of a broker, if it can have one.
pub(super) fn broker(row: u16) -> Check {
    let taken = with(|world| {
        let now = world.now;
        let host = world.host_mut(row)?;
        if host.paused_until > now || !host.lives() {
            return None;
        }
        let mut broker = host.broker.take()?;
        host.busy += 1;
        if host.broker_at <= now {
            broker.wake_others(usize::MAX);
        }
        host.broker_at = now + LOOK_EVERY_NS;
        world.nested += 1;
        Some(broker)
    });
    let Some(mut broker) = taken else {
        return Ok(());
    };
    let result = broker_turn(row, &mut broker);
    let checked = with(|world| {
        world.nested -= 1;
        let lives = world.host(row).is_some_and(crate::host::Host::lives);
        let checked = match result {
            Ok(()) if lives => world.look_after_turn(row, &broker),
            other => other,
        };
        if let Some(host) = world.host_mut(row) {
            host.busy -= 1;
            host.broker = Some(broker);
        }
        checked
    });
    checked?;
    hosts::reap_hosts()
}

fn broker_turn(row: u16, broker: &mut Broker) -> Check {
    let undone = std::mem::take(&mut broker.undone);
    carry_out(row, undone)?;
    let at = with(|world| world.at(row));
    if !broker.serves {
        join(row, broker);
        return Ok(());
    }
    let (thread, ready) = with(|world| world.any_thread(row, broker));
    let mut actions = Vec::new();
    for id in ready {
        let event = with(|world| world.network.broker_event(id, world.now));
        if let Some(event) = event {
            handle(&mut broker.threads[thread].shard, event, at, &mut actions);
        }
        if hosts::has_died(row) {
            break;
        }
        // Right away: the next event may evict what this one appended.
        with(|world| {
            let claimed = claims(broker, &world.topics);
            world.look_if_changed(row, claimed)
        })?;
    }
    let its = &mut broker.threads[thread];
    if its.next_tick <= at.now.0 {
        its.next_tick = at.now.0 + LOOK_EVERY_NS;
        its.shard.tick(at);
        depart::ask(row, broker)?;
        topics::replace(row, broker, at);
    }
    if broker.next_beat <= at.now {
        depart::beat(row, broker, at, &mut actions)?;
    }
    let its = &mut broker.threads[thread];
    its.is_due = its.shard.settle(at, &mut actions);
    if actions
        .iter()
        .any(|action| matches!(action, Action::WakeOthers))
    {
        broker.wake_others(thread);
    }
    if hosts::has_died(row) {
        // No one saw what it still did.
        drop(actions);
        with(|world| world.figures.crashes_midway += 1);
        return Ok(());
    }
    let pauses = with(|world| {
        let now = world.now;
        let is_due = broker.threads.iter().any(|thread| thread.is_due);
        if is_due && let Some(host) = world.host_mut(row) {
            host.broker_at = now;
        }
        world.pauses_midway(row)
    });
    if pauses {
        broker.undone = actions;
        return Ok(());
    }
    carry_out(row, actions)?;
    depart::end_if_over(row, broker);
    Ok(())
}

/// A broker that has not joined yet takes up what its predecessor left, and serves when that is done.
fn join(row: u16, broker: &mut Broker) {
    let is_ready = broker.take_up() && !with(|world| world.cannot_serve(row));
    if is_ready {
        broker.serve();
    }
    let serves = is_ready && !hosts::has_died(row);
    with(|world| {
        let now = world.now;
        if serves {
            let incarnation = broker.node.incarnation;
            world.network.broker_up(row, incarnation);
            world.note(format_args!("broker {row} serves"));
        } else if let Some(host) = world.host_mut(row) {
            host.broker_at = now + 1_000_000;
        }
    });
}

fn handle(
    shard: &mut Shard<Simulated>,
    event: BrokerEvent,
    at: Timestamp,
    actions: &mut Vec<Action<Simulated>>,
) {
    match event {
        BrokerEvent::Accepted(token, from) => {
            let origin = from.map_or(Peer::Unix, Peer::Tcp);
            shard.opened(token, origin, at, actions);
        }
        BrokerEvent::Received(token, buf, result) => {
            shard.received(token, buf, &result, 0, at, actions);
        }
        BrokerEvent::Sent(token, buf, result) => shard.sent(token, buf, &result, at),
    }
}

fn carry_out(row: u16, actions: Vec<Action<Simulated>>) -> Check {
    for action in actions {
        with(|world| world.carry_out(row, action))?;
    }
    Ok(())
}

/// A turn of a candidate, if it can have one.
pub(super) fn candidate(row: u16) -> Check {
    let taken = with(|world| {
        let now = world.now;
        let host = world.host_mut(row)?;
        if host.paused_until > now || !host.lives() {
            return None;
        }
        let candidate = host.candidate.take()?;
        host.busy += 1;
        world.nested += 1;
        Some((candidate, now))
    });
    let Some((mut candidate, now)) = taken else {
        return Ok(());
    };
    let before = candidate.figures();
    let told = with(|world| world.at(row)).now;
    let (turn, judged) = candidate.turn(told, &|other| shortage::is_alive(row, other));
    with(|world| {
        world.nested -= 1;
        let lives = world.host(row).is_some_and(crate::host::Host::lives);
        if lives {
            judged?;
        }
        world.told_by(row, lives, &turn, &candidate)?;
        world.count_orders(before, &candidate);
        let late = world.is_late(&candidate);
        let told = world.at(row).now;
        let (next, hears) = candidate.next_at(turn.due, told);
        let when = |at: Now| world.clocks[usize::from(row)].when(at.0, world.now);
        let (next, hears) = (when(next).max(late), when(hears).max(late));
        if let Some(host) = world.host_mut(row) {
            host.busy -= 1;
            host.candidate_wakes_after = hears;
            // Something may have woken it meanwhile.
            let woken = (host.candidate_at > now).then_some(host.candidate_at.max(hears));
            host.candidate_at = woken.map_or(next, |woken| next.min(woken));
            host.candidate = Some(candidate);
        }
        world.look_at_order()
    })?;
    hosts::reap_hosts()
}

impl World {
    /// The next interruption of a turn.
    pub(super) fn plan_interruption(&mut self) {
        let every = self.plan.faults.interrupt;
        let enough = self.interruptions >= INTERRUPTIONS_MAX;
        let after = if every == 0 || self.healed || enough {
            0
        } else {
            self.random.between(1, 2 * every)
        };
        interrupt_after(after, self.plan.faults.watched, interruption);
    }

    /// At times a candidate takes over in the middle of another's turn, and the one that sequenced goes
    /// on as if it had not: those whose turn it is then.
    fn forced_takeover(&mut self) -> Vec<u16> {
        if self.healed
            || !self
                .random
                .one_in(self.plan.faults.challenge.min(FORCED_TAKEOVER_ONE_IN))
        {
            return Vec::new();
        }
        let mut rows: Vec<u16> = self.plan.geometry.candidates().collect();
        self.random.shuffle(&mut rows);
        let challenger = rows.iter().position(|row| {
            let candidate = self.host(*row).and_then(|host| host.candidate.as_ref());
            candidate.is_some_and(|candidate| candidate.sequencer().is_none())
        });
        let Some(challenger) = challenger else {
            return Vec::new();
        };
        rows.swap(0, challenger);
        let candidate = self
            .host_mut(rows[0])
            .and_then(|host| host.candidate.as_mut());
        if let Some(candidate) = candidate {
            candidate.challenges = true;
        }
        rows
    }

    /// A thread of a broker that has something to do, and those of its connections that have something
    /// for it.
    fn any_thread(&mut self, row: u16, broker: &Broker) -> (usize, Vec<Id>) {
        let mut ready = self.network.broker_ready(row, self.now);
        self.random.shuffle(&mut ready);
        let threads = broker.threads.iter().enumerate();
        let mut able: Vec<usize> = threads
            .filter_map(|(number, thread)| thread.is_due.then_some(number))
            .collect();
        able.extend(ready.iter().map(|id| broker.thread_of(*id)));
        if able.is_empty() {
            able.push(0);
        }
        let thread = *self.random.pick(&able);
        ready.retain(|id| broker.thread_of(*id) == thread);
        ready.truncate(self.random.between(1, 6) as usize);
        (thread, ready)
    }

    fn carry_out(&mut self, row: u16, action: Action<Simulated>) -> Check {
        match action {
            Action::Recv(token, buf) => {
                bounds::receive(&buf, &self.plan)?;
                self.network.broker_recv(token, buf);
            }
            Action::Send(token, buf) => {
                bounds::send(&buf)?;
                self.network.broker_send(token, buf);
            }
            Action::Recall(token) => self.network.broker_recall(token),
            Action::ShutdownWrite(token) => self.network.broker_shutdown(token, self.now),
            Action::Close(token) => self.network.broker_close(token, self.now),
            Action::ReadDisk(..) => unreachable!("no topic is on a disk here"),
            // They were, at once.
            Action::WakeOthers => {}
            Action::Submitted => {
                self.lose_unread(TableId::LaneSlots, row);
                self.wake_candidates();
            }
        }
        Ok(())
    }

    /// A wake-up is lost: its receiver looks by itself, later.
    fn is_wakeup_lost(&mut self) -> bool {
        let lost = !self.healed && self.random.one_in(self.plan.faults.lost_wakeup);
        self.figures.lost_wakeups += u64::from(lost);
        lost
    }

    /// Until when a sequencer does nothing, as its host has something else to do.
    fn is_late(&mut self, candidate: &CandidateHost) -> u64 {
        let sequences = candidate.sequencer().is_some() && !self.healed;
        if !sequences || !self.random.one_in(self.plan.faults.late_sequencer) {
            return 0;
        }
        self.figures.late_sequencers += 1;
        let lease = self.plan.config.gap_lease.as_nanos() as u64;
        self.now + self.random.size(lease)
    }

    fn wake_candidates(&mut self) {
        if self.is_wakeup_lost() {
            return;
        }
        let at = self.now + self.random.below(HEARD_WITHIN_NS);
        for host in self.hosts.iter_mut().flatten() {
            host.candidate_at = host.candidate_at.min(at.max(host.candidate_wakes_after));
        }
    }

    fn wake_brokers(&mut self, rows: u128) {
        if rows == 0 || self.is_wakeup_lost() {
            return;
        }
        let at = self.now + self.random.below(HEARD_WITHIN_NS);
        for (row, host) in self.hosts.iter_mut().enumerate() {
            if let Some(host) = host
                && rows >> row & 1 == 1
            {
                host.broker_at = host.broker_at.min(at);
            }
        }
    }

    fn told_by(&mut self, row: u16, lives: bool, turn: &Turn, candidate: &CandidateHost) -> Check {
        match &turn.outcome {
            Outcome::Watched => {}
            Outcome::TookOver { .. } | Outcome::Failed(_) if !lives => {
                self.figures.takeovers_failed += 1;
                return Ok(());
            }
            Outcome::TookOver { .. } => {
                let epoch = candidate.sequencer().map(Sequencer::epoch);
                self.note(format_args!("broker {row} sequences: {epoch:?}"));
                self.figures.takeovers += 1;
            }
            Outcome::Failed(error) => {
                self.note(format_args!("broker {row} cannot take over: {error}"));
                self.figures.takeovers_failed += 1;
            }
            Outcome::Deposed { epoch } => {
                self.note(format_args!("broker {row} is deposed, of epoch {epoch}"));
                self.figures.deposed += 1;
            }
            Outcome::Stepped { step, .. } => {
                if *step != Step::default() {
                    self.note(format_args!("broker {row}: {step:?}"));
                }
                for row in self.rows().filter(|row| step.notified >> row & 1 == 1) {
                    self.lose_unread(TableId::Notices, row);
                }
                if step.ordered > 0 {
                    self.lose_newest_record()?;
                }
            }
        }
        self.wake_brokers(turn.to_wake());
        Ok(())
    }

    fn count_orders(&mut self, before: Option<Figures>, candidate: &CandidateHost) {
        let (Some(sequencer), Some(before)) = (candidate.sequencer(), before) else {
            return;
        };
        let now = sequencer.core().figures();
        let figures = &mut self.figures;
        figures.gaps += now.gaps.saturating_sub(before.gaps);
        figures.fenced += now.fenced.saturating_sub(before.fenced);
        figures.duplicates += now.duplicates.saturating_sub(before.duplicates);
        figures.forgotten += now.forgotten.saturating_sub(before.forgotten);
    }

    /// Whether the host of a turn stands still before it does what it decided.
    fn pauses_midway(&mut self, row: u16) -> bool {
        if self.healed || !self.random.one_in(self.plan.faults.pause_midway) {
            return false;
        }
        let until = self.now + any_pause(&mut self.random);
        self.note(format_args!("broker {row} pauses midway until {until}"));
        self.figures.pauses_midway += 1;
        if let Some(host) = self.host_mut(row) {
            host.paused_until = until;
        }
        true
    }
}

/// How long a host stands still, in nanoseconds.
pub(super) fn any_pause(random: &mut Random) -> u64 {
    random.size(6_000_000_000)
}
