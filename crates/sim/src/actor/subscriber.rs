//! A subscriber: the real core; every batch it delivers is compared with what was ever visible.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use embar_broker::topics::Topic;
use embar_client::sim_api::{ChannelId, SubscriberConfig, SubscriberCore, SubscriberEvent, Ways};
use embar_client::{Checksums, ClientError, OnEvicted, Positions, ReadError, Start};
use embar_frame::Now;
use embar_transport::{RecvBuf, SendBuf};
use embar_wire::batch::BatchHeader;
use embar_wire::control::ErrorCode;
use embar_wire::isolation::Isolation;
use embar_wire::message::Messages;

use super::{Actor, ActorContext, SocketOp};
use crate::oracle::{History, Oracle, Unseen};
use crate::plan::SubscriberPlan;
use crate::random::Random;
use crate::violation::{Check, Invariant, Violation, ensure};

/// From how many bytes on several brokers send batches of an order, by the subscriber's number.
const SHARED_BATCH_BYTES: [Option<u32>; 3] = [Some(128), Some(1024), None];

/// The real subscriber core, and what it has to deliver next.
pub struct SubscriberActor {
    plan: SubscriberPlan,
    number: usize,
    topic: String,
    topic_id: u32,
    /// Its topic does not exist any more, and it has learned that.
    over: bool,
    bootstrap: Vec<SocketAddr>,
    core: SubscriberCore,
    random: Random,
    /// The offset that comes next of each broker, or of the one order, once it is known.
    expected: BTreeMap<Option<u16>, u64>,
    /// Batches that the consumer is busy with, and until when.
    held: Vec<(Now, ChannelId, Vec<u8>)>,
    hurry: bool,
    moved: bool,
    /// Its core has delivered nothing yet.
    begins: bool,
    /// It wants all that there is.
    wants_all: bool,
    /// The rows whose memory is damaged, as it has learned.
    told: BTreeSet<Option<u16>>,
    /// Its core has socket operations that the world has not asked for yet.
    fresh: bool,
    delivered: u64,
    /// Several brokers serve it together.
    is_shared: bool,
}

/// A batch that was delivered.
struct Batch<'a> {
    row: Option<u16>,
    header: BatchHeader,
    payload: &'a [u8],
    skip: u32,
}

impl SubscriberActor {
    /// Starts to read.
    pub fn new(
        plan: SubscriberPlan,
        number: usize,
        topic: &Topic,
        start: Start,
        bootstrap: Vec<SocketAddr>,
        mut random: Random,
        now: Now,
    ) -> Self {
        let name = topic.name.clone();
        let wants_all = matches!(start, Start::Earliest);
        let core = open(&plan, number, &name, &bootstrap, start, &mut random, now);
        Self {
            plan,
            number,
            topic: name,
            topic_id: topic.id,
            over: false,
            bootstrap,
            core,
            random,
            expected: BTreeMap::new(),
            held: Vec::new(),
            hurry: false,
            moved: false,
            begins: true,
            wants_all,
            told: BTreeSet::new(),
            fresh: true,
            delivered: 0,
            is_shared: false,
        }
    }

    /// Forgets everything and starts anew from anywhere.
    pub fn start_over(&mut self, oracle: &Oracle, now: Now) {
        // By its name another topic may be found now.
        if oracle.may_be_deleted(self.topic_id) {
            return;
        }
        let start = match self.random.below(3) {
            0 => Start::Earliest,
            1 => Start::Latest,
            _ => {
                let kept = oracle.of_topic(self.topic_id);
                let anywhere = kept.map(|(row, history)| {
                    let at = self.random.between(history.first, history.next);
                    (row, at)
                });
                start_at(anywhere.collect())
            }
        };
        self.restart(start, now);
    }

    fn restart(&mut self, start: Start, now: Now) {
        self.wants_all = matches!(start, Start::Earliest);
        self.core = open(
            &self.plan,
            self.number,
            &self.topic,
            &self.bootstrap,
            start,
            &mut self.random,
            now,
        );
        self.expected.clear();
        self.told.clear();
        self.held.clear();
        (self.moved, self.begins, self.fresh) = (true, true, true);
    }

