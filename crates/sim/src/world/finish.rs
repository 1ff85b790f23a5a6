//! The end of a run: everything heals, everything that was begun must end.

use std::sync::Arc;

use embar_broker::node::Node;
use embar_broker::topics::Topic;
use embar_client::{OnEvicted, Start};
use embar_frame::Now;
use embar_memory::{Outage, Simulated};

use super::{World, hosts, step, with};
use crate::actor::SubscriberActor;
use crate::check::bounds;
use crate::plan::SubscriberPlan;
use crate::violation::{Check, Invariant, Violation};

/// Steps after which a healthy world must be at rest.
const HEAL_STEPS_MAX: u64 = 60_000;

/// Ends all faults, lets everything end, and checks the oracle.
pub fn finish() -> Check {
    hosts::reap_hosts()?;
    with(World::heal);
    run_until("publishers and subscribers end", World::actors_are_done)?;
    all_leave()?;
    run_until("all hear of what was evicted", World::evictions_are_known)?;
    with(World::last_crash);
    with(World::read_everything);
    run_until("everything kept is read", World::actors_are_done)?;
    all_leave()?;
    with(|world| {
        world.reread()?;
        world.count();
        world.oracle.settle()
    })
}

fn run_until(what: &str, done: impl Fn(&World) -> bool) -> Check {
    for _ in 0..HEAL_STEPS_MAX {
        if with(|world| done(world)) {
            return Ok(());
        }
        step()?;
    }
    let (left, now): (Vec<String>, _) = with(|world| {
        let left = world.actors.iter().filter(|a| !a.is_done(&world.oracle));
        let brokers = world
            .hosts
            .iter()
            .flatten()
            .filter_map(|h| h.broker.as_ref());
        let busy = brokers.filter(|it| !it.is_idle()).map(|it| it.describe());
        let left = left.map(|a| a.describe()).chain(busy);
        (left.collect(), world.now / 1_000_000)
    });
    Err(Violation {
        invariant: Invariant::Liveness,
        what: format!(
            "nothing is wrong any more, but not in {HEAL_STEPS_MAX} steps, at {now} ms: {what}; left: {left:?}"
        ),
    })
}

/// Every client goes; the brokers must give back all that they held for them.
fn all_leave() -> Check {
    with(|world| {
        (0..world.actors.len()).for_each(|actor| world.dismiss(actor));
        world.actors.clear();
    });
    run_until("the brokers forget their clients", |world| {
        let mut hosts = world.hosts.iter().flatten();
        let idle = hosts.all(|host| host.broker.as_ref().is_some_and(|it| it.is_idle()));
        world.network.is_empty() && idle
    })?;
    with(|world| {
        let brokers = world
            .hosts
            .iter()
            .flatten()
            .filter_map(|h| h.broker.as_ref());
        brokers
            .filter(|broker| broker.node.takes_data())
            .try_for_each(|broker| bounds::idle(broker))
    })
}

impl World {
    fn heal(&mut self) {
        self.healed = true;
        self.note(format_args!("everything heals"));
        self.network.calm();
        self.frozen.clear();
        self.plan_interruption();
        for at in &mut self.restart_at {
            *at = (*at).min(self.now);
        }
        let at = self.now;
        for host in self.hosts.iter_mut().flatten() {
            host.paused_until = 0;
            host.candidate_at = host.candidate_at.min(at);
            host.power.fail_after(u64::MAX, Outage::Host);
        }
        for i in 0..self.actors.len() {
            self.actors[i].heal(Now(self.now));
            if self.actors[i].leaves_when_healed() {
                self.dismiss(i);
            }
        }
    }

    fn actors_are_done(&self) -> bool {
        let all_serve = self.hosts.iter().all(|host| {
            let broker = host.as_ref().and_then(|host| host.broker.as_ref());
            broker.is_some_and(|broker| broker.serves)
        });
        all_serve && self.actors.iter().all(|actor| actor.is_done(&self.oracle))
    }

    /// Whether brokers keep nothing of an ordered topic that one of them has evicted.
    fn evictions_are_known(&self) -> bool {
        let raw = self.devices.raw();
        let hosts = self.hosts.iter().flatten();
        let nodes = hosts.filter_map(|host| Some(&host.broker.as_ref()?.node));
        let nodes: Vec<_> = nodes.filter(|node| node.takes_data()).collect();
        let is_hurt = |topic: &&Topic| self.oracle.hurt.contains(&(topic.id, None));
        let ordered = self.topics.iter().filter(|topic| topic.is_ordered());
        ordered.filter(|topic| !is_hurt(topic)).all(|topic| {
            let rows = raw.geometry().data_rows();
            let windows = rows.filter_map(|row| raw.window(row, topic.record()).found());
            let windows = windows.filter(|window| window.chain == topic.id);
            let first = windows.map(|window| window.first).max().unwrap_or(0);
            let kept = |node: &&Arc<Node<Simulated>>| node.log().topic_stats(topic.id);
            nodes
                .iter()
                .filter_map(kept)
                .all(|kept| kept.first >= first)
        })
    }

    /// All hosts at once.
    fn last_crash(&mut self) {
        for host in self.hosts.iter().flatten() {
            host.power.fail_after(0, Outage::Host);
        }
    }

    /// One subscriber for each topic reads all that is kept.
    fn read_everything(&mut self) {
        for i in 0..self.topics.len() {
            let plan = SubscriberPlan {
                topic: i,
                on_evicted: OnEvicted::Fail,
                think_ns: 0,
                buffers: 2,
            };
            let (bootstrap, random) = (self.bootstrap(), self.random.fork());
            let topic = &self.topics[i];
            let (start, now) = (Start::Earliest, Now(self.now));
            let reader = SubscriberActor::new(plan, 100 + i, topic, start, bootstrap, random, now);
            self.actors.push(Box::new(reader));
        }
    }

    fn count(&mut self) {
        for (counted, history) in &self.oracle.histories {
            let batches = history.batches.len() as u64;
            self.figures.batches += batches;
            let evicted = history.batches.range(..history.first).count() as u64;
            self.figures.evicted += evicted;
            if counted.1.is_none() {
                self.figures.ordered_batches += batches;
                self.figures.given_up += evicted;
            }
        }
        self.figures.damaged = self.network.damaged.batches;
        self.figures.damaged_frames = self.network.damaged.frames;
        self.count_shortages();
        let raw = self.devices.raw();
        let lanes = raw.geometry().lanes;
        let mut starts = raw.geometry().data_rows().flat_map(|row| {
            let starts = (0..lanes).map(move |lane| (row, lane));
            starts.filter_map(|(row, lane)| raw.lane_start(row, lane).found())
        });
        let wrapped = starts.any(|lane| lane.start > u32::MAX.into());
        self.figures.wrapped = wrapped.into();
    }
}
