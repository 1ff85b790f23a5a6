//! One run of `bench redis`: lets the callers work through the warm-up and the measured time. Collects what they saw in
//! the measured time, and the processor time that this process used in it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use embar_console::context::Context;
use embar_redis::{Client, Config};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Handle, Runtime};

use super::callers::Callers;
use super::load::load;
use super::plan::{Driver, Operation, RedisPlan};
use super::profile;
use super::tally::{Counts, Period};

/// Names of the threads on which tasks run begin so.
pub const CALLS: &str = "calls-";

/// How soon an interrupt is noticed.
const GLANCE: Duration = Duration::from_millis(10);

/// A runtime whose end is not waited for: what still runs on it is of no interest any more.
struct BackgroundRuntime(Option<Runtime>);

impl BackgroundRuntime {
    fn runtime(&self) -> &Runtime {
        self.0.as_ref().expect("it is only taken at its end")
    }
}

impl Drop for BackgroundRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A client that is connected, and a runtime for its callers.
pub struct RedisBench<'a> {
    plan: &'a RedisPlan,
    context: &'a Context,
    // Before the runtime, so that it ends while there still is one.
    client: Client,
    runtime: BackgroundRuntime,
}

/// What callers of a kind saw.
pub struct CallerResults {
    /// How many callers there are.
    pub callers: u64,
    /// Counts of their operations.
    pub counts: Counts,
    /// How long operations took, nanoseconds.
    pub latency: Histogram<u64>,
    /// Time that all of them spent between two operations.
    pub between: Duration,
    /// How often sampled operations were about a key, by its number.
    pub keys: BTreeMap<u64, u64>,
}

/// What a run gave.
pub struct RunOutcome {
    /// The measured time.
    pub took: Duration,
    /// Processor time of this process in it.
    pub cpu: Duration,
    /// What tasks saw, if there are any.
    pub tasks: Option<CallerResults>,
    /// What blocking threads saw, if there are any.
    pub threads: Option<CallerResults>,
    /// What connections did meanwhile.
    pub traffic: Traffic,
    /// Where the time went, if that was asked for.
    pub profile: Option<profile::ProfileReading>,
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
    profile: Option<profile::ProfileReading>,
}

impl<'a> RedisBench<'a> {
    /// Connects, and loads the keys.
    pub fn new(plan: &'a RedisPlan, config: Config, context: &'a Context) -> Result<Self> {
        let started = AtomicUsize::new(0);
        let name = move || format!("{CALLS}{}", started.fetch_add(1, Ordering::Relaxed));
        let runtime = Builder::new_multi_thread()
            .worker_threads(plan.threads)
            .thread_name_fn(name)
            .enable_all()
            .build()
            .context("cannot start the threads of the runtime: use fewer")?;
        embar_mux::profile::set_enabled(plan.profile);
        let runtime = BackgroundRuntime(Some(runtime));
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

    /// The client that all callers share.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The runtime on which tasks run.
    pub fn runtime(&self) -> &Handle {
        self.runtime.runtime().handle()
    }

    /// Runs one operation once.
    pub fn run(&self, operation: Operation) -> Result<RunOutcome> {
        let measured = || self.wait(self.plan.duration);
        Ok(self.run_while(operation, measured)?.0)
    }

    /// Runs one operation for as long as `during` takes, and says what that gave, too.
    pub fn run_while<T>(
        &self,
        operation: Operation,
        during: impl FnOnce() -> Result<T>,
    ) -> Result<(RunOutcome, T)> {
        let (plan, runtime) = (self.plan, self.runtime.runtime());
        let tasks = Callers::tasks(plan, operation, &self.client, runtime);
        let threads = Callers::threads(plan, operation, &self.client);
        let threads = threads.inspect_err(|_| tasks.shared.enter(Period::Over))?;
        let enter = |period| {
            tasks.shared.enter(period);
            threads.shared.enter(period);
        };
        let measured = self.wait(plan.warmup).and_then(|()| {
            let before = self.read()?;
            enter(Period::Measured);
            let during = during()?;
            enter(Period::Over);
            Ok((before, self.read()?, during))
        });
        enter(Period::Over);
        let (before, after, during) = measured?;
        let profile = after.profile.zip(before.profile);
        let outcome = RunOutcome {
            took: after.at - before.at,
            cpu: after.cpu.saturating_sub(before.cpu),
            traffic: after.traffic.since(before.traffic),
            profile: profile.map(|(after, before)| after.since(&before)),
            tasks: self.seen(tasks, plan.callers)?,
            threads: self.seen(threads, plan.blocking_threads)?,
        };
        Ok((outcome, during))
    }

    fn seen(&self, callers: Callers, count: u64) -> Result<Option<CallerResults>> {
        if callers.is_empty() {
            return Ok(None);
        }
        let shared = callers.shared.clone();
        let counts = callers.finish(self.runtime.runtime())?;
        Ok(Some(CallerResults {
            callers: count,
            counts,
            latency: shared.latency(),
            between: shared.between(),
            keys: shared.keys(),
        }))
    }

    fn read(&self) -> Result<Reading> {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Ok(Reading {
            at: Instant::now(),
            cpu: Duration::try_from(cpu).context("the clock of the process is wrong")?,
            traffic: Traffic::of(&self.client),
            profile: self.plan.profile.then(profile::ProfileReading::now),
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
