//! The rules: each looks at what was observed, and says what it finds, or nothing.
//!
//! A rule names numbers, not guesses. It asks for more than chance would bring, and its confidence grows from there to where
//! nobody would doubt it.

mod application;
mod brokers;
mod machine;
mod network;
mod reading;
mod waiting;

use crate::cause::Cause;
use crate::finding::{Evidence, Finding, Remedy};
use crate::limits::{Limits, Resource};
use crate::observed::Observed;

/// What rules look at.
pub(crate) struct Case<'a> {
    pub(crate) observed: &'a Observed,
    pub(crate) limits: &'a Limits,
}

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

/// 0 at `from` and below, 1 at `to` and above, and in between what is in between.
pub(crate) fn ramp(value: f64, from: f64, to: f64) -> f64 {
    ((value - from) / (to - from)).clamp(0.0, 1.0)
}

/// The confidence of a rule that just holds at `from`, and beyond doubt at `to`.
pub(crate) fn confidence(value: f64, from: f64, to: f64) -> f64 {
    0.5 + 0.5 * ramp(value, from, to)
}

/// What is said when no rule holds.
pub(crate) fn nothing(case: &Case<'_>) -> Finding {
    let busiest = case.limits.busiest();
    let evidence = busiest
        .iter()
        .map(|it| {
            Evidence::share(
                format!("the busiest part, {}, worked", it.part.name()),
                it.share,
            )
        })
        .collect();
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
