//! What the user's own code does: threads that send, and handlers; and what encoding and decoding its messages takes of both.

use super::Case;
use crate::cause::Cause;
use crate::finding::{Evidence, Finding, Remedy};
use crate::limits::{Resource, SATURATED};
use crate::observed::{Thread, per};
use crate::rules::confidence;
use crate::session::observed::End;

/// Threads that wait for room longer than this are held up by what follows.
const WAITED_MAX: f64 = 0.25;
/// What a thread does beside sending for less of its time is not worth a word.
const GONE_MIN: f64 = 0.2;
/// Loops, and what else a thread that only sends does outside of its calls.
const OWN_WORK_OF_SENDING: f64 = 0.15;
/// Handlers may take this part of the workers' time.
const HANDLERS_MIN: f64 = 0.3;

pub(super) fn look(case: &Case<'_>, found: &mut Vec<Finding>) {
    found.extend(slow_sender(case));
    found.extend(slow_handler(case));
    found.extend(encoding(case));
    found.extend(decoding(case));
}

fn slow_sender(case: &Case<'_>) -> Option<Finding> {
    let application = case.observed.application.as_ref()?;
    let waited = application.waited_for_room + application.waited_to_leave;
    let threads = application.threads.len().max(1) as f64;
    let mean = |of: fn(&Thread) -> f64| application.threads.iter().map(of).sum::<f64>() / threads;
    let (on_cpu, waiting) = (mean(|it| it.on_cpu), mean(|it| it.waiting));
    let idle = (1.0 - waited - on_cpu - waiting).max(0.0);
    let sending = application.in_sends.map(|it| (it - waited).max(0.0));
    // What it computes beside sending; a part of that is only its loop.
    let own = sending.map_or(0.0, |it| {
        (on_cpu + waiting - it - OWN_WORK_OF_SENDING).max(0.0)
    });
    let gone = idle + own;
    if waited > WAITED_MAX || gone < GONE_MIN {
        return None;
    }
    Some(Finding {
        cause: match application.is_bench && own > idle {
            true => Cause::BenchmarkItself,
            false => Cause::ApplicationTooSlow,
        },
        part: Resource::Application,
        evidence: vec![
            Evidence::share("threads that send waited for sessions", waited),
            Evidence::share("they slept, or waited for something of their own", idle),
            Evidence::share("they computed, beside sending", own),
        ],
        confidence: confidence(gone, GONE_MIN, 0.5) * confidence(WAITED_MAX - waited, 0.0, 0.2),
        gain_at_most: case.limits.gain_of_wanting_more(gone),
        remedy: Remedy::advice(
            "Sessions wait for the application: look what it does between two messages, or send from more threads.",
        ),
        verified: None,
    })
}

/// Handlers run on the threads that serve sessions, so a session's next message waits for them.
fn slow_handler(case: &Case<'_>) -> Option<Finding> {
    let server = case.observed.server.as_ref()?;
    let handlers = server.in_handlers?;
    let busy = case.limits.share(Resource::Receivers);
    if handlers < HANDLERS_MIN || busy < SATURATED {
        return None;
    }
    let workers = server.workers.len().max(1) as f64;
    let mean = server.on_cpu() / workers;
    let mut evidence = vec![
        Evidence::share("of the workers' time, what handlers take", handlers),
        Evidence::share("workers were on a processor", mean),
        Evidence::count("workers", workers),
    ];
    if let Some(messages) = server.messages_received.filter(|it| *it > 0) {
        let each = handlers * workers * case.observed.seconds / messages as f64;
        evidence.push(Evidence::seconds("a handler takes for a message", each));
    }
    let computes = case.of_machine((handlers * workers).min(server.on_cpu()));
    Some(Finding {
        cause: Cause::SlowHandler,
        part: Resource::Handlers,
        evidence,
        confidence: confidence(handlers, HANDLERS_MIN, 0.6),
        gain_at_most: case.gain_without(&[
            (Resource::Receivers, handlers),
            (Resource::Handlers, handlers),
            (Resource::Processors, computes),
        ]),
        remedy: Remedy::advice(
            "Handlers run on the threads that serve sessions: do less in them, hand messages to threads of your own (keep them, and return Flow::Pause), or serve sessions by more workers.",
        ),
        verified: None,
    })
}

