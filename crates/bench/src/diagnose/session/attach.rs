//! Looks at the sessions of a server that runs, whoever started it, from outside: at the threads and connections of both ends, as far
//! as they are on this machine. Nobody is asked, so nobody notices.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use embar_console::interrupt::Interrupt;
use embar_diagnose::observed::{Connection, Missing, Thread};
use embar_diagnose::session::Observed;
use embar_diagnose::session::observed::{End, Way};
use embar_readings::tcp::TcpReader;
use embar_readings::{sockets, unix};
use embar_session::Address;

use super::observe::{CLIENT, SERVER};
use crate::diagnose::observe::{machine, missing, named};
use crate::diagnose::sampling::{Sampling, SeenConnection, Span};

/// The processes at both ends.
struct Ends {
    servers: BTreeSet<u32>,
    clients: BTreeSet<u32>,
    /// How many connections they have.
    connections: u64,
}

/// Looks for so long at the sessions of the server that listens there.
///
/// # Errors
/// Nobody has a connection with it, as far as can be seen from here.
pub fn look(server: &Address, span: Duration, interrupt: &Interrupt) -> Result<Observed> {
    let (ends, servers) = match server {
        Address::Tcp(address) => (of_tcp(*address)?, [*address].into()),
        Address::Unix(path) | Address::Shm(path) => (of_unix(path)?, BTreeSet::new()),
    };
    if ends.servers.is_empty() && ends.clients.is_empty() {
        bail!(
            "no process here has a connection with {server} that this user may look at: start sessions, give the address that the server listens on, or be root"
        );
    }
    let pids = ends.servers.union(&ends.clients).copied().collect();
    let mut sampling = Sampling::start(pids, servers)?;
    sampling.watch_others(span, interrupt, || ())?;
    Ok(observed(&ends, &sampling.end()?))
}

/// The processes that have ends of connections with a server, by TCP.
fn of_tcp(server: SocketAddr) -> Result<Ends> {
    let seen = TcpReader::open()
        .and_then(|mut it| it.connections(|end| end.local == server || end.remote == server))
        .context("cannot list TCP connections")?;
    let of = |is_server: bool| {
        let ends = seen
            .iter()
            .filter(move |it| (it.local == server) == is_server);
        ends.map(|it| it.inode)
    };
    Ok(Ends::owning(of(true), of(false)))
}

/// The same by Unix sockets: ends of a server have the path on which it listens, and know their peers.
fn of_unix(path: &Path) -> Result<Ends> {
    let seen = unix::connections(|end| end.path.as_deref() == Some(path))
        .context("cannot list Unix sockets")?;
    let servers = seen.iter().map(|it| it.inode);
    Ok(Ends::owning(servers, seen.iter().filter_map(|it| it.peer)))
}

impl Ends {
    /// Of these sockets.
    fn owning(
        servers: impl Iterator<Item = u32>,
        clients: impl Iterator<Item = u32> + Clone,
    ) -> Self {
        let owners = sockets::owners();
        let pid = |inode: u32| owners.get(&inode).copied();
        let others = |pid: &u32| *pid != process::id();
        Self {
            connections: clients.clone().count() as u64,
            servers: servers.filter_map(pid).filter(others).collect(),
            clients: clients.filter_map(pid).filter(others).collect(),
        }
    }
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
    // Of Unix sockets the kernel counts no bytes.
    let counted = |bytes: u64| (!connections.is_empty()).then_some(bytes);
    let end = |pids: &BTreeSet<u32>, prefix: &str, sends: u64, receives: u64| {
        let threads = pids.iter().filter_map(|pid| span.threads.get(pid));
        let workers: Vec<Thread> = threads.flat_map(|it| named(it, prefix)).collect();
        (!workers.is_empty()).then(|| End {
            workers,
            sessions: Some(ends.connections),
            bytes_sent: counted(sends),
            bytes_received: counted(receives),
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
    if connections.is_empty() {
        lacks("bytes and buffers", "the kernel tells them of TCP only");
    }
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
        over_time: span.over_time.clone(),
        missing: absent,
        ..Observed::default()
    }
}
