//! What is between the two ends: rings, sockets, and how much may be on its way.

use super::Case;
use crate::cause::Cause;
use crate::finding::{Change, Evidence, Finding, Remedy};
use crate::limits::{MIN_SHARE, Resource, SATURATED, weighted};
use crate::observed::{SendingEnd, per};
use crate::rules::confidence;
use crate::rules::network::{TINY_BUFFER, confidence_in_buffers};
use crate::session::observed::{End, Way};

/// A buffer that is full for a shorter time has no part in anything.
const FULL_MIN: f64 = 0.2;
/// Rings hold as much unless told otherwise, bytes.
const RING: u64 = 256 << 10;
/// A window that holds as much as this is large enough for a machine with itself.
const LARGE_WINDOW: f64 = (4 << 20) as f64;
/// With less in a ring small messages, and with less than the larger one large messages, leave in too few at a time.
const LARGE_RING: u64 = 1 << 20;
/// What each time takes that a thread goes to sleep and is woken again, one after the other: fitted to rings of 256 KiB with messages of 1 to
/// 60 KiB on two virtual processors.
const EACH_SLEEP_S: f64 = 16e-6;
/// Nobody may work for more of the time than this if too little is on its way.
const BUSIEST_MAX: f64 = 0.7;
/// A call to the kernel that moves less than this takes about as long as one that moves so much, bytes.
const CALL: f64 = 65_536.0;
/// The same of a send ring that is filled, and emptied by a call, again and again: fitted to rings of 4 to 64 KiB.
pub(super) const RING_OF_A_CALL: f64 = 98_304.0;
/// Messages on their way on each session that are always enough.
const ENOUGH: u64 = 4096;
/// So many times more of them are tried.
const MORE: u64 = 8;
/// With so few of them somebody sleeps for each, also where all processors are busy.
const FEW: u64 = 8;
/// A window of less than a segment of loopback holds its connection up, and the kernel does not count all of that.
const TINY_WINDOW: f64 = 65_536.0;

pub(super) fn look(case: &Case<'_>, found: &mut Vec<Finding>) {
    found.extend(ring(case));
    found.extend(window(case));
    found.extend(send_buffer(case));
    found.extend(in_flight(case));
    found.extend(large(case));
}

/// By how much the rate could grow if threads slept so many times as rarely, as each time takes what it takes.
fn gain_of_sleeps(case: &Case<'_>, times: f64) -> f64 {
    let slept = (case.sleeps() * EACH_SLEEP_S).min(0.9);
    1.0 / (1.0 - slept * (1.0 - 1.0 / times.max(1.0))) - 1.0
}

/// Threads that send wait for room, and nobody works all the time: each time that the ring was full, all sleep in turn.
fn ring(case: &Case<'_>) -> Option<Finding> {
    let application = case.observed.application.as_ref()?;
    let waited = application.waited_for_room;
    let client = case.observed.client.as_ref()?;
    let bytes = client.send_ring_bytes?;
    let behind = case
        .work(Resource::Senders)
        .max(case.work(Resource::Receivers));
    let full = case.limits.share(Resource::ReceiveBuffers);
    let full = full.max(case.limits.share(Resource::SendBuffers));
    let is_busy = behind >= SATURATED || case.limits.share(Resource::Processors) >= SATURATED;
    // One that is as large as usual is to blame only if it is filled and emptied as a whole, by turns.
    let each = per(client.bytes_sent? as f64, client.writes? as f64);
    let by_turns = bytes < RING || each >= bytes as f64 / 4.0;
    if waited < FULL_MIN || full >= 0.4 || bytes >= LARGE_RING || is_busy || !by_turns {
        return None;
    }
    // Behind such a window all rings are too small.
    if has_tiny_window(case) {
        return None;
    }
    let more = bytes.saturating_mul(16).clamp(RING, LARGE_RING);
    Some(Finding {
        cause: Cause::SendRingTooSmall,
        part: Resource::SendRings,
        evidence: vec![
            Evidence::share("threads that send waited for room", waited),
            Evidence::bytes("a send ring", bytes as f64),
            Evidence::bytes("a send took", each),
            Evidence::share("the busiest of those who empty it worked", behind),
            Evidence::per_second("times that threads went to sleep", case.sleeps()),
        ],
        confidence: confidence(waited, FULL_MIN, 0.6)
            * confidence_in_buffers(case.observed.connections.iter()),
        gain_at_most: match bytes < RING {
            true => (RING_OF_A_CALL / bytes.max(1) as f64).max(1.0) - 1.0,
            false => gain_of_sleeps(case, more as f64 / bytes as f64),
        }
        .max(
            case.limits
                .gain_of_waiting(waited, Some(Resource::Application)),
        ),
        remedy: Remedy::change(
            "Let more messages wait to be sent, so that more leave at a time: a larger send ring (Settings::send_ring_bytes).",
            Change::SendRing(more),
        ),
        verified: None,
    })
}

