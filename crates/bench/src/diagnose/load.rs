//! A load that runs as long as it is looked at: threads that publish, or read, or both, with the faults of the application.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use embar_client::{OnEvicted, Publisher, PublisherHandle, ReadError, Start, Subscriber};
use embar_console::connect::Connector;
use embar_diagnose::observed::Flow;
use embar_meter::Snapshot;
use embar_meter::random::filler;

use super::inject::Fault;
use super::pace::Pace;
use super::plan::LoadPlan;
use crate::publish;

/// Messages between two looks at the clock and at whether to stop.
const LOOK_EVERY: u64 = 256;

/// Names of the threads that publish and read begin so; a thread's name tells its part in the pipeline.
pub const PUBLISHES: &str = "publish-";
/// See [`PUBLISHES`].
pub const READS: &str = "read-";

/// What all threads of a load share.
#[derive(Default)]
struct Tally {
    stop: AtomicBool,
    published: AtomicU64,
    read: AtomicU64,
}

/// A load that runs. Dropping it stops it.
pub struct Load {
    tally: Arc<Tally>,
    publisher: Option<Arc<Publisher>>,
    read: Option<ReadProfile>,
    threads: Vec<JoinHandle<Result<()>>>,
}

/// What a load has moved so far.
#[derive(Clone, Debug)]
pub struct Moved {
    /// Batches that a connection of the publisher may have on their way; 0 if nobody publishes.
    pub in_flight: u64,
    /// Messages that were published.
    pub published: u64,
    /// Messages that were read.
    pub read: u64,
    /// The publisher's stages.
    pub publisher: Option<Snapshot>,
    /// The stages of all subscribers so far.
    pub subscriber: Option<Snapshot>,
}

/// Profiles of subscribers that come one after the other.
type ReadProfile = Arc<Mutex<Snapshot>>;

impl Load {
    /// Starts it. The topic must exist, and what is to be read must have been published.
    pub fn start(plan: &LoadPlan, connector: &Connector) -> Result<Self> {
        let mut load = Self {
            tally: Arc::default(),
            publisher: None,
            read: None,
            threads: Vec::new(),
        };
        if plan.flow.publishes() {
            let publisher = Arc::new(open(plan, connector)?);
            for part in 0..plan.bench.publishers {
                let job = Publishing {
                    tally: Arc::clone(&load.tally),
                    handle: publisher.handle(),
                    message: filler(plan.bench.message_bytes as usize),
                    waits_for_each: plan.settings.waits_for_each,
                    pace: pace(plan, plan.bench.publishers, true),
                };
                load.spawn(format!("{PUBLISHES}{part}"), move || job.run())?;
            }
            load.publisher = Some(publisher);
        }
        if plan.flow.reads() {
            let profile = ReadProfile::new(Mutex::new(Snapshot::new(
                "SubscriberPipelineProfile",
                [],
                [],
            )));
            let job = Reading {
                tally: Arc::clone(&load.tally),
                profile: Arc::clone(&profile),
                connector: connector.clone(),
                topic: plan.bench.topic.clone(),
                spin: plan.bench.spin,
                follows: plan.flow.publishes(),
                pace: pace(plan, 1, false),
                message_bytes: u64::from(plan.bench.message_bytes),
            };
            load.spawn(format!("{READS}0"), move || job.run())?;
            load.read = Some(profile);
        }
        Ok(load)
    }

    fn spawn(
        &mut self,
        name: String,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let thread = thread::Builder::new().name(name).spawn(work)?;
        self.threads.push(thread);
        Ok(())
    }

    /// What it has moved so far.
    pub fn moved(&self) -> Moved {
        let read = self.read.as_ref();
        let publisher = self.publisher.as_ref();
        Moved {
            in_flight: publisher.map_or(0, |it| it.batches_in_flight() as u64),
            published: self.tally.published.load(Relaxed),
            read: self.tally.read.load(Relaxed),
            publisher: publisher.map(|it| it.profile()),
            subscriber: read.map(|profile| lock(profile).clone()),
        }
    }

    /// Messages that went this way so far.
    pub fn messages(&self, flow: Flow) -> u64 {
        match flow.publishes() {
            true => self.tally.published.load(Relaxed),
            false => self.tally.read.load(Relaxed),
        }
    }

    /// Whether a thread of it has ended by itself, which it does only if something failed.
    pub fn has_failed(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Ends it, and tells why if it had ended before.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.tally.stop.store(true, Relaxed);
        let mut outcome = Ok(());
        for thread in self.threads.drain(..) {
            let ended = thread
                .join()
                .map_err(|_| anyhow!("a thread of the load panicked"));
            outcome = outcome.and(ended.and_then(|ended| ended));
        }
        drop(self.publisher.take());
        outcome
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _told_by_stop = self.end();
    }
}

