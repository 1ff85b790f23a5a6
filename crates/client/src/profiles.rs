//! The profiles of a process's publishers and subscribers, for tools that look at the process from outside, as `embar diagnose
//! --attach` and `embar top` do.
//!
//! Who calls [`serve_profiles`] has a thread that listens on a socket without a file, whose name has the process's number, and which tells
//! processes of the same user, and of root, what was timed and counted so far. While nobody asks it costs nothing.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use embar_meter::{Profile, Snapshot};
use embar_transport::has_trusted_peer;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};

use crate::caller::CallingThread;

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most that is read of another process, bytes.
const TOLD_MAX: usize = 4 << 20;
/// Clients that have ended are forgotten when there are so many more than were alive.
const FORGET_EVERY: usize = 64;

/// What the clients of a process timed and counted since each was opened. Nothing of it ever shrinks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientProfiles {
    /// Its publishers.
    pub publishers: Vec<PublisherProfile>,
    /// Its subscribers.
    pub subscribers: Vec<SubscriberProfile>,
    /// The sums of publishers that have ended.
    pub ended_publishers: Option<Snapshot>,
    /// The sums of subscribers that have ended.
    pub ended_subscribers: Option<Snapshot>,
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
    /// The threads that publish: for each handle that was used, the last one.
    pub callers: Vec<CallingThread>,
}

/// A subscriber.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubscriberProfile {
    /// Stages and counters.
    pub profile: Snapshot,
    /// The thread that reads, once it has.
    pub callers: Vec<CallingThread>,
}

/// What one client says.
pub(crate) enum Told {
    Publisher(PublisherProfile),
    Subscriber(SubscriberProfile),
}

/// Of which kind a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Publisher,
    Subscriber,
}

/// Asks a client, of which this was counted; `None` once it has ended.
type Ask = Box<dyn Fn(Snapshot) -> Option<Told> + Send>;

struct Client {
    kind: Kind,
    /// Its threads may count on for a moment after it has ended.
    profile: Arc<Profile>,
    ask: Ask,
}

struct Registry {
    clients: Vec<Client>,
    /// What those counted that have ended for good.
    ended: [Option<Snapshot>; 2],
    /// How many there may be before those that have ended are looked for.
    most: usize,
    serves: bool,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    clients: Vec::new(),
    ended: [None, None],
    most: FORGET_EVERY,
    serves: false,
});

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a client of this process. `told` makes what it says of what was counted, and `None` once it has ended.
pub(crate) fn register(
    kind: Kind,
    profile: &Arc<Profile>,
    told: impl Fn(Snapshot) -> Option<Told> + Send + 'static,
) {
    let mut registry = registry();
    registry.clients.push(Client {
        kind,
        profile: Arc::clone(profile),
        ask: Box::new(told),
    });
    if registry.clients.len() > registry.most {
        registry.settle();
        registry.most = registry.clients.len() + FORGET_EVERY;
    }
}

impl Registry {
    /// Adds up what those counted that nobody counts for any more.
    fn settle(&mut self) {
        let Self { clients, ended, .. } = self;
        clients.retain(|client| {
            let lives = Arc::strong_count(&client.profile) > 1;
            if !lives {
                add(&mut ended[client.kind as usize], client.profile.snapshot());
            }
            lives
        });
    }

    fn profiles(&mut self) -> ClientProfiles {
        self.settle();
        let mut ended = self.ended.clone();
        let (mut publishers, mut subscribers) = (Vec::new(), Vec::new());
        for client in &self.clients {
            match (client.ask)(client.profile.snapshot()) {
                Some(Told::Publisher(publisher)) => publishers.push(publisher),
                Some(Told::Subscriber(subscriber)) => subscribers.push(subscriber),
                None => add(&mut ended[client.kind as usize], client.profile.snapshot()),
            }
        }
        let [ended_publishers, ended_subscribers] = ended;
        ClientProfiles {
            publishers,
            subscribers,
            ended_publishers,
            ended_subscribers,
        }
    }
}