    fn take_event(&mut self, event: SubscriberEvent, context: &mut ActorContext<'_>) -> Check {
        let me = self.number;
        match event {
            SubscriberEvent::Started { broker, start } => {
                context.trace.event(
                    context.now,
                    format_args!("subscriber {me} starts at {start} of {broker:?}"),
                );
                self.expected.insert(row(broker), start);
                self.begins_with_all(row(broker), start, context.oracle)?;
            }
            SubscriberEvent::Deliver(delivered) => {
                let mut skip = delivered.skip;
                for (header, payload) in delivered.batches() {
                    let batch = Batch {
                        row: row(delivered.owner()),
                        header,
                        payload,
                        skip: std::mem::take(&mut skip),
                    };
                    self.check(&batch, context)?;
                    self.delivered += 1;
                    context.figures.delivered += 1;
                }
                let think = if self.hurry {
                    0
                } else {
                    self.random.below(self.plan.think_ns + 1)
                };
                let until = Now(context.now.0 + think);
                self.held
                    .push((until, delivered.channel, delivered.payload.into_space()));
            }
            SubscriberEvent::Skipped { broker, to, .. } => {
                self.overtaken(row(broker), to, context)?;
            }
            SubscriberEvent::Failed(error) => self.failed(error, context)?,
            SubscriberEvent::ChannelLost { broker, cause } => {
                context.trace.event(
                    context.now,
                    format_args!("subscriber {me} lost broker {broker}: {cause}"),
                );
                self.lost(broker, &cause, context)?;
            }
            SubscriberEvent::Opened | SubscriberEvent::BrokerLeft { .. } | SubscriberEvent::End => {
            }
        }
        Ok(())
    }

    /// A subscriber that wants all there is never gets only the rest.
    fn begins_with_all(&self, row: Option<u16>, start: u64, oracle: &Oracle) -> Check {
        let history = oracle.histories.get(&(self.topic_id, row));
        let lost_below = history.map_or(0, |history| history.lost_below);
        let is_rest = self.wants_all && lost_below > 0 && start == lost_below;
        ensure(Invariant::I7, !is_rest, || {
            format!(
                "subscriber {} wants all of {row:?} and begins at {start}, below which memory was damaged, and was not told",
                self.number
            )
        })
    }

    /// A broker says that nothing below `to` is kept: that must be true.
    fn overtaken(&mut self, row: Option<u16>, to: u64, context: &mut ActorContext<'_>) -> Check {
        let me = self.number;
        context.trace.event(
            context.now,
            format_args!("subscriber {me} is told to go on at {to} of {row:?}"),
        );
        let history = context.oracle.histories.get(&(self.topic_id, row));
        let first = history.map_or(0, |h| h.first);
        let known = !context.oracle.may_be_deleted(self.topic_id);
        ensure(Invariant::I7, to <= first || !known, || {
            format!(
                "subscriber {me} was told that offsets below {to} are evicted, but {first} is the first one kept"
            )
        })?;
        context.figures.overtaken += 1;
        self.expected.insert(row, to);
        Ok(())
    }

    /// Where the network damages nothing, only bytes that were given up while they were sent may
    /// come damaged; and a broker that sent another one's memory has seen that by then.
    fn lost(&mut self, broker: u32, cause: &str, context: &mut ActorContext<'_>) -> Check {
        let ordered = context.oracle.is_ordered(self.topic_id);
        let row = row(Some(broker).filter(|_| !ordered));
        if context.oracle.hurt.contains(&(self.topic_id, row))
            && cause.contains("memory is damaged")
        {
            context.figures.told_of_damage += u64::from(self.told.insert(row));
        }
        let history = context.oracle.histories.get(&(self.topic_id, row));
        let first = history.map_or(0, |history| history.first);
        let kept = self.expected.get(&row).is_some_and(|next| *next >= first);
        let damaged = cause.contains("damaged");
        let oracle = &context.oracle;
        let may_be = context.damages || self.may_miss(oracle);
        if may_be || !damaged || oracle.may_be_deleted(self.topic_id) {
            return Ok(());
        }
        let told = !u16::try_from(broker).is_ok_and(|row| context.served.contains(&row));
        ensure(Invariant::I7, !kept && told, || {
            let cut = if told { "" } else { "not " };
            format!(
                "subscriber {}: {cause}; {:?} comes next, {first} is kept, and broker {broker} has {cut}cut it",
                self.number, self.expected
            )
        })
    }

    /// It ends for a reason that the oracle knows.
    fn ends(&mut self, counted: &mut u64) -> Check {
        *counted += 1;
        self.over = true;
        Ok(())
    }

