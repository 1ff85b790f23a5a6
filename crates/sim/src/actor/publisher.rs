//! A publisher: the real core, fed with batches of random sizes.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use embar_broker::topics::Topic;
use embar_client::sim_api::{
    ChannelId, Failure, Outcome, PublisherConfig, PublisherCore, PublisherEvent, SealedBatch, Ways,
};
use embar_client::{ClientError, OnBrokerLoss};
use embar_frame::Now;
use embar_transport::{RecvBuf, SendBuf};
use embar_wire::batch::{BatchFlags, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::{ErrorCode, Secret};
use embar_wire::time::WallNs;

use super::{Actor, ActorContext, SocketOp};
use crate::oracle::{NAME_BYTES, Oracle, name_bytes};
use crate::plan::PublisherPlan;
use crate::random::Random;
use crate::violation::{Check, Invariant, Violation, ensure};

/// The real publisher core, and the batches that it has not resolved yet.
pub struct PublisherActor {
    plan: PublisherPlan,
    core: PublisherCore,
    bootstrap: Vec<SocketAddr>,
    /// The topic's name.
    name: String,
    random: Random,
    producer: u64,
    /// The topic that it was made for.
    meant: u32,
    /// It has one order over all brokers.
    ordered: bool,
    /// It can publish nothing more.
    over: bool,
    topic_id: Option<u32>,
    max_batch_bytes: usize,
    next_batch: u64,
    next_at: Now,
    /// Batches without an outcome, and since when each waits for it.
    unresolved: BTreeMap<u64, Now>,
    unreleased: u64,
    /// Its core has socket operations that the world has not asked for yet.
    fresh: bool,
}

impl PublisherActor {
    /// Starts to publish.
    pub fn new(
        plan: PublisherPlan,
        topic: &Topic,
        producer: u64,
        bootstrap: Vec<SocketAddr>,
        mut random: Random,
        now: Now,
    ) -> Self {
        let core = core(&plan, producer, (&topic.name, &bootstrap), &mut random, now);
        Self {
            plan,
            core,
            bootstrap,
            name: topic.name.clone(),
            random,
            producer,
            meant: topic.id,
            ordered: topic.is_ordered(),
            over: false,
            topic_id: None,
            max_batch_bytes: 0,
            next_batch: 0,
            next_at: now,
            unresolved: BTreeMap::new(),
            unreleased: 0,
            fresh: true,
        }
    }

    /// Its process dies, and another one goes on with its identity, which knows no outcome that the first did not
    /// receive. False if there is nothing to begin anew.
    pub fn begins_anew(&mut self, oracle: &mut Oracle, now: Now) -> bool {
        if self.over || self.is_done(oracle) {
            return false;
        }
        for number in std::mem::take(&mut self.unresolved).into_keys() {
            oracle.abandon((self.producer, number));
        }
        let topic = (&self.name[..], &self.bootstrap[..]);
        self.core = core(&self.plan, self.producer, topic, &mut self.random, now);
        (self.topic_id, self.unreleased, self.fresh) = (None, 0, true);
        true
    }

    /// The topic that it publishes to: another one of the name it was given may have come before it opened.
    fn topic(&self) -> u32 {
        self.topic_id.unwrap_or(self.meant)
    }

    /// Since when it waits for an acknowledgement.
    pub fn waits_since(&self) -> Option<Now> {
        self.unresolved.values().min().copied()
    }

    fn may_publish(&self) -> bool {
        self.topic_id.is_some()
            && !self.over
            && self.next_batch < self.plan.batches
            && self.unreleased < self.plan.outstanding
    }

    fn publish(&mut self, context: &mut ActorContext<'_>) {
        let Some(topic) = self.topic_id else { return };
        let number = self.next_batch;
        let (builder, messages) = self.fill(number);
        let frame = builder.seal(SealFields {
            producer: self.producer,
            sequence: number,
            topic,
            epoch: 0,
            append_time: WallNs(context.now.0),
            flags: BatchFlags::NONE,
        });
        self.next_batch += 1;
        self.unreleased += 1;
        self.unresolved.insert(number, context.now);
        let may_repeat = self.plan.on_broker_loss == OnBrokerLoss::Resend || self.ordered;
        let name = (self.producer, number);
        context.oracle.seal(name, &frame, may_repeat);
        context.trace.event(
            context.now,
            format_args!(
                "publisher {} submits batch {number}: {messages} messages, {} bytes",
                self.producer,
                frame.len()
            ),
        );
        let sealed = SealedBatch {
            number,
            messages,
            bytes: Arc::new(frame),
        };
        self.core.submit(sealed, context.now);
        self.next_at = Now(context.now.0 + self.random.below(self.plan.pace_ns + 1));
    }

    /// Messages until one does not fit any more. The first one carries the batch's name.
    fn fill(&mut self, number: u64) -> (BatchBuilder, u32) {
        let capacity = self
            .random
            .between(128, self.plan.batch_bytes.min(self.max_batch_bytes) as u64);
        let most = if self.random.one_in(3) {
            0
        } else {
            self.random.size(400)
        };
        let mut builder = BatchBuilder::new(Vec::new(), capacity as usize);
        let name = name_bytes((self.producer, number));
        let len = self.random.size(self.plan.message_bytes) as usize;
        let mut first = vec![self.random.bits() as u8; len.max(NAME_BYTES)];
        first[..NAME_BYTES].copy_from_slice(&name);
        if builder.try_push(None, &[], &first).is_err() {
            let pushed = builder.try_push(None, &[], &name);
            pushed.expect("one line holds a small message");
        }
        for _ in 0..most {
            let len = self.random.size(self.plan.message_bytes) as usize;
            let value = vec![self.random.bits() as u8; len];
            let key = self.random.one_in(4).then_some(&b"key"[..]);
            if builder.try_push(key, &[], &value).is_err() {
                break;
            }
        }
        let messages = builder.count();
        (builder, messages)
    }

    /// The outcome of a batch.
    fn resolved(&mut self, batch: u64, outcome: Outcome, context: &mut ActorContext<'_>) -> Check {
        let me = self.producer;
        context.trace.event(
            context.now,
            format_args!("publisher {me}: batch {batch} is {outcome:?}"),
        );
        self.unresolved.remove(&batch);
        match outcome {
            Outcome::Failed(Failure::InDoubt) => context.figures.in_doubt += 1,
            Outcome::Failed(Failure::Closed) if context.forgets_sessions => {
                context.oracle.bereft.insert(me);
                context.figures.failed += 1;
            }
            Outcome::Failed(_) => context.figures.failed += 1,
            Outcome::Stored(_) | Outcome::StoredSomewhere | Outcome::Sent => {
                context.figures.patient += u64::from(context.acks_in_time);
            }
        }
        context.oracle.resolve((me, batch), outcome)
    }

    /// The core gave up, which it may do only for a reason that the oracle knows.
    fn failed(&mut self, error: &ClientError, context: &mut ActorContext<'_>) -> Check {
        let me = self.producer;
        let is_hurt = context.oracle.is_hurt(self.topic());
        let figures = &mut *context.figures;
        let counted = match error {
            ClientError::SessionLost { .. }
            | ClientError::SessionGivenUp { .. }
            | ClientError::SessionTaken { .. }
                if context.forgets_sessions || is_hurt =>
            {
                &mut figures.sessions_lost
            }
            // Another client was quicker, and has its identity, with a secret of its own.
            ClientError::WrongSecret { .. } if context.forgets_sessions => &mut figures.names_taken,
            ClientError::UnknownTopic { .. } | ClientError::TopicReplaced { .. }
                if context.oracle.may_be_deleted(self.meant) =>
            {
                &mut figures.bereaved
            }
            ClientError::Refused {
                code: ErrorCode::Damaged,
                ..
            } if is_hurt => &mut figures.told_of_damage,
            _ => {
                return Err(Violation {
                    invariant: Invariant::Liveness,
                    what: format!("publisher {me} gave up: {error}"),
                });
            }
        };
        *counted += 1;
        self.over = true;
        let (trace, now) = (&mut *context.trace, context.now);
        trace.event(now, format_args!("publisher {me} ends: {error}"));
        Ok(())
    }

    fn take_event(&mut self, event: PublisherEvent, context: &mut ActorContext<'_>) -> Check {
        let me = self.producer;
        match event {
            PublisherEvent::Opened {
                topic_id,
                max_batch_bytes,
                ..
            } => {
                self.topic_id = Some(topic_id);
                self.max_batch_bytes = max_batch_bytes as usize;
                context
                    .trace
                    .event(context.now, format_args!("publisher {me} is open"));
            }
            PublisherEvent::Resolved { batch, outcome, .. } => {
                self.resolved(batch, outcome, context)?;
            }
            PublisherEvent::Released { buffer } => {
                ensure(Invariant::Delivery, Arc::strong_count(&buffer) == 1, || {
                    format!("publisher {me} got a buffer back that is still in use")
                })?;
                ensure(Invariant::Delivery, self.unreleased > 0, || {
                    format!("publisher {me} got more buffers back than it gave")
                })?;
                self.unreleased -= 1;
            }
            PublisherEvent::Failed(error) => self.failed(&error, context)?,
            PublisherEvent::ChannelLost { channel, cause, .. } => {
                context.trace.event(
                    context.now,
                    format_args!("publisher {me} lost channel {}: {cause}", channel.0),
                );
            }
            PublisherEvent::Resent => context.figures.resent += 1,
            PublisherEvent::Reconnected(_) => {}
        }
        Ok(())
    }
}

fn core(
    plan: &PublisherPlan,
    producer: u64,
    (topic, bootstrap): (&str, &[SocketAddr]),
    random: &mut Random,
    now: Now,
) -> PublisherCore {
    let hour = Duration::from_secs(3600);
    let mut core = PublisherCore::new(PublisherConfig {
        name: format!("publisher-{producer}"),
        bootstrap: bootstrap.iter().copied().map(Into::into).collect(),
        ways: Ways::TCP,
        topic: topic.to_owned(),
        producer,
        secret: Secret(u128::from(producer + 1).to_le_bytes()),
        acks: plan.acks,
        batch_bytes: plan.batch_bytes as u32,
        channels_per_broker: plan.lanes,
        batches_in_flight: plan.in_flight,
        on_broker_loss: plan.on_broker_loss,
        auto_create: false,
        delivery_timeout: Duration::from_secs(random.between(1, 30)),
        ack_timeout: Duration::from_secs(random.between(1, 10)),
        idle_timeout: Duration::from_secs(random.between(3, 40)),
        open_timeout: hour,
        seed: random.bits(),
    });
    core.start(now);
    core
}

impl Actor for PublisherActor {
    fn connected(&mut self, channel: ChannelId, now: Now) {
        self.core.connected(channel, false, now);
    }

    fn received(&mut self, channel: ChannelId, buf: RecvBuf, result: &io::Result<usize>, now: Now) {
        self.core.received(channel, buf, result, now);
    }

    fn sent(&mut self, channel: ChannelId, buf: SendBuf, result: &io::Result<()>, now: Now) {
        self.core.sent(channel, buf, result, now);
    }

    fn disconnected(&mut self, channel: ChannelId, cause: &str, now: Now) {
        self.core
            .disconnected(channel, io::Error::other(cause).into(), now);
    }

    fn next_at(&self) -> Option<Now> {
        let own = self.may_publish().then_some(self.next_at);
        let begin = self.fresh.then_some(Now(0));
        own.into_iter()
            .chain(begin)
            .chain(self.core.next_tick())
            .min()
    }

    fn work(&mut self, context: &mut ActorContext<'_>) -> Check {
        self.fresh = false;
        self.core.tick(context.now);
        while let Some(event) = self.core.next_event() {
            self.take_event(event, context)?;
        }
        if self.may_publish() && self.next_at <= context.now {
            // At times several at once.
            let burst = if self.random.one_in(8) { 5 } else { 1 };
            for _ in 0..burst {
                if self.may_publish() {
                    self.publish(context);
                }
            }
        }
        Ok(())
    }

    fn next_op(&mut self, now: Now) -> Option<(ChannelId, SocketOp)> {
        (0..self.core.channel_count())
            .map(ChannelId)
            .find_map(|channel| Some((channel, self.core.poll(channel, now)?.into())))
    }

    fn heal(&mut self, _: Now) {
        self.plan.batches = self.next_batch;
    }

    fn is_done(&self, _: &Oracle) -> bool {
        let all = self.next_batch == self.plan.batches || self.over;
        self.unresolved.is_empty() && self.unreleased == 0 && all
    }

    fn as_publisher(&mut self) -> Option<&mut PublisherActor> {
        Some(self)
    }

    fn describe(&self) -> String {
        format!(
            "publisher {}: {} of {} batches submitted, {} unreleased, unresolved {:?}",
            self.producer,
            self.next_batch,
            self.plan.batches,
            self.unreleased,
            self.unresolved.keys()
        )
    }
}
