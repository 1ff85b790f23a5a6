//! Runs a load with its faults on a cluster of its own, and looks at it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use embar_broker::BrokerConfig;
use embar_client::BrokerStatus;
use embar_console::connect::Connector;
use embar_console::context::Context;
use embar_diagnose::Observed;
use embar_diagnose::finding::Change;
use embar_meter::Snapshot;
use embar_supervise::work::Abort;

use super::hog::Hog;
use super::inject::Fault;
use super::load::{self, Load, Moved};
use super::observe::{Known, Seen};
use super::over_time::OverTime;
use super::plan::LoadPlan;
use super::quota::Quota;
use super::sampling::{LOOK_EVERY, Sampling};
use super::stalls::Stalls;
use super::verify::Tried;
use crate::private_cluster::PrivateCluster;
use crate::publish::create_topic;

/// Part of the log that is filled before something is read.
const FILLED: f64 = 0.4;

/// Runs it, and says what was seen.
pub fn examine(plan: &LoadPlan, context: &Context) -> Result<Observed> {
    with_load(plan, context, |running, abort| {
        running.wait(running.plan.warm_up, abort)?;
        running.observe(abort)
    })
}

impl Tried for LoadPlan {
    const UNIT: &'static str = "MiB/s";

    fn with(&self, change: &Change) -> Option<Self> {
        Self::with(self, change)
    }

    /// Of message values.
    fn rate(&self, context: &Context) -> Result<f64> {
        with_load(self, context, |running, abort| {
            running.wait(running.plan.warm_up, abort)?;
            let (before, started) = (running.load.moved(), Instant::now());
            running.wait(running.plan.span, abort)?;
            let elapsed = started.elapsed();
            let bytes = running.bytes(&before, &running.load.moved());
            ensure!(bytes > 0, "nothing moved in {elapsed:?}");
            Ok(embar_console::size::mib_per_s(bytes, elapsed))
        })
    }
}

/// A load on its cluster.
struct Running {
    plan: LoadPlan,
    connector: Connector,
    brokers: Vec<Known>,
    load: Load,
}

fn with_load<T: Send + 'static>(
    plan: &LoadPlan,
    context: &Context,
    look: impl FnOnce(&Running, &Abort) -> Result<T> + Send + 'static,
) -> Result<T> {
    let settings = plan.settings.clone();
    let stands_still = { plan.faults.iter() }.any(|it| matches!(it, Fault::HotBroker(_)));
    let mut private = PrivateCluster::start_with("bench-", &plan.bench, context, |cluster| {
        cluster.config = BrokerConfig {
            recv_buffer_bytes: settings.recv_buffer,
            send_buffer_bytes: settings.send_buffer,
            prefault: !settings.is_cold,
            ..cluster.config.clone()
        };
        // The last one that takes data; this thread waits until all is over.
        if stands_still {
            cluster.kill_with_parent = vec![cluster.brokers.saturating_sub(1)];
        }
    })?;
    let data_brokers = private.data_brokers();
    let known = |broker: &embar_supervise::Broker| Known {
        id: u32::from(broker.id),
        pid: Some(broker.pid),
        address: broker.address,
        takes_data: data_brokers.contains(&u32::from(broker.id)),
    };
    let brokers: Vec<Known> = private.cluster.brokers().map(known).collect();
    let connector = plan
        .bench
        .connector(private.cluster.head(), context.progress.clone());
    let (plan, program) = (plan.clone(), context.program.clone());
    let outcome = private.cluster.run("bench-diagnose", move |abort| {
        let admin = connector.admin()?;
        create_topic(&admin, &plan.bench)?;
        drop(admin);
        if !plan.flow.publishes() {
            let log = plan.bench.region_bytes as f64 * FILLED;
            load::fill(&plan, &connector, log as u64)?;
        }
        let beside = Beside::start(&plan, &brokers, &program)?;
        let load = Load::start(&plan, &connector)?;
        let running = Running {
            plan,
            connector,
            brokers,
            load,
        };
        let seen = look(&running, abort);
        drop(beside);
        let ended = running.load.stop();
        let seen = seen?;
        ended.map(|()| seen)
    })?;
    private.stop();
    Ok(outcome)
}