fn lock(profile: &ReadProfile) -> MutexGuard<'_, Snapshot> {
    profile.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the publisher of a load.
fn open(plan: &LoadPlan, connector: &Connector) -> Result<Publisher> {
    let mut builder = publish::builder(&plan.bench, connector)?;
    if let Some(linger) = plan.settings.linger {
        builder = builder.linger(linger);
    }
    if let Some(batches) = plan.settings.batches_in_flight {
        builder = builder.batches_in_flight(batches as usize);
    }
    Ok(builder.open()?)
}

/// Fills the log up to this many bytes of message values, for loads that only read.
pub fn fill(plan: &LoadPlan, connector: &Connector, bytes: u64) -> Result<()> {
    let publisher = open(plan, connector)?;
    let message = filler(plan.bench.message_bytes as usize);
    for _ in 0..bytes / message.len() as u64 {
        publisher.publish(&message)?;
    }
    publisher.close().context("cannot fill the log")
}

/// The share of one of so many threads in the rate that a fault allows.
fn pace(plan: &LoadPlan, threads: u32, sender: bool) -> Pace {
    let rate = plan.faults.iter().find_map(|fault| match fault {
        Fault::SlowSender(rate) if sender => Some(*rate),
        Fault::SlowReader(rate) if !sender => Some(*rate),
        _ => None,
    });
    Pace::new(rate, threads, plan.warm_up)
}

/// One thread that publishes.
struct Publishing {
    tally: Arc<Tally>,
    handle: PublisherHandle,
    message: Vec<u8>,
    waits_for_each: bool,
    pace: Pace,
}

impl Publishing {
    fn run(mut self) -> Result<()> {
        let at_once = if self.waits_for_each { 1 } else { LOOK_EVERY };
        while !self.tally.stop.load(Relaxed) {
            for _ in 0..at_once {
                let ticket = self.handle.publish(&self.message)?;
                if self.waits_for_each {
                    self.handle.acked(ticket).wait()?;
                }
            }
            self.tally.published.fetch_add(at_once, Relaxed);
            self.pace.keep(at_once * self.message.len() as u64);
        }
        Ok(())
    }
}

/// The thread that reads: from the first message to the last, again and again, or what comes.
struct Reading {
    tally: Arc<Tally>,
    profile: ReadProfile,
    connector: Connector,
    topic: String,
    spin: Duration,
    follows: bool,
    pace: Pace,
    message_bytes: u64,
}

impl Reading {
    fn run(mut self) -> Result<()> {
        while !self.tally.stop.load(Relaxed) {
            let before = lock(&self.profile).clone();
            let mut subscriber = Subscriber::builder(self.connector.bootstrap())
                .transport(self.connector.transport())
                .topic(&self.topic)
                .from(if self.follows {
                    Start::Latest
                } else {
                    Start::Earliest
                })
                .until_end(!self.follows)
                .on_evicted(OnEvicted::SkipToFirst)
                .spin(self.spin)
                .open()?;
            self.pass(&mut subscriber, &before)?;
        }
        Ok(())
    }

    /// Reads until the end, or until the load stops.
    fn pass(&mut self, subscriber: &mut Subscriber, before: &Snapshot) -> Result<()> {
        let limit = Duration::from_millis(100);
        let mut ended = false;
        while !ended && !self.tally.stop.load(Relaxed) {
            let mut messages = 0;
            while messages < LOOK_EVERY {
                match subscriber.next_timeout(limit) {
                    Ok(Some(message)) => {
                        std::hint::black_box(message.value);
                        messages += 1;
                    }
                    Ok(None) => {
                        ended = true;
                        break;
                    }
                    Err(ReadError::TimedOut { .. }) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            let read = self.tally.read.fetch_add(messages, Relaxed) + messages;
            // A snapshot sums up what all threads recorded, so not for each few messages.
            if ended || read / SNAPSHOT_EVERY != (read - messages) / SNAPSHOT_EVERY {
                *lock(&self.profile) = subscriber.profile().merge(before);
            }
            self.pace.keep(messages * self.message_bytes);
        }
        *lock(&self.profile) = subscriber.profile().merge(before);
        Ok(())
    }
}

/// Messages between two snapshots.
const SNAPSHOT_EVERY: u64 = 16 * LOOK_EVERY;
