//! From what was seen of callers and servers to what a diagnosis looks at.

use std::process;

use embar_diagnose::observed::{Machine, Thread};
use embar_diagnose::redis::Observed;
use embar_diagnose::redis::observed::{Client, KeyShare, Node, Server};
use embar_redis::slot::slot;

use super::asking::{Asked, Said};
use super::info::slow_since;
use super::looking::Look;
use super::plan::{RedisLoad, Servers};

use crate::diagnose::observe::{machine, missing, named};
use crate::redis::measure::{CALLS, RunOutcome};
use crate::redis::plan::Driver;
use crate::redis::work::{Mix, OperationStream};

/// The threads of connections that have their own begin so.
const CONNECTIONS: &str = "mux";
/// Keys that are named, at most.
const KEYS_MAX: usize = 3;
/// A key that gets less is not worth a name.
const KEY_MIN: f64 = 0.02;

/// What was seen.
pub(super) struct Seen<'a> {
    pub(super) nodes: &'a [Asked],
    pub(super) look: &'a Look,
    pub(super) callers: Option<Callers<'a>>,
}

/// Callers of ours, and what they did.
pub(super) struct Callers<'a> {
    pub(super) plan: &'a RedisLoad,
    pub(super) outcome: &'a RunOutcome,
}

impl Seen<'_> {
    /// All of it, as a diagnosis wants it.
    pub(super) fn observed(&self) -> Observed {
        let nodes: Vec<Node> = (0..self.nodes.len()).map(|it| self.node(it)).collect();
        let said = nodes.iter().filter_map(|it| it.server.as_ref()?.commands);
        let counts = self.callers.iter().flat_map(|it| &it.outcome.tasks);
        let mut all_missing = self.look.missing.clone();
        all_missing.extend(missing(&self.look.span));
        let here = self.look.pids.iter().flatten().count() > 0;
        Observed {
            seconds: self.look.span.seconds,
            operations: match &self.callers {
                Some(callers) => self.in_span(callers, operations(callers.outcome)),
                None => said.sum(),
            },
            errors: counts.map(|it| it.counts.errors).sum(),
            // The processors of a machine on which neither callers nor servers run say nothing.
            machine: match here || self.callers.is_some() {
                true => machine(&self.look.span),
                false => Machine::default(),
            },
            client: self.callers.as_ref().map(|it| self.client(it)),
            nodes,
            over_time: self.look.watched.over_time.clone(),
            missing: all_missing,
        }
    }

    /// Of what was counted while the callers ran, what belongs to the span.
    fn in_span(&self, callers: &Callers<'_>, count: u64) -> u64 {
        let ran = callers.outcome.took.as_secs_f64();
        (count as f64 * (self.look.span.seconds / ran).min(1.0)).round() as u64
    }

    fn client(&self, callers: &Callers<'_>) -> Client {
        let Callers { plan, outcome } = callers;
        let own = self.look.span.threads.get(&process::id());
        let own = own.map_or(&[][..], Vec::as_slice);
        let tasks = outcome.tasks.as_ref();
        let ran = outcome.took.as_secs_f64();
        let between = tasks.map_or(0.0, |it| it.between.as_secs_f64());
        let (config, bench) = (self.config(callers), &plan.bench);
        Client {
            callers: bench.callers,
            pipeline: bench.pipeline,
            threads: named(own, CALLS),
            connection_threads: match bench.driver {
                Driver::Task => Vec::new(),
                Driver::Thread => named(own, CONNECTIONS),
            },
            latency_s: tasks.map_or(0.0, |it| it.latency.mean() / 1e9),
            between_s: between * (self.look.span.seconds / ran).min(1.0),
            in_flight_max: config.0,
            connections_per_node: bench.mux_per_node as u64,
            by_tls: config.1,
            keys: keys(callers),
        }
    }

    /// Commands that a connection may have in flight, and whether it is encrypted.
    fn config(&self, callers: &Callers<'_>) -> (u64, bool) {
        let plan = callers.plan;
        let default = embar_redis::Config::default().max_in_flight;
        let (usual, by_tls) = match &plan.servers {
            Servers::Given(config) => (config.max_in_flight, config.tls.is_some()),
            Servers::Own(_) => (default, plan.by_tls),
        };
        let commands = plan.max_in_flight.unwrap_or(usual).max(1);
        (commands.next_power_of_two() as u64, by_tls)
    }

    fn node(&self, index: usize) -> Node {
        let (asked, look) = (&self.nodes[index], self.look);
        let name = asked.endpoint.to_string();
        let pid = look.pids.get(index).copied().flatten();
        let threads = pid.and_then(|pid| look.span.threads.get(&pid));
        let both = look.before.get(index).zip(look.after.get(index));
        Node {
            slots: asked.slots,
            threads: threads.map_or_else(Vec::new, |all| busy(all)),
            server: both.and_then(|(before, after)| server(before, after)),
            traffic: look.watched.traffic.get(&name).cloned(),
            probe: look.probes.get(index).copied().flatten(),
            name,
        }
    }
}

/// Operations that succeeded.
pub(super) fn operations(outcome: &RunOutcome) -> u64 {
    let callers = outcome.tasks.iter().chain(&outcome.threads);
    callers.map(|it| it.counts.operations()).sum()
}

/// A server has threads that wait for a rare job; they say nothing.
fn busy(threads: &[Thread]) -> Vec<Thread> {
    let is_busy = |it: &&Thread| it.occupied() > 0.0 || !it.name.starts_with("bio_");
    threads.iter().filter(is_busy).cloned().collect()
}

fn server(before: &Said, after: &Said) -> Option<Server> {
    let mut server = after.info.as_ref()?.since(before.info.as_ref()?)?;
    if let Some((earlier, now)) = before.slow.as_ref().zip(after.slow.as_ref()) {
        let last = earlier.iter().map(|it| it.id).max();
        server.slow = Some(slow_since(now, last));
    }
    Some(server)
}

/// The keys that samples name the most.
fn keys(callers: &Callers<'_>) -> Vec<KeyShare> {
    let Some(tasks) = &callers.outcome.tasks else {
        return Vec::new();
    };
    let sampled: u64 = tasks.keys.values().sum();
    let mut stream = OperationStream::new(&callers.plan.bench.shape, Mix::READS, 0);
    let mut all: Vec<(u64, u64)> = tasks
        .keys
        .iter()
        .map(|(key, count)| (*count, *key))
        .collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    let shares = all.into_iter().take(KEYS_MAX).map(|(count, number)| {
        stream.take(number);
        KeyShare {
            key: String::from_utf8_lossy(stream.key()).into_owned(),
            slot: slot(stream.key()),
            share: count as f64 / sampled as f64,
        }
    });
    shares.filter(|it| it.share >= KEY_MIN).collect()
}