/// Encoding and decoding may take this part of the time of those who do it.
pub(super) const CODING_MIN: f64 = 0.3;
/// What a message takes of either end that is a copy of bytes with a header, at most: what is beyond is the message's own structure.
const PLAIN_MESSAGE_S: f64 = 150e-9;
/// The same of a byte.
const PLAIN_BYTE_S: f64 = 0.2e-9;

/// Part of the time of threads that send in which they encode, beyond what copying takes.
fn encoding_share(case: &Case<'_>) -> Option<f64> {
    let observed = case.observed;
    let application = observed.application.as_ref()?;
    let threads = application.threads.len().max(1) as f64;
    let mean = |of: fn(&Thread) -> f64| application.threads.iter().map(of).sum::<f64>() / threads;
    let in_sends =
        application.in_sends? - application.waited_for_room - application.waited_to_leave;
    // Clocks go on while a thread has no processor. What is of the kernel is a part of the time on one.
    let in_kernel = mean(|it| it.on_cpu * it.system);
    let in_user_mode = (in_sends - in_kernel).min(mean(|it| it.on_cpu) - in_kernel);
    let encoding = in_user_mode - plain(case, observed.messages) / threads;
    Some(encoding.clamp(0.0, 1.0))
}

/// Part of the time of a thread that so many messages take at least.
fn plain(case: &Case<'_>, messages: u64) -> f64 {
    let bytes = case.observed.bytes as f64 * PLAIN_BYTE_S;
    per(
        messages as f64 * PLAIN_MESSAGE_S + bytes,
        case.observed.seconds,
    )
}

fn encoding(case: &Case<'_>) -> Option<Finding> {
    let application = case.observed.application.as_ref()?;
    let share = encoding_share(case)?;
    let threads = application.threads.len().max(1) as f64;
    if share < CODING_MIN || case.limits.share(Resource::Application) < SATURATED {
        return None;
    }
    Some(Finding {
        cause: Cause::EncodingBound,
        part: Resource::Application,
        evidence: vec![
            Evidence::share(
                "of the time of threads that send, what encoding takes beyond a copy",
                share,
            ),
            Evidence::seconds(
                "encoding takes for a message",
                per(
                    share * threads * case.observed.seconds,
                    case.observed.messages as f64,
                ),
            ),
            Evidence::count("threads that send", threads),
        ],
        confidence: confidence(share, CODING_MIN, 0.6),
        gain_at_most: case.gain_without(&[
            (Resource::Application, share),
            (Resource::Processors, case.of_machine(share * threads)),
        ]),
        remedy: Remedy::advice(
            "Messages of fewer and longer fields (packed numbers, bytes) take less to encode; or encode on more threads.",
        ),
        verified: None,
    })
}

/// Part of the time of an end's workers in which its handlers decode, beyond what a look at a plain message takes.
pub(super) fn decoding_share(case: &Case<'_>, end: &End) -> Option<f64> {
    let workers = end.workers.len().max(1) as f64;
    let plain = plain(case, end.messages_received?) / workers;
    let on_cpu = end.on_cpu() / workers;
    Some((end.in_decoding?.min(on_cpu) - plain).max(0.0))
}

/// Handlers decode on the threads that serve sessions.
fn decoding(case: &Case<'_>) -> Option<Finding> {
    let server = case.observed.server.as_ref()?;
    let workers = server.workers.len().max(1) as f64;
    let messages = server.messages_received?;
    let share = decoding_share(case, server)?;
    let is_busy = case.limits.share(Resource::Receivers) >= SATURATED;
    if share < CODING_MIN || !is_busy {
        return None;
    }
    let computes = case.of_machine((share * workers).min(server.on_cpu()));
    Some(Finding {
        cause: Cause::DecodingBound,
        part: Resource::Receivers,
        evidence: vec![
            Evidence::share(
                "of the workers' time, what decoding takes beyond a look",
                share,
            ),
            Evidence::seconds(
                "decoding takes for a message",
                per(share * workers * case.observed.seconds, messages as f64),
            ),
            Evidence::count("workers", workers),
        ],
        confidence: confidence(share, CODING_MIN, 0.6),
        gain_at_most: case.gain_without(&[
            (Resource::Receivers, share),
            (Resource::Processors, computes),
        ]),
        remedy: Remedy::advice(
            "Messages of fewer and longer fields (packed numbers, bytes) take less to decode; or keep messages, and decode them on threads of your own.",
        ),
        verified: None,
    })
}
