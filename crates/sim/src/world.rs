//! One run: a broker, its clients, the network between them, and everything that goes wrong.

mod faults;
mod finish;

use std::collections::BTreeMap;

use embar_broker::shard::{Action, At, TICK};
use embar_broker::topics::Topic;
use embar_client::Start;
use embar_client::sim_api::Lane;
use embar_fabric::{Outage, Power, Simulated};
use embar_wire::time::{Now, WallNs};

use crate::actor::{Actor, PublisherActor, Scene, SubscriberActor, Vandal, Wish};
use crate::books::Books;
use crate::check::bounds;
use crate::check::device::{Inspector, Moment};
use crate::figures::Figures;
use crate::host::{Broker, Devices, Sabotage};
use crate::network::{FarEvent, Id, NearEvent, Network};
use crate::plan::Plan;
use crate::random::Random;
use crate::trace::Trace;
use crate::violation::{Check, Invariant, Violation, ensure};

/// Wall time when a run begins, in nanoseconds since the epoch.
const WALL_START_NS: u64 = 1_700_000_000_000_000_000;
/// The index is looked at at least every so many turns, even if the broker claims that nothing changed.
const LOOK_EVERY: u64 = 16;
/// All retained bytes are looked at every so many turns.
const REREAD_EVERY: u64 = 256;

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

    fn broker_is_able(&self) -> bool {
        self.broker.as_ref().is_some_and(|broker| {
            let tick = self.next_tick <= self.now && !broker.shard.is_empty();
            self.paused_until <= self.now && (tick || !self.network.far_ready(self.now).is_empty())
        })
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
                Some(NearEvent::Received(buffer, bytes)) => {
                    actor.received(lane, buffer, bytes, now)
                }
                Some(NearEvent::Sent) => actor.sent(lane, now),
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
            Wish::Send(bytes) => self.network.client_send(id, bytes),
            Wish::Receive(buffer, space) => self.network.client_recv(id, buffer, space),
            Wish::Close => self.network.client_close(id, self.now),
        }
    }

    fn broker_turn(&mut self) -> Check {
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
                broker.shard.tick(at, &mut actions);
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
            FarEvent::Sent(token, buf, result) => shard.sent(token, buf, &result, at, actions),
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

    fn boot(&mut self, power: Power) -> Check {
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

    fn broker_dies(&mut self, outage: Outage) -> Check {
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
