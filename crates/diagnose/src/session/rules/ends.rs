//! What the threads do that serve sessions, and those that send.

use super::Case;
use crate::cause::Cause;
use crate::finding::{Change, Evidence, Finding, Remedy};
use crate::limits::{Resource, SATURATED};
use crate::observed::{Thread, per};
use crate::rules::{DEFAULT_SYSCALL_S, SPARE_MIN, busiest, confidence, on_a_processor};
use crate::session::observed::End;

/// Handlers that take more of a worker's time are what to look at, and not the worker.
const HANDLERS_MAX: f64 = 0.3;
/// Calls that move less are small, bytes.
const SMALL_CALL: f64 = 4096.0;
/// What calls take for less of a thread's time is not worth a word.
const CALLS_MIN: f64 = 0.15;
/// What a byte takes of either end that encrypts or decrypts it, seconds: ciphers, and a copy more. Fitted to messages of 64 bytes to 60 KiB,
/// one way and there and back, on two virtual processors with instructions for AES.
const TLS_BYTE_S: f64 = 0.13e-9;

pub(super) fn look(case: &Case<'_>, found: &mut Vec<Finding>) {
    let observed = case.observed;
    if let Some(server) = &observed.server {
        let limited = (Cause::ReceiverCpuBound, Resource::Receivers);
        found.extend(worker(case, server, limited));
    }
    if let Some(client) = &observed.client {
        let limited = (Cause::TooFewClientThreads, Resource::Senders);
        found.extend(worker(case, client, limited));
    }
    found.extend(sender(case));
    found.extend(small_calls(case));
    found.extend(encrypted(case));
}

/// A thread that is on a processor all the time, while there is one for another thread.
fn busy<'a>(case: &Case<'_>, threads: &'a [Thread]) -> Option<&'a Thread> {
    let busiest = busiest(threads)?;
    (busiest.on_cpu >= SATURATED && case.spare() >= SPARE_MIN).then_some(busiest)
}

/// A worker that serves sessions all the time.
fn worker(case: &Case<'_>, end: &End, (cause, part): (Cause, Resource)) -> Option<Finding> {
    let thread = busy(case, &end.workers)?;
    if end.in_handlers.is_some_and(|it| it > HANDLERS_MAX) {
        return None;
    }
    let workers = end.workers.len() as u32;
    // A session stays with its worker.
    let remedy = match end.sessions {
        Some(sessions) if sessions > workers.into() => Remedy::change(
            format!(
                "Serve sessions by {} workers (Settings::workers).",
                workers + 1
            ),
            Change::Workers(workers + 1),
        ),
        _ => Remedy::advice(
            "One worker serves a session: open a second one for a part of the messages, and serve them by more workers.",
        ),
    };
    Some(Finding {
        cause,
        part,
        evidence: vec![
            on_a_processor(thread),
            Evidence::share("of that, in the kernel", thread.system),
            Evidence::count("workers", workers.into()),
            Evidence::count("processors idle", case.spare()),
        ],
        confidence: confidence(thread.on_cpu, SATURATED, 0.97),
        gain_at_most: case.limits.gain(part, thread.on_cpu, 0.0).min(case.spare()),
        remedy,
        verified: None,
    })
}

/// A thread that encodes and sends all the time.
fn sender(case: &Case<'_>) -> Option<Finding> {
    let application = case.observed.application.as_ref()?;
    let thread = busy(case, &application.threads)?;
    let sending = application.in_sends.unwrap_or(1.0) - application.waited_for_room;
    if sending < 0.5 {
        return None;
    }
    Some(Finding {
        cause: Cause::TooFewClientThreads,
        part: Resource::Application,
        evidence: vec![
            on_a_processor(thread),
            Evidence::share("of the time, they encoded and sent", sending),
            Evidence::share("they waited for room", application.waited_for_room),
            Evidence::count("processors idle", case.spare()),
        ],
        confidence: confidence(thread.on_cpu, SATURATED, 0.97),
        gain_at_most: case
            .limits
            .gain(
                Resource::Application,
                1.0 - application.waited_for_room,
                0.0,
            )
            .min(case.spare()),
        remedy: Remedy::advice(
            "Send from another thread, too: handles of a session are for all threads. Or encode less in each message.",
        ),
        verified: None,
    })
}