/// What goes on beside the load until it is dropped, in this order: who leaves a quota's group must not stand still.
struct Beside {
    _stalls: Vec<Stalls>,
    _quotas: Vec<Quota>,
    _hogs: Vec<Hog>,
}

impl Beside {
    /// Starts what the plan's faults do to brokers and to the machine, in whatever order they are named.
    fn start(plan: &LoadPlan, brokers: &[Known], program: &Path) -> Result<Self> {
        let faults = || plan.faults.iter().copied();
        // Before this process has a quota: its children would share it, and others' work is not ours.
        let hogs = faults().filter_map(|fault| match fault {
            Fault::CpuHog(threads) => Some(Hog::start(program, threads)),
            _ => None,
        });
        let hogs = hogs.collect::<Result<_>>()?;
        let all: Vec<u32> = brokers.iter().filter_map(|it| it.pid).collect();
        let quotas = faults().filter_map(|fault| match fault {
            Fault::CpuQuota(percent) => Some(Quota::start(&all, percent)),
            _ => None,
        });
        let quotas = quotas.collect::<Result<_>>()?;
        let last = brokers.iter().rfind(|it| it.takes_data);
        let stalls = faults().filter_map(|fault| match fault {
            Fault::HotBroker(percent) => Some(
                last.and_then(|it| it.pid)
                    .context("no broker takes data")
                    .and_then(|pid| Stalls::start(pid, percent)),
            ),
            _ => None,
        });
        let stalls = stalls.collect::<Result<_>>()?;
        Ok(Self {
            _stalls: stalls,
            _quotas: quotas,
            _hogs: hogs,
        })
    }
}

impl Running {
    /// Lets it run for so long, unless it fails.
    fn wait(&self, time: Duration, abort: &Abort) -> Result<()> {
        let until = Instant::now() + time;
        loop {
            abort.check()?;
            if self.load.has_failed() {
                bail!("the load ended before its time");
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(LOOK_EVERY));
        }
    }

    fn observe(&self, abort: &Abort) -> Result<Observed> {
        let before = (self.profiles()?, self.load.moved());
        let pids = self.brokers.iter().filter_map(|it| it.pid);
        let pids = pids.chain([process::id()]);
        let servers = self.brokers.iter().map(|it| it.address);
        let mut sampling = Sampling::start(pids.collect(), servers.collect())?;
        let mut over_time = OverTime::default();
        over_time.see(self.carried(), Instant::now());
        sampling.watch(self.plan.span, |time| {
            self.wait(time, abort)?;
            over_time.see(self.carried(), Instant::now());
            Ok(())
        })?;
        let after = self.load.moved();
        let span = sampling.end()?;
        let mut profiles = self.profiles()?;
        for (id, profile) in &mut profiles {
            if let Some(before) = before.0.get(id) {
                *profile = profile.since(before);
            }
        }
        let seen = Seen {
            plan: &self.plan,
            brokers: &self.brokers,
            span,
            profiles,
            statuses: self.statuses()?,
            before: before.1,
            after,
            over_time: over_time.steps(),
        };
        Ok(seen.observed())
    }

    /// Bytes of message values that moved so far.
    fn carried(&self) -> u64 {
        self.load.messages(self.plan.flow) * u64::from(self.plan.bench.message_bytes)
    }

    fn bytes(&self, before: &Moved, after: &Moved) -> u64 {
        let messages = if self.plan.flow.publishes() {
            after.published - before.published
        } else {
            after.read - before.read
        };
        messages * u64::from(self.plan.bench.message_bytes)
    }

    /// The profile of each broker that takes data.
    fn profiles(&self) -> Result<BTreeMap<u32, Snapshot>> {
        let admin = self.connector.admin()?;
        let of = |it: &Known| Ok((it.id, admin.profile(it.id).wait()?));
        self.data_brokers().map(of).collect()
    }

    fn statuses(&self) -> Result<BTreeMap<u32, BrokerStatus>> {
        let admin = self.connector.admin()?;
        let of = |it: &Known| Ok((it.id, admin.status(it.id).wait()?));
        self.data_brokers().map(of).collect()
    }

    fn data_brokers(&self) -> impl Iterator<Item = &Known> {
        self.brokers.iter().filter(|it| it.takes_data)
    }
}
