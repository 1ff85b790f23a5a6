//! Listeners that somebody else opened: handed in, inherited at an exec, or left by a process before.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::unix::SocketFile;
use super::{Address, Listener};

/// The first descriptor that a service manager passes on.
const FIRST_PASSED: RawFd = 3;
/// More than any service manager passes on.
const PASSED_MAX: RawFd = 1024;

/// What kind of listener a descriptor is.
enum Kind {
    Tcp,
    Unix,
}

fn kind(socket: BorrowedFd<'_>) -> io::Result<Kind> {
    let wrong = |what: &str| {
        let text = format!("{what}: pass on a listening stream socket, of TCP or with a file");
        io::Error::new(io::ErrorKind::InvalidInput, text)
    };
    let domain = sockopt::socket_domain(socket).map_err(|_| wrong("it is no socket"))?;
    if sockopt::socket_type(socket)? != SocketType::STREAM {
        return Err(wrong("it carries datagrams"));
    }
    if !sockopt::socket_acceptconn(socket)? {
        return Err(wrong("it does not listen"));
    }
    match domain {
        AddressFamily::INET | AddressFamily::INET6 => Ok(Kind::Tcp),
        AddressFamily::UNIX => Ok(Kind::Unix),
        _ => Err(wrong("it is of another address family")),
    }
}

impl Listener {
    /// Whether it is what it says: a stream socket of the right family that listens.
    ///
    /// # Errors
    /// What is wrong with it, and what to pass on instead.
    pub fn check(&self) -> io::Result<()> {
        match (self, kind(self.as_fd())?) {
            (Self::Tcp(_), Kind::Tcp) | (Self::Unix(..) | Self::Shm(..), Kind::Unix) => Ok(()),
            (Self::Tcp(_), Kind::Unix) | (_, Kind::Tcp) => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is of another address family than it says: take the type that fits",
            )),
        }
    }

    /// The listener that another process had at `address`, by the descriptor that it passed on. Its socket file is
    /// nobody's until [`SocketFile::own`] says so. Listeners for streams by shared memory cannot be passed on: closing one ends it for all.
    ///
    /// # Errors
    /// It does not listen there.
    pub fn passed_on(socket: OwnedFd, address: &Address) -> io::Result<Self> {
        let own = Self::try_from(socket)?;
        if own.local_address()? != *address {
            let text = format!("it does not listen on {address}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(match (own, address) {
            // Somebody may have removed the file. Who has connected is still served.
            (Self::Unix(listener, _), Address::Unix(path)) => {
                Self::Unix(listener, SocketFile::of_another(path).ok())
            }
            (other, _) => other,
        })
    }

    /// Its socket file, if it has one that it may remove.
    #[must_use]
    pub fn file(&self) -> Option<&SocketFile> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(_, file) => file.as_ref(),
            Self::Shm(_, file, _) => Some(file),
        }
    }
}

impl TryFrom<OwnedFd> for Listener {
    type Error = io::Error;

    /// A listener by TCP or a Unix socket, whichever it is. Its file, if it has one, is not removed with it.
    fn try_from(socket: OwnedFd) -> io::Result<Self> {
        Ok(match kind(socket.as_fd())? {
            Kind::Tcp => TcpListener::from(socket).into(),
            Kind::Unix => UnixListener::from(socket).into(),
        })
    }
}

