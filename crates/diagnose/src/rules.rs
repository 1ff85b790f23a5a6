//! The rules: each looks at what was observed, and says what it finds, or nothing.
//!
//! A rule names numbers, not guesses. It asks for more than chance would bring, and its confidence grows from there to where
//! nobody would doubt it.

mod application;
mod brokers;
pub(crate) mod machine;
pub(crate) mod network;
mod reading;
mod waiting;

use crate::cause::Cause;
use crate::finding::{Change, Evidence, Finding, Remedy};
use crate::limits::{Limits, Resource, SATURATED};
use crate::observed::{Observed, Thread};

/// What rules look at.
pub(crate) struct Case<'a> {
    pub(crate) observed: &'a Observed,
    pub(crate) limits: &'a Limits,
}

impl Case<'_> {
    /// Processors with nothing to do.
    pub(crate) fn spare(&self) -> f64 {
        let machine = &self.observed.machine;
        f64::from(machine.cores) * (1.0 - machine.busy - machine.steal).max(0.0)
    }

    /// The busiest of these threads, if it is on a processor all the time, while there is one for another thread.
    pub(crate) fn busy_thread<'a>(
        &self,
        threads: impl IntoIterator<Item = &'a Thread>,
    ) -> Option<&'a Thread> {
        let busiest = busiest(threads)?;
        (busiest.on_cpu >= SATURATED && self.spare() >= SPARE_MIN).then_some(busiest)
    }

    /// The finding that one [such thread](Self::busy_thread) is not enough for its part.
    pub(crate) fn one_more(
        &self,
        thread: &Thread,
        (cause, part): (Cause, Resource),
        remedy: Remedy,
    ) -> Finding {
        Finding {
            cause,
            part,
            evidence: vec![
                on_a_processor(thread),
                Evidence::share("of that, in the kernel", thread.system),
                Evidence::count("processors idle", self.spare()),
            ],
            confidence: confidence(thread.on_cpu, SATURATED, 0.97),
            gain_at_most: self.limits.gain(part, thread.on_cpu, 0.0).min(self.spare()),
            remedy,
            verified: None,
        }
    }
}

/// The thread that was on a processor for longest.
pub(crate) fn busiest<'a>(threads: impl IntoIterator<Item = &'a Thread>) -> Option<&'a Thread> {
    let threads = threads.into_iter();
    threads.max_by(|a, b| a.on_cpu.total_cmp(&b.on_cpu))
}

/// That a thread was on a processor, and for how long.
pub(crate) fn on_a_processor(thread: &Thread) -> Evidence {
    Evidence::share(format!("{} was on a processor", thread.name), thread.on_cpu)
}

/// That batches should be larger: something to try, unless they are as large already.
pub(crate) fn larger_batches(case: &Case<'_>, text: &str) -> Remedy {
    let publisher = case.observed.publisher.as_ref();
    let full = publisher.and_then(|it| it.batch_bytes).unwrap_or(0);
    match full < LARGE_BATCH {
        true => Remedy::change(text, Change::BatchSize(LARGE_BATCH)),
        false => Remedy::advice(text),
    }
}

/// Bytes of a batch of which more would gain nothing.
const LARGE_BATCH: u64 = 2 << 20;

/// This much of a processor must be idle for another thread to find one.
pub(crate) const SPARE_MIN: f64 = 0.6;

/// What a call that moves a few bytes takes with the mitigations of today's processors, seconds; where nobody measured it.
pub(crate) const DEFAULT_SYSCALL_S: f64 = 1e-6;

/// All that is found, in no order.
pub(crate) fn all(case: &Case<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let rules: [fn(&Case<'_>, &mut Vec<Finding>); 6] = [
        application::look,
        waiting::look,
        network::look,
        brokers::look,
        reading::look,
        machine::look,
    ];
    for rule in rules {
        rule(case, &mut found);
    }
    found
}

/// What brings less is not worth doing.
pub(crate) const GAIN_MIN: f64 = 0.03;

/// Whether all numbers of a finding can be. Where one cannot, a number of the file that it comes from cannot either, so the
/// rule did not hold.
fn is_sound(finding: &Finding) -> bool {
    let can_be = |number: f64| number.is_finite() && number >= 0.0;
    can_be(finding.gain_at_most)
        && (0.0..=1.0).contains(&finding.confidence)
        && finding.evidence.iter().all(|it| can_be(it.value))
}

/// Faults first, those that cost the most before others, and behind them what is no fault; that nothing was found, if so.
pub(crate) fn ranked(mut findings: Vec<Finding>, limits: &Limits) -> Vec<Finding> {
    findings.retain(is_sound);
    findings.retain(|it| !it.cause.is_fault() || it.cause.delays() || it.gain_at_most >= GAIN_MIN);
    findings.sort_by(|a, b| {
        let fault = b.cause.is_fault().cmp(&a.cause.is_fault());
        fault.then(b.weight().total_cmp(&a.weight()))
    });
    if findings.is_empty() {
        findings.push(nothing(limits));
    }
    findings
}

/// 0 at `from` and below, 1 at `to` and above, and in between what is in between.
pub(crate) fn ramp(value: f64, from: f64, to: f64) -> f64 {
    ((value - from) / (to - from)).clamp(0.0, 1.0)
}

/// The confidence of a rule that just holds at `from`, and beyond doubt at `to`.
pub(crate) fn confidence(value: f64, from: f64, to: f64) -> f64 {
    0.5 + 0.5 * ramp(value, from, to)
}

/// What is said when no rule holds.
pub(crate) fn nothing(limits: &Limits) -> Finding {
    let busiest = limits.busiest();
    let evidence = vec![match busiest {
        Some(it) => Evidence::share(
            format!("the busiest part, {}, worked", it.part.name()),
            it.share,
        ),
        None => Evidence::count("parts that could be looked at", 0.0),
    }];
    Finding {
        cause: Cause::NothingFound,
        part: busiest.map_or(Resource::Processors, |it| it.part),
        evidence,
        confidence: 0.5,
        gain_at_most: 0.0,
        remedy: Remedy::advice(
            "No part works all the time, and none waits for long. Look for longer, or under more load.",
        ),
        verified: None,
    }
}
