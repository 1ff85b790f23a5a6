//! The attacker of a drill, in a process of its own. It stops when its parent says so or is gone, and in any case
//! after a while.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use embar_console::interrupt::{Interrupt, on_parent_exit};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use serde::{Deserialize, Serialize};

use super::child::Child;
use super::kind::Attack;
use super::script::Script;
use super::server::say;

/// The command of the program that runs one; the specification is its argument.
pub const COMMAND: &str = "drill-attacker";

/// An attacker that nobody stops stops by itself after this long.
const LONGEST: Duration = Duration::from_secs(600);
/// How long an attacker may take to build its attack up, and to stop.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// Descriptors of an attacker that are no connections.
const OTHER_DESCRIPTORS: u64 = 64;
/// How often connections that stay send one more byte each, and are looked at.
const TICK: Duration = Duration::from_millis(500);
/// What an attacker waits when the system, or the server, takes nothing more.
const PAUSE: Duration = Duration::from_micros(200);
/// Bytes read at once, of what the server answers.
const READ_BYTES: usize = 64 << 10;
/// Ports that it connects from. It goes through them by itself, because the system's own search takes longer and longer
/// when one address has thousands of connections.
const PORTS: std::ops::RangeInclusive<u16> = 10_000..=60_000;
/// Ports in a row that are in use, until it waits.
const PORTS_TRIED: u32 = 100;
/// Of so many connections that are closed at once one is closed with a FIN, which keeps its port for a minute; the
/// others are reset.
const FIN_EVERY: u64 = 8;

/// An attacker, as its parent wants it.
#[derive(Debug, Serialize, Deserialize)]
pub struct AttackerSpec {
    /// What it does.
    pub attack: Attack,
    /// Whom it attacks.
    pub server: SocketAddr,
    /// The server's certificate, if it speaks TLS.
    pub certificate: Option<Vec<u8>>,
    /// Connections at a time.
    pub connections: u32,
    /// Addresses that they come from, in turn.
    pub addresses: u16,
}

/// What an attacker did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Connections at a time, as far as the limit of descriptors allows.
    pub connections: u64,
    /// Connections that it began, in all.
    pub connects: u64,
    /// Connections that it could not begin, mostly for want of ports.
    pub failed: u64,
    /// Connections that the server ended, as far as that was noticed.
    pub cut: u64,
    /// Bytes that it sent.
    pub sent_bytes: u64,
}

/// Attacks until standard input ends. `spec` is an [`AttackerSpec`] in JSON.
pub fn run(spec: &str) -> Result<()> {
    let spec: AttackerSpec = serde_json::from_str(spec).context("this is no attacker")?;
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    on_parent_exit(move || told.store(true, Ordering::Relaxed))
        .context("cannot watch the parent process")?;
    let script = Script::of(spec.attack, spec.certificate.as_deref())?;
    let mut attacker = Attacker::new(&spec, stop);
    match script {
        Script::Hit(first) => attacker.hit(&first)?,
        Script::Stay {
            bytes,
            at_once,
            again,
        } => attacker.stay(&bytes, &at_once, again)?,
        Script::Flood {
            opening,
            chunk,
            reads,
        } => attacker.flood(&opening, &chunk, reads)?,
    }
    say(&attacker.tally)
}

struct Attacker {
    server: SocketAddr,
    addresses: u16,
    stop: Arc<AtomicBool>,
    until: Instant,
    next_port: u16,
    tally: Tally,
    scratch: Vec<u8>,
}

/// A connection, and how many bytes of what it is to send it has sent.
struct Connection {
    stream: TcpStream,
    sent: usize,
    aim: usize,
}

impl Attacker {
    fn new(spec: &AttackerSpec, stop: Arc<AtomicBool>) -> Self {
        embar_console::process::raise_file_limit();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = limit.map_or(u64::MAX, |limit| limit.saturating_sub(OTHER_DESCRIPTORS));
        Self {
            server: spec.server,
            addresses: spec.addresses.max(1),
            stop,
            until: Instant::now() + LONGEST,
            next_port: *PORTS.start(),
            tally: Tally {
                connections: u64::from(spec.connections).min(most).max(1),
                ..Tally::default()
            },
            scratch: vec![0; READ_BYTES],
        }
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || Instant::now() > self.until
    }

    /// Tells the parent that the attack is what it is going to be.
    fn tell_ready(&self) -> Result<()> {
        say(&self.tally)
    }