fn add(sum: &mut Option<Snapshot>, more: Snapshot) {
    *sum = Some(match sum.take() {
        Some(sum) => sum.merge(&more),
        None => more,
    });
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
    let text = serde_json::to_vec(&registry().profiles())?;
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

fn address(pid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name(pid))
}

impl ClientProfiles {
    /// Asks a process of this machine and network namespace. `None` if it does not call [`serve_profiles`].
    ///
    /// # Errors
    /// It is another user's, and this one is not root. Or it does not answer within a second, or another process has its name, or what
    /// answers is no client, or of another version.
    pub fn of(pid: u32) -> io::Result<Option<Self>> {
        Self::told_by(pid, pid)
    }

    /// What is told in the name of `pid`, if it is the process `teller` that does.
    fn told_by(pid: u32, teller: u32) -> io::Result<Option<Self>> {
        let mut socket = match connect(pid) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            other => other?,
        };
        // Anybody may take the name of a process that does not; and one in a container of its own has a number there that another
        // process has here.
        let peer = socket_peercred(&socket)?.pid.as_raw_pid();
        if u32::try_from(peer) != Ok(teller) {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "another process answers in its name, maybe one of a container: ask there",
            ));
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
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "it tells only processes of its user and root: look as one of them",
            ));
        }
        Ok(Some(serde_json::from_slice(&text)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::publisher::{MESSAGES, SCHEMA};

    fn one_more(profile: &Arc<Profile>) {
        profile.recorder().count(MESSAGES, 1);
    }

    /// All tests of a process have one registry, and one socket.
    #[test]
    fn who_asks_is_told_of_those_that_live_and_of_what_others_counted() {
        let own = || ClientProfiles::of(process::id()).expect("an answer");
        assert_eq!(own(), None, "nothing listens yet");
        let publisher = |profile| PublisherProfile {
            profile,
            batch_bytes: 4096,
            linger_s: 0.125,
            batches_in_flight: 3,
            callers: Vec::new(),
        };
        let profile = Profile::new(&SCHEMA);
        one_more(&profile);
        let lives = Arc::new(());
        let weak = Arc::downgrade(&lives);
        register(Kind::Publisher, &profile, move |counted| {
            weak.upgrade()?;
            Some(Told::Publisher(publisher(counted)))
        });
        serve_profiles().expect("a socket");
        serve_profiles().expect("once more is nothing more");
        // Publishers of other tests come and go meanwhile.
        let lives_here = || {
            let own = own().expect("it is told");
            let ours = own.publishers.iter().find(|it| it.linger_s == 0.125);
            ours.map(|it| it.profile.counter("messages"))
        };
        let ended = || {
            let own = own().expect("it is told");
            let ended = own.ended_publishers.as_ref();
            ended.and_then(|it| it.counter("messages")).unwrap_or(0)
        };
        assert_eq!(lives_here(), Some(Some(1)));
        let before = ended();
        drop(lives);
        assert_eq!(lives_here(), None, "it has ended");
        assert!(ended() > before, "what it counted stays");
        // A thread of it counts on.
        one_more(&profile);
        assert!(ended() > before + 1);
        drop(profile);
        assert!(ended() > before + 1);
        registry().settle();
        assert!(ended() > before + 1, "also once nothing is left of it");
        // One that hangs up, and one that says nothing, hold up nobody.
        drop(UnixStream::connect_addr(
            &address(process::id()).expect("a name"),
        ));
        let _silent = UnixStream::connect_addr(&address(process::id()).expect("a name"));
        assert!(own().is_some());
        assert!(ClientProfiles::of(u32::MAX).expect("nobody").is_none());
        // One that has the name of another, as a process of another container may.
        let other = UnixListener::bind_addr(&address(u32::MAX - 2).expect("a name"));
        let _other = other.expect("a listener");
        let error = ClientProfiles::of(u32::MAX - 2).expect_err("it is not that process");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        // One who listens, and never answers, holds up whoever asks for a moment only, however many ask.
        let mute = UnixListener::bind_addr(&address(u32::MAX - 1).expect("a name"));
        let _mute = mute.expect("a listener");
        ClientProfiles::told_by(u32::MAX - 1, process::id()).expect_err("no answer in time");
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
