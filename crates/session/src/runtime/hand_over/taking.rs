//! The new process: it takes what the old one accepts from, and says when it is ready.

use std::fmt;
use std::io::{self, ErrorKind, IoSliceMut, Read, Write};
use std::mem::{self, MaybeUninit};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use embar_transport::socket::FileOwnership;
use embar_transport::{Address, Listener, has_trusted_peer};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};

use super::{
    ANSWER_PATIENCE, GIVEN, HandOverError, LISTENERS, MAX_LISTENERS, MAX_STATE_BYTES,
    MAX_TEXT_BYTES, NUMBERS_BYTES, READY, RETRY, WITHDRAWN, WORKING, clock, deadline, greet,
    wait_readable,
};

/// Takes the listeners that another process offers at `path`, and waits at most for `timeout` until one does.
///
/// From then on it waits as long as that process makes its [state](super::offer_with_state()), unless nothing is heard of it for 10 s.
///
/// # Errors
/// [`HandOverError`]; the other process goes on as it was.
pub fn take(path: impl AsRef<Path>, timeout: Duration) -> Result<Taken, HandOverError> {
    let mut stream = connect(path.as_ref(), deadline(timeout))?;
    let mut sockets = Vec::new();
    let wrong = |text: &str| HandOverError::Protocol(text.to_owned());
    loop {
        match hear(&stream, &mut sockets)? {
            WORKING => {}
            LISTENERS => break,
            WITHDRAWN => return Err(HandOverError::Withdrawn),
            _ => return Err(wrong("it says what nobody knows")),
        }
    }
    let mut numbers = [0; NUMBERS_BYTES];
    stream.read_exact(&mut numbers).map_err(left)?;
    let [a, b, c, d, e, f, g, h, state_bytes @ ..] = numbers;
    let count = u32::from_le_bytes([a, b, c, d]) as usize;
    let text_bytes = u32::from_le_bytes([e, f, g, h]) as usize;
    let state_bytes = usize::try_from(u64::from_le_bytes(state_bytes)).unwrap_or(usize::MAX);
    let in_range = (1..=MAX_LISTENERS).contains(&count)
        && text_bytes <= MAX_TEXT_BYTES
        && state_bytes <= MAX_STATE_BYTES;
    if !in_range {
        return Err(wrong("its numbers are out of range"));
    }
    let text = receive(&stream, text_bytes)?;
    let text = String::from_utf8(text).map_err(|_| wrong("an address is no text"))?;
    let addresses: Vec<_> = text.split_terminator('\0').collect();
    if addresses.len() != count || sockets.len() != count {
        return Err(wrong("there are not as many listeners as it says"));
    }
    let state = receive(&stream, state_bytes)?;
    let mut until = [0; 8];
    stream.read_exact(&mut until).map_err(left)?;
    let mut taken = Taken {
        stream,
        listeners: Vec::new(),
        files: Vec::new(),
        state,
        until: u64::from_le_bytes(until),
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

/// Connects as soon as there is an offer whose turn it is.
fn connect(path: &Path, deadline: Instant) -> Result<UnixStream, HandOverError> {
    let address = SocketAddrUnix::new(path).map_err(io::Error::from)?;
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = (AddressFamily::UNIX, SocketType::STREAM);
        let socket =
            rustix::net::socket_with(kind.0, kind.1, flags, None).map_err(io::Error::from)?;
        let connected = rustix::net::connect(&socket, &address).map_err(io::Error::from);
        let greeted = connected.map_err(HandOverError::from).and_then(|()| {
            let stream = UnixStream::from(socket);
            if !has_trusted_peer(&stream)? {
                return Err(HandOverError::Stranger);
            }
            greet(&stream, deadline)?;
            Ok(stream)
        });
        match greeted {
            // An offer ended before it was this one's turn.
            Err(HandOverError::Left) => {}
            Err(HandOverError::Io(error)) if is_no_offer(error.kind()) => {}
            other => return other,
        }
        if Instant::now() >= deadline {
            return Err(HandOverError::TimedOut);
        }
        thread::sleep(RETRY);
    }
}

/// There may be one later.
fn is_no_offer(error: ErrorKind) -> bool {
    matches!(
        error,
        ErrorKind::NotFound
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
            | ErrorKind::WouldBlock
            | ErrorKind::Interrupted
    )
}

/// The next byte; what is handed over with it is added to `sockets`.
fn hear(stream: &UnixStream, sockets: &mut Vec<OwnedFd>) -> Result<u8, HandOverError> {
    loop {
        wait_readable(stream, Instant::now() + ANSWER_PATIENCE)?;
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_LISTENERS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = match rustix::net::recvmsg(stream, slices, &mut ancillary, flags) {
            Ok(received) => received,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
            Err(error) => return Err(left(error.into())),
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
        return match received.bytes {
            0 => Err(HandOverError::Left),
            _ => Ok(byte[0]),
        };
    }
}

fn receive(stream: &UnixStream, bytes: usize) -> Result<Vec<u8>, HandOverError> {
    let mut received = Vec::new();
    let reserved = received.try_reserve_exact(bytes);
    reserved.map_err(|_| io::Error::from(ErrorKind::OutOfMemory))?;
    let read = stream.take(bytes as u64).read_to_end(&mut received);
    match read.map_err(left)? {
        read if read == bytes => Ok(received),
        _ => Err(HandOverError::Left),
    }
}

/// What an error says where the other process is to go on.
fn left(error: io::Error) -> HandOverError {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => HandOverError::Left,
        ErrorKind::WouldBlock => HandOverError::TimedOut,
        _ => error.into(),
    }
}

/// Listeners of another process, which still accepts from them. Dropped before it is [ready](Taken::ready), that process goes on as if nothing had
/// been.
#[must_use = "the other process waits for `ready`"]
pub struct Taken {
    stream: UnixStream,
    listeners: Vec<Listener>,
    files: Vec<FileOwnership>,
    state: Vec<u8>,
    /// The other process waits so long, by [`clock`].
    until: u64,
}

impl Taken {
    /// The listeners, for [`ServerBuilder::listener`](crate::ServerBuilder::listener), in the order in which the other server had them. A second
    /// call returns none.
    pub fn listeners(&mut self) -> Vec<Listener> {
        mem::take(&mut self.listeners)
    }

    /// What the other process gave with them by [`offer_with_state`](super::offer_with_state()); nothing if it only
    /// [offered](super::offer()) them. A second call returns nothing.
    pub fn state(&mut self) -> Vec<u8> {
        mem::take(&mut self.state)
    }

    /// Says that this process is ready to accept from them, and waits until the other one does not any more, or says that it goes on. From then on
    /// the files of Unix sockets belong to this process. If the other one has died, they do, too.
    ///
    /// The other one may take long, for instance as a handler holds up one of its workers: it is not known before who goes on. To kill it ends
    /// the wait.
    ///
    /// # Errors
    /// [`HandOverError::Withdrawn`]: the other process goes on, or did so before it ended. So this one is to end, or to begin again.
    pub fn ready(mut self) -> Result<(), HandOverError> {
        self.stream.set_read_timeout(None)?;
        // An error of this tells no more than the answer, or that there is none.
        let _ = self.stream.write_all(&[READY]);
        let mut said = [0];
        let heard = self.stream.read_exact(&mut said);
        let is_given = match (heard, said) {
            (Ok(()), [GIVEN]) => {
                // It stops accepting; or it dies, which comes to the same.
                let _ = self.stream.read_exact(&mut said);
                true
            }
            (Ok(()), _) => false,
            // It died. If it had its time before, it may have gone on first, and somebody else may have taken over from it.
            (Err(_), _) => clock() < self.until,
        };
        if !is_given {
            return Err(HandOverError::Withdrawn);
        }
        for file in &self.files {
            file.set(true);
        }
        Ok(())
    }
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken")
            .field("listeners", &self.listeners)
            .field("state_bytes", &self.state.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::DONE;
    use super::*;

    /// What a new process hears at last from an old one that waits until then, says this when it is told to, and leaves.
    fn hears(says: &[u8], until: u64) -> Result<(), HandOverError> {
        let (stream, mut old) = UnixStream::pair().unwrap();
        let same = stream.try_clone().unwrap();
        let taken = Taken {
            stream,
            listeners: Vec::new(),
            files: Vec::new(),
            state: Vec::new(),
            until,
        };
        thread::scope(|scope| {
            let ready = scope.spawn(|| taken.ready());
            let mut said = [0];
            old.read_exact(&mut said).unwrap();
            assert_eq!(said, [READY]);
            assert_eq!(same.read_timeout().unwrap(), None, "it gives up");
            assert!(!ready.is_finished());
            old.write_all(says).unwrap();
            drop(old);
            ready.join().unwrap()
        })
    }

    #[test]
    fn the_answer_of_the_old_process_says_who_goes_on() {
        for until in [0, u64::MAX] {
            hears(&[GIVEN, DONE], until).unwrap();
            hears(&[GIVEN], until).expect("it died, and knew who goes on");
            let withdrawn = hears(&[WITHDRAWN], until);
            assert!(matches!(withdrawn, Err(HandOverError::Withdrawn)));
        }
        hears(&[], u64::MAX).expect("it died as long as it waited");
        // It may have gone on before it died.
        let late = hears(&[], 0);
        assert!(matches!(late, Err(HandOverError::Withdrawn)));
    }
}
