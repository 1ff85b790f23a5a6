//! The old process: it offers what it accepts from, and stops once the new one is ready.

use std::error::Error;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use embar_transport::socket::{self, FileOwnership};
use embar_transport::{Address, Listener, SocketOptions, Stream, has_trusted_peer};
use rustix::event::PollFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::{
    ANSWER_PATIENCE, DONE, GIVEN, HandOverError, LISTENERS, MAX_LISTENERS, MAX_STATE_BYTES, READY,
    READY_PATIENCE, RETRY, WITHDRAWN, WORKING, WORKING_EACH, clock, deadline, greet, wait_readable,
};
use crate::runtime::listening::Offered;
use crate::runtime::server::Server;
use crate::runtime::stop::{Stop, Waited};

type MakeState<'a> = Box<dyn FnOnce() -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> + 'a>;

/// Offers the listeners of `server` at a socket file, and waits, at most for `timeout`, until another process comes for them. It takes them, and has
/// [`READY_PATIENCE`] to say that it is ready. Then the server accepts nothing more, as after [`Server::stop_accepting`], which waits for workers that are held up, and leaves the files of its Unix
/// sockets to the other process.
///
/// One process at a time may take them; one that dies makes room for the next. The file is for this user only, and is gone when this returns.
/// [`Server::stop_accepting`] ends an offer that nobody takes just now, with [`HandOverError::NoListeners`].
/// Not for handlers, as it blocks.
///
/// # Errors
/// [`HandOverError`]; the server goes on as it was, unless it was told to stop.
pub fn offer(
    server: &Server,
    path: impl AsRef<Path>,
    timeout: Duration,
) -> Result<(), HandOverError> {
    hand_over(server, path.as_ref(), timeout, None)
}

/// As [`offer`], with what the new process is to know: the bytes that `state` makes, for [`Taken::state`](super::Taken::state). They are at most
/// [`MAX_STATE_BYTES`].
///
/// `state` is called once, on this thread, when a process of this user has come that speaks this version of the exchange. It may take its time, for instance to
/// end sessions first: the other process waits as long as this one lives. Meanwhile, and until the new process is
/// ready, this one still accepts. Handlers must not wait for what it froze, as their workers hand over the listeners.
///
/// State is made for one process: if that one is not ready, there is no wait for another.
///
/// # Errors
/// [`HandOverError`]; the server goes on as it was, and what `state` froze is to be thawed. It may not have been called.
pub fn offer_with_state(
    server: &Server,
    path: impl AsRef<Path>,
    timeout: Duration,
    state: impl FnOnce() -> Result<Vec<u8>, Box<dyn Error + Send + Sync>>,
) -> Result<(), HandOverError> {
    hand_over(server, path.as_ref(), timeout, Some(Box::new(state)))
}

fn hand_over(
    server: &Server,
    path: &Path,
    timeout: Duration,
    mut make_state: Option<MakeState<'_>>,
) -> Result<(), HandOverError> {
    let deadline = deadline(timeout);
    // What cannot go over is told at once, and not when somebody asks for it.
    drop(copies(server, deadline)?);
    let address = Address::Unix(path.to_owned());
    let door = socket::listen(address, &SocketOptions::default())?;
    loop {
        let has_stopped = &server.pool.has_stopped;
        let taker = accept(has_stopped, &door, deadline)?;
        let soon = deadline.min(Instant::now() + ANSWER_PATIENCE);
        // Who says nothing does not keep this one from stopping.
        if has_stopped.wait(Some(&taker), PollFlags::IN, Some(soon))? == Waited::Stopped {
            withdraw(taker);
            return Err(HandOverError::NoListeners);
        }
        if let Err(why) = greet(&taker, soon) {
            tracing::warn!("a process asked for the listeners, and gets none: {why}");
            continue;
        }
        let held = server.pool.hold_listeners();
        if has_stopped.is_requested() {
            withdraw(taker);
            return Err(HandOverError::NoListeners);
        }
        let has_state = make_state.is_some();
        let state = match make_state.take() {
            Some(make_state) => saying_that_it_works(&taker, make_state),
            None => Ok(Vec::new()),
        };
        let why = match state.and_then(|state| hand(server, &taker, state)) {
            Ok(files) => {
                for file in files {
                    file.set(false);
                }
                server.pool.close_listeners();
                // The other process may want to offer them at the same path.
                drop(door);
                let _ = (&taker).write_all(&[DONE]);
                return Ok(());
            }
            Err(why) => why,
        };
        withdraw(taker);
        drop(held);
        if has_stopped.is_requested() {
            // A handler that asked for it did not wait for this.
            server.pool.stop_accepting();
            return Err(HandOverError::NoListeners);
        }
        if has_state || !matches!(why, HandOverError::NotReady(_)) {
            return Err(why);
        }
        tracing::warn!("{why}");
    }
}

/// The next process of this user that asks.
fn accept(
    has_stopped: &Stop,
    door: &Listener,
    deadline: Instant,
) -> Result<UnixStream, HandOverError> {
    loop {
        match has_stopped.wait(Some(door), PollFlags::IN, Some(deadline))? {
            Waited::Ready => {}
            Waited::TimedOut => return Err(HandOverError::TimedOut),
            Waited::Stopped => return Err(HandOverError::NoListeners),
        }
        match door.accept() {
            Ok((Stream::Unix(taker), _)) if has_trusted_peer(&taker).unwrap_or(false) => {
                return Ok(taker);
            }
            Ok(_) => {
                tracing::warn!("a process of another user asked for the listeners, and gets none");
            }
            // It left again, or there is no descriptor for it at the moment.
            Err(_) => thread::sleep(RETRY),
        }
    }
}

