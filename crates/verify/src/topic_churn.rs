//! A topic beside the verified one that is deleted and created again under its name, again and again.
//!
//! Each time a new publisher writes to it, and the publisher of the deleted topic goes on writing. A reader must then see
//! the new publisher's messages, all that were acknowledged, and nothing of a deleted topic.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use embar_client::{
    Admin, AdminError, ClientError, OpenError, PublishError, Publisher, Start, Subscriber,
    TopicSpec,
};
use embar_wire::control::ErrorCode;

use super::log_client_error::LogClientError;
use super::readers::ReaderSetup;
use super::stamp::{self, Origin, Stamp, Writer};
use super::violation::Kind;

/// Its name.
const NAME: &str = "beside";
/// No publisher of the verified topic has this number.
const PUBLISHER: u32 = u32::MAX;
/// Messages in each topic: a few batches, far too few for any of them to make room.
const MESSAGES: u64 = 200;
/// Longer than any pause of a broker, so that a request that was given up is not carried out later.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// How long a turn may take before it counts as hanging.
const TURN_WITHIN: Duration = Duration::from_secs(60);
/// How long a turn may go on once the run is over.
const END_WITHIN: Duration = Duration::from_secs(5);
/// Wait before a request is tried again: brokers die here.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// The thread that deletes and creates the topic, until it is dropped.
pub struct TopicChurn {
    setup: ReaderSetup,
    go: Option<SyncSender<()>>,
    turns: Arc<AtomicU64>,
    taken: u64,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TopicChurn {
    /// Starts the thread; it does nothing before the first [`TopicChurn::go`].
    pub fn start(setup: &ReaderSetup) -> Result<Self> {
        let (go, orders) = sync_channel(0);
        let (turns, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let mut owner = TopicOwner {
            setup: setup.clone(),
            admin: Admin::connect(&setup.bootstrap)?.timeout(ANSWER_WITHIN),
            generation: 0,
            predecessor: None,
            stop: stop.clone(),
        };
        let done = turns.clone();
        let thread = std::thread::Builder::new()
            .name("topic-churn".into())
            .spawn(move || owner.work(&orders, &done))?;
        Ok(Self {
            setup: setup.clone(),
            go: Some(go),
            turns,
            taken: 0,
            stop,
            thread: Some(thread),
        })
    }

    /// Asks for a turn: delete the topic and create it again; false if the last turn is not over.
    pub fn go(&self) -> bool {
        let sent = self.go.as_ref().map(|go| go.try_send(()));
        matches!(sent, Some(Ok(()) | Err(TrySendError::Disconnected(()))))
    }

    /// Turns done since the last call.
    pub fn take_turns(&mut self) -> u64 {
        let turns = self.turns.load(Ordering::Relaxed);
        turns - std::mem::replace(&mut self.taken, turns)
    }

    /// Ends the thread after its turn. A turn that waits for brokers that do not answer ends with this process.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.go = None;
        let deadline = Instant::now() + END_WITHIN;
        let is_over = |thread: &JoinHandle<()>| thread.is_finished();
        while !self.thread.as_ref().is_none_or(is_over) && Instant::now() < deadline {
            std::thread::sleep(RETRY_AFTER);
        }
        if let Some(thread) = self.thread.take().filter(is_over)
            && thread.join().is_err()
        {
            // Its message is on standard error.
            let text = "the verifier's owner of the topic beside panicked";
            self.setup.shared.checker().fail(Kind::Failure, text);
        }
    }
}

impl Drop for TopicChurn {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Why a turn was not completed.
enum TurnError {
    /// The run ends.
    Stopped,
    /// It took longer than [`TURN_WITHIN`], and in which step.
    TooSlow(String),
    /// Another promise was broken: which, and how.
    Broken(Kind, String),
}

impl<E: Into<LogClientError>> From<E> for TurnError {
    fn from(error: E) -> Self {
        Self::Broken(Kind::Failure, error.into().to_string())
    }
}

struct TopicOwner {
    setup: ReaderSetup,
    admin: Admin,
    /// Topics of the name so far.
    generation: u32,
    /// The publisher of the deleted topic.
    predecessor: Option<(Publisher, Writer)>,
    stop: Arc<AtomicBool>,
}

impl TopicOwner {
    fn work(&mut self, orders: &Receiver<()>, done: &AtomicU64) {
        while orders.recv().is_ok() {
            match self.turn() {
                Ok(()) => drop(done.fetch_add(1, Ordering::Relaxed)),
                Err(TurnError::Stopped) => return,
                Err(TurnError::TooSlow(text)) => {
                    let text = format_args!("topic {NAME}: {text}");
                    self.setup.shared.fail_liveness(TURN_WITHIN, text);
                }
                Err(TurnError::Broken(kind, text)) => {
                    let mut checker = self.setup.shared.checker();
                    checker.fail(kind, format_args!("topic {NAME}: {text}"));
                }
            }
        }
    }