    /// Begins a connection from the address whose turn it is. `None`: the system lets it have none just now.
    fn connect(&mut self) -> Result<Option<TcpStream>> {
        let turn = self.tally.connects + self.tally.failed;
        let number = (turn % u64::from(self.addresses)) as u32 + 1;
        let from = Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 0).to_bits() + number);
        for _ in 0..PORTS_TRIED {
            let port = self.next_port;
            self.next_port = match port {
                port if port == *PORTS.end() => *PORTS.start(),
                port => port + 1,
            };
            match connect_from((from, port).into(), self.server) {
                Ok(stream) => {
                    self.tally.connects += 1;
                    return Ok(Some(stream));
                }
                Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
                Err(
                    Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::CONNREFUSED | Errno::AGAIN,
                ) => break,
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot attack from {from}"));
                }
            }
        }
        self.tally.failed += 1;
        thread::sleep(PAUSE);
        Ok(None)
    }

    /// Connections that are closed as soon as they are there.
    fn hit(&mut self, first: &[Vec<u8>]) -> Result<()> {
        self.tell_ready()?;
        let mut turns = first.iter().cycle();
        while !self.is_over() {
            let bytes = turns.next().map_or(&[][..], Vec::as_slice);
            let Some(mut stream) = self.connect()? else {
                continue;
            };
            // Whether it still connects or was refused already: it is closed all the same.
            self.tally.sent_bytes += stream.write(bytes).unwrap_or(0) as u64;
            if !self.tally.connects.is_multiple_of(FIN_EVERY) {
                let _reset = sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
            }
        }
        Ok(())
    }

    /// Connections that are there, and say little.
    fn stay(&mut self, bytes: &[u8], at_once: &[usize], again: bool) -> Result<()> {
        let mut aims = at_once.iter().copied().cycle();
        let mut crowd: Vec<Connection> = Vec::new();
        let mut next_tick = Instant::now() + TICK;
        let mut is_ready = false;
        while !self.is_over() {
            // After it was complete it is filled up when the next bytes are due, and not at once.
            while (crowd.len() as u64) < self.tally.connections && !self.is_over() {
                if let Some(stream) = self.connect()? {
                    crowd.push(Connection {
                        stream,
                        sent: 0,
                        aim: aims.next().unwrap_or(0),
                    });
                    let newest = crowd.len() - 1;
                    self.go_on(&mut crowd[newest], bytes);
                }
            }
            if !std::mem::replace(&mut is_ready, true) {
                self.tell_ready()?;
            }
            while Instant::now() < next_tick && !self.is_over() {
                thread::sleep(Duration::from_millis(5));
            }
            next_tick = Instant::now() + TICK;
            if again {
                crowd.retain_mut(|connection| {
                    connection.aim = (connection.aim + 1).min(bytes.len());
                    self.go_on(connection, bytes) && self.is_alive(connection)
                });
            }
        }
        // Those that nobody looked at meanwhile.
        crowd.retain_mut(|connection| self.is_alive(connection));
        Ok(())
    }

    /// Sends what is due. False: the connection is over.
    fn go_on(&mut self, connection: &mut Connection, bytes: &[u8]) -> bool {
        let due = &bytes[connection.sent..connection.aim.max(connection.sent)];
        if due.is_empty() {
            return true;
        }
        match connection.stream.write(due) {
            Ok(count) => {
                connection.sent += count;
                self.tally.sent_bytes += count as u64;
                true
            }
            Err(error) => self.is_patient(&error),
        }
    }

    /// Reads what came. False: the connection is over.
    fn is_alive(&mut self, connection: &mut Connection) -> bool {
        loop {
            match connection.stream.read(&mut self.scratch) {
                Ok(0) => {
                    self.tally.cut += 1;
                    return false;
                }
                Ok(_) => {}
                Err(error) => return self.is_patient(&error),
            }
        }
    }

    /// Whether an error only means that there is nothing to do just now.
    fn is_patient(&mut self, error: &io::Error) -> bool {
        let patient = matches!(
            error.kind(),
            ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::NotConnected
        );
        self.tally.cut += u64::from(!patient);
        patient
    }

    /// Connections that send as fast as they can.
    fn flood(&mut self, opening: &[u8], chunk: &[u8], reads: bool) -> Result<()> {
        let mut crowd: Vec<Connection> = Vec::new();
        let mut is_ready = false;
        while !self.is_over() {
            while (crowd.len() as u64) < self.tally.connections && !self.is_over() {
                if let Some(stream) = self.connect()? {
                    let (sent, aim) = (0, opening.len());
                    crowd.push(Connection { stream, sent, aim });
                }
            }
            if !std::mem::replace(&mut is_ready, true) {
                self.tell_ready()?;
            }
            let before = self.tally.sent_bytes;
            crowd.retain_mut(|connection| {
                if reads && !self.is_alive(connection) {
                    return false;
                }
                // The opening is behind it once it has sent as much; then it goes round and round in the chunk.
                if connection.aim > 0 {
                    let is_alive = self.go_on(connection, opening);
                    if connection.sent == opening.len() {
                        (connection.sent, connection.aim) = (0, 0);
                    }
                    return is_alive;
                }
                connection.sent %= chunk.len();
                match connection.stream.write(&chunk[connection.sent..]) {
                    Ok(count) => {
                        connection.sent += count;
                        self.tally.sent_bytes += count as u64;
                        true
                    }
                    Err(error) => self.is_patient(&error),
                }
            });
            if self.tally.sent_bytes == before {
                thread::sleep(PAUSE);
            }
        }
        Ok(())
    }
}

/// Begins a connection that nobody waits for.
fn connect_from(from: SocketAddr, to: SocketAddr) -> rustix::io::Result<TcpStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        flags,
        Some(ipproto::TCP),
    )?;
    // A port that was closed a moment ago may be used again.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &from)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error),
    }
}

/// An attacker that attacks.
pub(super) struct Attacking(Child);

impl Attacking {
    /// Starts one, and waits until its attack is built up; also what it has then.
    pub(super) fn start(
        program: &Path,
        spec: &AttackerSpec,
        interrupt: &Interrupt,
    ) -> Result<(Self, Tally)> {
        let mut child = Child::start(program, COMMAND, spec)?;
        let ready = child.hear(READY_WITHIN, interrupt)?;
        Ok((Self(child), ready))
    }

    /// Stops it; what it did.
    pub(super) fn stop(mut self, interrupt: &Interrupt) -> Result<Tally> {
        self.0.tell_to_end();
        self.0.hear(READY_WITHIN, interrupt)
    }
}
