//! Runs callers with their faults, and looks at them and at the servers; or looks at servers that others use.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use embar_console::context::Context;
use embar_diagnose::observed::Missing;
use embar_diagnose::redis::Observed;
use embar_diagnose::redis::observed::{Probe, Traffic};
use embar_readings::sockets;
use embar_readings::tcp::TcpReader;
use embar_redis::{Client, Config};

use super::asking::{Asker, Said};
use super::observe::{Callers, Seen};
use super::plan::{RedisLoad, Servers};
use super::servers::{Beside, OwnServers};
use super::watching::Watching;
use crate::diagnose::sampling::{Sampling, Span};
use crate::redis::measure::{RedisBench, RunOutcome};

/// Looks at the client's counters are this far apart.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Looks at threads are: they cost more.
const SAMPLE_EVERY: Duration = Duration::from_millis(50);

/// What was seen of servers in a span.
pub(super) struct Look {
    pub(super) span: Span,
    pub(super) before: Vec<Said>,
    pub(super) after: Vec<Said>,
    pub(super) probes: Vec<Option<Probe>>,
    /// By the name of the node.
    pub(super) traffic: BTreeMap<String, Traffic>,
    /// Processes of the servers, in their order.
    pub(super) pids: Vec<Option<u32>>,
    pub(super) missing: Vec<Missing>,
}

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

/// Runs it without looking at it, and says how fast it was: operations a second.
pub fn rate(plan: &RedisLoad, context: &Context) -> Result<f64> {
    let outcome = with_load(plan, context, |bench, _, _| bench.run(plan.operation))?;
    let operations = operations(&outcome);
    ensure!(operations > 0, "no operation succeeded");
    Ok(operations as f64 / outcome.took.as_secs_f64())
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

/// Operations that succeeded.
pub(super) fn operations(outcome: &RunOutcome) -> u64 {
    let callers = outcome.tasks.iter().chain(&outcome.threads);
    callers.map(|it| it.counts.operations()).sum()
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

fn watch(
    asker: &Asker,
    own: &BTreeMap<SocketAddr, u32>,
    client: Option<&Client>,
    span: Duration,
    missing: &mut Vec<Missing>,
    context: &Context,
) -> Result<Look> {
    let pids = find_processes(asker, own, missing);
    let mut looked_at: BTreeSet<u32> = pids.iter().copied().flatten().collect();
    if client.is_some() {
        looked_at.insert(process::id());
    }
    let before = asker.ask(missing);
    let mut watching = client.map(Watching::start);
    let mut sampling = Sampling::start(looked_at.into_iter().collect(), BTreeSet::new())?;
    let probing = asker.probe();
    let (until, mut sampled) = (Instant::now() + span, Instant::now());
    loop {
        context.interrupt.check()?;
        let now = Instant::now();
        let left = until.saturating_duration_since(now);
        if left.is_zero() {
            break;
        }
        if let Some((watching, client)) = watching.as_mut().zip(client) {
            watching.look(client);
        }
        if now - sampled >= SAMPLE_EVERY {
            sampling.look();
            sampled = now;
        }
        thread::sleep(left.min(LOOK_EVERY));
    }
    let traffic = watching.zip(client);
    let traffic = traffic.map_or_else(BTreeMap::new, |(watching, client)| watching.end(client));
    let span = sampling.end()?;
    let probes = asker.end(probing);
    let after = asker.ask(missing);
    Ok(Look {
        span,
        before,
        after,
        probes,
        traffic,
        pids,
        missing: std::mem::take(missing),
    })
}

/// The processes of the servers: those that have the other ends of our connections with them.
fn find_processes(
    asker: &Asker,
    own: &BTreeMap<SocketAddr, u32>,
    missing: &mut Vec<Missing>,
) -> Vec<Option<u32>> {
    let addresses: Vec<_> = asker.nodes().iter().map(|it| it.address()).collect();
    let owners = match own.is_empty() {
        true => sockets::owners(),
        false => BTreeMap::new(),
    };
    let ends = TcpReader::open().and_then(|mut reader| {
        reader.connections(|end| own.is_empty() && addresses.contains(&Some(end.local)))
    });
    let ends = ends.unwrap_or_default();
    let nodes = asker.nodes().iter().zip(&addresses);
    let pids = nodes.map(|(node, address)| {
        let known = address.and_then(|it| own.get(&it).copied());
        let end = ends.iter().filter(|end| Some(end.local) == *address);
        let pid = known.or_else(|| { end }.find_map(|end| owners.get(&end.inode).copied()));
        if pid.is_none() {
            missing.push(Missing {
                what: format!("the threads of {}", node.endpoint),
                why: "its process is not on this machine, or another user's".to_owned(),
            });
        }
        pid
    });
    pids.collect()
}