/// Calls to the kernel that move little, where something works all the time.
fn small_calls(case: &Case<'_>) -> Option<Finding> {
    let observed = case.observed;
    // Few messages on their way have their own rule.
    if !case.limits.saturated() || observed.in_flight.is_some() {
        return None;
    }
    let client = observed.client.as_ref()?;
    let (writes, bytes) = (client.writes? as f64, client.bytes_sent? as f64);
    let each = per(bytes, writes);
    let cost = observed.machine.syscall_s.unwrap_or(DEFAULT_SYSCALL_S);
    let reads = { observed.ends() }.filter_map(|it| it.reads).sum::<u64>() as f64;
    // By TCP a call costs several times what a small one does.
    let time = per((writes + reads) * cost * CALL_OF_TCP, observed.seconds);
    let cores = f64::from(observed.machine.cores.max(1));
    let share = per(time, cores).min(0.9);
    if each > SMALL_CALL || share < CALLS_MIN {
        return None;
    }
    Some(Finding {
        cause: Cause::SmallWrites,
        part: Resource::Senders,
        evidence: vec![
            Evidence::bytes("a send took", each),
            Evidence::per_second("sends", per(writes, observed.seconds)),
            Evidence::per_second("receives", per(reads, observed.seconds)),
            Evidence::share("of all processors, what they take, about", share),
        ],
        confidence: confidence(share, CALLS_MIN, 0.4),
        gain_at_most: case.limits.gain(Resource::Processors, share, share),
        remedy: Remedy::advice(
            "Send several messages before others may leave: from a handler, or many at a time from one thread, so that they leave together.",
        ),
        verified: None,
    })
}

/// A call that sends or receives by TCP takes so many times what one takes that does nothing.
const CALL_OF_TCP: f64 = 4.0;

/// What encryption takes of the parts that work all the time.
fn encrypted(case: &Case<'_>) -> Option<Finding> {
    let observed = case.observed;
    if !observed.by_tls || !case.limits.saturated() {
        return None;
    }
    let of = |end: Option<&End>| {
        let end = end?;
        let bytes = end.bytes_sent? as f64 + end.bytes_received? as f64;
        let bytes = per(bytes, observed.seconds);
        Some((bytes * TLS_BYTE_S, bytes))
    };
    let (client, bytes) = of(observed.client.as_ref())?;
    let (server, _) = of(observed.server.as_ref()).unwrap_or((client, 0.0));
    let each = |end: Option<&End>, time: f64| {
        let workers = end.map_or(1, |it| it.workers.len().max(1));
        time / workers as f64
    };
    Some(Finding {
        cause: Cause::TlsCost,
        part: Resource::Senders,
        evidence: vec![
            Evidence::per_second(
                "bytes that were encrypted, or decrypted, at each end",
                bytes,
            ),
            Evidence::share(
                "of a processor, what that takes of the client, about",
                client,
            ),
            Evidence::share(
                "of a processor, what that takes of the server, about",
                server,
            ),
        ],
        confidence: confidence(client + server, 0.0, 0.5),
        gain_at_most: case.gain_without(&[
            (Resource::Senders, each(observed.client.as_ref(), client)),
            (Resource::Receivers, each(observed.server.as_ref(), server)),
            (Resource::Processors, case.of_machine(client + server)),
        ]),
        remedy: Remedy::change(
            "Use AES-GCM where processors have instructions for it, and larger messages; or leave out TLS where the network is trusted.",
            Change::PlainConnections,
        ),
        verified: None,
    })
}
