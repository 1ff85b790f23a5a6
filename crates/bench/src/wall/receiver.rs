//! A receiving process of the wall: one thread serves all its connections, with non-blocking sockets and edge-triggered
//! epoll. It reads from a socket until there is nothing more.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use embar_broker::ReceivePath;
use embar_console::interrupt::on_parent_exit;
use embar_supervise::protocol::ProcessReport;
use embar_supervise::regions;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use serde::{Deserialize, Serialize};

use super::connection::{Connection, Memory, Turn};
use super::relay::Relay;
use super::ring::Ring;
use super::stream::Stream;

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 64;
/// Mark the listeners; connections count from 0.
const TCP_LISTENER: u64 = u64::MAX;
const UNIX_LISTENER: u64 = u64::MAX - 1;

/// The command of the program that runs a receiver; the specification is its argument.
pub const COMMAND: &str = "wall-receiver";

/// One receiving process, as its parent wants it.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReceiverSpec {
    /// Its number, for the report.
    pub id: u16,
    /// Bytes of its ring.
    pub ring_bytes: u64,
    /// Where its Unix socket is to be.
    pub unix: PathBuf,
}

/// Serves until standard input ends. `spec` is a [`ReceiverSpec`] in JSON.
pub fn run(spec: &str) -> Result<()> {
    let spec: ReceiverSpec = serde_json::from_str(spec).context("this is no receiver")?;
    // Nothing to put away: the ring has no name. Signals are for the parent, which ends us by the pipe.
    on_parent_exit(|| std::process::exit(0)).context("cannot watch the parent process")?;
    let dir = regions::temporary("wall-");
    let ring = Ring::new(&dir, spec.ring_bytes)?;
    regions::tidy(&dir);
    let tcp = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    tcp.set_nonblocking(true)?;
    let unix = UnixListener::bind(&spec.unix)
        .with_context(|| format!("cannot listen at {}", spec.unix.display()))?;
    unix.set_nonblocking(true)?;
    let address = tcp.local_addr()?;
    let ready = ProcessReport::Ready {
        id: spec.id,
        address,
        pid: std::process::id(),
        topics: 0,
        batches: 0,
        receive: ReceivePath::Direct,
    };
    report(&ready).context("the parent does not listen any more")?;
    Loop::new(tcp, unix, ring)?.run()
}

fn report(report: &ProcessReport) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{report}")?;
    out.flush()
}

struct Loop {
    epoll: rustix::fd::OwnedFd,
    tcp: TcpListener,
    unix: UnixListener,
    memory: Memory,
    connections: HashMap<u64, Connection>,
    next: u64,
    ready: VecDeque<u64>,
    /// Connections that wait for room in the relay, or for a batch from it.
    waiting: Vec<u64>,
}

impl Loop {
    fn new(tcp: TcpListener, unix: UnixListener, ring: Ring) -> Result<Self> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).context("cannot make an epoll set")?;
        for (listener, id) in [(tcp.as_fd(), TCP_LISTENER), (unix.as_fd(), UNIX_LISTENER)] {
            let data = epoll::EventData::new_u64(id);
            epoll::add(&epoll, listener, data, epoll::EventFlags::IN)?;
        }
        Ok(Self {
            epoll,
            tcp,
            unix,
            memory: Memory {
                relay: Relay::new(ring.capacity()),
                ring,
            },
            connections: HashMap::new(),
            next: 0,
            ready: VecDeque::new(),
            waiting: Vec::new(),
        })
    }

    fn run(mut self) -> Result<()> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS_MAX);
        let at_once = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        loop {
            events.clear();
            let timeout = (!self.ready.is_empty()).then_some(&at_once);
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for sockets"),
            }
            for event in &events {
                // Fields of a packed struct.
                let (id, flags) = (event.data.u64(), event.flags);
                if id == TCP_LISTENER || id == UNIX_LISTENER {
                    self.accept(id)?;
                    continue;
                }
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.peer_ended |=
                        flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP);
                }
                // An edge while it is in a list already is covered by its turn.
                if !self.ready.contains(&id) && !self.waiting.contains(&id) {
                    self.ready.push_back(id);
                }
            }
            for _ in 0..self.ready.len() {
                let Some(id) = self.ready.pop_front() else {
                    break;
                };
                self.turn(id);
            }
        }
    }

    fn turn(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let before = self.memory.relay.changes();
        match connection.turn(&mut self.memory) {
            Turn::Again => self.ready.push_back(id),
            Turn::Wait => {}
            Turn::WaitForRelay => self.waiting.push(id),
            Turn::Over => drop(self.connections.remove(&id)),
        }
        if self.memory.relay.changes() != before {
            self.ready.extend(self.waiting.drain(..));
        }
    }

    /// Accepts all that wait at a listener.
    fn accept(&mut self, listener: u64) -> Result<()> {
        loop {
            let accepted = if listener == TCP_LISTENER {
                self.tcp.accept().and_then(|(stream, _)| {
                    stream.set_nodelay(true)?;
                    Ok(Stream::Tcp(stream))
                })
            } else {
                let accepted = self.unix.accept();
                accepted.map(|(stream, _)| Stream::Unix(stream))
            };
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => {
                    // To the receiver's log; the sender finds that its connection is closed.
                    let _dropped = writeln!(io::stderr(), "cannot accept: {error}");
                    return Ok(());
                }
            };
            stream.set_send_buffer()?;
            stream.set_nonblocking()?;
            let flags = epoll::EventFlags::IN
                | epoll::EventFlags::OUT
                | epoll::EventFlags::RDHUP
                | epoll::EventFlags::ET;
            epoll::add(
                &self.epoll,
                &stream,
                epoll::EventData::new_u64(self.next),
                flags,
            )?;
            self.connections.insert(self.next, Connection::new(stream));
            self.next += 1;
        }
    }
}