    fn failed(&mut self, error: ReadError, context: &mut ActorContext<'_>) -> Check {
        let me = self.number;
        context
            .trace
            .event(context.now, format_args!("subscriber {me} ends: {error}"));
        match error {
            ReadError::Client(ClientError::UnknownTopic { .. })
            | ReadError::Client(ClientError::TopicReplaced { .. })
                if context.oracle.may_be_deleted(self.topic_id) =>
            {
                self.ends(&mut context.figures.bereaved)
            }
            ReadError::Evicted {
                broker,
                first_available,
                ..
            } if self.plan.on_evicted == OnEvicted::Fail => {
                let ordered = context.oracle.is_ordered(self.topic_id);
                let row = if ordered { None } else { row(Some(broker)) };
                self.overtaken(row, first_available, context)?;
                self.restart(start_at(self.expected.clone()), context.now);
                Ok(())
            }
            ReadError::Corrupt { .. }
            | ReadError::Client(ClientError::Refused {
                code: ErrorCode::Damaged,
                ..
            }) if self.may_miss(context.oracle) => self.ends(&mut context.figures.told_of_damage),
            // The network damaged the same batch several times.
            ReadError::Corrupt { .. } => {
                self.restart(start_at(self.expected.clone()), context.now);
                Ok(())
            }
            // It began again at offsets of the one that had that name before.
            ReadError::Client(ClientError::Refused {
                code: ErrorCode::OffsetOutOfRange,
                ..
            }) if context.oracle.may_be_replaced(&self.topic) => {
                self.ends(&mut context.figures.bereaved)
            }
            // The broker that was asked has not seen as much of the order yet.
            ReadError::Client(ClientError::Refused {
                code: ErrorCode::OffsetOutOfRange,
                ..
            }) if context.oracle.is_ordered(self.topic_id) => {
                self.restart(Start::Earliest, context.now);
                Ok(())
            }
            ReadError::BrokenOrder { .. } => Err(Violation {
                invariant: Invariant::I4,
                what: format!("subscriber {me}: {error}"),
            }),
            _ => Err(Violation {
                invariant: Invariant::Liveness,
                what: format!("subscriber {me} gave up: {error}"),
            }),
        }
    }

    /// Whether records may be lost of the topic that it reads. Before its first batch that may be any one of
    /// its name.
    fn may_miss(&self, oracle: &Oracle) -> bool {
        oracle.is_hurt(self.topic_id) || self.begins && oracle.is_hurt_by_name(&self.topic)
    }

    fn check(&mut self, batch: &Batch<'_>, context: &mut ActorContext<'_>) -> Check {
        let (me, header, row) = (self.number, &batch.header, batch.row);
        let base = header.base_offset();
        let end = base + u64::from(header.message_count());
        context.trace.event(
            context.now,
            format_args!("subscriber {me} gets {base}..{end}"),
        );
        let expected = self.expected.get(&row).copied();
        ensure(
            Invariant::I4,
            Some(base + u64::from(batch.skip)) == expected && expected < Some(end),
            || {
                format!(
                    "subscriber {me} got {base}..{end} of {row:?}, skipping {}, where {expected:?} comes next",
                    batch.skip
                )
            },
        )?;
        self.expected.insert(row, end);
        let known = context.oracle.names.get(&header.topic());
        if std::mem::take(&mut self.begins) && known.is_some_and(|name| *name == self.topic) {
            // It began when its name was another one's.
            self.topic_id = header.topic();
        }
        if context.oracle.may_be_deleted(self.topic_id) {
            return ensure(Invariant::I4, header.topic() == self.topic_id, || {
                format!("subscriber {me} got batches of another topic: {header:?}")
            });
        }
        self.check_visible(batch, context)
    }

    /// What it gets is what was visible there, byte by byte.
    fn check_visible(&self, batch: &Batch<'_>, context: &ActorContext<'_>) -> Check {
        let (me, header, payload) = (self.number, &batch.header, batch.payload);
        let (base, row) = (header.base_offset(), batch.row);
        let numbered = (header.producer(), header.sequence());
        let history = context.oracle.histories.get(&(header.topic(), row));
        let seen = history.map_or(Ok(None), |history: &History| history.at(base));
        let is_hurt = context.oracle.hurt.contains(&(header.topic(), row));
        let seen = match seen {
            Ok(None) if is_hurt => Err(Unseen),
            seen => seen,
        };
        let same = match seen {
            Ok(seen) => seen.is_some_and(|v| {
                (v.numbered, v.count) == (numbered, header.message_count())
                    && (v.name.is_none() || v.flags == header.flags().bits())
            }),
            Err(Unseen) => true,
        };
        ensure(
            Invariant::I4,
            same && header.topic() == self.topic_id,
            || {
                format!(
                    "subscriber {me} got batch {numbered:?} at offset {base} of {row:?}, where {seen:?} is visible"
                )
            },
        )?;
        let whole = header.check_payload(payload).is_ok()
            && context.oracle.genuine(header, payload).is_some_and(|name| {
                let seen = seen.ok().flatten().and_then(|visible| visible.name);
                seen.is_none_or(|seen| seen == name)
            })
            && Messages::new(payload, header.message_count()).all(|m| m.is_ok());
        ensure(Invariant::I7, whole, || {
            format!("subscriber {me} got changed bytes at offset {base}: {header:?}")
        })
    }
}

