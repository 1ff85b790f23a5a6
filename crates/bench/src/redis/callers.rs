//! The callers of a run: asynchronous tasks, and threads that block. Each repeats operations until the run is over, one
//! at a time or many in a pipeline.

use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use embar_mux::block_on;
use embar_redis::commands::strings::StringCommands;
use embar_redis::{Client, Error};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::pipelined;
use super::plan::{Habits, Operation, RedisPlan};
use super::tally::{CallerTally, Counts, Done, Period, Shared};
use super::work::{OperationStream, Value, ValueDigest};

/// The callers of one kind, tasks or threads, at work.
pub struct Callers {
    /// What all of them share.
    pub shared: Arc<Shared>,
    tasks: Vec<JoinHandle<CallerTally>>,
    threads: Vec<thread::JoinHandle<CallerTally>>,
}

impl Callers {
    /// Starts the plan's tasks.
    pub fn tasks(
        plan: &RedisPlan,
        operation: Operation,
        client: &Client,
        runtime: &Runtime,
    ) -> Self {
        let shared = Arc::new(Shared::new());
        let task = |caller| runtime.spawn(call(caller, plan, operation, client, &shared));
        let tasks = (0..plan.callers).map(task).collect();
        Self {
            tasks,
            threads: Vec::new(),
            shared,
        }
    }

    /// Starts the plan's threads. Their streams come behind those of the tasks.
    pub fn threads(plan: &RedisPlan, operation: Operation, client: &Client) -> Result<Self> {
        let shared = Arc::new(Shared::new());
        let mut started = Self {
            shared,
            tasks: Vec::new(),
            threads: Vec::new(),
        };
        for caller in plan.callers..plan.callers + plan.blocking_threads {
            let calls = call(caller, plan, operation, client, &started.shared);
            let run = move || {
                // What `Request::wait` does, too.
                let mut calls = pin!(calls);
                block_on(|cx| calls.as_mut().poll(cx))
            };
            let thread = thread::Builder::new()
                .name("caller".into())
                .spawn(run)
                .inspect_err(|_| started.shared.enter(Period::Over))
                .context("cannot start a blocking thread: use fewer")?;
            started.threads.push(thread);
        }
        Ok(started)
    }

    /// Whether there are no callers of this kind.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.threads.is_empty()
    }

    /// Waits for all of them, once [`Shared::enter`] has ended the run.
    pub fn finish(self, runtime: &Runtime) -> Result<Counts> {
        let mut counts = Counts::default();
        let panicked = || anyhow!("a caller panicked");
        for task in self.tasks {
            let tally = runtime.block_on(task).map_err(|_| panicked())?;
            counts.add(&tally.counts);
        }
        for thread in self.threads {
            let tally = thread.join().map_err(|_| panicked())?;
            counts.add(&tally.counts);
        }
        Ok(counts)
    }
}

/// All that one caller does.
fn call(
    caller: u64,
    plan: &RedisPlan,
    operation: Operation,
    client: &Client,
    shared: &Arc<Shared>,
) -> impl Future<Output = CallerTally> + Send + 'static {
    let numbers = caller * plan.pipeline..(caller + 1) * plan.pipeline;
    let (mix, habits) = (plan.mix_of(operation), plan.habits);
    let streams: Vec<OperationStream> = numbers
        .map(|number| OperationStream::new(&plan.shape, mix, number).with_hot(habits.hot))
        .collect();
    let (client, shared) = (client.clone(), Arc::clone(shared));
    let owned = plan.owned_values;
    async move {
        if owned {
            calls::<Vec<u8>>(client, streams, habits, &shared).await
        } else {
            calls::<ValueDigest>(client, streams, habits, &shared).await
        }
    }
}

async fn calls<V: Value>(
    client: Client,
    mut streams: Vec<OperationStream>,
    habits: Habits,
    shared: &Shared,
) -> CallerTally {
    match streams.as_mut_slice() {
        [stream] => one_by_one::<V>(&client, stream, habits, shared).await,
        _ => pipelined::call::<V>(client, streams, habits, shared).await,
    }
}

/// One operation after the other, until it is over. What ends in the measured time counts.
async fn one_by_one<V: Value>(
    client: &Client,
    stream: &mut OperationStream,
    habits: Habits,
    shared: &Shared,
) -> CallerTally {
    let mut tally = CallerTally::new();
    let mut ended: Option<Instant> = None;
    while !shared.is_at(Period::Over) {
        let is_read = stream.draw();
        let begin = Instant::now();
        let elsewhere = ended.map_or(Duration::ZERO, |ended| begin - ended);
        let outcome = operate::<V>(client, stream, is_read).await;
        let took = begin.elapsed();
        if shared.is_at(Period::Measured) {
            tally.was_elsewhere(elsewhere);
            if tally.counts.note(outcome) {
                tally.about(stream.number());
                tally.took(1, took, shared);
            }
        }
        ended = Some(begin + took);
        habits.follow().await;
    }
    tally.flush(shared);
    tally
}

async fn operate<V: Value>(
    client: &Client,
    stream: &OperationStream,
    is_read: bool,
) -> Result<Done, Error> {
    if is_read {
        let value: Option<V> = client.get(stream.key()).await?;
        return Ok(Done::read(stream, value.map(|value| value.digest())));
    }
    client.set(stream.key(), stream.value()).await?;
    Ok(Done::Set)
}
