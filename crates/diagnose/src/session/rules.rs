//! The rules of sessions, by what they look at: applications and handlers, the ends' threads, what is between them, and the
//! machine.

mod application;
mod between;
mod ends;

use super::observed::Observed;
use crate::finding::Finding;
use crate::limits::{Limits, Resource};
use crate::observed::Thread;
use crate::rules::{machine, network};

/// Threads that a quota stops are late to take packets, and to acknowledge them, so what packets did says less of their way.
const WHILE_STOPPED: f64 = 0.2;

/// What rules look at.
pub(super) struct Case<'a> {
    pub(super) observed: &'a Observed,
    pub(super) limits: &'a Limits,
}

/// All that is found, in no order.
pub(super) fn all(case: &Case<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    application::look(case, &mut found);
    between::look(case, &mut found);
    ends::look(case, &mut found);
    let (observed, limits) = (case.observed, case.limits);
    let rate = observed.bytes as f64 / observed.seconds.max(f64::MIN_POSITIVE);
    let throttled = machine::throttled(&observed.machine, limits);
    found.extend(
        network::find(&observed.connections, limits, rate).map(|it| Finding {
            confidence: match throttled {
                Some(_) => it.confidence * WHILE_STOPPED,
                None => it.confidence,
            },
            ..it
        }),
    );
    let waited = { observed.threads() }
        .map(|it| it.waiting)
        .fold(0.0, f64::max);
    found.extend(machine::taken(&observed.machine, limits, waited));
    found.extend(throttled);
    let advice = "More processors, or client and server on machines of their own. Larger messages, and more of them in flight, take less time for each byte.";
    found.extend(machine::wall(&observed.machine, &case.parts(), advice));
    found
}

impl Case<'_> {
    /// Processors with nothing to do.
    fn spare(&self) -> f64 {
        let machine = &self.observed.machine;
        f64::from(machine.cores) * (1.0 - machine.busy - machine.steal).max(0.0)
    }

    /// A part of all processors, from a number of them.
    fn of_machine(&self, processors: f64) -> f64 {
        processors / f64::from(self.observed.machine.cores.max(1))
    }

    /// Processors that each part keeps busy.
    fn parts(&self) -> Vec<(&'static str, f64)> {
        let observed = self.observed;
        let application = observed.application.as_ref();
        let sum = |threads: &[Thread]| threads.iter().map(|it| it.on_cpu).sum::<f64>();
        let mut parts = vec![
            (
                "threads that send",
                application.map_or(0.0, |it| sum(&it.threads)),
            ),
            (
                "the client's sessions",
                observed.client.as_ref().map_or(0.0, |it| it.on_cpu()),
            ),
            (
                "the server's sessions",
                observed.server.as_ref().map_or(0.0, |it| it.on_cpu()),
            ),
        ];
        parts.retain(|(_, share)| *share >= 0.01);
        parts
    }

    /// See [`Limits::gain_without`].
    fn gain_without(&self, less: &[(Resource, f64)]) -> f64 {
        self.limits.gain_without(less)
    }

    /// How much a part works on processors; 0 of one that was not seen.
    fn work(&self, part: Resource) -> f64 {
        self.limits.work(part)
    }

    /// How often threads of the pipeline go to sleep, times a second.
    fn sleeps(&self) -> f64 {
        self.observed.threads().map(|it| it.sleeps_per_s).sum()
    }
}
