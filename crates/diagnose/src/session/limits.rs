//! What applications, sessions, handlers and processors do with their time.

use super::observed::{End, Observed};
use crate::limits::{Limits, Resource, weighted};
use crate::observed::SendingEnd;

/// From what was observed.
pub(super) fn of(observed: &Observed) -> Limits {
    let mut limits = Limits::default();
    if let Some(application) = &observed.application {
        // The mean over them, as of what they waited for.
        let threads = application.threads.len().max(1) as f64;
        let waiting = application.threads.iter().map(|it| it.waiting).sum::<f64>() / threads;
        let waits = application.waited_for_room + application.waited_to_leave;
        let working = (1.0 - waits).max(0.0);
        limits.add(Resource::Application, working, waiting.min(working));
        limits.add(Resource::SendRings, application.waited_for_room, 0.0);
    }
    if let Some(client) = &observed.client {
        end(&mut limits, Resource::Senders, client);
    }
    let sending = |part: fn(&SendingEnd) -> f64| weighted(observed.connections.iter(), part);
    if let Some(share) = sending(|end| end.send_buffer_full) {
        limits.add(Resource::SendBuffers, share, 0.0);
    }
    if let Some(share) = sending(|end| end.window_full) {
        limits.add(Resource::ReceiveBuffers, share, 0.0);
    }
    if let Some(server) = &observed.server {
        end(&mut limits, Resource::Receivers, server);
        if let Some(share) = server.in_handlers {
            limits.add(Resource::Handlers, share, 0.0);
        }
    }
    let machine = &observed.machine;
    if machine.cores > 0 {
        limits.add(Resource::Processors, machine.busy + machine.steal, 0.0);
    }
    // The scheduler is fair.
    limits.contested = machine.others / 2.0;
    limits
}

/// The busiest of the workers of one end. A handler that waits for something keeps its worker from all else.
fn end(limits: &mut Limits, part: Resource, end: &End) {
    let workers = end.workers.iter();
    let busiest = workers.max_by(|a, b| a.occupied().total_cmp(&b.occupied()));
    let (occupied, waiting) = busiest.map_or((0.0, 0.0), |it| (it.occupied(), it.waiting));
    limits.add(part, occupied.max(end.in_handlers.unwrap_or(0.0)), waiting);
}
