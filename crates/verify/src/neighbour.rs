//! A topic beside the one that is verified, which is deleted and created again under its name, again and again.
//!
//! Each time a new publisher writes to it and the one of the topic before goes on writing: what is read then are the new
//! one's messages, all that were acknowledged, and nothing of a topic that was deleted.

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
use super::readers::Setting;
use super::stamp::{self, Origin, Stamp, Writer};
use super::violation::Kind;

/// Its name.
const NAME: &str = "beside";
/// No publisher of the topic that is verified has this number.
const PUBLISHER: u32 = u32::MAX;
/// Messages in each topic: a few batches, far less than anything has to make room for.
const MESSAGES: u64 = 200;
/// Longer than any stop of a broker, so that a request that was given up is not carried out later.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// How long a turn may take before it counts as hanging.
const TURN_WITHIN: Duration = Duration::from_secs(60);
/// How long it may go on with what it does once the run is over.
const END_WITHIN: Duration = Duration::from_secs(5);
/// Wait before something is tried again: brokers die here.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The thread that does it, until it is dropped.
pub struct Neighbour {
    setting: Setting,
    go: Option<SyncSender<()>>,
    turns: Arc<AtomicU64>,
    taken: u64,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbour {
    /// Starts it; it does nothing before it is told to.
    pub fn start(setting: &Setting) -> Result<Self> {
        let (go, told) = sync_channel(0);
        let (turns, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let mut owner = Owner {
            setting: setting.clone(),
            admin: Admin::connect(&setting.bootstrap)?.timeout(ANSWER_WITHIN),
            life: 0,
            before: None,
            stop: stop.clone(),
        };
        let done = turns.clone();
        let thread = std::thread::Builder::new()
            .name("neighbour".into())
            .spawn(move || owner.work(&told, &done))?;
        Ok(Self {
            setting: setting.clone(),
            go: Some(go),
            turns,
            taken: 0,
            stop,
            thread: Some(thread),
        })
    }

    /// Has the topic deleted and created again; false if the last time is not over.
    pub fn go(&self) -> bool {
        let told = self.go.as_ref().map(|go| go.try_send(()));
        matches!(told, Some(Ok(()) | Err(TrySendError::Disconnected(()))))
    }

    /// How often it was done since the last call.
    pub fn take_turns(&mut self) -> u64 {
        let turns = self.turns.load(Ordering::Relaxed);
        turns - std::mem::replace(&mut self.taken, turns)
    }

    /// Ends it once what it does is over. What waits for brokers that do not answer ends with this process.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.go = None;
        let deadline = Instant::now() + END_WITHIN;
        let is_over = |thread: &JoinHandle<()>| thread.is_finished();
        while !self.thread.as_ref().is_none_or(is_over) && Instant::now() < deadline {
            std::thread::sleep(AGAIN_AFTER);
        }
        if let Some(thread) = self.thread.take().filter(is_over)
            && thread.join().is_err()
        {
            // What it said is on standard error.
            let text = "the verifier's owner of the topic beside panicked";
            self.setting.books.checker().fail(Kind::Failure, text);
        }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What could not be done.
enum Trouble {
    /// The run ends.
    Stopped,
    /// What broke a promise, and which.
    Broken(Kind, String),
}

impl<E: Into<LogClientError>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Broken(Kind::Failure, error.into().to_string())
    }
}

struct Owner {
    setting: Setting,
    admin: Admin,
    /// Topics of the name so far.
    life: u32,
    /// The publisher of the topic before.
    before: Option<(Publisher, Writer)>,
    stop: Arc<AtomicBool>,
}

impl Owner {
    fn work(&mut self, told: &Receiver<()>, done: &AtomicU64) {
        while told.recv().is_ok() {
            match self.turn() {
                Ok(()) => drop(done.fetch_add(1, Ordering::Relaxed)),
                Err(Trouble::Stopped) => return,
                Err(Trouble::Broken(kind, text)) => {
                    let mut checker = self.setting.books.checker();
                    checker.fail(kind, format_args!("topic {NAME}: {text}"));
                }
            }
        }
    }

