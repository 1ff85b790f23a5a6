//! One run: a broker, its clients, the network between them, and everything that goes wrong.

mod faults;
mod finish;
mod life;

use std::collections::BTreeMap;

use embar_broker::shard::At;
use embar_broker::topics::Topic;
use embar_client::Start;
use embar_client::sim_api::Lane;
use embar_fabric::Power;
use embar_wire::time::{Now, WallNs};

use crate::actor::{Actor, PublisherActor, Scene, SubscriberActor, Vandal, Wish};
use crate::books::Books;
use crate::check::device::Inspector;
use crate::figures::Figures;
use crate::host::{Broker, Devices, Sabotage};
use crate::network::{Id, NearEvent, Network};
use crate::plan::Plan;
use crate::random::Random;
use crate::trace::Trace;
use crate::violation::{Check, Violation};

/// Wall time when a run begins, in nanoseconds since the epoch.
const WALL_START_NS: u64 = 1_700_000_000_000_000_000;

/// See the module.
pub struct World {
    plan: Plan,
    sabotage: Sabotage,
    random: Random,
    now: u64,
    /// What happened so far.
    pub trace: Trace,
    devices: Devices,
    inspector: Inspector,
    broker: Option<Broker>,
    restart_at: u64,
    paused_until: u64,
    next_tick: u64,
    turns: u64,
    /// What the broker said of its log after its last turn.
    claimed: Vec<(u64, u64)>,
    topics: Vec<Topic>,
    network: Network,
    actors: Vec<Box<dyn Actor>>,
    connections: BTreeMap<(usize, Lane), Id>,
    books: Books,
    healed: bool,
    /// Figures of the run.
    pub figures: Figures,
}

impl World {
    /// A world at its beginning.
    pub fn new(seed: u64, sabotage: Sabotage, verbose: bool) -> Result<Self, Violation> {
        let mut random = Random::new(seed);
        let plan = Plan::new(&mut random);
        let mut trace = Trace::new(verbose);
        trace.event(Now(0), format_args!("{plan:?}"));
        let devices = Devices::format(&plan, &mut random);
        let mut world = Self {
            inspector: Inspector::new(&devices),
            network: Network::new(plan.weather, random.fork()),
            plan,
            sabotage,
            random,
            now: 0,
            trace,
            devices,
            broker: None,
            restart_at: 0,
            paused_until: 0,
            next_tick: 0,
            turns: 0,
            claimed: Vec::new(),
            topics: Vec::new(),
            actors: Vec::new(),
            connections: BTreeMap::new(),
            books: Books::default(),
            healed: false,
            figures: Figures::default(),
        };
        world.boot(Power::default())?;
        let wall = world.at().wall;
        if let Some(broker) = &world.broker {
            world.topics = broker.create_topics(&world.plan, sabotage, wall);
        }
        world.enter_actors();
        Ok(world)
    }

    fn enter_actors(&mut self) {
        let now = Now(self.now);
        for (i, plan) in self.plan.publishers.iter().enumerate() {
            let (topic, random) = (&self.topics[plan.topic].name, self.random.fork());
            let publisher = PublisherActor::new(plan.clone(), topic, i as u64 + 1, random, now);
            self.actors.push(Box::new(publisher));
        }
        for (i, plan) in self.plan.subscribers.iter().enumerate() {
            let topic = &self.topics[plan.topic];
            let random = self.random.fork();
            let start = if self.random.one_in(2) {
                Start::Earliest
            } else {
                Start::Latest
            };
            let subscriber =
                SubscriberActor::new(plan.clone(), i, (&topic.name, topic.id), start, random, now);
            self.actors.push(Box::new(subscriber));
        }
        for _ in 0..self.plan.vandals {
            let topic = &self.topics[0];
            let vandal = Vandal::new((&topic.name, topic.id), self.random.fork(), now);
            self.actors.push(Box::new(vandal));
        }
    }

    fn at(&self) -> At {
        At {
            now: Now(self.now),
            wall: WallNs(WALL_START_NS + self.now),
        }
    }

    /// Lets somebody do something, or time pass.
    pub fn step(&mut self) -> Check {
        self.figures.steps += 1;
        if !self.healed {
            self.inject()?;
        }
        if self.broker.is_none() && self.restart_at <= self.now {
            return self.reboot();
        }
        let mut able: Vec<Option<usize>> = Vec::new();
        if self.broker_is_able() {
            able.push(None);
        }
        able.extend(
            (0..self.actors.len())
                .filter(|i| self.actor_is_able(*i))
                .map(Some),
        );
        if able.is_empty() {
            self.pass_time();
            return Ok(());
        }
        self.now += self.random.between(1_000, 200_000);
        match *self.random.pick(&able) {
            None => self.broker_turn(),
            Some(actor) => self.actor_turn(actor),
        }
    }

    fn actor_is_able(&self, actor: usize) -> bool {
        let due = self.actors[actor]
            .next_at()
            .is_some_and(|at| at.0 <= self.now);
        due || !self.network.near_ready(actor, self.now).is_empty()
    }

    /// Nobody can do anything: on to when somebody may.
    fn pass_time(&mut self) {
        let actors = self
            .actors
            .iter()
            .filter_map(|a| a.next_at())
            .map(|at| at.0);
        let broker = match &self.broker {
            Some(_) => self.next_tick.max(self.paused_until),
            None => self.restart_at,
        };
        let next = actors.chain(self.network.next_at(self.now)).chain([broker]);
        let next = next.filter(|at| *at > self.now).min();
        self.now = next.unwrap_or(self.now) + self.random.between(1_000, 100_000);
    }

    fn actor_turn(&mut self, i: usize) -> Check {
        let now = Now(self.now);
        let mut ready = self.network.near_ready(i, self.now);
        self.random.shuffle(&mut ready);
        ready.truncate(self.random.between(1, 3) as usize);
        for id in ready {
            let Some((_, lane)) = self.network.owner(id) else {
                continue;
            };
            let actor = &mut self.actors[i];
            match self.network.near_event(id, self.now) {
                None => {}
                Some(NearEvent::Connected) => actor.connected(lane, now),
                Some(NearEvent::Received(buf, result)) => {
                    actor.received(lane, buf, &result, now);
                }
                Some(NearEvent::Sent(buf, result)) => actor.sent(lane, buf, &result, now),
                Some(NearEvent::Ended(cause)) => {
                    self.connections.remove(&(i, lane));
                    actor.disconnected(lane, &cause, now);
                }
            }
        }
        let mut scene = Scene {
            now,
            books: &mut self.books,
            trace: &mut self.trace,
            figures: &mut self.figures,
        };
        self.actors[i].work(&mut scene)?;
        self.dismiss_if_moved(i);
        while let Some((lane, wish)) = self.actors[i].wish(now) {
            self.grant(i, lane, wish);
        }
        Ok(())
    }

    fn grant(&mut self, actor: usize, lane: Lane, wish: Wish) {
        if let Wish::Connect = wish {
            let id = self.network.connect(actor, lane, self.now);
            self.connections.insert((actor, lane), id);
            return;
        }
        // Without a connection the actor was told so already.
        let Some(id) = self.connections.get(&(actor, lane)).copied() else {
            return;
        };
        match wish {
            Wish::Connect => {}
            Wish::Send(buf) => self.network.client_send(id, buf),
            Wish::Receive(buf) => self.network.client_recv(id, buf),
            Wish::ShutdownWrite => self.network.client_shutdown(id, self.now),
            Wish::Close => self.network.client_close(id, self.now),
        }
    }
}
