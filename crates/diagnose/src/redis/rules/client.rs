//! What the client and its callers do.

use super::super::limits::{between, on_threads};
use super::super::observed::{Client, Node, Traffic};
use super::Case;
use super::servers::blocked;
use crate::cause::Cause;
use crate::finding::{Change, Evidence, Finding, Remedy};
use crate::limits::{Resource, SATURATED};
use crate::observed::{Thread, per};
use crate::rules::confidence;

/// So often all places are taken before they are too few.
const FULL_MIN: f64 = 0.5;
/// Part of its time that a caller waits for a place before it is worth a word.
const NO_PLACE_MIN: f64 = 0.2;
/// Places that are always enough.
const PLACES: u64 = 4096;
/// Part of the threads' time that the application's own work may take.
const OWN_WORK_MIN: f64 = 0.3;
/// Part of their time in which callers may do something else.
const ELSEWHERE_MIN: f64 = 0.3;
/// Callers wait for this part of their time if nobody else is to blame.
const WAITING_MIN: f64 = 0.7;
/// And nobody works for more of it than this.
const BUSIEST_MAX: f64 = 0.7;
/// A call to the kernel that carries fewer commands than this to a node costs about as much as one that carries so many.
const TOGETHER: f64 = 16.0;
/// So few operations on their way to a node leave it and the client with single ones.
const SINGLE_MAX: f64 = 4.0;
/// Who waits for processors for more of the time has too few of these.
const WITHOUT_PROCESSOR_MAX: f64 = 0.5;
/// A server that says nothing for this part of the time is to blame itself.
const SILENT_MAX: f64 = 0.1;
/// What a record of TLS takes of a server's time, and as much of a client's, beside what is sent without it, seconds: ciphers, a
/// copy more, and that fewer commands leave together. As it was seen on two virtual processors.
const TLS_RECORD_S: f64 = 2e-6;
/// What each byte takes of either.
const TLS_BYTE_S: f64 = 0.5e-9;
/// Bytes of the longest record.
const RECORD: f64 = 16_384.0;

pub(super) fn look(case: &Case<'_>, found: &mut Vec<Finding>) {
    let Some(client) = &case.observed.client else {
        return;
    };
    found.extend(full(case, client));
    found.extend(encrypted(case, client));
    found.extend(own_work(case, client));
    found.extend(elsewhere(case, client));
    found.extend(too_few(case, client));
}

/// What was done with all nodes.
fn traffic<'a>(case: &'a Case<'_>) -> impl Iterator<Item = &'a Traffic> {
    let nodes = case.observed.nodes.iter();
    nodes.filter_map(|node| node.traffic.as_ref())
}

/// How long a command is in flight: the mean over all nodes, seconds.
fn in_flight_s(case: &Case<'_>) -> f64 {
    let replies: f64 = traffic(case).map(|it| it.replies as f64).sum();
    let waited: f64 = traffic(case)
        .map(|it| it.latency_s * it.replies as f64)
        .sum();
    per(waited, replies)
}

