//! Callers: tasks, and threads that block.

use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use embar_mux::block_on;
use embar_redis::commands::strings::StringCommands;
use embar_redis::{Client, Error};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::pipelined;
use super::plan::{Operation, Plan};
use super::tally::{Counts, Done, Phase, Shared, Tally};
use super::work::{Lane, Seen, Value};

/// Callers of a kind, at work.
pub struct Callers {
    /// What they share.
    pub shared: Arc<Shared>,
    tasks: Vec<JoinHandle<Tally>>,
    threads: Vec<thread::JoinHandle<Tally>>,
}

impl Callers {
    /// Starts the plan's tasks.
    pub fn tasks(plan: &Plan, operation: Operation, client: &Client, runtime: &Runtime) -> Self {
        let shared = Arc::new(Shared::new());
        let task = |caller| runtime.spawn(call(caller, plan, operation, client, &shared));
        let tasks = (0..plan.callers).map(task).collect();
        Self {
            tasks,
            threads: Vec::new(),
            shared,
        }
    }

    /// Starts the plan's threads. Their lanes come behind those of the tasks.
    pub fn threads(plan: &Plan, operation: Operation, client: &Client) -> Result<Self> {
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
                .inspect_err(|_| started.shared.enter(Phase::Over))
                .context("cannot start a blocking thread: use fewer")?;
            started.threads.push(thread);
        }
        Ok(started)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.threads.is_empty()
    }

    /// Waits for all of them, which have been told that it is over.
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
    plan: &Plan,
    operation: Operation,
    client: &Client,
    shared: &Arc<Shared>,
) -> impl Future<Output = Tally> + Send + 'static {
    let numbers = caller * plan.pipeline..(caller + 1) * plan.pipeline;
    let mix = plan.mix_of(operation);
    let lanes: Vec<Lane> = numbers
        .map(|number| Lane::new(&plan.shape, mix, number))
        .collect();
    let (client, shared) = (client.clone(), Arc::clone(shared));
    let owned = plan.owned_values;
    async move {
        if owned {
            calls::<Vec<u8>>(client, lanes, &shared).await
        } else {
            calls::<Seen>(client, lanes, &shared).await
        }
    }
}

async fn calls<V: Value>(client: Client, mut lanes: Vec<Lane>, shared: &Shared) -> Tally {
    match lanes.as_mut_slice() {
        [lane] => one_by_one::<V>(&client, lane, shared).await,
        _ => pipelined::call::<V>(client, lanes, shared).await,
    }
}

/// One operation after the other, until it is over. What ends in the measured time counts.
async fn one_by_one<V: Value>(client: &Client, lane: &mut Lane, shared: &Shared) -> Tally {
    let mut tally = Tally::new();
    while !shared.is_at(Phase::Over) {
        let is_read = lane.draw();
        let begin = Instant::now();
        let outcome = operate::<V>(client, lane, is_read).await;
        let took = begin.elapsed();
        if shared.is_at(Phase::Measured) && tally.counts.note(outcome) {
            tally.took(1, took, shared);
        }
    }
    tally.flush(shared);
    tally
}

async fn operate<V: Value>(client: &Client, lane: &Lane, is_read: bool) -> Result<Done, Error> {
    if is_read {
        let value: Option<V> = client.get(lane.key()).await?;
        return Ok(Done::read(lane, value.map(|value| value.seen())));
    }
    client.set(lane.key(), lane.value()).await?;
    Ok(Done::Set)
}
