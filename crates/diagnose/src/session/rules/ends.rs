//! What the threads do that serve sessions, and those that send.

use super::Case;
use super::application::{CODING_MIN, decoding_share};
use super::between::RING_OF_A_CALL;
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
/// The same where a thread waits for each of them.
const SMALL_WAITED: f64 = 32_768.0;
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
    let in_decoding = decoding_share(case, end).unwrap_or(0.0);
    if end.in_handlers.unwrap_or(0.0) > HANDLERS_MAX || in_decoding > CODING_MIN {
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
    let waited = application.waited_for_room + application.waited_to_leave;
    let sending = application.in_sends.unwrap_or(1.0) - waited;
    if sending < 0.5 {
        return None;
    }
    Some(Finding {
        cause: Cause::TooFewClientThreads,
        part: Resource::Application,
        evidence: vec![
            on_a_processor(thread),
            Evidence::share("of the time, they encoded and sent", sending),
            Evidence::share("they waited for room, or until messages had left", waited),
            Evidence::count("processors idle", case.spare()),
        ],
        confidence: confidence(thread.on_cpu, SATURATED, 0.97),
        gain_at_most: case
            .limits
            .gain(Resource::Application, (1.0 - waited).max(0.0), 0.0)
            .min(case.spare()),
        remedy: Remedy::advice(
            "Send from another thread, too: handles of a session are for all threads. Or encode less in each message.",
        ),
        verified: None,
    })
}

/// Calls to the kernel that move little, where something works all the time, or a thread waits for each of them.
fn small_calls(case: &Case<'_>) -> Option<Finding> {
    let (observed, limits) = (case.observed, case.limits);
    // Few messages on their way have their own rule.
    if observed.in_flight.is_some() {
        return None;
    }
    let client = observed.client.as_ref()?;
    let (writes, bytes) = (client.writes? as f64, client.bytes_sent? as f64);
    let each = per(bytes, writes);
    let cost = observed.machine.syscall_s.unwrap_or(DEFAULT_SYSCALL_S);
    let reads = { observed.ends() }.filter_map(|it| it.reads);
    let reads: f64 = reads.map(|it| it as f64).sum();
    // By TCP a call costs several times what a small one does.
    let time = per((writes + reads) * cost * CALL_OF_TCP, observed.seconds);
    let cores = f64::from(observed.machine.cores.max(1));
    let share = per(time, cores).min(0.9);
    let mut evidence = vec![
        Evidence::bytes("a send took", each),
        Evidence::per_second("sends", per(writes, observed.seconds)),
        Evidence::per_second("receives", per(reads, observed.seconds)),
        Evidence::share("of all processors, what they take, about", share),
    ];
    let application = observed.application.as_ref();
    let waits = application.filter(|it| it.waited_to_leave >= CALLS_MIN);
    let (sure, gain_at_most, remedy) = match waits {
        Some(application) if each <= SMALL_WAITED => {
            let waited = application.waited_to_leave;
            let what = "threads that send waited until what they sent had left";
            evidence.push(Evidence::share(what, waited));
            let messages = application.waits_after.unwrap_or(1).max(1);
            let more = messages.saturating_mul(MORE_TOGETHER).clamp(1024, 65_536);
            // More messages leave with each call, and each wait, which take what they take.
            let together = (RING_OF_A_CALL / each.max(1.0)).min(more as f64 / messages as f64);
            let text = "Send more messages before waiting until they have left, so that more leave with each call.";
            let remedy = match application.waits_after {
                Some(_) => Remedy::change(text, Change::MessagesTogether(more)),
                None => Remedy::advice(text),
            };
            (waited, (together - 1.0).max(0.0), remedy)
        }
        _ if limits.saturated() && each <= SMALL_CALL && share >= CALLS_MIN => {
            let gain = limits.gain(Resource::Processors, share, share);
            let text = "Send several messages before others may leave: from a handler, or many at a time from one thread, so that they leave together.";
            (share, gain, Remedy::advice(text))
        }
        _ => return None,
    };
    Some(Finding {
        cause: Cause::SmallWrites,
        part: Resource::Senders,
        evidence,
        confidence: confidence(sure, CALLS_MIN, 0.4),
        gain_at_most,
        remedy,
        verified: None,
    })
}

/// So many times more messages are tried to leave together.
const MORE_TOGETHER: u64 = 64;

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