fn full(case: &Case<'_>, client: &Client) -> Option<Finding> {
    let full = traffic(case).map(|it| it.full).fold(0.0, f64::max);
    // Of its time, a caller waits for a place before its command is in flight.
    let waits = (1.0 - per(in_flight_s(case), client.latency_s)).max(0.0);
    if full < FULL_MIN || waits < NO_PLACE_MIN {
        return None;
    }
    let more = client.callers.max(client.in_flight_max.saturating_mul(2));
    // What a call to the kernel costs, it costs for few commands as for many: with all callers' commands in flight each call
    // carries so many times as many, on a machine that is full, too.
    let nodes = case.observed.nodes.len().max(1) as f64;
    let places = client.in_flight_max as f64 * client.connections_per_node as f64;
    let wanted = per(client.callers as f64 / nodes, places).max(1.0);
    let waited = 1.0 / (1.0 - waits).max(0.05);
    let places_of = |commands: u64| commands.checked_next_power_of_two().unwrap_or(u64::MAX);
    let more = places_of(more.min(PLACES));
    let text = "Allow more commands in flight (max_in_flight), or more connections to each node (mux_per_node).";
    Some(Finding {
        cause: Cause::FullPipe,
        part: Resource::InFlight,
        evidence: vec![
            Evidence::share("looks that found all places taken", full),
            Evidence::count(
                "commands that a connection may have in flight",
                client.in_flight_max as f64,
            ),
            Evidence::count("callers", client.callers as f64),
            Evidence::share("of its time, a caller waits for a place", waits),
            Evidence::seconds("a command is in flight for", in_flight_s(case)),
        ],
        confidence: confidence(full, FULL_MIN, 0.9),
        gain_at_most: wanted.min(waited) - 1.0,
        // A connection has as many places already.
        remedy: match more > places_of(client.in_flight_max) {
            true => Remedy::change(text, Change::MaxInFlight(more)),
            false => Remedy::advice(text),
        },
        verified: None,
    })
}

/// What TLS takes of the parts that work all the time.
fn encrypted(case: &Case<'_>, client: &Client) -> Option<Finding> {
    if !client.by_tls || !case.limits.saturated() {
        return None;
    }
    let seconds = case.observed.seconds;
    let records = |it: &Traffic| {
        let bytes = it.sent_bytes as f64 + it.received_bytes as f64;
        let records = it.writes as f64 + it.reads as f64 + bytes / RECORD;
        (per(records, seconds), per(bytes, seconds))
    };
    let server = |it: &Traffic| {
        let (records, bytes) = records(it);
        records * TLS_RECORD_S + bytes * TLS_BYTE_S
    };
    let (all, bytes) = traffic(case)
        .map(records)
        .fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    let client_s = all * TLS_RECORD_S + bytes * TLS_BYTE_S;
    let servers_s: f64 = traffic(case).map(server).sum();
    let busiest = traffic(case).map(server).fold(0.0, f64::max);
    // Of a client whose connections have a thread of their own, that thread does it.
    let threads = match client.connection_threads.len() {
        0 => client.threads.len(),
        threads => threads,
    };
    let gain = case.gain_without(&[
        (Resource::ClientThreads, per(client_s, threads as f64)),
        (Resource::Servers, busiest),
        (Resource::Processors, case.of_machine(client_s + servers_s)),
    ]);
    Some(Finding {
        cause: Cause::TlsCost,
        part: Resource::Servers,
        evidence: vec![
            Evidence::per_second("records of TLS", all),
            Evidence::per_second("bytes in them", bytes),
            Evidence::share(
                "of a processor, what that takes of the servers, about",
                servers_s,
            ),
            Evidence::share(
                "of a processor, what that takes of the client, about",
                client_s,
            ),
        ],
        confidence: confidence(client_s + servers_s, 0.0, 0.5),
        gain_at_most: gain,
        remedy: Remedy::change(
            "Send more commands in each record (pipelines, fewer connections), use AES-GCM where processors have instructions for it; or leave out TLS where the network is trusted.",
            Change::PlainConnections,
        ),
        verified: None,
    })
}

/// The application's own code has the threads that take replies.
fn own_work(case: &Case<'_>, client: &Client) -> Option<Finding> {
    let own = on_threads(client, case.observed.seconds);
    let threads = client.threads.iter();
    let busy = { threads }.map(Thread::occupied).fold(0.0, f64::max);
    if own < OWN_WORK_MIN || busy < SATURATED {
        return None;
    }
    let processors = own * client.threads.len() as f64;
    let late = (client.latency_s - in_flight_s(case)).max(0.0);
    Some(Finding {
        cause: Cause::CallerRuntimeBusy,
        part: Resource::Application,
        evidence: vec![
            Evidence::share(
                "of the callers' threads, what the application's own code takes",
                own,
            ),
            Evidence::share("the busiest of these threads had something to do", busy),
            Evidence::seconds("a caller has its reply after", client.latency_s),
            Evidence::seconds(
                "of that, the reply had been read, or the command not sent",
                late,
            ),
        ],
        confidence: confidence(own, OWN_WORK_MIN, 0.6),
        gain_at_most: case.gain_without(&[
            (Resource::Application, own),
            (Resource::ClientThreads, own),
            (Resource::Processors, case.of_machine(processors)),
        ]),
        remedy: Remedy::advice(
            "Do less between operations, or do it on other threads (spawn_blocking, a pool); a client with a thread of its own (Client::with_blocking) at least reads replies in time.",
        ),
        verified: None,
    })
}

