//! Runs sessions with their faults, and looks at them.

use std::process;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use embar_console::context::Context;
use embar_diagnose::finding::Change;
use embar_diagnose::session::Observed;
use embar_diagnose::session::observed::Way;
use embar_session::Address;

use super::inject::Fault;
use super::load::{Load, Moved};
use super::observe::Seen;
use super::plan::SessionLoad;
use crate::diagnose::hog::Hog;
use crate::diagnose::quota::Quota;
use crate::diagnose::sampling::{LOOK_EVERY, Sampling};
use crate::diagnose::verify::Tried;

/// Runs them, and says what was seen.
pub fn examine(plan: &SessionLoad, context: &Context) -> Result<Observed> {
    with_load(plan, context, |load, context| {
        wait(load, plan.warm_up, context)?;
        let before = load.moved();
        let servers = match &load.address {
            Address::Tcp(address) => [*address].into(),
            _ => Default::default(),
        };
        let mut sampling = Sampling::start(vec![process::id()], servers)?;
        sampling.watch(plan.span, |time| wait(load, time, context))?;
        let (after, span) = (load.moved(), sampling.end()?);
        let seen = Seen {
            plan,
            span,
            before,
            after,
        };
        Ok(seen.observed())
    })
}

impl Tried for SessionLoad {
    const UNIT: &'static str = "messages/s";

    fn with(&self, change: &Change) -> Option<Self> {
        Self::with(self, change)
    }

    fn rate(&self, context: &Context) -> Result<f64> {
        with_load(self, context, |load, context| {
            wait(load, self.warm_up, context)?;
            let (before, started) = (load.moved(), Instant::now());
            wait(load, self.span, context)?;
            let elapsed = started.elapsed();
            let messages = messages(self.way, &load.moved()) - messages(self.way, &before);
            ensure!(messages > 0, "nothing arrived in {elapsed:?}");
            Ok(messages as f64 / elapsed.as_secs_f64())
        })
    }
}

/// Messages that arrived so far.
fn messages(way: Way, moved: &Moved) -> u64 {
    match way {
        Way::OneWay => moved.server.messages_received,
        Way::Echo => moved.client.messages_received,
    }
}

fn with_load<T>(
    plan: &SessionLoad,
    context: &Context,
    look: impl FnOnce(&Load, &Context) -> Result<T>,
) -> Result<T> {
    let hogs = plan.faults.iter().filter_map(|fault| match fault {
        Fault::CpuHog(threads) => Some(Hog::start(&context.program, *threads)),
        _ => None,
    });
    let hogs = hogs.collect::<Result<Vec<_>>>()?;
    let quotas = plan.faults.iter().filter_map(|fault| match fault {
        Fault::CpuQuota(percent) => Some(Quota::start(&[], *percent)),
        _ => None,
    });
    let quotas = quotas.collect::<Result<Vec<_>>>()?;
    let load = Load::start(plan)?;
    let seen = look(&load, context);
    drop((quotas, hogs));
    let ended = load.end();
    let seen = seen?;
    ended.map(|()| seen)
}

/// Lets it run for so long, unless it fails.
fn wait(load: &Load, time: Duration, context: &Context) -> Result<()> {
    let until = Instant::now() + time;
    loop {
        context.interrupt.check()?;
        load.check()?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(LOOK_EVERY));
    }
}