/// The sockets that a service manager such as systemd passed on to this process, with their names: as many as `LISTEN_FDS` says, if
/// `LISTEN_PID` is this process. Names are those of `LISTEN_FDNAMES`, else `unknown`. Programs that this one starts do not get the sockets.
///
/// They are given out once: a second call returns none.
///
/// # Errors
/// The variables say what cannot be.
#[allow(unsafe_code, reason = "descriptors that are named by numbers")]
pub fn passed_by_manager() -> io::Result<Vec<(String, OwnedFd)>> {
    static GIVEN: AtomicBool = AtomicBool::new(false);
    let text = |name| std::env::var(name).unwrap_or_default();
    let pid = text("LISTEN_PID");
    if pid.is_empty()
        || pid.parse() != Ok(std::process::id())
        || GIVEN.swap(true, Ordering::Relaxed)
    {
        return Ok(Vec::new());
    }
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    let count: RawFd = text("LISTEN_FDS").parse().unwrap_or(-1);
    if !(0..=PASSED_MAX).contains(&count) {
        let said = text("LISTEN_FDS");
        return Err(wrong(format!(
            "LISTEN_FDS is `{said}`, and must be a number from 0 to {PASSED_MAX}"
        )));
    }
    let names = text("LISTEN_FDNAMES");
    let mut names = names.split(':').filter(|name| !name.is_empty());
    let mut passed = Vec::new();
    for number in FIRST_PASSED..FIRST_PASSED + count {
        // SAFETY: the borrow lasts for this call, which tells numbers that are not open by an error.
        let open = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) });
        if open.is_err() {
            return Err(wrong(format!(
                "LISTEN_FDS is {count}, but descriptor {number} is not open"
            )));
        }
        // SAFETY: it is open, and whoever set LISTEN_PID to this process left these numbers to the one call that is not turned back above.
        let socket = unsafe { OwnedFd::from_raw_fd(number) };
        fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
        passed.push((names.next().unwrap_or("unknown").to_owned(), socket));
    }
    Ok(passed)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::{TcpStream, UdpSocket};
    use std::os::unix::net::UnixStream;

    use super::super::{SocketOptions, listen};
    use super::*;

    fn refused(socket: impl Into<OwnedFd>) -> String {
        Listener::try_from(socket.into()).unwrap_err().to_string()
    }

    #[test]
    fn a_descriptor_is_what_it_is_and_nothing_else_is_taken() {
        let tcp = TcpListener::bind("[::1]:0").or_else(|_| TcpListener::bind("127.0.0.1:0"));
        let tcp = tcp.unwrap();
        let address = tcp.local_addr().unwrap();
        let far = TcpStream::connect(address).unwrap();
        assert!(matches!(
            Listener::try_from(OwnedFd::from(tcp)),
            Ok(Listener::Tcp(_))
        ));
        assert!(refused(far).contains("does not listen"));
        assert!(refused(UdpSocket::bind("127.0.0.1:0").unwrap()).contains("datagrams"));
        assert!(refused(UnixStream::pair().unwrap().0).contains("does not listen"));
        assert!(refused(std::fs::File::open("/dev/null").unwrap()).contains("no socket"));
        let dir = tempfile::tempdir().unwrap();
        let unix = UnixListener::bind(dir.path().join("s")).unwrap();
        let other = TcpListener::from(OwnedFd::from(unix.try_clone().unwrap()));
        let error = Listener::from(other).check().unwrap_err().to_string();
        assert!(error.contains("another address family"), "{error}");
        let unix = Listener::try_from(OwnedFd::from(unix)).unwrap();
        unix.check().unwrap();
        assert!(unix.file().is_none());
    }

    #[test]
    fn a_file_goes_with_whoever_owns_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let address = Address::Unix(path.clone());
        let first = listen(&address, &SocketOptions::default()).unwrap();
        let copy = || first.as_fd().try_clone_to_owned().unwrap();
        let wrong = Address::Unix(dir.path().join("b"));
        Listener::passed_on(copy(), &wrong).unwrap_err();
        let second = Listener::passed_on(copy(), &address).unwrap();
        assert_eq!(second.local_address().unwrap(), address);
        drop(second);
        assert!(path.exists(), "it was the first one's");
        let second = Listener::passed_on(copy(), &address).unwrap();
        first.file().unwrap().own(false);
        second.file().unwrap().own(true);
        drop(first);
        assert!(path.exists(), "it is the second one's");
        UnixStream::connect(&path).unwrap();
        drop(second);
        assert!(!path.exists());
    }
}