/// What a connection's window fills cost beside the waiting: see the rule of the log.
const EACH_WINDOW_S: f64 = 30e-6;

/// Whether bytes wait behind a window that is less than a segment.
fn has_tiny_window(case: &Case<'_>) -> bool {
    let mean = |of: fn(&SendingEnd) -> f64| weighted(case.observed.connections.iter(), of);
    let window = mean(|end| end.window_bytes as f64).unwrap_or(0.0);
    let unsent = mean(|end| end.unsent_bytes as f64).unwrap_or(0.0);
    window > 0.0 && window < TINY_WINDOW && unsent > window
}

fn window(case: &Case<'_>) -> Option<Finding> {
    let observed = case.observed;
    let these = || observed.connections.iter();
    let full = weighted(these(), |end| end.window_full)?;
    let busy = case.work(Resource::Receivers);
    let handlers = case.limits.share(Resource::Handlers);
    let window = weighted(these(), |end| end.window_bytes as f64).unwrap_or(0.0);
    let is_tiny = has_tiny_window(case);
    let full = match is_tiny {
        true => full.max(1.0 - busy),
        false => full,
    };
    // What fits into the window is what a receive finds.
    let server = observed.server.as_ref();
    let received = server.and_then(|it| Some(per(it.bytes_received? as f64, it.reads? as f64)));
    let calls = match received {
        Some(bytes) if is_tiny && bytes > 0.0 => (CALL / bytes).max(1.0) - 1.0,
        _ => 0.0,
    };
    if full < FULL_MIN || busy >= SATURATED || handlers >= SATURATED {
        return None;
    }
    let sent: f64 = { these() }
        .filter_map(|it| it.sender.as_ref())
        .map(|it| it.sent_bytes as f64)
        .sum();
    let filled = per(per(sent, window), observed.seconds);
    let spent = case.of_machine(filled * EACH_WINDOW_S).min(0.9);
    let asked = observed.server.as_ref().and_then(|it| it.recv_buffer);
    let granted = { these() }
        .filter_map(|it| Some(it.receiver.as_ref()?.buffer_bytes))
        .max();
    let at_most = observed.machine.tcp_rmem_max.unwrap_or(u64::MAX);
    let (cause, remedy) = match (asked, granted) {
        (Some(_), _) => (
            Cause::ReceiveWindowTooSmall,
            Remedy::change(
                "Leave receive buffers to the kernel, which makes them larger as it needs: SocketOptions::recv_buffer_bytes of the server.",
                Change::ReceiveBufferTuned,
            ),
        ),
        (None, Some(granted)) if granted >= at_most => (
            Cause::KernelBufferMaxima,
            Remedy::advice(
                "Raise the last number of net.ipv4.tcp_rmem (sysctl): the kernel has made the buffers as large as it may.",
            ),
        ),
        _ => (
            Cause::ReceiveWindowTooSmall,
            Remedy::advice(
                "Let more fit on the way: net.ipv4.tcp_rmem should allow several MiB, and net.ipv4.tcp_moderate_rcvbuf be 1.",
            ),
        ),
    };
    let mut evidence = vec![
        Evidence::share("the receive window was full", full),
        Evidence::share("the busiest of those who empty it worked", busy),
        Evidence::per_second("windows filled", filled),
        Evidence::bytes("the window, at its largest", window),
    ];
    evidence.extend(granted.map(|it| Evidence::bytes("the receive buffer, as granted", it as f64)));
    Some(Finding {
        cause,
        part: Resource::ReceiveBuffers,
        evidence,
        confidence: confidence(full, FULL_MIN, 0.6)
            * confidence_in_buffers(these())
            * confidence(SATURATED - busy, 0.0, 0.25)
            * confidence(LARGE_WINDOW - window, 0.0, LARGE_WINDOW / 2.0),
        gain_at_most: case
            .limits
            .gain_of_waiting(full, Some(Resource::Application))
            .max(case.limits.gain(Resource::Processors, spent, spent))
            .max(calls),
        remedy,
        verified: None,
    })
}

