//! Listeners go from a process to the one that replaces it, and no connect is refused in between.
//!
//! The old process [offers](offer()) its listeners by a socket file, and the new one [takes](take) copies of them. From then on both
//! accept. Once the new one says that it is [ready](Taken::ready), the old one stops accepting. Its sessions go on; it ends them when it
//! likes, for instance by [`Server::shutdown`](crate::Server::shutdown). What waits in a backlog stays there, as the listeners are the same.
//!
//! If the new process dies before it is ready, or is not in time, the old one goes on as if nothing had been. If the old one dies, the new one has the
//! listeners. Each of them refuses a process of another user.
//!
//! ```no_run
//! use std::time::Duration;
//! use embar_session::{Address, Server, hand_over};
//! # use embar_session::{Flow, Handler, Message, Session};
//! # struct Echo;
//! # impl Handler for Echo {
//! #     fn message(&mut self, _: &Session, _: Message<'_>) -> Flow { Flow::Continue }
//! # }
//!
//! // The new process:
//! let patience = Duration::from_secs(10);
//! let mut taken = hand_over::take("/run/echo/hand-over", patience)?;
//! let mut server = Server::builder();
//! for listener in taken.listeners() {
//!     server = server.listener(listener);
//! }
//! let server = server.start(|_peer| Echo)?;
//! taken.ready()?;
//!
//! // Later, when it is to be replaced itself:
//! hand_over::offer(&server, "/run/echo/hand-over", patience)?;
//! server.shutdown(patience); // who is connected learns of it
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What goes by the socket, version 1. Old to new: `EMBHAND1`; the number of listeners and of bytes of text, as four bytes each, little-endian; the
//! addresses as text, each ended by a zero byte; and with that the listeners (`SCM_RIGHTS`), in the same order. New to old: `R`, ready. Old to
//! new: `D`, it accepts nothing more; or `X`, it does not wait any longer and goes on.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use embar_transport::socket::{self, FileOwnership};
use embar_transport::{Address, Listener, SocketError, SocketOptions, Stream, has_trusted_peer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::listening::Offered;
use super::server::Server;

/// Listeners that go over at a time, a limit of the kernel.
pub const MAX_LISTENERS: usize = 253;

const MAGIC: [u8; 8] = *b"EMBHAND1";
const HEAD_BYTES: usize = 16;
/// Longest text of all addresses: their paths have at most 107 bytes.
const MAX_TEXT_BYTES: usize = MAX_LISTENERS * 128;
const READY: u8 = b'R';
const DONE: u8 = b'D';
const WITHDRAWN: u8 = b'X';
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Between two tries to connect.
const RETRY: Duration = Duration::from_millis(5);
/// How long the other process may take to read a few bytes, or to stop accepting.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// Why listeners did not go over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandOverError {
    /// The server has none: it listens nowhere, does not accept any more, or has ended.
    #[error("the server accepts from no listener: there is nothing to hand over")]
    NoListeners,
    /// Listeners by shared memory stay where they are.
    #[error("{0} cannot be handed over: listeners for shared memory end with their process")]
    SharedMemory(Address),
    /// There are more than [`MAX_LISTENERS`].
    #[error("{0} listeners are more than go over at a time: {MAX_LISTENERS}")]
    TooMany(usize),
    /// The socket file cannot be made.
    #[error(transparent)]
    Listen(#[from] SocketError),
    /// Nobody took them, or said in time that it was ready; or nobody offered any.
    #[error(
        "no other process came in time, or it was not ready in time: this one goes on as it was"
    )]
    TimedOut,
    /// The other process runs as another user.
    #[error(
        "the process at the other end is of another user: check who may write to the folder of the socket file"
    )]
    Stranger,
    /// The old process does not wait any longer: it keeps its listeners, and this one is to end.
    #[error("the old process has not waited and goes on: end this one, and begin again")]
    Withdrawn,
    /// What came is not a hand-over.
    #[error(
        "the other process said what is no hand-over ({0}): check the path, and use the same release"
    )]
    Protocol(String),
    /// The system reported an error.
    #[error("the listeners did not go over: {0}")]
    Io(#[from] io::Error),
}

