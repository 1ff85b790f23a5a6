//! Callers in a loop, and what they see.

use crate::clients::Client;
use crate::machine;
use crate::work::{Lane, Shape};
use anyhow::Context;
use futures_util::future::{join_all, try_join_all};
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Longest latency that is told apart, in nanoseconds.
const LATENCY_MAX: u64 = 60_000_000_000;

/// How many latencies a lane gathers before it goes to the histogram that all share.
const GATHERED: usize = 64;

/// How many tasks load the keys.
const LOADERS: u64 = 128;

const WARM_UP: u8 = 0;
const MEASURED: u8 = 1;
const OVER: u8 = 2;

/// How it is run.
pub struct Run {
    /// What is done.
    pub shape: Shape,
    /// Tasks.
    pub callers: u64,
    /// Operations that each has in flight.
    pub pipeline: u64,
    /// How long nothing is counted at first.
    pub warm_up: Duration,
    /// How long it is counted.
    pub duration: Duration,
}

/// What came of it. Errors are no operations.
#[derive(Default)]
pub struct Outcome {
    /// Reads that found a value, the right one.
    pub hits: u64,
    /// Reads that found nothing.
    pub misses: u64,
    /// Writes that were acknowledged.
    pub sets: u64,
    /// Operations that failed, and reads that found a wrong value.
    pub errors: u64,
    /// The first of these.
    pub first_error: Option<String>,
    /// The measured time.
    pub took: Duration,
    /// Processor time of this process in it.
    pub cpu: Duration,
    /// Of one operation, in nanoseconds.
    pub latency: Option<Histogram<u64>>,
}

impl Outcome {
    /// Operations that succeeded.
    pub fn operations(&self) -> u64 {
        self.hits + self.misses + self.sets
    }

    fn add(&mut self, other: Outcome) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.sets += other.sets;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

struct Shared {
    phase: AtomicU8,
    latency: Mutex<Histogram<u64>>,
}

/// Writes every key once. The callers are spread over the clients.
pub async fn load<C: Client>(clients: &[C], shape: &Shape) -> anyhow::Result<()> {
    let loaders = LOADERS.min(shape.keyspace);
    let tasks = (0..loaders).map(|loader| {
        let mut client = clients[loader as usize % clients.len()].clone();
        let mut lane = Lane::new(shape, loader);
        let keys = (loader..shape.keyspace).step_by(loaders as usize);
        tokio::spawn(async move {
            for number in keys {
                lane.take(number);
                client
                    .set(lane.key(), lane.value())
                    .await
                    .context("loading the keys")?;
            }
            anyhow::Ok(())
        })
    });
    try_join_all(tasks).await?.into_iter().collect()
}

/// Runs the callers for the warm-up and the measured time. `call` is one of them, with as many lanes as it has operations
/// in flight.
pub async fn run<C: Client, F>(
    clients: &[C],
    run: &Run,
    call: impl Fn(Vec<Worker<C>>) -> F,
) -> anyhow::Result<Outcome>
where
    F: Future<Output = Vec<Worker<C>>> + Send + 'static,
{
    let shared = Arc::new(Shared {
        phase: AtomicU8::new(WARM_UP),
        latency: Mutex::new(Histogram::new_with_bounds(1, LATENCY_MAX, 3)?),
    });
    let callers: Vec<_> = (0..run.callers)
        .map(|caller| {
            let client = &clients[caller as usize % clients.len()];
            let lanes = (0..run.pipeline).map(|lane| {
                Worker::new(
                    client.clone(),
                    Lane::new(&run.shape, caller * run.pipeline + lane),
                    &shared,
                )
            });
            tokio::spawn(call(lanes.collect()))
        })
        .collect();

    sleep(run.warm_up).await;
    let cpu = machine::cpu_time()?;
    shared.phase.store(MEASURED, Ordering::Relaxed);
    let begin = Instant::now();
    sleep(run.duration).await;
    shared.phase.store(OVER, Ordering::Relaxed);
    let mut outcome = Outcome {
        took: begin.elapsed(),
        cpu: machine::cpu_time()?.saturating_sub(cpu),
        ..Outcome::default()
    };
    for caller in callers {
        for worker in caller.await? {
            outcome.add(worker.finish());
        }
    }
    let latency = shared
        .latency
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    outcome.latency = Some(latency.clone());
    Ok(outcome)
}

/// One caller: as many operations at once as it has lanes, and all of them again when all are done.
pub async fn call<C: Client>(mut lanes: Vec<Worker<C>>) -> Vec<Worker<C>> {
    while !lanes[0].is_over() {
        match lanes.as_mut_slice() {
            [one] => one.step().await,
            many => drop(join_all(many.iter_mut().map(Worker::step)).await),
        }
    }
    lanes
}

/// One operation at a time.
pub struct Worker<C> {
    /// Shares its connections with others.
    pub client: C,
    /// What to do.
    pub lane: Lane,
    shared: Arc<Shared>,
    seen: Outcome,
    gathered: Vec<u64>,
}

impl<C: Client> Worker<C> {
    fn new(client: C, lane: Lane, shared: &Arc<Shared>) -> Self {
        Self {
            client,
            lane,
            shared: Arc::clone(shared),
            seen: Outcome::default(),
            gathered: Vec::with_capacity(GATHERED),
        }
    }

    /// Whether the measured time is over.
    pub fn is_over(&self) -> bool {
        self.shared.phase.load(Ordering::Relaxed) == OVER
    }

    /// Does one operation.
    async fn step(&mut self) {
        let is_read = self.lane.draw();
        let begin = Instant::now();
        let read = if is_read {
            self.client.get(self.lane.key()).await.map(Some)
        } else {
            self.client
                .set(self.lane.key(), self.lane.value())
                .await
                .map(|()| None)
        };
        self.note(read, begin.elapsed());
    }

    /// What came of an operation: of a read what it found, of a write nothing. Counted is what ends in the measured time.
    pub fn note(&mut self, read: anyhow::Result<Option<Option<C::Value>>>, took: Duration) {
        if self.shared.phase.load(Ordering::Relaxed) != MEASURED {
            return;
        }
        match read {
            Ok(None) => self.seen.sets += 1,
            Ok(Some(None)) => self.seen.misses += 1,
            Ok(Some(Some(value))) if self.lane.is_right(value.as_ref()) => self.seen.hits += 1,
            Ok(Some(Some(_))) => return self.failed(|| "a value of another key".to_owned()),
            Err(error) => return self.failed(|| format!("{error:#}")),
        }
        self.gathered
            .push(u64::try_from(took.as_nanos()).unwrap_or(LATENCY_MAX));
        if self.gathered.len() == GATHERED {
            self.flush();
        }
    }

    fn failed(&mut self, why: impl FnOnce() -> String) {
        self.seen.errors += 1;
        self.seen.first_error.get_or_insert_with(why);
    }

    fn flush(&mut self) {
        let mut latency = self
            .shared
            .latency
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for took in self.gathered.drain(..) {
            latency.saturating_record(took);
        }
    }

    fn finish(mut self) -> Outcome {
        self.flush();
        self.seen
    }
}