    fn turn(&mut self) -> Result<(), Trouble> {
        let deadline = Instant::now() + TURN_WITHIN;
        self.again("deleted", deadline, |it| {
            match it.admin.delete_topic(NAME).wait() {
                // There was none, or a request whose answer was lost deleted it.
                Err(AdminError::Client(ClientError::Refused {
                    code: ErrorCode::UnknownTopic,
                    ..
                })) => Ok(()),
                other => other,
            }
        })?;
        self.again("created", deadline, |it| {
            let order = it.setting.plan.order.try_into();
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
        self.life += 1;
        let (publisher, mut writer) = self.again("opened", deadline, |it| it.open())?;
        self.write_to_the_one_before();
        let stored = self.write(&publisher, &mut writer)?;
        self.before = Some((publisher, writer));
        loop {
            let read = self.again("read", deadline, |it| it.read())?;
            match self.judge(&stored, &read) {
                // A broker that has left comes back with it.
                Err(Trouble::Broken(Kind::Lost, _))
                    if self.setting.plan.may_be_away() && Instant::now() < deadline =>
                {
                    std::thread::sleep(AGAIN_AFTER);
                }
                judged => return judged,
            }
        }
    }

    /// Does it until it is done: brokers are killed meanwhile.
    fn again<T, E: Into<LogClientError>>(
        &mut self,
        what: &str,
        deadline: Instant,
        mut step: impl FnMut(&mut Self) -> Result<T, E>,
    ) -> Result<T, Trouble> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Trouble::Stopped);
            }
            match step(self).map_err(E::into) {
                Ok(done) => return Ok(done),
                Err(error) if !error.passes() => return Err(error.into()),
                Err(error) if Instant::now() >= deadline => {
                    let text = format!("it could not be {what} within {TURN_WITHIN:?}: {error}");
                    return Err(Trouble::Broken(Kind::Liveness, text));
                }
                Err(_) => std::thread::sleep(AGAIN_AFTER),
            }
        }
    }

    fn open(&self) -> Result<(Publisher, Writer), OpenError> {
        let publisher = Publisher::builder(&self.setting.bootstrap)
            .topic(NAME)
            .batch_bytes(self.setting.plan.batch_bytes as usize)
            .delivery_timeout(TURN_WITHIN)
            .auto_create(false)
            .metering(false)
            .open()?;
        let origin = Origin {
            publisher: PUBLISHER,
            instance: self.life,
        };
        let bytes = self.setting.plan.message_bytes as usize;
        Ok((publisher, Writer::new(self.setting.run, origin, bytes)))
    }

    /// Whatever it is told, nothing of it may be there.
    fn write_to_the_one_before(&mut self) {
        if let Some((publisher, mut writer)) = self.before.take() {
            let _told = publisher.publish(writer.stamp(MESSAGES));
            let _told = publisher.close();
        }
    }

    /// Numbers of messages that were acknowledged.
    fn write(&self, publisher: &Publisher, writer: &mut Writer) -> Result<Vec<u64>, Trouble> {
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

    /// Everything that is there; of what is damaged nothing.
    fn read(&self) -> Result<Vec<Option<Stamp>>, LogClientError> {
        let mut subscriber = Subscriber::builder(&self.setting.bootstrap)
            .topic(NAME)
            .from(Start::Earliest)
            .until_end(true)
            .metering(false)
            .open()?;
        let (run, bytes) = (self.setting.run, self.setting.plan.message_bytes as usize);
        let mut read = Vec::new();
        while let Some(message) = subscriber.next_timeout(ANSWER_WITHIN)? {
            read.push(stamp::read(run, bytes, message.value));
        }
        Ok(read)
    }

    fn judge(&self, stored: &[u64], read: &[Option<Stamp>]) -> Result<(), Trouble> {
        let broken = |kind, text| Err(Trouble::Broken(kind, text));
        let mut times: BTreeMap<u64, u64> = BTreeMap::new();
        let mut last = None;
        for stamp in read {
            let Some(Stamp { origin, number }) = *stamp else {
                return broken(Kind::Damaged, "a message is damaged".into());
            };
            if (origin.publisher, origin.instance) != (PUBLISHER, self.life) {
                let text = format!("message {number} of {origin} is in topic {}", self.life);
                return broken(Kind::Deposed, text);
            }
            if self.setting.plan.order == 5 && last.is_some_and(|last| last >= number) {
                let text = format!("message {number} came after {last:?}");
                return broken(Kind::OutOfOrder, text);
            }
            last = Some(number);
            *times.entry(number).or_default() += 1;
        }
        let repeats = self.setting.plan.order < 2;
        if let Some((number, _)) = times.iter().find(|(_, times)| **times > 1 && !repeats) {
            return broken(Kind::Duplicate, format!("message {number} came twice"));
        }
        match stored.iter().find(|number| !times.contains_key(number)) {
            Some(number) => broken(
                Kind::Lost,
                format!(
                    "message {number} of topic {} was acknowledged, and of {} that are there it is none",
                    self.life,
                    read.len()
                ),
            ),
            None => Ok(()),
        }
    }
}
