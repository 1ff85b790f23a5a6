//! The broker's part of the world: its turns, its deaths and births, and a look at it after each.

use embar_broker::shard::{Action, TICK};
use embar_fabric::{Outage, Power, Simulated};
use embar_wire::time::Now;

use super::World;
use crate::check::bounds;
use crate::check::device::Moment;
use crate::host::Broker;
use crate::network::FarEvent;
use crate::violation::{Check, Invariant, ensure};

/// The index is looked at at least every so many turns, even if the broker claims that nothing changed.
const LOOK_EVERY: u64 = 16;
/// All retained bytes are looked at every so many turns.
const REREAD_EVERY: u64 = 256;

impl World {
    pub(super) fn broker_is_able(&self) -> bool {
        self.broker.as_ref().is_some_and(|broker| {
            let tick = self.next_tick <= self.now && !broker.shard.is_empty();
            self.paused_until <= self.now && (tick || !self.network.far_ready(self.now).is_empty())
        })
    }

    pub(super) fn broker_turn(&mut self) -> Check {
        let mut ready = self.network.far_ready(self.now);
        self.random.shuffle(&mut ready);
        ready.truncate(self.random.between(1, 6) as usize);
        let mut actions = Vec::new();
        for id in ready {
            if let Some(event) = self.network.far_event(id, self.now) {
                self.broker_hears(event, &mut actions);
            }
            if self.has_died() {
                break;
            }
            // Right away: the next event may evict what this one appended.
            self.look_if_changed()?;
        }
        let at = self.at();
        let tick_due = self.next_tick <= self.now;
        if let Some(broker) = &mut self.broker {
            if tick_due {
                self.next_tick = self.now + TICK.as_nanos() as u64;
                broker.shard.tick(at);
            }
            broker.shard.settle(at, &mut actions);
        }
        if self.has_died() {
            // Whatever it still did, nobody saw.
            drop(actions);
            self.figures.crashes_midway += 1;
            return self.broker_is_dead();
        }
        for action in actions {
            self.carry_out(action)?;
        }
        self.look_after_turn()
    }

    fn broker_hears(&mut self, event: FarEvent, actions: &mut Vec<Action<Simulated>>) {
        let at = self.at();
        let Some(broker) = &mut self.broker else {
            return;
        };
        let shard = &mut broker.shard;
        match event {
            FarEvent::Accepted(token) => shard.opened(token, None, at, actions),
            FarEvent::Received(token, buf, result) => {
                shard.received(token, buf, &result, 0, at, actions);
            }
            FarEvent::Sent(token, buf, result) => shard.sent(token, buf, &result, at),
        }
    }

    fn has_died(&self) -> bool {
        let broker = self.broker.as_ref();
        broker.is_some_and(|broker| broker.power.failed().is_some())
    }

    fn carry_out(&mut self, action: Action<Simulated>) -> Check {
        match action {
            Action::Recv(token, buf) => {
                bounds::receive(&buf, &self.plan)?;
                self.network.broker_recv(token, buf);
            }
            Action::Send(token, buf) => {
                bounds::send(&buf)?;
                self.network.broker_send(token, buf);
            }
            Action::ShutdownWrite(token) => self.network.broker_shutdown(token, self.now),
            Action::Close(token) => self.network.broker_close(token, self.now),
            Action::WakeOthers => {}
        }
        Ok(())
    }

    fn look_after_turn(&mut self) -> Check {
        self.turns += 1;
        if let Some(broker) = &self.broker {
            bounds::broker(broker, &self.plan)?;
        }
        self.look_if_changed()?;
        if self.turns.is_multiple_of(LOOK_EVERY) {
            self.look(Moment::Turn)?;
        }
        if self.turns.is_multiple_of(REREAD_EVERY) {
            self.inspector.reread(&self.topics, &self.books)?;
        }
        self.agree()
    }

    fn look_if_changed(&mut self) -> Check {
        let claimed = self.claims();
        if std::mem::replace(&mut self.claimed, claimed) == self.claimed {
            return Ok(());
        }
        self.look(Moment::Turn)
    }

    /// What the broker says of each topic: first and next offset.
    fn claims(&self) -> Vec<(u64, u64)> {
        let Some(broker) = &self.broker else {
            return Vec::new();
        };
        let log = broker.node.log();
        let extents = self.topics.iter().map(|t| log.extents(t.id));
        extents
            .map(|e| e.map_or((0, 0), |e| (e.first, e.next)))
            .collect()
    }

    fn look(&mut self, moment: Moment) -> Check {
        self.inspector.look(&self.topics, &mut self.books, moment)
    }

    /// What the broker serves its own readers is what other hosts find on the device.
    fn agree(&self) -> Check {
        for (topic, (first, next)) in self.topics.iter().zip(&self.claimed) {
            let seen = self
                .books
                .topics
                .get(&topic.id)
                .map_or((0, 0), |h| (h.first, h.next));
            ensure(Invariant::I7, seen == (*first, *next), || {
                format!(
                    "{}: the broker keeps {first}..{next}, the device says {seen:?}",
                    topic.name
                )
            })?;
        }
        Ok(())
    }

    pub(super) fn boot(&mut self, power: Power) -> Check {
        let wall = self.at().wall;
        let broker = Broker::start(
            &self.devices,
            &self.plan.config,
            self.sabotage,
            power,
            &mut self.random,
            wall,
        );
        self.broker = Some(broker);
        let Some(broker) = &self.broker else {
            return Ok(());
        };
        if broker.power.failed().is_some() {
            self.figures.crashes_midway += 1;
            return self.broker_is_dead();
        }
        let (recovered, incarnation) = (broker.recovered, broker.node.incarnation);
        self.trace.event(
            Now(self.now),
            format_args!("incarnation {incarnation} starts: {recovered:?}"),
        );
        ensure(Invariant::I6, recovered.damaged == 0, || {
            format!("recovery finds damage: {recovered:?}")
        })?;
        self.network.broker_up(incarnation);
        self.claimed = self.claims();
        self.look(Moment::Birth)?;
        self.agree()
    }

    pub(super) fn broker_dies(&mut self, outage: Outage) -> Check {
        if let Some(broker) = &self.broker {
            broker.power.fail_after(0, outage);
        }
        self.broker_is_dead()
    }

    /// Its power has failed: what is left of it goes.
    fn broker_is_dead(&mut self) -> Check {
        let Some(broker) = self.broker.take() else {
            return Ok(());
        };
        let outage = broker.power.failed().unwrap_or(Outage::Process);
        match outage {
            Outage::Host => self.figures.host_crashes += 1,
            Outage::Process => self.figures.process_crashes += 1,
        }
        // The buffers that the network holds point into its memory.
        self.network.broker_died(self.now);
        broker.die(outage);
        self.restart_at = self.now + self.random.size(3_000_000_000);
        self.trace
            .event(Now(self.now), format_args!("the broker dies: {outage:?}"));
        self.look(Moment::Death)?;
        self.inspector.reread(&self.topics, &self.books)
    }
}
