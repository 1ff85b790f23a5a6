//! Brings the clients of a run into the world, gives each its turns, and carries out what they want of the network.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use embar_broker::topics::Topic;
use embar_client::Start;
use embar_client::sim_api::ChannelId;
use embar_frame::Now;

use super::World;
use crate::actor::{
    ActorContext, ByzantineClient, FloodingClient, PublisherActor, SlowlorisClient, SocketOp,
    SubscriberActor,
};
use crate::host::{address, row_at};
use crate::network::{ClientEvent, Origin};
use crate::plan::{FloodKind, PublisherPlan, SubscriberPlan};
use crate::random::Random;
use crate::violation::Check;

/// What a client's end of a connection is called does not matter.
const PORT: u16 = 40_000;
/// All clients that take what others need are here.
pub(super) const GREEDY: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9)), PORT);
/// The others are here and above.
const OTHERS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 0);

impl World {
    /// Addresses that a client starts from, in any order.
    pub(super) fn bootstrap(&mut self) -> Vec<SocketAddr> {
        let mut addresses: Vec<_> = self.rows().map(address).collect();
        self.random.shuffle(&mut addresses);
        addresses
    }

    pub(super) fn enter_actors(&mut self) {
        let now = Now(self.now);
        for plan in self.plan.publishers.clone() {
            let topic = self.topics[plan.topic].clone();
            self.enter_publisher(plan, &topic);
        }
        for plan in self.plan.subscribers.clone() {
            let topic = self.topics[plan.topic].clone();
            self.enter_subscriber(plan, &topic);
        }
        for i in 0..self.plan.byzantine_clients {
            let (addresses, random) = (self.bootstrap(), self.random.fork());
            let topic = &self.topics[i % self.topics.len()];
            let byzantine = ByzantineClient::new(i as u64, topic, addresses, random, now);
            self.actors.push(Box::new(byzantine));
        }
        for i in 0..self.plan.slowloris_clients {
            // Of a generator of its own: the others are what they are without.
            let mut random = Random::new(self.producers << 32 | i as u64);
            let mut addresses: Vec<_> = self.rows().map(address).collect();
            random.shuffle(&mut addresses);
            let topic = &self.topics[i % self.topics.len()];
            let claims = self.plan.config.max_batch_bytes;
            let slowloris = SlowlorisClient::new(i as u64, topic, claims, addresses, random, now);
            self.actors.push(Box::new(slowloris));
        }
        self.enter_floods();
    }

    fn enter_floods(&mut self) {
        for (i, flood) in self.plan.floods.clone().into_iter().enumerate() {
            // As with slowloris clients.
            let mut random = Random::new(!(self.producers << 32 | i as u64));
            let address = address(random.below(self.plan.geometry.brokers.into()) as u16);
            let mut topics = self.topics.iter();
            let topic = match flood {
                FloodKind::Sessions => topics.find(|topic| topic.is_ordered()),
                _ => topics.next(),
            };
            let topic = topic.unwrap_or(&self.topics[0]);
            let flooder = FloodingClient::new(flood, topic, address, random, Now(self.now));
            self.actors.push(Box::new(flooder));
        }
    }

    /// Where a client connects from, unless it is where the brokers are.
    fn home(&self, actor: usize) -> Option<SocketAddr> {
        let is_greedy = self.actors[actor].is_greedy();
        if is_greedy && (self.plan.apart || !self.plan.floods.is_empty()) {
            return Some(GREEDY);
        }
        let ip = Ipv4Addr::from_bits(OTHERS.to_bits() + actor as u32);
        self.plan.apart.then(|| SocketAddr::new(ip.into(), PORT))
    }

    pub(super) fn enter_publisher(&mut self, plan: PublisherPlan, topic: &Topic) {
        let (bootstrap, random) = (self.bootstrap(), self.random.fork());
        self.producers += 1;
        let (producer, now) = (self.producers, Now(self.now));
        let publisher = PublisherActor::new(plan, topic, producer, bootstrap, random, now);
        self.actors.push(Box::new(publisher));
    }