fn send_buffer(case: &Case<'_>) -> Option<Finding> {
    let these = || case.observed.connections.iter();
    let full = weighted(these(), |end| end.send_buffer_full)?;
    let mean = |of: fn(&SendingEnd) -> f64| weighted(these(), of).unwrap_or(0.0);
    let granted = mean(|end| end.buffer_bytes as f64);
    let busiest = case
        .work(Resource::Senders)
        .max(case.work(Resource::Receivers));
    // With a buffer of a few segments the kernel counts no wait: nothing is ever unsent. See the rule of the log.
    let waited = case.limits.share(Resource::SendRings) >= 0.4;
    let tiny = granted > 0.0 && granted < TINY_BUFFER && mean(|end| end.busy) >= 0.5;
    // And with one that is a little larger messages wait in the ring, while the socket has sent all that it holds.
    let small = waited && granted > 0.0 && granted < 2.0 * TINY_BUFFER;
    let full = match tiny || small {
        true => full.max(1.0 - busiest),
        false => full,
    };
    if full < FULL_MIN || busiest >= SATURATED {
        return None;
    }
    let asked = case.observed.client.as_ref().and_then(|it| it.send_buffer);
    Some(Finding {
        cause: Cause::SendBufferTooSmall,
        part: Resource::SendBuffers,
        evidence: vec![
            Evidence::share("connections had something to send", mean(|end| end.busy)),
            Evidence::share(
                "they ran dry for want of a send buffer, or could hold no more than a few segments",
                full,
            ),
            Evidence::bytes("the send buffer, as granted", granted),
            Evidence::share("the busiest of those who fill and empty it worked", busiest),
            Evidence::seconds("round trip", mean(|end| end.round_trip_s)),
        ],
        confidence: confidence(full, FULL_MIN, 0.6) * confidence_in_buffers(these()),
        gain_at_most: case
            .limits
            .gain_of_waiting(full, Some(Resource::Application)),
        remedy: Remedy {
            text: "Leave send buffers to the kernel: without SocketOptions::send_buffer_bytes. If nothing was asked for, raise net.ipv4.tcp_wmem.".to_owned(),
            change: asked.map(|_| Change::SendBufferTuned),
        },
        verified: None,
    })
}

