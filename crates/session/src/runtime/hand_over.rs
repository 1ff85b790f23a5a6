//! Listeners go from a process to the one that replaces it, and no connect is refused in between. What the old process knows may go with them.
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
//! **State.** A program that remembers something [offers it with the listeners](offer_with_state()), as bytes of its own. The function that makes
//! them is called when a new process is there. It freezes what it describes: a change after that would be lost. If the offer fails, the old process
//! goes on, and thaws it.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use embar_session::{Server, hand_over};
//! # struct Room;
//! # impl Room {
//! #     fn freeze(&self) -> Vec<u8> { Vec::new() }
//! #     fn thaw(&self) {}
//! #     fn of(_: &[u8]) -> Self { Self }
//! # }
//! # fn old(server: Server, room: &Room, patience: Duration) {
//! // The old process:
//! match hand_over::offer_with_state(&server, "/run/chat/hand-over", patience, || Ok(room.freeze())) {
//!     Ok(()) => server.shutdown(patience),
//!     Err(why) => {
//!         eprintln!("{why}");
//!         room.thaw(); // it may not have been frozen
//!     }
//! }
//! # }
//! # fn new(patience: Duration) -> Result<(), Box<dyn std::error::Error>> {
//! // The new one:
//! let mut taken = hand_over::take("/run/chat/hand-over", patience)?;
//! let room = Room::of(&taken.state());
//! let listeners = taken.listeners();
//! taken.ready()?; // before anybody is served: until here the old process may go on with the same state
//! // … starts with the listeners, as above, or before `ready` with a room that is frozen
//! # drop((room, listeners)); Ok(()) }
//! ```
//!
//! What goes by the socket, version 2, with numbers in little-endian. Both, at once: `EMBHAND2`. Old to new: `W`, each second while it makes its
//! state; then `L`, the number of listeners and of bytes of text, as four bytes each, and of bytes of state, as eight; the addresses as text, each
//! ended by a zero byte; and with that the listeners (`SCM_RIGHTS`), in the same order; then the state; then until when it waits, in nanoseconds of the
//! clock that all processes of a machine share (`CLOCK_MONOTONIC`), as eight bytes. New to old: `R`, ready. Old to new: `G`, they are given; then `D`, it accepts nothing more; or
//! before, in the place of `W`, `L` or `G`, `X`: it does not wait any longer and goes on. An end behind `G` is the death of the old process, and so is one
//! before, while it waits. If its time is over it may have gone on before it died, so the new one does not.

mod offering;
mod taking;