    fn turn(&mut self) -> Result<(), TurnError> {
        let deadline = Instant::now() + TURN_WITHIN;
        self.retry("deleted", deadline, |it| {
            match it.admin.delete_topic(NAME).wait() {
                // There was none, or a request whose answer was lost deleted it.
                Err(AdminError::Client(ClientError::Refused {
                    code: ErrorCode::UnknownTopic,
                    ..
                })) => Ok(()),
                other => other,
            }
        })?;
        self.retry("created", deadline, |it| {
            let order = it.setup.plan.order.try_into();
            let order = order.expect("the plan has an order level");
            let spec = TopicSpec::new(NAME).order(order);
            match it.admin.create_topic(spec).wait() {
                Err(AdminError::Client(ClientError::Refused {
                    code: ErrorCode::TopicExists,
                    ..
                })) => Ok(()),
                other => other.map(drop),
            }
        })?;
        self.generation += 1;
        let (publisher, mut writer) = self.retry("opened", deadline, |it| it.open())?;
        self.write_to_predecessor();
        let stored = self.write(&publisher, &mut writer)?;
        self.predecessor = Some((publisher, writer));
        loop {
            let read = self.retry("read", deadline, |it| it.read())?;
            match self.check(&stored, &read) {
                // A broker that has left will bring it back.
                Err(TurnError::Broken(Kind::Lost, _))
                    if self.setup.plan.may_be_away() && Instant::now() < deadline =>
                {
                    std::thread::sleep(RETRY_AFTER);
                }
                checked => return checked,
            }
        }
    }

    /// Tries `step` until it succeeds: brokers are killed meanwhile.
    fn retry<T, E: Into<LogClientError>>(
        &mut self,
        what: &str,
        deadline: Instant,
        mut step: impl FnMut(&mut Self) -> Result<T, E>,
    ) -> Result<T, TurnError> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(TurnError::Stopped);
            }
            match step(self).map_err(E::into) {
                Ok(done) => return Ok(done),
                Err(error) if !error.passes() => return Err(error.into()),
                Err(error) if Instant::now() >= deadline => {
                    let text = format!("it could not be {what} within {TURN_WITHIN:?}: {error}");
                    return Err(TurnError::TooSlow(text));
                }
                Err(_) => std::thread::sleep(RETRY_AFTER),
            }
        }
    }

    fn open(&self) -> Result<(Publisher, Writer), OpenError> {
        let publisher = Publisher::builder(&self.setup.bootstrap)
            .topic(NAME)
            .batch_bytes(self.setup.plan.batch_bytes as usize)
            .delivery_timeout(TURN_WITHIN)
            .auto_create(false)
            .metering(false)
            .open()?;
        let origin = Origin {
            publisher: PUBLISHER,
            instance: self.generation,
        };
        let bytes = self.setup.plan.message_bytes as usize;
        Ok((publisher, Writer::new(self.setup.run, origin, bytes)))
    }

    /// Whatever becomes of this message, it must not be in the new topic.
    fn write_to_predecessor(&mut self) {
        if let Some((publisher, mut writer)) = self.predecessor.take() {
            let _outcome = publisher.publish(writer.stamp(MESSAGES));
            let _outcome = publisher.close();
        }
    }

    /// Numbers of messages that were acknowledged.
    fn write(&self, publisher: &Publisher, writer: &mut Writer) -> Result<Vec<u64>, TurnError> {
        let mut tickets = Vec::new();
        for number in 0..MESSAGES {
            tickets.push((number, publisher.publish(writer.stamp(number))?));
        }
        match publisher.flush() {
            Ok(()) | Err(PublishError::Lost { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let mut stored = Vec::new();
        for (number, ticket) in tickets {
            match publisher.acked(ticket).wait() {
                Ok(_) | Err(PublishError::PositionUnknown) => stored.push(number),
                Err(PublishError::InDoubt | PublishError::Expired { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(stored)
    }

    /// The stamps of everything that is there; a damaged message has none.
    fn read(&self) -> Result<Vec<Option<Stamp>>, LogClientError> {
        let mut subscriber = Subscriber::builder(&self.setup.bootstrap)
            .topic(NAME)
            .from(Start::Earliest)
            .until_end(true)
            .metering(false)
            .open()?;
        let (run, bytes) = (self.setup.run, self.setup.plan.message_bytes as usize);
        let mut read = Vec::new();
        while let Some(message) = subscriber.next_timeout(ANSWER_WITHIN)? {
            read.push(stamp::read(run, bytes, message.value));
        }
        Ok(read)
    }

    fn check(&self, stored: &[u64], read: &[Option<Stamp>]) -> Result<(), TurnError> {
        let broken = |kind, text| Err(TurnError::Broken(kind, text));
        let mut times: BTreeMap<u64, u64> = BTreeMap::new();
        let mut last = None;
        for stamp in read {
            let Some(Stamp { origin, number }) = *stamp else {
                return broken(Kind::Damaged, "a message is damaged".into());
            };
            if (origin.publisher, origin.instance) != (PUBLISHER, self.generation) {
                let text = format!(
                    "message {number} of {origin} is in topic {}",
                    self.generation
                );
                return broken(Kind::Deposed, text);
            }
            if self.setup.plan.order == 5 && last.is_some_and(|last| last >= number) {
                let text = format!("message {number} came after {last:?}");
                return broken(Kind::OutOfOrder, text);
            }
            last = Some(number);
            *times.entry(number).or_default() += 1;
        }
        let repeats = self.setup.plan.order < 2;
        if let Some((number, _)) = times.iter().find(|(_, times)| **times > 1 && !repeats) {
            return broken(Kind::Duplicate, format!("message {number} came twice"));
        }
        match stored.iter().find(|number| !times.contains_key(number)) {
            Some(number) => broken(
                Kind::Lost,
                format!(
                    "message {number} of topic {} was acknowledged, and of {} that are there it is none",
                    self.generation,
                    read.len()
                ),
            ),
            None => Ok(()),
        }
    }
}
