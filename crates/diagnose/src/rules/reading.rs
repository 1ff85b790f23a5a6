//! What subscribers do with their time.

use super::{Case, confidence};
use crate::cause::Cause;
use crate::finding::{Evidence, Finding, Remedy};
use crate::limits::{Resource, starved};
use crate::observed::{Subscriber, Thread};

/// A reader that waits for messages longer than this is not what limits. After it did something else it has to wait for those who
/// waited for it, so one that limits waits, too: 0.2 to 0.5 of the time at four fifths of the rate, where others wait for 0.9.
const STARVED_MAX: f64 = 0.6;
/// One that does something else for less of the time is not what limits. Its wait for a processor is counted as such even where it
/// is a wait for messages as well, so a reader that does nothing else comes to -0.34 to -0.05.
const IDLE_MIN: f64 = 0.06;

pub(super) fn look(case: &Case<'_>, found: &mut Vec<Finding>) {
    let Some(subscriber) = &case.observed.subscriber else {
        return;
    };
    slow(case, subscriber, found);
    receives(case, subscriber, found);
}

/// Messages wait for the application.
fn slow(case: &Case<'_>, subscriber: &Subscriber, found: &mut Vec<Finding>) {
    let Some(starved) = starved(case.observed) else {
        return;
    };
    if starved > STARVED_MAX {
        return;
    }
    let threads = subscriber.application.len().max(1) as f64;
    let mean =
        |of: fn(&Thread) -> f64| subscriber.application.iter().map(of).sum::<f64>() / threads;
    let (on_cpu, waiting) = (mean(|it| it.on_cpu), mean(|it| it.waiting));
    let idle = (1.0 - starved - on_cpu - waiting).max(0.0);
    let busy = on_cpu >= 0.7 && case.spare() >= 0.3;
    if idle < IDLE_MIN && !busy {
        return;
    }
    let gone = if idle >= IDLE_MIN { idle } else { on_cpu };
    found.push(Finding {
        cause: Cause::SlowSubscriber,
        part: Resource::Reader,
        evidence: vec![
            Evidence::share("the application waited for messages", starved),
            Evidence::share("it slept, or waited for something of its own", idle),
            Evidence::share("it was on a processor", on_cpu),
            Evidence::share(
                "the window to it was full",
                case.limits.share(Resource::ReceiveBuffers),
            ),
        ],
        confidence: confidence(gone, IDLE_MIN, 0.5) * confidence(STARVED_MAX - starved, 0.0, 0.2),
        gain_at_most: case
            .limits
            .gain_of_waiting(gone, Some(Resource::Reader)),
        remedy: Remedy::advice(
            "Messages wait for the application: look what it does between two messages, or read with more subscribers.",
        ),
        verified: None,
    });
}

/// A thread that receives works all the time.
fn receives(case: &Case<'_>, subscriber: &Subscriber, found: &mut Vec<Finding>) {
    let Some(thread) = case.busy_thread(&subscriber.receivers) else {
        return;
    };
    let remedy = Remedy::advice(
        "Read by shared memory on the broker's machine, or with a subscriber for each part of the topics.",
    );
    let limited = (Cause::ReceiverCpuBound, Resource::Receivers);
    found.push(case.one_more(thread, limited, remedy));
}
