//! What goes wrong, by chance.

use embar_fabric::{Outage, Power};
use embar_wire::time::Now;

use super::World;
use crate::violation::Check;

const SECOND_NS: u64 = 1_000_000_000;
/// Accesses to memory after which an outage strikes at the latest.
const FUSE_MAX: u64 = 20_000;

impl World {
    pub(super) fn inject(&mut self) -> Check {
        let faults = self.plan.faults;
        let now = self.now;
        if self.random.one_in(faults.crash) {
            self.crash()?;
        }
        if self.random.one_in(faults.cut)
            && let Some(id) = self.any_connection()
        {
            self.trace
                .event(Now(now), format_args!("connection {id} is cut"));
            self.figures.cuts += 1;
            self.network.cut(id, now);
        }
        if self.random.one_in(faults.stall)
            && let Some(id) = self.any_connection()
        {
            let until = now + self.random.size(15 * SECOND_NS);
            self.trace.event(
                Now(now),
                format_args!("connection {id} stalls until {until}"),
            );
            self.network.stall(id, until);
        }
        if self.random.one_in(faults.pause) {
            self.paused_until = now + self.random.size(6 * SECOND_NS);
            self.trace.event(
                Now(now),
                format_args!("the broker pauses until {}", self.paused_until),
            );
        }
        if self.random.one_in(faults.resubscribe) {
            let actor = self.random.below(self.actors.len() as u64) as usize;
            self.resubscribe(actor);
        }
        Ok(())
    }

    fn any_outage(&mut self) -> Outage {
        if self.random.one_in(2) {
            Outage::Host
        } else {
            Outage::Process
        }
    }

    /// At once, or in the middle of what it does next.
    fn crash(&mut self) -> Check {
        let outage = self.any_outage();
        let (at_once, fuse) = (self.random.one_in(4), self.random.size(FUSE_MAX));
        match &self.broker {
            None => Ok(()),
            Some(_) if at_once => self.broker_dies(outage),
            Some(broker) => {
                broker.power.fail_after(fuse, outage);
                Ok(())
            }
        }
    }

    /// A new incarnation; it may die while it recovers.
    pub(super) fn reboot(&mut self) -> Check {
        let power = Power::default();
        if !self.healed && self.plan.faults.crash > 0 && self.random.one_in(6) {
            power.fail_after(self.random.size(FUSE_MAX), self.any_outage());
        }
        self.boot(power)
    }

    fn any_connection(&mut self) -> Option<u32> {
        let ids = self.network.ids();
        (!ids.is_empty()).then(|| *self.random.pick(&ids))
    }

    fn resubscribe(&mut self, actor: usize) {
        let now = Now(self.now);
        if let Some(subscriber) = self.actors[actor].as_subscriber() {
            self.trace
                .event(now, format_args!("actor {actor} starts over"));
            subscriber.start_over(&self.books, now);
        }
        self.dismiss_if_moved(actor);
    }

    /// An actor that begins anew must not hear of what it left.
    pub(super) fn dismiss_if_moved(&mut self, actor: usize) {
        if self.actors[actor].has_moved() {
            self.dismiss(actor);
        }
    }

    /// The connections of an actor are no more, without its being told.
    pub(super) fn dismiss(&mut self, actor: usize) {
        self.network.client_died(actor, self.now);
        self.connections.retain(|(owner, _), _| *owner != actor);
    }
}
