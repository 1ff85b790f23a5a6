//! A subscriber: the real core; every batch it delivers is compared with what was ever visible.

use std::io;
use std::time::Duration;

use embar_client::sim_api::{Delivered, Lane, SubscriberConfig, SubscriberCore, SubscriberEvent};
use embar_client::{Error, OnEvicted, Positions, Start};
use embar_transport::{RecvBuf, SendBuf};
use embar_wire::message::Messages;
use embar_wire::time::Now;

use super::{Actor, Scene, Wish};
use crate::books::Books;
use crate::host::{ADDRESS, ROW};
use crate::plan::SubscriberPlan;
use crate::random::Random;
use crate::violation::{Check, Invariant, Violation, ensure};

/// See the module.
pub struct SubscriberActor {
    plan: SubscriberPlan,
    number: usize,
    topic: String,
    topic_id: u32,
    core: SubscriberCore,
    random: Random,
    /// The offset that comes next, once it is known.
    expected: Option<u64>,
    /// Batches that the consumer is busy with, and until when.
    held: Vec<(Now, Lane, Vec<u8>)>,
    hurry: bool,
    moved: bool,
    /// Its core wants something that nobody has asked for yet.
    fresh: bool,
    delivered: u64,
}

impl SubscriberActor {
    /// Starts to read.
    pub fn new(
        plan: SubscriberPlan,
        number: usize,
        (topic, topic_id): (&str, u32),
        start: Start,
        mut random: Random,
        now: Now,
    ) -> Self {
        let core = open(&plan, number, topic, start, &mut random, now);
        Self {
            plan,
            number,
            topic: topic.into(),
            topic_id,
            core,
            random,
            expected: None,
            held: Vec::new(),
            hurry: false,
            moved: false,
            fresh: true,
            delivered: 0,
        }
    }

    /// Forgets everything and starts anew from anywhere.
    pub fn start_over(&mut self, books: &Books, now: Now) {
        let history = books.topics.get(&self.topic_id);
        let (first, next) = history.map_or((0, 0), |h| (h.first, h.next));
        let start = match self.random.below(3) {
            0 => Start::Earliest,
            1 => Start::Latest,
            _ => at(self.random.between(first, next)),
        };
        self.restart(start, now);
    }

    fn restart(&mut self, start: Start, now: Now) {
        self.core = open(
            &self.plan,
            self.number,
            &self.topic,
            start,
            &mut self.random,
            now,
        );
        self.expected = None;
        self.held.clear();
        (self.moved, self.fresh) = (true, true);
    }

    fn take_event(&mut self, event: SubscriberEvent, scene: &mut Scene<'_>) -> Check {
        let me = self.number;
        match event {
            SubscriberEvent::Started { start, .. } => {
                scene
                    .trace
                    .event(scene.now, format_args!("subscriber {me} starts at {start}"));
                self.expected = Some(start);
            }
            SubscriberEvent::Deliver(delivered) => {
                self.check(&delivered, scene)?;
                self.delivered += 1;
                scene.figures.delivered += 1;
                let think = if self.hurry {
                    0
                } else {
                    self.random.below(self.plan.think_ns + 1)
                };
                let until = Now(scene.now.0 + think);
                self.held.push((until, delivered.lane, delivered.payload));
            }
            SubscriberEvent::Skipped { to, .. } => self.overtaken(to, scene)?,
            SubscriberEvent::Failed(error) => self.failed(error, scene)?,
            SubscriberEvent::LaneLost { cause, .. } => {
                scene.trace.event(
                    scene.now,
                    format_args!("subscriber {me} lost its broker: {cause}"),
                );
            }
            SubscriberEvent::Opened | SubscriberEvent::End => {}
        }
        Ok(())
    }

    /// It is told that nothing below `to` is kept: that must be true.
    fn overtaken(&mut self, to: u64, scene: &mut Scene<'_>) -> Check {
        let me = self.number;
        scene.trace.event(
            scene.now,
            format_args!("subscriber {me} is told to go on at {to}"),
        );
        let first = scene
            .books
            .topics
            .get(&self.topic_id)
            .map_or(0, |h| h.first);
        ensure(Invariant::I7, to <= first, || {
            format!(
                "subscriber {me} was told that offsets below {to} are evicted, but {first} is the first one kept"
            )
        })?;
        scene.figures.overtaken += 1;
        self.expected = Some(to);
        Ok(())
    }

