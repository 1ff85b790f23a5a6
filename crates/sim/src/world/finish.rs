//! The end of a run: everything heals, everything that was begun must end.

use embar_client::{OnEvicted, Start};
use embar_fabric::Outage;
use embar_wire::time::Now;

use super::World;
use crate::actor::SubscriberActor;
use crate::check::bounds;
use crate::plan::SubscriberPlan;
use crate::violation::{Check, Invariant, Violation};

/// Steps after which a healthy world must be at rest.
const HEAL_STEPS_MAX: u64 = 60_000;

impl World {
    /// Ends all faults, lets everything end, and checks the books.
    pub fn finish(&mut self) -> Check {
        self.heal();
        self.run_until("publishers and subscribers end", Self::actors_are_done)?;
        self.all_leave()?;
        self.last_crash()?;
        self.read_everything()?;
        self.all_leave()?;
        self.inspector.reread(&self.topics, &self.books)?;
        self.count();
        self.books.settle()
    }

    fn heal(&mut self) {
        self.healed = true;
        self.trace
            .event(Now(self.now), format_args!("everything heals"));
        self.network.calm();
        self.restart_at = self.restart_at.min(self.now);
        self.paused_until = 0;
        if let Some(broker) = &self.broker {
            broker.power.fail_after(u64::MAX, Outage::Host);
        }
        for i in 0..self.actors.len() {
            self.actors[i].heal(Now(self.now));
            if self.actors[i].leaves_when_healed() {
                self.dismiss(i);
            }
        }
    }

    fn actors_are_done(&self) -> bool {
        self.broker.is_some() && self.actors.iter().all(|actor| actor.is_done(&self.books))
    }

    fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Check {
        for _ in 0..HEAL_STEPS_MAX {
            if done(self) {
                return Ok(());
            }
            self.step()?;
        }
        let left = self.actors.iter().filter(|a| !a.is_done(&self.books));
        let left: Vec<String> = left.map(|a| a.describe()).collect();
        Err(Violation {
            invariant: Invariant::Liveness,
            what: format!(
                "nothing is wrong any more, but not in {HEAL_STEPS_MAX} steps: {what}; left: {left:?}"
            ),
        })
    }

    /// Every client goes; the broker must give back all that it held for them.
    fn all_leave(&mut self) -> Check {
        (0..self.actors.len()).for_each(|actor| self.dismiss(actor));
        self.actors.clear();
        let gone = |world: &Self| {
            let broker = world.broker.as_ref();
            world.network.is_empty() && broker.is_some_and(|b| b.shard.is_empty())
        };
        self.run_until("the broker forgets its clients", gone)?;
        self.broker.as_ref().map_or(Ok(()), bounds::idle)
    }

    fn last_crash(&mut self) -> Check {
        self.broker_dies(Outage::Host)?;
        self.restart_at = self.now;
        self.reboot()
    }

    /// One subscriber for each topic reads all that is kept.
    fn read_everything(&mut self) -> Check {
        for (i, topic) in self.topics.iter().enumerate() {
            let plan = SubscriberPlan {
                topic: i,
                on_evicted: OnEvicted::Fail,
                think_ns: 0,
                buffers: 2,
            };
            let (random, now) = (self.random.fork(), Now(self.now));
            let name = (topic.name.as_str(), topic.id);
            let reader = SubscriberActor::new(plan, 100 + i, name, Start::Earliest, random, now);
            self.actors.push(Box::new(reader));
        }
        self.run_until("everything kept is read", Self::actors_are_done)
    }

    fn count(&mut self) {
        for history in self.books.topics.values() {
            self.figures.batches += history.batches.len() as u64;
            self.figures.evicted += history.batches.range(..history.first).count() as u64;
        }
        self.figures.damaged = self.network.damaged;
    }
}