/// Each message is answered, and so few are on their way that everybody waits for each of them.
fn in_flight(case: &Case<'_>) -> Option<Finding> {
    let observed = case.observed;
    let (in_flight, latency) = (observed.in_flight?, observed.latency_s()?);
    let sessions = observed.client.as_ref().and_then(|it| it.sessions);
    let sessions = sessions.unwrap_or(1).max(1);
    let each = in_flight / sessions;
    let busiest = case.limits.busiest().map_or(0.0, |it| it.share);
    let handlers = case.limits.share(Resource::Handlers);
    if handlers >= SATURATED || each >= ENOUGH || (busiest >= BUSIEST_MAX && each >= FEW) {
        return None;
    }
    let more = each.saturating_mul(MORE).clamp(32, ENOUGH);
    let counted = |of: fn(&End) -> Option<u64>| -> f64 {
        { observed.ends() }.filter_map(of).map(|it| it as f64).sum()
    };
    let bytes = per(counted(|it| it.bytes_sent), counted(|it| it.writes));
    // More messages leave with each call, which takes what it takes.
    let together = (CALL / bytes.max(1.0)).min(more as f64 / each.max(1) as f64);
    let idle = case.limits.gain_of_waiting((1.0 - busiest).max(0.0), None);
    Some(Finding {
        cause: Cause::TooFewInFlight,
        part: Resource::InFlight,
        evidence: vec![
            Evidence::count("messages on their way on each session", each as f64),
            Evidence::seconds("one is there and back after", latency),
            Evidence::share("the busiest part worked", busiest),
            Evidence::bytes("a send took", bytes),
            Evidence::per_second("times that threads went to sleep", case.sleeps()),
        ],
        confidence: confidence(BUSIEST_MAX - busiest, 0.0, 0.3).max(confidence(
            FEW.saturating_sub(each) as f64,
            0.0,
            FEW as f64,
        )),
        gain_at_most: idle.max(together - 1.0),
        remedy: Remedy::change(
            "Have more messages on their way: ask the next before the answer to the last is there.",
            Change::InFlight(more),
        ),
        verified: None,
    })
}

/// More of the messages than this are not few.
const FEW_LARGE_MAX: f64 = 0.2;
/// Large messages have at least this part of the bytes.
const LARGE_BYTES_MIN: f64 = 0.5;
/// And so many times the bytes of the others.
const LARGE_TIMES_MIN: f64 = 16.0;
/// What a byte takes of a session, seconds, with rings of 256 KiB: fitted to messages of 60 KiB on two virtual processors.
const BYTE_S: f64 = 0.45e-9;
/// What a message takes besides, seconds: fitted to messages of 64 bytes.
const MESSAGE_S: f64 = 20e-9;

/// A few large messages among small ones, which wait behind them: a session sends one after the other.
fn large(case: &Case<'_>) -> Option<Finding> {
    let observed = case.observed;
    let large = observed.large.filter(|it| it.messages > 0)?;
    let (messages, bytes) = (observed.messages as f64, observed.bytes as f64);
    let of_messages = per(large.messages as f64, messages);
    let of_bytes = per(large.bytes as f64, bytes);
    let each = per(large.bytes as f64, large.messages as f64);
    let others = per(bytes - large.bytes as f64, messages - large.messages as f64).max(1.0);
    if of_messages > FEW_LARGE_MAX || of_bytes < LARGE_BYTES_MIN || each < LARGE_TIMES_MIN * others
    {
        return None;
    }
    let sessions = observed.client.as_ref().and_then(|it| it.sessions);
    let sessions = sessions.unwrap_or(1).max(1) as f64;
    let of_time = |seconds: f64| per(seconds, observed.seconds * sessions);
    // One that is answered passes twice.
    let ways = match observed.way {
        Way::OneWay => 1.0,
        Way::Echo => 2.0,
    };
    let held = of_time(ways * large.bytes as f64 * BYTE_S).min(1.0);
    let small = messages - large.messages as f64;
    // The others take their time, too.
    let left = of_time(small * (MESSAGE_S + others * BYTE_S)).max(1.0 - held);
    Some(Finding {
        cause: Cause::BigValue,
        part: Resource::SendRings,
        evidence: vec![
            Evidence::share("of the messages, large ones", of_messages),
            Evidence::share("of the bytes, in these", of_bytes),
            Evidence::bytes("a large one", each),
            Evidence::bytes("another one", others),
            Evidence::share("of a session's time, what they take, about", held),
        ],
        confidence: confidence(of_bytes, LARGE_BYTES_MIN, 0.9),
        gain_at_most: 1.0 / left.clamp(MIN_SHARE, 1.0) - 1.0,
        remedy: Remedy::advice(
            "Messages of a session leave one after the other: send large ones on a session of their own, in pieces, or a name by which they are fetched.",
        ),
        verified: None,
    })
}