/// Makes the state; the other process hears meanwhile that this one has not died.
fn saying_that_it_works(
    mut taker: &UnixStream,
    make_state: MakeState<'_>,
) -> Result<Vec<u8>, HandOverError> {
    let state = thread::scope(|scope| {
        // Dropped also where the function panics.
        let (_made, is_made) = channel::<()>();
        scope.spawn(move || {
            while is_made.recv_timeout(WORKING_EACH) == Err(RecvTimeoutError::Timeout)
                && taker.write_all(&[WORKING]).is_ok()
            {}
        });
        make_state()
    });
    let state = state.map_err(HandOverError::State)?;
    if state.len() > MAX_STATE_BYTES {
        return Err(HandOverError::StateTooLong(state.len()));
    }
    Ok(state)
}

/// Tells the other process, if it lives, that this one goes on. It may not read at the moment. The socket stays open until it is told, as it takes an
/// end without a word for the death of this process.
fn withdraw(taker: UnixStream) {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let told = rustix::net::send(&taker, &[WITHDRAWN], flags);
    if told != Err(rustix::io::Errno::AGAIN) {
        return;
    }
    let tell = move || {
        let _ = taker.set_write_timeout(None);
        let _ = (&taker).write_all(&[WITHDRAWN]);
    };
    let thread = thread::Builder::new().name("hand-over".into()).spawn(tell);
    if let Err(error) = thread {
        tracing::warn!("a process that hangs may not learn that this one goes on: {error}");
    }
}

/// Copies of what the server accepts from, in the order of its addresses.
fn copies(server: &Server, deadline: Instant) -> Result<Vec<Offered>, HandOverError> {
    let copied = server.pool.offered_listeners(deadline);
    let mut offered = copied.map_err(|error| match error.kind() {
        ErrorKind::TimedOut => HandOverError::HeldUp,
        _ => error.into(),
    })?;
    // Each worker told its own.
    let addresses = server.addresses();
    offered.sort_by_key(|it| addresses.iter().position(|known| *known == it.address));
    if offered.is_empty() {
        return Err(HandOverError::NoListeners);
    }
    if offered.len() > MAX_LISTENERS {
        return Err(HandOverError::TooMany(offered.len()));
    }
    let mut addresses = offered.iter().map(|it| &it.address);
    match addresses.find(|it| matches!(it, Address::Shm(_))) {
        Some(address) => Err(HandOverError::SharedMemory(address.clone())),
        None => Ok(offered),
    }
}

/// Hands copies over, and waits until they are accepted from. Returns who owns the socket files.
fn hand(
    server: &Server,
    mut taker: &UnixStream,
    state: Vec<u8>,
) -> Result<Vec<FileOwnership>, HandOverError> {
    // They are made now, and gone as soon as they are sent: one that outlives its listener would let peers connect that nobody accepts.
    let offered = copies(server, Instant::now() + ANSWER_PATIENCE)?;
    let sent = send(taker, &offered, state.len()).and_then(|()| taker.write_all(&state));
    let deadline = Instant::now() + READY_PATIENCE;
    let until = clock().saturating_add(READY_PATIENCE.as_nanos() as u64);
    let sent = sent.and_then(|()| taker.write_all(&until.to_le_bytes()));
    if let Err(error) = sent {
        // Nothing more is to be taken for the rest of the state.
        let _ = taker.shutdown(Shutdown::Both);
        return Err(HandOverError::NotReady(match error.kind() {
            ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
            _ => error,
        }));
    }
    let files = offered.into_iter().filter_map(|it| it.file).collect();
    drop(state);
    wait_readable(taker, deadline).map_err(|why| match why {
        HandOverError::TimedOut => HandOverError::NotReady(ErrorKind::TimedOut.into()),
        why => why,
    })?;
    let mut said = [0];
    let given = taker.read_exact(&mut said).and_then(|()| match said {
        // From here on they are its own, unless it has died by now.
        [READY] => taker.write_all(&[GIVEN]),
        _ => Err(ErrorKind::InvalidData.into()),
    });
    given.map_err(HandOverError::NotReady)?;
    Ok(files)
}

fn send(mut taker: &UnixStream, offered: &[Offered], state_bytes: usize) -> io::Result<()> {
    let mut text = Vec::new();
    for it in offered {
        write!(text, "{}\0", it.address)?;
    }
    let mut bytes = vec![LISTENERS];
    for number in [offered.len(), text.len()] {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend((state_bytes as u64).to_le_bytes());
    bytes.extend(text);
    let sockets: Vec<_> = offered.iter().map(|it| it.socket.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_LISTENERS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&sockets)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    let slices = [IoSlice::new(&bytes)];
    let sent = rustix::net::sendmsg(taker, &slices, &mut ancillary, SendFlags::NOSIGNAL)?;
    taker.write_all(&bytes[sent..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_does_not_read_learns_later_that_the_old_one_goes_on() {
        let (mut old, mut new) = UnixStream::pair().unwrap();
        old.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while old.write(&[0]).is_ok() {
            sent += 1;
        }
        old.set_nonblocking(false).unwrap();
        // Longer than it takes, and nobody waits for it.
        old.set_write_timeout(Some(RETRY)).unwrap();
        withdraw(old);
        let mut said = Vec::new();
        new.read_to_end(&mut said).unwrap();
        assert_eq!(said.len(), sent + 1);
        assert_eq!(said.last(), Some(&WITHDRAWN));
    }
}
