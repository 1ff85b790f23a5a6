//! The profiles of a process's publishers and subscribers, for tools that look at the process from outside, as `embar diagnose
//! --attach` and `embar top` do.
//!
//! Who calls [`serve_profiles`] has a thread that listens on a socket without a file, whose name has the process's number, and which tells
//! processes of the same user, and of root, what was timed and counted so far. While nobody asks it costs nothing.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use embar_meter::Snapshot;
use embar_transport::has_trusted_peer;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most that is read of another process, bytes.
const TOLD_MAX: usize = 4 << 20;
/// Clients that have ended are forgotten when there are so many more than were alive.
const FORGET_EVERY: usize = 64;

/// What the clients of a process timed and counted since each was opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientProfiles {
    /// Its publishers.
    pub publishers: Vec<PublisherProfile>,
    /// Its subscribers.
    pub subscribers: Vec<Snapshot>,
}

/// A publisher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublisherProfile {
    /// Stages and counters.
    pub profile: Snapshot,
    /// Bytes of a full batch.
    pub batch_bytes: u64,
    /// How long a batch may wait to be filled, seconds.
    pub linger_s: f64,
    /// Batches that each of its connections may have on their way.
    pub batches_in_flight: u64,
}

/// What one client says.
pub(crate) enum Told {
    Publisher(PublisherProfile),
    Subscriber(Snapshot),
    /// It is not open yet.
    Nothing,
}

/// Asks a client; `None` once it has ended.
type Client = Box<dyn Fn() -> Option<Told> + Send>;

struct Registry {
    clients: Vec<Client>,
    /// How many there may be before those that have ended are looked for.
    most: usize,
    serves: bool,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    clients: Vec::new(),
    most: FORGET_EVERY,
    serves: false,
});

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a client of this process.
pub(crate) fn register(client: impl Fn() -> Option<Told> + Send + 'static) {
    let mut registry = registry();
    registry.clients.push(Box::new(client));
    if registry.clients.len() > registry.most {
        registry.clients.retain(|client| client().is_some());
        registry.most = registry.clients.len() + FORGET_EVERY;
    }
}

/// Tells processes of this user, and of root, from now on what the clients of this process timed and counted:
/// [`ClientProfiles::of`]. Called again, it does nothing.
///
/// # Errors
/// The kernel gives no thread or socket.
pub fn serve_profiles() -> io::Result<()> {
    let mut registry = registry();
    if registry.serves {
        return Ok(());
    }
    let listener = UnixListener::bind_addr(&address(process::id())?)?;
    thread::Builder::new()
        .name("embar-profiles".into())
        .spawn(move || {
            for socket in listener.incoming() {
                match socket {
                    // Whoever hangs up, or does not read, misses it.
                    Ok(socket) => drop(tell(socket)),
                    // Such as that this process may open no more files.
                    Err(_) => thread::sleep(PATIENCE),
                }
            }
        })?;
    registry.serves = true;
    Ok(())
}

fn tell(mut socket: UnixStream) -> io::Result<()> {
    if !has_trusted_peer(&socket)? {
        return Ok(());
    }
    let until = Instant::now() + PATIENCE;
    let text = serde_json::to_vec(&own())?;
    let mut rest = &text[..];
    while !rest.is_empty() {
        socket.set_write_timeout(Some(left(until)?))?;
        match socket.write(rest)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => rest = &rest[count..],
        }
    }
    Ok(())
}

/// What is left of the time until then.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

/// Connects, or fails at once: whoever has no place for one more that waits does not answer.
fn connect(pid: u32) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name(pid).as_bytes())?,
    )?;
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// In the abstract namespace: nothing stays behind when the process ends.
fn name(pid: u32) -> String {
    format!("embar-profiles-{pid}")
}

/// Those of this process.
fn own() -> ClientProfiles {
    let mut own = ClientProfiles::default();
    registry().clients.retain(|client| {
        let told = client();
        let lives = told.is_some();
        match told {
            Some(Told::Publisher(publisher)) => own.publishers.push(publisher),
            Some(Told::Subscriber(subscriber)) => own.subscribers.push(subscriber),
            Some(Told::Nothing) | None => {}
        }
        lives
    });
    own
}

fn address(pid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name(pid))
}

impl ClientProfiles {
    /// Asks a process of this machine and network namespace. `None` if it does not tell: it does not call [`serve_profiles`], or is
    /// another user's.
    ///
    /// # Errors
    /// It does not answer within a second, or what answers is no client, or of another version.
    pub fn of(pid: u32) -> io::Result<Option<Self>> {
        let mut socket = match connect(pid) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            other => other?,
        };
        // Anybody may take the name of a process that does not.
        if !has_trusted_peer(&socket)? {
            return Ok(None);
        }
        let until = Instant::now() + PATIENCE;
        let (mut text, mut part) = (Vec::new(), vec![0; 64 << 10]);
        while text.len() < TOLD_MAX {
            socket.set_read_timeout(Some(left(until)?))?;
            match socket.read(&mut part)? {
                0 => break,
                count => text.extend_from_slice(&part[..count]),
            }
        }
        if text.is_empty() {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&text)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All tests of a process have one registry, and one socket.
    #[test]
    fn who_asks_is_told_of_those_that_live() {
        let own = || ClientProfiles::of(process::id()).expect("an answer");
        assert_eq!(own(), None, "nothing listens yet");
        let snapshot = Snapshot::new("S", [("Stage".to_owned(), 7, 1)], []);
        let told = PublisherProfile {
            profile: snapshot.clone(),
            batch_bytes: 4096,
            linger_s: 0.5,
            batches_in_flight: 3,
        };
        let lives = std::sync::Arc::new(());
        let weak = std::sync::Arc::downgrade(&lives);
        let publisher = told.clone();
        register(move || {
            weak.upgrade()?;
            Some(Told::Publisher(publisher.clone()))
        });
        register(|| Some(Told::Nothing));
        serve_profiles().expect("a socket");
        serve_profiles().expect("once more is nothing more");
        let has = |it: &ClientProfiles| it.publishers.contains(&told);
        assert!(own().is_some_and(|it| has(&it)));
        drop(lives);
        assert!(own().is_some_and(|it| !has(&it)), "it has ended");
        // One that hangs up, and one that says nothing, hold up nobody.
        drop(UnixStream::connect_addr(
            &address(process::id()).expect("a name"),
        ));
        let _silent = UnixStream::connect_addr(&address(process::id()).expect("a name"));
        assert!(own().is_some());
        assert!(ClientProfiles::of(u32::MAX).expect("nobody").is_none());
        // One who listens, and never answers, holds up whoever asks for a moment only, however many ask.
        let mute = UnixListener::bind_addr(&address(u32::MAX - 1).expect("a name"));
        let _mute = mute.expect("a listener");
        ClientProfiles::of(u32::MAX - 1).expect_err("no answer in time");
        let asked = Instant::now();
        let mut waiting = Vec::new();
        // Until nobody more may wait: the next one is told so at once.
        let full = loop {
            match connect(u32::MAX - 1) {
                Ok(socket) => waiting.push(socket),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock, "{full}");
        let error = ClientProfiles::of(u32::MAX - 1).expect_err("no place to wait");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(asked.elapsed() < 60 * PATIENCE);
    }
}