/// Offers the listeners of `server` at a socket file, and waits, at most for `timeout`, until another process has taken them and is ready. Then
/// the server accepts nothing more, as after [`Server::stop_accepting`], and leaves the files of its Unix sockets to the other process.
///
/// One process at a time may take them; one that dies makes room for the next. The file is for this user only, and is gone when this returns.
/// Not for handlers, as it blocks.
///
/// # Errors
/// [`HandOverError`]; the server goes on as it was.
pub fn offer(
    server: &Server,
    path: impl AsRef<Path>,
    timeout: Duration,
) -> Result<(), HandOverError> {
    let deadline = deadline(timeout);
    let mut offered = server.pool.offered_listeners(deadline).map_err(in_time)?;
    // Each worker told its own.
    let addresses = server.addresses();
    offered.sort_by_key(|it| addresses.iter().position(|known| *known == it.address));
    if offered.is_empty() {
        return Err(HandOverError::NoListeners);
    }
    if offered.len() > MAX_LISTENERS {
        return Err(HandOverError::TooMany(offered.len()));
    }
    if let Some(it) = offered
        .iter()
        .find(|it| matches!(it.address, Address::Shm(_)))
    {
        return Err(HandOverError::SharedMemory(it.address.clone()));
    }
    let address = Address::Unix(path.as_ref().to_owned());
    let door = socket::listen(address, &SocketOptions::default())?;
    loop {
        wait_readable(&door, deadline).map_err(in_time)?;
        let mut taker = match door.accept() {
            Ok((Stream::Unix(taker), _)) => taker,
            // It left again, or there is no descriptor for it at the moment.
            _ if Instant::now() < deadline => {
                thread::sleep(RETRY);
                continue;
            }
            _ => return Err(HandOverError::TimedOut),
        };
        if !has_trusted_peer(&taker).unwrap_or(false) {
            tracing::warn!("a process of another user asked for the listeners, and gets none");
            continue;
        }
        if let Err(error) = serve(&mut taker, &offered, deadline) {
            // Without an answer the other one, if it lives, would not know who goes on.
            let _ = taker.write_all(&[WITHDRAWN]);
            if error.kind() == ErrorKind::TimedOut {
                return Err(HandOverError::TimedOut);
            }
            tracing::warn!(
                "a process took the listeners and was not ready ({error}): this one goes on"
            );
            continue;
        }
        for file in offered.iter().filter_map(|it| it.file.as_ref()) {
            file.set(false);
        }
        server.pool.stop_accepting(Some(ANSWER_PATIENCE));
        // The other process may want to offer them at the same path.
        drop((door, offered));
        let _ = taker.write_all(&[DONE]);
        return Ok(());
    }
}