/// The row of a broker that a client names.
fn row(broker: Option<u32>) -> Option<u16> {
    broker.map(|broker| broker as u16)
}

fn start_at(positions: BTreeMap<Option<u16>, u64>) -> Start {
    if let Some(position) = positions.get(&None) {
        return Start::Positions(Positions::at(*position));
    }
    let positions: Vec<(u32, u64)> = positions
        .into_iter()
        .filter_map(|(row, next)| Some((row?.into(), next)))
        .collect();
    if positions.is_empty() {
        return Start::Earliest;
    }
    Start::Positions(positions.into_iter().collect())
}

fn open(
    plan: &SubscriberPlan,
    number: usize,
    topic: &str,
    bootstrap: &[SocketAddr],
    start: Start,
    random: &mut Random,
    now: Now,
) -> SubscriberCore {
    let hour = Duration::from_secs(3600);
    let mut core = SubscriberCore::new(SubscriberConfig {
        name: format!("subscriber-{number}"),
        bootstrap: bootstrap.iter().copied().map(Into::into).collect(),
        ways: Ways::TCP,
        topic: topic.into(),
        start,
        until_end: false,
        on_evicted: plan.on_evicted,
        loss_timeout: hour,
        idle_timeout: Duration::from_secs(random.between(3, 40)),
        open_timeout: hour,
        shared_batch_bytes: SHARED_BATCH_BYTES[number % SHARED_BATCH_BYTES.len()],
        isolation: Isolation::Durable,
        checksums: Checksums::All,
        buffers_per_broker: plan.buffers,
        seed: random.bits(),
    });
    core.start(now);
    core
}

impl Actor for SubscriberActor {
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
        let held = self.held.iter().map(|(until, ..)| *until);
        let begin = self.fresh.then_some(Now(0));
        held.chain(begin).chain(self.core.next_tick()).min()
    }

    fn work(&mut self, context: &mut ActorContext<'_>) -> Check {
        self.fresh = false;
        self.core.tick(context.now);
        let is_shared = self.core.is_shared();
        let was_shared = std::mem::replace(&mut self.is_shared, is_shared);
        context.figures.shared += u64::from(is_shared && !was_shared);
        loop {
            while let Some(event) = self.core.next_event() {
                self.take_event(event, context)?;
            }
            let done = self
                .held
                .iter()
                .position(|(until, ..)| *until <= context.now);
            let Some(done) = done else { return Ok(()) };
            let (_, channel, buffer) = self.held.remove(done);
            self.core.returned(channel, buffer, context.now);
        }
    }

    fn next_op(&mut self, _: Now) -> Option<(ChannelId, SocketOp)> {
        (0..self.core.channel_count())
            .map(ChannelId)
            .find_map(|channel| Some((channel, self.core.poll(channel)?.into())))
    }

    fn heal(&mut self, now: Now) {
        self.hurry = true;
        self.held.iter_mut().for_each(|(until, ..)| *until = now);
    }

    fn is_done(&self, oracle: &Oracle) -> bool {
        if self.over {
            return true;
        }
        if let Some(surely) = oracle.deleted.get(&self.topic_id) {
            return !surely || oracle.may_exist(&self.topic);
        }
        let mut counted = oracle.of_topic(self.topic_id);
        let all = counted.all(|(row, history)| {
            let expected = self.expected.get(&row).copied();
            let is_hurt = oracle.hurt.contains(&(self.topic_id, row));
            let all = expected == Some(history.next);
            let may_end = is_hurt && expected >= Some(history.next) || self.told.contains(&row);
            all || may_end || (expected.is_none() && history.next == 0)
        });
        let begun = !self.expected.is_empty() || !self.told.is_empty();
        all && begun && self.held.is_empty()
    }

    fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    fn describe(&self) -> String {
        format!(
            "subscriber {}: {} batches of {} delivered, {:?} comes next",
            self.number, self.delivered, self.topic, self.expected
        )
    }

    fn as_subscriber(&mut self) -> Option<&mut SubscriberActor> {
        Some(self)
    }
}