    pub(super) fn enter_subscriber(&mut self, plan: SubscriberPlan, topic: &Topic) {
        let (bootstrap, random) = (self.bootstrap(), self.random.fork());
        let start = if self.random.one_in(2) {
            Start::Earliest
        } else {
            Start::Latest
        };
        let (number, now) = (self.actors.len(), Now(self.now));
        let subscriber = SubscriberActor::new(plan, number, topic, start, bootstrap, random, now);
        self.actors.push(Box::new(subscriber));
    }

    pub(super) fn actor_is_able(&self, actor: usize) -> bool {
        if self
            .frozen
            .get(&actor)
            .is_some_and(|until| *until > self.now)
        {
            return false;
        }
        let due = self.actors[actor]
            .next_at()
            .is_some_and(|at| at.0 <= self.now);
        due || !self.network.client_ready(actor, self.now).is_empty()
    }

    pub(super) fn actor_turn(&mut self, i: usize) -> Check {
        let now = Now(self.now);
        let mut ready = self.network.client_ready(i, self.now);
        self.random.shuffle(&mut ready);
        ready.truncate(self.random.between(1, 3) as usize);
        for id in ready {
            let Some((_, channel)) = self.network.owner(id) else {
                continue;
            };
            let actor = &mut self.actors[i];
            match self.network.client_event(id, self.now) {
                None => {}
                Some(ClientEvent::Connected) => actor.connected(channel, now),
                Some(ClientEvent::Received(buf, result)) => {
                    actor.received(channel, buf, &result, now);
                }
                Some(ClientEvent::Sent(buf, result)) => actor.sent(channel, buf, &result, now),
                Some(ClientEvent::Ended(cause)) => {
                    self.connections.remove(&(i, channel));
                    actor.disconnected(channel, &cause, now);
                }
            }
        }
        let served = self.served(i);
        let mut context = ActorContext {
            served,
            now,
            oracle: &mut self.oracle,
            trace: &mut self.trace,
            figures: &mut self.figures,
            damages: self.plan.network.damage_one_in > 0,
            forgets_sessions: self.plan.forgets_sessions(),
            acks_in_time: self.plan.longest_wait_ns.is_some() && !self.healed,
        };
        self.actors[i].work(&mut context)?;
        self.dismiss_if_moved(i);
        while let Some((channel, op)) = self.actors[i].next_op(now) {
            self.perform(i, channel, op);
        }
        Ok(())
    }

    /// Brokers that serve a client, and have done all that they decided.
    fn served(&self, actor: usize) -> BTreeSet<u16> {
        let rows = self.network.served(actor);
        let settled = |row: &u16| {
            let broker = self.host(*row).and_then(|host| host.broker.as_ref());
            broker.is_some_and(|broker| broker.undone.is_empty())
        };
        rows.filter(settled).collect()
    }

    fn perform(&mut self, actor: usize, channel: ChannelId, op: SocketOp) {
        if let SocketOp::Connect(address) = op {
            let from = Origin {
                client: actor,
                channel,
                address: self.home(actor),
            };
            let (row, now) = (row_at(address), self.now);
            let id = match self.cannot_connect(actor) {
                true => self.network.cannot_connect(from, row, now),
                false => self.network.connect(from, row, now),
            };
            self.connections.insert((actor, channel), id);
            return;
        }
        // Without a connection the actor has learned that already.
        let Some(id) = self.connections.get(&(actor, channel)).copied() else {
            return;
        };
        match op {
            SocketOp::Connect(_) => {}
            SocketOp::Send(buf) => self.network.client_send(id, buf),
            SocketOp::Receive(buf) => self.network.client_recv(id, buf),
            SocketOp::ShutdownWrite => self.network.client_shutdown(id, self.now),
            SocketOp::Close => self.network.client_close(id, self.now),
        }
    }

    /// An actor that begins anew must not hear of what it left.
    pub(super) fn dismiss_if_moved(&mut self, actor: usize) {
        if self.actors[actor].has_moved() {
            self.dismiss(actor);
        }
    }

    /// The connections of an actor are no more, and it does not learn that.
    pub(super) fn dismiss(&mut self, actor: usize) {
        self.network.client_died(actor, self.now);
        self.connections.retain(|(owner, _), _| *owner != actor);
    }
}