/// Hands copies over, and waits until they are accepted from.
fn serve(taker: &mut UnixStream, offered: &[Offered], deadline: Instant) -> io::Result<()> {
    let mut text = Vec::new();
    for it in offered {
        write!(text, "{}\0", it.address)?;
    }
    let mut bytes = MAGIC.to_vec();
    for number in [offered.len(), text.len()] {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(text);
    taker.set_nonblocking(false)?;
    taker.set_write_timeout(Some(ANSWER_PATIENCE))?;
    let sockets: Vec<_> = offered.iter().map(|it| it.socket.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_LISTENERS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&sockets)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    let slices = [IoSlice::new(&bytes)];
    let sent = rustix::net::sendmsg(&*taker, &slices, &mut ancillary, SendFlags::NOSIGNAL)?;
    taker.write_all(&bytes[sent..])?;
    wait_readable(&*taker, deadline)?;
    let mut said = [0];
    taker.read_exact(&mut said)?;
    match said {
        [READY] => Ok(()),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// Takes the listeners that another process offers at `path`, and waits for that at most for `timeout`.
///
/// # Errors
/// [`HandOverError`]; the other process goes on as it was.
pub fn take(path: impl AsRef<Path>, timeout: Duration) -> Result<Taken, HandOverError> {
    let deadline = deadline(timeout);
    let stream = connect(path.as_ref(), deadline)?;
    if !has_trusted_peer(&stream)? {
        return Err(HandOverError::Stranger);
    }
    let mut sockets = Vec::new();
    let mut head = [0; HEAD_BYTES];
    receive(&stream, &mut head, &mut sockets, deadline)?;
    let number = |at: usize| {
        let bytes = head[at..at + 4].try_into().expect("4 bytes");
        u32::from_le_bytes(bytes) as usize
    };
    let (count, text_bytes) = (number(8), number(12));
    let wrong = |text: &str| HandOverError::Protocol(text.to_owned());
    if head[..8] != MAGIC {
        return Err(wrong("it begins with other bytes"));
    }
    if count == 0 || count > MAX_LISTENERS || text_bytes > MAX_TEXT_BYTES {
        return Err(wrong("its numbers are out of range"));
    }
    let mut text = vec![0; text_bytes];
    receive(&stream, &mut text, &mut sockets, deadline)?;
    let text = String::from_utf8(text).map_err(|_| wrong("an address is no text"))?;
    let addresses: Vec<_> = text.split_terminator('\0').collect();
    if addresses.len() != count || sockets.len() != count {
        return Err(wrong("there are not as many listeners as it says"));
    }
    let mut taken = Taken {
        stream,
        listeners: Vec::new(),
        files: Vec::new(),
    };
    for (socket, address) in sockets.into_iter().zip(addresses) {
        // Not as any address: that would ask the resolver for a name.
        let address = match address.strip_prefix("unix:") {
            Some(path) => Address::Unix(PathBuf::from(path)),
            None => Address::Tcp(address.parse().map_err(|_| wrong("an address is none"))?),
        };
        let listener = Listener::passed_on(socket, &address)
            .map_err(|error| HandOverError::Protocol(format!("{address}: {error}")))?;
        taken
            .files
            .extend(listener.file().map(|file| file.ownership()));
        taken.listeners.push(listener);
    }
    Ok(taken)
}

/// Connects as soon as there is an offer.
fn connect(path: &Path, deadline: Instant) -> Result<UnixStream, HandOverError> {
    let address = SocketAddrUnix::new(path).map_err(io::Error::from)?;
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = (AddressFamily::UNIX, SocketType::STREAM);
        let socket =
            rustix::net::socket_with(kind.0, kind.1, flags, None).map_err(io::Error::from)?;
        let error = match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(UnixStream::from(socket)),
            Err(error) => io::Error::from(error),
        };
        match error.kind() {
            ErrorKind::NotFound
            | ErrorKind::ConnectionRefused
            | ErrorKind::WouldBlock
            | ErrorKind::Interrupted => {}
            _ => return Err(error.into()),
        }
        if Instant::now() >= deadline {
            return Err(HandOverError::TimedOut);
        }
        thread::sleep(RETRY);
    }
}

/// Fills `into`, and adds what is handed over with it to `sockets`.
fn receive(
    stream: &UnixStream,
    into: &mut [u8],
    sockets: &mut Vec<OwnedFd>,
    deadline: Instant,
) -> Result<(), HandOverError> {
    let mut filled = 0;
    while filled < into.len() {
        wait_readable(stream, deadline).map_err(in_time)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_LISTENERS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(&mut into[filled..])];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = match rustix::net::recvmsg(stream, slices, &mut ancillary, flags) {
            Ok(received) => received,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
            Err(error) => return Err(io::Error::from(error).into()),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(handed) = message {
                sockets.extend(handed);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            let text =
                "there are not enough descriptors: raise the limit of open files (ulimit -n)";
            return Err(io::Error::other(text).into());
        }
        if received.bytes == 0 {
            // It is in the middle of an offer that failed, or died.
            return Err(HandOverError::Protocol("it left".to_owned()));
        }
        filled += received.bytes;
    }
    Ok(())
}

/// Far away for a time that no clock has.
fn deadline(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + A_YEAR)
}

fn in_time(error: io::Error) -> HandOverError {
    match error.kind() {
        ErrorKind::TimedOut => HandOverError::TimedOut,
        _ => error.into(),
    }
}

/// # Errors
/// `TimedOut` at the deadline.
fn wait_readable(socket: impl AsFd, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let time = Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&time)) {
            Ok(0) => return Err(ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Listeners of another process, which still accepts from them. Dropped before it is [ready](Taken::ready), that process goes on as if nothing had
/// been.
#[must_use = "the other process waits for `ready`"]
pub struct Taken {
    stream: UnixStream,
    listeners: Vec<Listener>,
    files: Vec<FileOwnership>,
}

impl Taken {
    /// The listeners, for [`ServerBuilder::listener`](crate::ServerBuilder::listener), in the order in which the other server had them. A second
    /// call returns none.
    pub fn listeners(&mut self) -> Vec<Listener> {
        mem::take(&mut self.listeners)
    }

    /// Says that this process accepts from them, and waits until the other one does not any more. From then on the files of Unix sockets belong
    /// to this process. If the other one has died, they do, too.
    ///
    /// # Errors
    /// [`HandOverError::Withdrawn`]: the other process goes on, so this one is to end. [`HandOverError::TimedOut`]: it has not said that it stopped
    /// within 10 s; this one goes on, and both may accept.
    pub fn ready(mut self) -> Result<(), HandOverError> {
        let mut said = [0];
        let answered = self
            .stream
            .set_nonblocking(false)
            .and_then(|()| self.stream.set_read_timeout(Some(ANSWER_PATIENCE * 2)));
        // An error of this tells no more than the answer, or that there is none.
        let _ = self.stream.write_all(&[READY]);
        let answer = answered.and_then(|()| self.stream.read_exact(&mut said));
        if answer.is_ok() && said == [WITHDRAWN] {
            return Err(HandOverError::Withdrawn);
        }
        for file in &self.files {
            file.set(true);
        }
        match answer {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(HandOverError::TimedOut),
            // It stopped, or died.
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.listeners).finish()
    }
}
