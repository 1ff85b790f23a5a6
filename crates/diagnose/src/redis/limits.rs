//! What callers, client, servers and processors do with their time.

use super::observed::{Client, Observed};
use crate::limits::{Limits, Resource};
use crate::observed::Thread;

/// From what was observed.
pub(super) fn of(observed: &Observed) -> Limits {
    let mut limits = Limits::default();
    if let Some(client) = &observed.client {
        let on_threads = on_threads(client, observed.seconds);
        let application = between(client, observed.seconds).max(on_threads);
        limits.add(Resource::Application, application, 0.0);
        for thread in client.threads.iter().chain(&client.connection_threads) {
            limits.add(Resource::ClientThreads, thread.occupied(), thread.waiting);
        }
        let most = observed
            .nodes
            .iter()
            .filter_map(|node| node.traffic.as_ref());
        let most = most.map(|it| it.full).fold(0.0, f64::max);
        limits.add(Resource::InFlight, most, 0.0);
    }
    for node in &observed.nodes {
        if let Some(on_cpu) = node.on_cpu(observed.seconds) {
            let waiting = node.waiting();
            limits.add(Resource::Servers, on_cpu + waiting, waiting);
        }
    }
    // Servers on other machines do not say what these do.
    let machine = &observed.machine;
    if machine.cores > 0 {
        limits.add(Resource::Processors, machine.busy + machine.steal, 0.0);
    }
    // The scheduler is fair.
    limits.contested = machine.others / 2.0;
    limits
}

/// Share of their time that callers spend between operations.
pub(super) fn between(client: &Client, seconds: f64) -> f64 {
    let time = seconds * client.callers as f64;
    if time > 0.0 {
        (client.between_s / time).min(1.0)
    } else {
        0.0
    }
}

/// Share of the time of the callers' threads that the application's own code takes, at most. A caller that waits for
/// something else between operations takes none, so what threads do bounds it.
pub(super) fn on_threads(client: &Client, seconds: f64) -> f64 {
    let occupied: f64 = client.threads.iter().map(Thread::occupied).sum();
    let time = seconds * client.threads.len() as f64;
    if time > 0.0 {
        let mean = occupied / client.threads.len() as f64;
        (client.between_s / time).min(mean)
    } else {
        0.0
    }
}
