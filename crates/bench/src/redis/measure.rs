//! One run: callers at work, and what they see and cost while it counts.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use embar_console::context::Context;
use embar_redis::{Client, Config};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};

use super::callers::Callers;
use super::load::load;
use super::plan::{Driver, Operation, Plan};
use super::profile;
use super::tally::{Counts, Phase};

/// How soon an interrupt is noticed.
const GLANCE: Duration = Duration::from_millis(10);

/// A runtime that is not waited for at its end: whatever is left on it is of no interest any more.
struct Background(Option<Runtime>);

impl Background {
    fn runtime(&self) -> &Runtime {
        self.0.as_ref().expect("it is only taken at its end")
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A client that is connected, and a runtime for its callers.
pub struct Bench<'a> {
    plan: &'a Plan,
    context: &'a Context,
    // Before the runtime, so that it ends while there still is one.
    client: Client,
    runtime: Background,
}

/// What callers of a kind saw.
pub struct Seen {
    /// How many they are.
    pub callers: u64,
    /// What came of their operations.
    pub counts: Counts,
    /// How long these took, nanoseconds.
    pub latency: Histogram<u64>,
}

/// What came of a run.
pub struct Outcome {
    /// The measured time.
    pub took: Duration,
    /// Processor time of this process in it.
    pub cpu: Duration,
    /// What tasks saw, if there are any.
    pub tasks: Option<Seen>,
    /// What blocking threads saw, likewise.
    pub threads: Option<Seen>,
    /// What connections did meanwhile.
    pub traffic: Traffic,
    /// Where the time went, if that was asked for.
    pub profile: Option<profile::Seen>,
}

/// What was done on all connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Calls that sent something.
    pub writes: u64,
    /// Calls that received something.
    pub reads: u64,
}

impl Traffic {
    fn of(client: &Client) -> Self {
        client
            .stats()
            .iter()
            .fold(Self::default(), |sum, (_, stats)| Self {
                writes: sum.writes + stats.writes,
                reads: sum.reads + stats.reads,
            })
    }

    /// Since an earlier reading. A node that left meanwhile has taken its counts along.
    fn since(self, earlier: Self) -> Self {
        Self {
            writes: self.writes.saturating_sub(earlier.writes),
            reads: self.reads.saturating_sub(earlier.reads),
        }
    }
}

/// Meters at one moment.
struct Reading {
    at: Instant,
    cpu: Duration,
    traffic: Traffic,
    profile: Option<profile::Seen>,
}

impl<'a> Bench<'a> {
    /// Connects, and loads the keys.
    pub fn new(plan: &'a Plan, config: Config, context: &'a Context) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(plan.threads)
            .enable_all()
            .build()
            .context("cannot start the threads of the runtime: use fewer")?;
        embar_mux::profile::set_enabled(plan.profile);
        let runtime = Background(Some(runtime));
        let client = match plan.driver {
            Driver::Task => runtime.runtime().block_on(Client::with(config)),
            Driver::Thread => Client::with_blocking(config),
        };
        let client = client.with_context(|| format!("cannot use {}", plan.server))?;
        if plan.load {
            load(&client, &plan.shape, runtime.runtime(), context)?;
        }
        Ok(Self {
            plan,
            context,
            client,
            runtime,
        })
    }

    /// One run.
    pub fn run(&self, operation: Operation) -> Result<Outcome> {
        let (plan, runtime) = (self.plan, self.runtime.runtime());
        let tasks = Callers::tasks(plan, operation, &self.client, runtime);
        let threads = Callers::threads(plan, operation, &self.client);
        let threads = threads.inspect_err(|_| tasks.shared.enter(Phase::Over))?;
        let enter = |phase| {
            tasks.shared.enter(phase);
            threads.shared.enter(phase);
        };
        let measured = self.wait(plan.warmup).and_then(|()| {
            let before = self.read()?;
            enter(Phase::Measured);
            self.wait(plan.duration)?;
            enter(Phase::Over);
            Ok((before, self.read()?))
        });
        enter(Phase::Over);
        let (before, after) = measured?;
        let profile = after.profile.zip(before.profile);
        Ok(Outcome {
            took: after.at - before.at,
            cpu: after.cpu.saturating_sub(before.cpu),
            traffic: after.traffic.since(before.traffic),
            profile: profile.map(|(after, before)| after.since(&before)),
            tasks: self.seen(tasks, plan.callers)?,
            threads: self.seen(threads, plan.blocking_threads)?,
        })
    }

    fn seen(&self, callers: Callers, count: u64) -> Result<Option<Seen>> {
        if callers.is_empty() {
            return Ok(None);
        }
        let shared = callers.shared.clone();
        let counts = callers.finish(self.runtime.runtime())?;
        Ok(Some(Seen {
            callers: count,
            counts,
            latency: shared.latency(),
        }))
    }

    fn read(&self) -> Result<Reading> {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Ok(Reading {
            at: Instant::now(),
            cpu: Duration::try_from(cpu).context("the clock of the process is wrong")?,
            traffic: Traffic::of(&self.client),
            profile: self.plan.profile.then(profile::Seen::now),
        })
    }

    fn wait(&self, time: Duration) -> Result<()> {
        let begin = Instant::now();
        loop {
            self.context.interrupt.check()?;
            let left = time.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(GLANCE));
        }
    }
}
