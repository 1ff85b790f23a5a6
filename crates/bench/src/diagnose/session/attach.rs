//! Looks at the sessions of a server that runs, whoever started it, from outside: at the threads and connections of both ends, as far
//! as they are on this machine. Nobody is asked, so nobody notices.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use embar_console::interrupt::Interrupt;
use embar_diagnose::observed::{Connection, Missing, Thread};
use embar_diagnose::session::Observed;
use embar_diagnose::session::observed::{End, Way};
use embar_readings::sockets;
use embar_readings::tcp::TcpReader;

use super::observe::{CLIENT, SERVER};
use crate::diagnose::observe::{machine, missing, named};
use crate::diagnose::sampling::{Sampling, SeenConnection, Span};

/// The processes at both ends.
struct Ends {
    servers: BTreeSet<u32>,
    clients: BTreeSet<u32>,
}

/// Looks for so long at the sessions of the server that listens there.
///
/// # Errors
/// Nobody has a connection with it, as far as can be seen from here.
pub fn look(server: SocketAddr, span: Duration, interrupt: &Interrupt) -> Result<Observed> {
    let ends = find(server)?;
    let pids = ends.servers.union(&ends.clients).copied().collect();
    let mut sampling = Sampling::start(pids, [server].into())?;
    sampling.watch_until(span, interrupt)?;
    Ok(observed(&ends, &sampling.end()?))
}

/// Finds the processes that have ends of connections with the server.
fn find(server: SocketAddr) -> Result<Ends> {
    let seen = TcpReader::open()
        .and_then(|mut it| it.connections(|end| end.local == server || end.remote == server))
        .context("cannot list TCP connections")?;
    let owners = sockets::owners();
    let of = |is_server: bool| {
        let ends = seen.iter().filter(|it| (it.local == server) == is_server);
        let pids = ends.filter_map(|it| owners.get(&it.inode).copied());
        pids.filter(|pid| *pid != process::id()).collect()
    };
    let ends = Ends {
        servers: of(true),
        clients: of(false),
    };
    if ends.servers.is_empty() && ends.clients.is_empty() {
        bail!(
            "no process here has a connection with {server} that this user may look at: start sessions, give the address that the server listens on, or be root"
        );
    }
    Ok(ends)
}

fn observed(ends: &Ends, span: &Span) -> Observed {
    let moved = |of: &dyn Fn(&SeenConnection) -> u64| span.connections.iter().map(of).sum::<u64>();
    let sent = |end: &Option<embar_diagnose::observed::SendingEnd>| {
        end.as_ref().map_or(0, |it| it.sent_bytes)
    };
    let up = moved(&|it| sent(&it.upward.0));
    let down = moved(&|it| sent(&it.downward.0));
    // The end that sends more is the one that sends.
    let is_up = up >= down;
    let connections = span.connections.iter().map(|seen| {
        let (sender, receiver) = match is_up {
            true => seen.upward.clone(),
            false => seen.downward.clone(),
        };
        Connection {
            broker: 0,
            to_subscriber: false,
            sender,
            receiver,
        }
    });
    let connections: Vec<Connection> = connections.collect();
    let sessions = connections.len() as u64;
    let end = |pids: &BTreeSet<u32>, prefix: &str, sends: u64, receives: u64| {
        let threads = pids.iter().filter_map(|pid| span.threads.get(pid));
        let workers: Vec<Thread> = threads.flat_map(|it| named(it, prefix)).collect();
        (!workers.is_empty()).then(|| End {
            workers,
            sessions: Some(sessions),
            bytes_sent: Some(sends),
            bytes_received: Some(receives),
            ..End::default()
        })
    };
    let client = end(&ends.clients, CLIENT, up, down);
    let server = end(&ends.servers, SERVER, down, up);
    let mut absent = missing(span);
    let mut lacks = |what: &str, why: &str| {
        absent.push(Missing {
            what: what.to_owned(),
            why: why.to_owned(),
        });
    };
    for (end, name) in [(&client, "client"), (&server, "server")] {
        if end.is_none() {
            let why = "it is not on this machine, another user's, or no session of ours";
            lacks(&format!("the threads of the {name}"), why);
        }
    }
    lacks(
        "messages, waits for room, and the time of handlers",
        "only the process itself knows them: its admin port and Session::stats tell",
    );
    let (client, server) = match is_up {
        true => (client, server),
        false => (server, client),
    };
    Observed {
        seconds: span.seconds,
        way: Way::OneWay,
        bytes: up.max(down),
        machine: machine(span),
        client,
        server,
        connections,
        missing: absent,
        ..Observed::default()
    }
}
