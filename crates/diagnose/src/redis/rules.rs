//! The rules of Redis, by what they look at: what one node does differently, what all servers do, what the client and its
//! callers do, and the machine.

mod client;
mod nodes;
mod servers;

use super::observed::{Node, Observed};
use crate::finding::Finding;
use crate::limits::{Limits, MIN_SHARE, Resource, works};
use crate::observed::Thread;
use crate::rules::machine;

/// Threads that are on a processor for less of the time may never have waited for one.
const WORKS_MIN: f64 = 0.05;

/// What rules look at.
pub(super) struct Case<'a> {
    pub(super) observed: &'a Observed,
    pub(super) limits: &'a Limits,
}

/// All that is found, in no order.
pub(super) fn all(case: &Case<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    nodes::look(case, &mut found);
    servers::look(case, &mut found);
    client::look(case, &mut found);
    let (observed, limits) = (case.observed, case.limits);
    let waited = case.threads().map(|it| it.waiting).fold(0.0, f64::max);
    let taken = machine::taken(&observed.machine, limits, waited);
    found.extend(taken.map(|it| Finding {
        // Who seldom waits for a processor gains little from more of them, however much others take.
        gain_at_most: match case.knows_waits() {
            true => it.gain_at_most.min(case.gain_of_processors()),
            false => it.gain_at_most,
        },
        ..it
    }));
    found.extend(machine::throttled(&observed.machine, limits));
    let advice = "More processors, or servers and callers on machines of their own. Larger pipelines, and more callers, take less time for each operation.";
    found.extend(machine::wall(&observed.machine, &case.parts(), advice));
    found
}

impl<'a> Case<'a> {
    /// Threads of client and servers.
    fn threads(&self) -> impl Iterator<Item = &'a Thread> {
        let client = self.observed.client.iter();
        let client = client.flat_map(|it| it.threads.iter().chain(&it.connection_threads));
        let servers = self.observed.nodes.iter().filter_map(Node::main_thread);
        client.chain(servers)
    }

    /// Whether the kernel says how long threads wait for a processor: whoever works waits for a moment where others do, too.
    fn knows_waits(&self) -> bool {
        let works = self.threads().any(|it| it.on_cpu >= WORKS_MIN);
        !works || self.threads().any(|it| it.waiting > 0.0)
    }

    /// Processors that each part keeps busy.
    fn parts(&self) -> Vec<(&'static str, f64)> {
        let mut parts = Vec::new();
        if let Some(client) = &self.observed.client {
            let sum = |threads: &[Thread]| threads.iter().map(|it| it.on_cpu).sum::<f64>();
            parts.push(("threads of callers", sum(&client.threads)));
            parts.push(("threads of connections", sum(&client.connection_threads)));
        }
        let servers = self.observed.nodes.iter().flat_map(|it| &it.threads);
        parts.push(("servers", servers.map(|it| it.on_cpu).sum()));
        parts.retain(|(_, share)| *share >= 0.01);
        parts
    }

    /// Processors with nothing to do.
    fn spare(&self) -> f64 {
        let machine = &self.observed.machine;
        f64::from(machine.cores) * (1.0 - machine.busy - machine.steal).max(0.0)
    }

    /// A part of all processors, from a number of them.
    fn of_machine(&self, processors: f64) -> f64 {
        processors / f64::from(self.observed.machine.cores.max(1))
    }

    /// What works the most, but for these parts. Of what others use of the processors, callers that want more get a part.
    fn next(&self, but: &[Resource]) -> f64 {
        let others = self.limits.uses.iter();
        let others = others.filter(|it| works(it.part) && !but.contains(&it.part));
        let work = others.map(|it| match it.part {
            Resource::Processors => it.share - self.limits.contested,
            _ => it.share - it.without_processor,
        });
        work.fold(MIN_SHARE, f64::max)
    }

    /// What has the most to do: of the processors, what others do not use.
    fn busiest(&self) -> f64 {
        let others = self.observed.machine.others;
        let working = self.limits.uses.iter().filter(|it| works(it.part));
        let occupied = working.map(|it| match it.part {
            Resource::Processors => it.share - others,
            _ => it.share,
        });
        occupied.fold(0.0, f64::max)
    }

    /// By how much the rate could grow if a share `gone` of the time were not waited any more: until another part than
    /// these limits.
    fn gain_of_waiting(&self, gone: f64, but: &[Resource]) -> f64 {
        let waits = 1.0 / (1.0 - gone).max(MIN_SHARE);
        (waits.min(1.0 / self.next(but)) - 1.0).max(0.0)
    }

    /// Share of the time in which an operation waits for a processor: it passes the client and a server, one after the other.
    fn without_processor(&self) -> f64 {
        let waits = [Resource::ClientThreads, Resource::Servers].map(|part| {
            let used = self.limits.uses.iter().find(|it| it.part == part);
            used.map_or(0.0, |it| it.without_processor)
        });
        waits[0] + waits[1]
    }

    /// By how much the rate could grow if no thread had to wait for a processor.
    fn gain_of_processors(&self) -> f64 {
        1.0 / (1.0 - self.without_processor()).max(MIN_SHARE) - 1.0
    }

    /// By how much the rate could grow if callers waited for nodes a share `gone` less of their time: they take turns at
    /// all nodes, so each wait holds up all of it. Only until another part limits.
    fn gain_of_answers(&self, gone: f64) -> f64 {
        self.gain_of_waiting(gone, &[Resource::Servers])
    }

    /// See [`Limits::gain_without`].
    fn gain_without(&self, less: &[(Resource, f64)]) -> f64 {
        self.limits.gain_without(less)
    }
}

/// The one in the middle, the lower of two; `None` of none.
fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|it| it.is_finite());
    values.sort_by(f64::total_cmp);
    let at = values.len().checked_sub(1)? / 2;
    values.get(at).copied()
}

/// The middle of what all nodes but this one have.
fn middle_of_others(nodes: &[Node], but: &Node, of: impl Fn(&Node) -> Option<f64>) -> Option<f64> {
    let others = nodes.iter().filter(|it| !std::ptr::eq(*it, but));
    middle(others.filter_map(of).collect())
}
