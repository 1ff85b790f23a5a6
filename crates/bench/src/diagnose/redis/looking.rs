//! Looks at servers, at their processes, and at our client, for a span.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use embar_console::context::Context;
use embar_diagnose::observed::Missing;
use embar_diagnose::redis::observed::Probe;
use embar_readings::sockets;
use embar_readings::tcp::TcpReader;
use embar_redis::Client;

use super::asking::{Asker, Said};
use super::watching::{Watched, Watching};
use crate::diagnose::sampling::{Sampling, Span};

/// Looks at the client's counters are this far apart.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Looks at threads are: they cost more.
const SAMPLE_EVERY: Duration = Duration::from_millis(50);

/// What was seen of servers in a span.
pub(super) struct Look {
    pub(super) span: Span,
    pub(super) before: Vec<Said>,
    pub(super) after: Vec<Said>,
    pub(super) probes: Vec<Option<Probe>>,
    /// What the client did.
    pub(super) watched: Watched,
    /// Processes of the servers, in their order.
    pub(super) pids: Vec<Option<u32>>,
    pub(super) missing: Vec<Missing>,
}

/// Looks for so long. `own` are the processes of servers that we started.
pub(super) fn watch(
    asker: &Asker,
    own: &BTreeMap<SocketAddr, u32>,
    client: Option<&Client>,
    span: Duration,
    missing: &mut Vec<Missing>,
    context: &Context,
) -> Result<Look> {
    let pids = find_processes(asker, own, missing);
    let mut looked_at: BTreeSet<u32> = pids.iter().copied().flatten().collect();
    if client.is_some() {
        looked_at.insert(process::id());
    }
    let before = asker.ask(missing);
    let mut watching = client.map(Watching::start);
    let mut sampling = Sampling::start(looked_at.into_iter().collect(), BTreeSet::new())?;
    let probing = asker.probe();
    let (until, mut sampled) = (Instant::now() + span, Instant::now());
    loop {
        context.interrupt.check()?;
        let now = Instant::now();
        let left = until.saturating_duration_since(now);
        if left.is_zero() {
            break;
        }
        if let Some((watching, client)) = watching.as_mut().zip(client) {
            watching.look(client);
        }
        if now - sampled >= SAMPLE_EVERY {
            sampling.look();
            sampled = now;
        }
        thread::sleep(left.min(LOOK_EVERY));
    }
    let watched = watching.zip(client);
    let watched = watched.map(|(watching, client)| watching.end(client));
    let span = sampling.end()?;
    let probes = asker.end(probing);
    let after = asker.ask(missing);
    Ok(Look {
        span,
        before,
        after,
        probes,
        watched: watched.unwrap_or_default(),
        pids,
        missing: std::mem::take(missing),
    })
}

/// The processes of the servers: those that have the other ends of our connections with them.
fn find_processes(
    asker: &Asker,
    own: &BTreeMap<SocketAddr, u32>,
    missing: &mut Vec<Missing>,
) -> Vec<Option<u32>> {
    let addresses: Vec<_> = asker.nodes().iter().map(|it| it.address()).collect();
    let owners = match own.is_empty() {
        true => sockets::owners(),
        false => BTreeMap::new(),
    };
    let ends = TcpReader::open().and_then(|mut reader| {
        reader.connections(|end| own.is_empty() && addresses.contains(&Some(end.local)))
    });
    let (ends, why) = match ends {
        Ok(ends) => (
            ends,
            "its process is not on this machine, or another user's".to_owned(),
        ),
        Err(error) => (
            Vec::new(),
            format!("the kernel does not list connections: {error}"),
        ),
    };
    let nodes = asker.nodes().iter().zip(&addresses);
    let pids = nodes.map(|(node, address)| {
        let known = address.and_then(|it| own.get(&it).copied());
        let end = ends.iter().filter(|end| Some(end.local) == *address);
        let pid = known.or_else(|| { end }.find_map(|end| owners.get(&end.inode).copied()));
        if pid.is_none() {
            missing.push(Missing {
                what: format!("the threads of {}", node.endpoint),
                why: why.clone(),
            });
        }
        pid
    });
    pids.collect()
}