/// Callers do something else, and no thread is busy with it.
fn elsewhere(case: &Case<'_>, client: &Client) -> Option<Finding> {
    let between = between(client, case.observed.seconds);
    let threads = client.threads.iter().chain(&client.connection_threads);
    let busy = { threads }.map(Thread::occupied).fold(0.0, f64::max);
    if between < ELSEWHERE_MIN || busy >= SATURATED {
        return None;
    }
    Some(Finding {
        cause: Cause::ApplicationTooSlow,
        part: Resource::Application,
        evidence: vec![
            Evidence::share("of their time, callers do something else", between),
            Evidence::count("callers", client.callers as f64),
            Evidence::share("the busiest thread of the client had something to do", busy),
            Evidence::seconds("a caller has its reply after", client.latency_s),
        ],
        confidence: confidence(between, ELSEWHERE_MIN, 0.7),
        gain_at_most: case.gain_of_waiting(between, &[Resource::Application]),
        remedy: Remedy::advice(
            "Redis waits for the application: look what callers do between operations, or use more of them.",
        ),
        verified: None,
    })
}

/// Nobody works all the time, and callers wait.
fn too_few(case: &Case<'_>, client: &Client) -> Option<Finding> {
    let waiting = 1.0 - between(client, case.observed.seconds);
    let (busiest, without) = (case.busiest(), case.without_processor());
    let nodes = &case.observed.nodes;
    // Operations on their way to each node.
    let all = client.callers as f64 * client.pipeline as f64 * waiting;
    let each = all / nodes.len().max(1) as f64;
    let silent = traffic(case).any(|it| it.silent > SILENT_MAX);
    let full = traffic(case).any(|it| it.full >= FULL_MIN);
    let is_blocked = |node: &Node| blocked(case, node);
    // Of callers that never had an answer nobody knows what they wait for.
    if in_flight_s(case) <= 0.0
        || waiting < WAITING_MIN
        || (each >= SINGLE_MAX && (busiest >= BUSIEST_MAX || without > WITHOUT_PROCESSOR_MAX))
        || silent
        || full
        || nodes.iter().any(is_blocked)
    {
        return None;
    }
    let in_flight: f64 = traffic(case).map(|it| it.in_flight).sum();
    let enough = TOGETHER * nodes.len() as f64 / client.pipeline.max(1) as f64;
    let more = client.callers.saturating_mul(4).max(enough as u64);
    Some(Finding {
        cause: Cause::TooFewCallers,
        part: Resource::InFlight,
        evidence: vec![
            Evidence::count("callers", client.callers as f64),
            Evidence::count("commands in flight, at the mean", in_flight),
            Evidence::count("operations on their way to each node", each),
            Evidence::share("of their time, callers wait for Redis", waiting),
            Evidence::seconds("a caller has its reply after", client.latency_s),
            Evidence::share("the busiest part worked", busiest),
        ],
        confidence: confidence(BUSIEST_MAX - busiest, 0.0, 0.3).max(confidence(
            SINGLE_MAX - each,
            0.0,
            SINGLE_MAX / 2.0,
        )),
        gain_at_most: case
            .gain_of_waiting(waiting, &[])
            .max(per(TOGETHER, each.max(1.0)) - 1.0),
        remedy: Remedy::change(
            "Have more operations on their way: more callers, or pipelines; and servers nearer to the callers.",
            Change::Callers(more),
        ),
        verified: None,
    })
}
