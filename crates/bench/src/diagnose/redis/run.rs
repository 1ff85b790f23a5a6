//! Runs callers with their faults, and looks at them and at the servers; or looks at servers that others use.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use embar_console::context::Context;
use embar_diagnose::finding::Change;
use embar_diagnose::redis::Observed;
use embar_redis::Config;

use super::asking::Asker;
use super::looking::watch;
use super::observe::{Callers, Seen, operations};
use super::plan::{RedisLoad, Servers};
use super::servers::{Beside, OwnServers};
use crate::diagnose::verify::Tried;
use crate::redis::measure::RedisBench;

/// Runs it, and says what was seen.
pub fn examine(plan: &RedisLoad, context: &Context) -> Result<Observed> {
    let (asker, outcome, look) = with_load(plan, context, |bench, own, config| {
        let mut missing = Vec::new();
        let asker = Asker::open(config, &mut missing)?;
        let processes = own.map(OwnServers::processes).unwrap_or_default();
        let (outcome, look) = bench.run_while(plan.operation, || {
            watch(
                &asker,
                &processes,
                Some(bench.client()),
                plan.span,
                &mut missing,
                context,
            )
        })?;
        Ok((asker, outcome, look))
    })?;
    let callers = Callers {
        plan,
        outcome: &outcome,
    };
    let seen = Seen {
        nodes: asker.nodes(),
        look: &look,
        callers: Some(callers),
    };
    Ok(seen.observed())
}

impl Tried for RedisLoad {
    const UNIT: &'static str = "operations/s";

    fn with(&self, change: &Change) -> Option<Self> {
        Self::with(self, change)
    }

    fn rate(&self, context: &Context) -> Result<f64> {
        let outcome = with_load(self, context, |bench, _, _| bench.run(self.operation))?;
        let operations = operations(&outcome);
        ensure!(operations > 0, "no operation succeeded");
        Ok(operations as f64 / outcome.took.as_secs_f64())
    }
}

/// Looks at servers that others use, and sends them nothing but questions.
pub fn look(config: &Config, span: Duration, context: &Context) -> Result<Observed> {
    let mut missing = Vec::new();
    let asker = Asker::open(config, &mut missing)?;
    let look = watch(&asker, &BTreeMap::new(), None, span, &mut missing, context)?;
    let seen = Seen {
        nodes: asker.nodes(),
        look: &look,
        callers: None,
    };
    Ok(seen.observed())
}

fn with_load<T>(
    plan: &RedisLoad,
    context: &Context,
    run: impl FnOnce(&RedisBench<'_>, Option<&OwnServers>, &Config) -> Result<T>,
) -> Result<T> {
    let own = match plan.servers {
        Servers::Own(count) => Some(OwnServers::start(count, plan)?),
        Servers::Given(_) => None,
    };
    let mut config = match (&own, &plan.servers) {
        (Some(own), _) => own.config(),
        (None, Servers::Given(config)) => Config::clone(config),
        (None, Servers::Own(_)) => unreachable!("they were started"),
    };
    config.mux_per_node = plan.bench.mux_per_node;
    config.max_in_flight = plan.max_in_flight.unwrap_or(config.max_in_flight);
    let bench = RedisBench::new(&plan.bench, config.clone(), context)?;
    let beside = Beside::start(
        plan,
        own.as_ref(),
        bench.client(),
        bench.runtime(),
        &context.program,
    )?;
    let ran = run(&bench, own.as_ref(), &config);
    drop(beside);
    ran
}