use std::error::Error;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use embar_transport::{Address, SocketError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

pub use self::offering::{offer, offer_with_state};
pub use self::taking::{Taken, take};

/// Listeners that go over at a time, a limit of the kernel.
pub const MAX_LISTENERS: usize = 253;
/// How long a new process may take from when it has received the listeners and the state until it is [ready](Taken::ready). The time in which it
/// receives them does not count, however long the state is. Nobody is served meanwhile whom the state is about, so it is not long.
pub const READY_PATIENCE: Duration = Duration::from_secs(10);
/// Longest state that goes over with them.
pub const MAX_STATE_BYTES: usize = 1 << 30;

const MAGIC: &[u8] = b"EMBHAND";
const VERSION: u8 = b'2';
/// Behind the byte that says what it is: two numbers of four bytes, and one of eight.
const NUMBERS_BYTES: usize = 16;
/// Longest text of all addresses: their paths have at most 107 bytes.
const MAX_TEXT_BYTES: usize = MAX_LISTENERS * 128;
const WORKING: u8 = b'W';
const LISTENERS: u8 = b'L';
const READY: u8 = b'R';
const GIVEN: u8 = b'G';
const DONE: u8 = b'D';
const WITHDRAWN: u8 = b'X';
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Between two tries to connect or to accept.
const RETRY: Duration = Duration::from_millis(5);
/// Between two words that the state is being made.
const WORKING_EACH: Duration = Duration::from_secs(1);
/// How long the other process may be silent where it has nothing to wait for.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

const _: () = assert!(WORKING_EACH.as_millis() * 2 < ANSWER_PATIENCE.as_millis());

/// Why listeners did not go over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandOverError {
    /// The server has none: it listens nowhere, does not accept any more, or has ended.
    #[error(
        "the server accepts from no listener, or was told to stop: there is nothing to hand over"
    )]
    NoListeners,
    /// Listeners by shared memory stay where they are.
    #[error("{0} cannot be handed over: listeners for shared memory end with their process")]
    SharedMemory(Address),
    /// There are more than [`MAX_LISTENERS`].
    #[error("{0} listeners are more than go over at a time: {MAX_LISTENERS}")]
    TooMany(usize),
    /// The state has more than [`MAX_STATE_BYTES`].
    #[error("a state of {0} bytes is longer than what goes over: {MAX_STATE_BYTES}")]
    StateTooLong(usize),
    /// The function that makes the state failed.
    #[error("the state was not made: {0}")]
    State(#[source] Box<dyn Error + Send + Sync>),
    /// The socket file cannot be made.
    #[error(transparent)]
    Listen(#[from] SocketError),
    /// Nobody came for them in time, nobody offered any, or the other process fell silent.
    #[error("no other process came in time, or it said nothing more")]
    TimedOut,
    /// A worker did not give its listeners in time.
    #[error("a worker of the server is held up: look for a handler that waits")]
    HeldUp,
    /// The new process left before it was ready, read nothing for 10 s, or was not ready within [`READY_PATIENCE`].
    #[error("the new process was not ready ({0}): this one goes on as it was")]
    NotReady(#[source] io::Error),
    /// The old process left before it handed anything over.
    #[error("the old process left before it handed its listeners over: it may have died")]
    Left,
    /// The other process runs as another user.
    #[error(
        "the process at the other end is of another user: check who may write to the folder of the socket file"
    )]
    Stranger,
    /// The old process does not wait any longer: it keeps its listeners, and this one is to end.
    #[error("the old process has not waited and goes on: end this one, and begin again")]
    Withdrawn,
    /// The other process has another version of the exchange, this one.
    #[error(
        "the other process hands over by version {} and this one by {}: stop it before this one starts",
        char::from(*.0), char::from(VERSION)
    )]
    Version(u8),
    /// What came is not a hand-over.
    #[error("the other process said what is no hand-over ({0}): check the path")]
    Protocol(String),
    /// The system reported an error.
    #[error("the listeners did not go over: {0}")]
    Io(#[from] io::Error),
}

impl HandOverError {
    /// Whether a new process may begin again with listening: nobody offers, or the old one died, and the address may be free; or it goes on, and may
    /// be there for another try.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::TimedOut | Self::Left | Self::Withdrawn)
    }
}

/// Says who this is, and hears that the other one can hand over, too.
fn greet(mut stream: &UnixStream, deadline: Instant) -> Result<(), HandOverError> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
    stream.set_write_timeout(Some(ANSWER_PATIENCE))?;
    stream.write_all(&[MAGIC, &[VERSION]].concat())?;
    let mut heard = [0; MAGIC.len() + 1];
    let mut filled = 0;
    while filled < heard.len() {
        wait_readable(stream, deadline)?;
        match stream.read(&mut heard[filled..])? {
            0 => return Err(HandOverError::Left),
            read => filled += read,
        }
    }
    match heard.split_at(MAGIC.len()) {
        (MAGIC, [VERSION]) => Ok(()),
        (MAGIC, [version]) => Err(HandOverError::Version(*version)),
        _ => Err(HandOverError::Protocol(
            "it begins with other bytes".to_owned(),
        )),
    }
}

/// Nanoseconds of a clock that this process shares with the other one.
fn clock() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Far away for a time that no clock has.
fn deadline(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + A_YEAR)
}

/// # Errors
/// [`HandOverError::TimedOut`] at the deadline.
fn wait_readable(socket: impl AsFd, deadline: Instant) -> Result<(), HandOverError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let time = Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&time)) {
            Ok(0) => return Err(HandOverError::TimedOut),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
}
