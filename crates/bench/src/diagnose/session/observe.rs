//! From what was seen of sessions to what a diagnosis looks at.

use std::process;

use embar_diagnose::observed::{Connection, Thread};
use embar_diagnose::session::Observed;
use embar_diagnose::session::observed::{Application, End, Large, Way};

use super::load::{Counted, Moved, SENDS};
use super::plan::{RING_BYTES, SessionLoad};
use crate::diagnose::observe::{machine, missing, named};
use crate::diagnose::sampling::Span;

/// The threads that serve sessions begin so.
pub(super) const SERVER: &str = "sess-server-";
pub(super) const CLIENT: &str = "sess-client-";

/// What was seen.
pub(super) struct Seen<'a> {
    pub(super) plan: &'a SessionLoad,
    pub(super) span: Span,
    pub(super) before: Moved,
    pub(super) after: Moved,
}

impl Seen<'_> {
    /// All of it, as a diagnosis wants it.
    pub(super) fn observed(&self) -> Observed {
        let (plan, span) = (self.plan, &self.span);
        let own = span.threads.get(&process::id());
        let own = own.map_or(&[][..], Vec::as_slice);
        let client = since(&self.before.client, &self.after.client);
        let server = since(&self.before.server, &self.after.server);
        let messages = match plan.way {
            Way::OneWay => server.messages_received,
            Way::Echo => client.messages_received,
        };
        let senders = named(own, SENDS);
        let of_threads = |seconds: f64| {
            let time = span.seconds * senders.len().max(1) as f64;
            (seconds / time).min(1.0)
        };
        let waited = of_threads(client.waited_for_room.as_secs_f64());
        let to_leave = self.after.waited_to_leave_ns - self.before.waited_to_leave_ns;
        let to_leave = of_threads(to_leave as f64 / 1e9);
        let in_sends = self.after.in_sends_ns - self.before.in_sends_ns;
        let in_sends = (of_threads(in_sends as f64 / 1e9) + waited + to_leave).min(1.0);
        let workers = named(own, SERVER);
        let time = span.seconds * workers.len().max(1) as f64;
        let of_workers = |ns: u64| (ns as f64 / 1e9 / time).min(1.0);
        let small = messages.saturating_sub(server.large);
        let end = |workers: Vec<Thread>, counted: &Counted| End {
            workers,
            sessions: Some(plan.sessions.into()),
            messages_received: Some(counted.messages_received),
            bytes_received: Some(counted.bytes_received),
            bytes_sent: Some(counted.bytes_sent),
            reads: Some(counted.reads),
            writes: Some(counted.writes),
            send_ring_bytes: Some(plan.ring_of(RING_BYTES) as u64),
            in_handlers: None,
            in_decoding: None,
            recv_buffer: None,
            send_buffer: None,
        };
        Observed {
            seconds: span.seconds,
            way: plan.way,
            messages,
            bytes: small * u64::from(plan.payload) + server.large_bytes,
            large: Some(Large {
                messages: server.large,
                bytes: server.large_bytes,
            }),
            machine: machine(span),
            application: (plan.way == Way::OneWay).then(|| Application {
                waited_for_room: waited,
                waited_to_leave: to_leave,
                waits_after: plan.waits_after.map(u64::from),
                in_sends: Some(in_sends),
                is_bench: true,
                threads: senders.clone(),
            }),
            client: Some(End {
                send_ring_bytes: Some(plan.ring_bytes() as u64),
                send_buffer: plan.send_buffer.map(u64::from),
                ..end(named(own, CLIENT), &client)
            }),
            server: Some(End {
                recv_buffer: plan.recv_buffer.map(u64::from),
                in_handlers: Some(of_workers(server.own_ns)),
                in_decoding: Some(of_workers(server.decoding_ns)),
                ..end(workers, &server)
            }),
            in_flight: (plan.way == Way::Echo)
                .then(|| u64::from(plan.in_flight) * u64::from(plan.sessions)),
            connections: connections(span),
            over_time: span.over_time.clone(),
            by_tls: plan.by_tls,
            missing: missing(span),
        }
    }
}

/// The client's end as the one that sends.
fn connections(span: &Span) -> Vec<Connection> {
    let all = span.connections.iter();
    let all = all.map(|seen| Connection {
        broker: 0,
        to_subscriber: false,
        sender: seen.upward.0.clone(),
        receiver: seen.upward.1.clone(),
    });
    all.collect()
}

fn since(before: &Counted, after: &Counted) -> Counted {
    Counted {
        messages_received: after
            .messages_received
            .saturating_sub(before.messages_received),
        bytes_received: after.bytes_received.saturating_sub(before.bytes_received),
        bytes_sent: after.bytes_sent.saturating_sub(before.bytes_sent),
        reads: after.reads.saturating_sub(before.reads),
        writes: after.writes.saturating_sub(before.writes),
        waited_for_room: after.waited_for_room.saturating_sub(before.waited_for_room),
        own_ns: after.own_ns.saturating_sub(before.own_ns),
        decoding_ns: after.decoding_ns.saturating_sub(before.decoding_ns),
        large: after.large.saturating_sub(before.large),
        large_bytes: after.large_bytes.saturating_sub(before.large_bytes),
    }
}