    fn failed(&mut self, error: Error, scene: &mut Scene<'_>) -> Check {
        let me = self.number;
        scene
            .trace
            .event(scene.now, format_args!("subscriber {me} ends: {error}"));
        match error {
            Error::Evicted {
                first_available, ..
            } if self.plan.on_evicted == OnEvicted::Fail => {
                self.overtaken(first_available, scene)?;
                self.restart(at(first_available), scene.now);
                Ok(())
            }
            // The network damaged the same batch several times.
            Error::Corrupt { .. } => {
                let start = self.expected.map_or(Start::Earliest, at);
                self.restart(start, scene.now);
                Ok(())
            }
            Error::BrokenOrder { .. } => Err(Violation {
                invariant: Invariant::I4,
                what: format!("subscriber {me}: {error}"),
            }),
            _ => Err(Violation {
                invariant: Invariant::Liveness,
                what: format!("subscriber {me} gave up: {error}"),
            }),
        }
    }

    fn check(&mut self, delivered: &Delivered, scene: &mut Scene<'_>) -> Check {
        let (me, header) = (self.number, &delivered.header);
        let base = header.base_offset();
        let end = base + u64::from(header.message_count());
        scene.trace.event(
            scene.now,
            format_args!("subscriber {me} gets {base}..{end}"),
        );
        let expected = self.expected;
        ensure(
            Invariant::I4,
            Some(base + u64::from(delivered.skip)) == expected && expected < Some(end),
            || {
                format!(
                    "subscriber {me} got {base}..{end}, skipping {}, where {expected:?} comes next",
                    delivered.skip
                )
            },
        )?;
        self.expected = Some(end);
        let name = (header.producer(), header.sequence());
        let seen = scene.books.topics.get(&header.topic());
        let seen = seen.and_then(|h| h.batches.get(&base)).copied();
        let same = seen.is_some_and(|v| {
            (v.name, v.count, v.flags) == (name, header.message_count(), header.flags().bits())
        });
        ensure(
            Invariant::I4,
            same && header.topic() == self.topic_id,
            || {
                format!(
                    "subscriber {me} got batch {name:?} at offset {base}, where {seen:?} is visible"
                )
            },
        )?;
        let payload = &delivered.payload[..header.payload_len() as usize];
        let whole = header.check_payload(payload).is_ok()
            && scene.books.is_genuine(header)
            && Messages::new(payload, header.message_count()).all(|m| m.is_ok());
        ensure(Invariant::I7, whole, || {
            format!("subscriber {me} got changed bytes at offset {base}: {header:?}")
        })
    }
}

fn at(offset: u64) -> Start {
    Start::Positions(Positions::from_iter([(ROW.into(), offset)]))
}

fn open(
    plan: &SubscriberPlan,
    number: usize,
    topic: &str,
    start: Start,
    random: &mut Random,
    now: Now,
) -> SubscriberCore {
    let hour = Duration::from_secs(3600);
    let mut core = SubscriberCore::new(SubscriberConfig {
        name: format!("subscriber-{number}"),
        bootstrap: vec![ADDRESS],
        topic: topic.into(),
        start,
        until_end: false,
        on_evicted: plan.on_evicted,
        loss_timeout: hour,
        idle_timeout: Duration::from_secs(random.between(3, 40)),
        open_timeout: hour,
        buffers_per_broker: plan.buffers,
        seed: random.bits(),
    });
    core.start(now);
    core
}

impl Actor for SubscriberActor {
    fn connected(&mut self, lane: Lane, now: Now) {
        self.core.connected(lane, now);
    }

    fn received(&mut self, lane: Lane, buf: RecvBuf, result: &io::Result<usize>, now: Now) {
        self.core.received(lane, buf, result, now);
    }

    fn sent(&mut self, lane: Lane, buf: SendBuf, result: &io::Result<()>, now: Now) {
        self.core.sent(lane, buf, result, now);
    }

    fn disconnected(&mut self, lane: Lane, cause: &str, now: Now) {
        self.core.disconnected(lane, cause, now);
    }

    fn next_at(&self) -> Option<Now> {
        let held = self.held.iter().map(|(until, ..)| *until);
        let begin = self.fresh.then_some(Now(0));
        held.chain(begin).chain(self.core.next_tick()).min()
    }

    fn work(&mut self, scene: &mut Scene<'_>) -> Check {
        self.fresh = false;
        self.core.tick(scene.now);
        loop {
            while let Some(event) = self.core.next_event() {
                self.take_event(event, scene)?;
            }
            let done = self.held.iter().position(|(until, ..)| *until <= scene.now);
            let Some(done) = done else { return Ok(()) };
            let (_, lane, buffer) = self.held.remove(done);
            self.core.returned(lane, buffer, scene.now);
        }
    }

    fn wish(&mut self, _: Now) -> Option<(Lane, Wish)> {
        (0..self.core.lane_count())
            .map(Lane)
            .find_map(|lane| Some((lane, self.core.poll(lane)?.into())))
    }

    fn heal(&mut self, now: Now) {
        self.hurry = true;
        self.held.iter_mut().for_each(|(until, ..)| *until = now);
    }

    fn is_done(&self, books: &Books) -> bool {
        let next = books.topics.get(&self.topic_id).map_or(0, |h| h.next);
        self.expected == Some(next) && self.held.is_empty()
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
