//! Sockets before they belong to a reactor: listening, connecting, options.
//!
//! Buffer sizes are left to the kernel unless asked for: an explicit size switches its autotuning
//! off and is capped by `net.core.rmem_max` or `wmem_max`, often far below what autotuning would
//! reach. [`granted`] returns what the kernel really gave.

mod address;
mod inherited;
mod options;
mod stream;
mod unix;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use crate::handed::{self, Unread};
use crate::shm::Shm;
pub use crate::shm::ShmOptions;
pub use address::{Address, AddressError, Peer};
pub use inherited::passed_by_manager;
pub use options::{
    Granted, LOOPBACK_SEND_BUFFER_BYTES, SocketOptions, UNIX_SEND_BUFFER_BYTES, apply,
    apply_accepted, granted,
};
use options::{apply_loopback, apply_unix};
pub use stream::{Listener, Stream};
pub use unix::{FileOwnership, MAX_UNIX_PATH_BYTES, SocketFile, machine_id};

/// Why a socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The address cannot be listened on.
    #[error(
        "cannot listen on {address}: {source}; choose another address or stop the process that uses it"
    )]
    Listen {
        /// The address asked for.
        address: Address,
        /// What the kernel said.
        source: io::Error,
    },
    /// The peer cannot be reached.
    #[error(
        "cannot connect to {address}: {source}; check that it runs and that the address is right"
    )]
    Connect {
        /// The address asked for.
        address: Address,
        /// What the kernel said; `TimedOut` when the time given had passed.
        source: io::Error,
    },
}

impl SocketError {
    /// Whether another socket listens on the address already.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }
}

/// Listens on `address` (port 0: the kernel chooses; ask [`Listener::local_address`]). A TCP
/// address is reusable at once after the last listener on it was closed. A socket file is for this
/// user only (0600), replaces that of a dead process, and is removed with the listener.
pub fn listen(
    address: impl Into<Address>,
    options: &SocketOptions,
) -> Result<Listener, SocketError> {
    let address = address.into();
    let path = match &address {
        Address::Tcp(address) => return listen_tcp(*address, options).map(Listener::Tcp),
        Address::Unix(path) | Address::Shm(path) => path,
    };
    let open = || -> io::Result<Listener> {
        let fd = unix::open()?;
        apply_unix(&fd, options)?;
        if let Address::Unix(_) = &address {
            handed::refuse(&fd);
        }
        let file = unix::listen(&fd, path, i32::from(options.backlog))?;
        let listener = UnixListener::from(fd);
        Ok(match &address {
            Address::Shm(_) => Listener::Shm(Unread::new(listener), file, options.shm.clone()),
            _ => Listener::Unix(listener, Some(file)),
        })
    };
    open().map_err(|source| SocketError::Listen { address, source })
}

/// As [`listen`], for those that need a TCP listener.
pub fn listen_tcp(
    address: SocketAddr,
    options: &SocketOptions,
) -> Result<TcpListener, SocketError> {
    let open = || -> io::Result<TcpListener> {
        let fd = open_tcp(address, options)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        if options.reuse_port {
            sockopt::set_socket_reuseport(&fd, true)?;
        }
        rustix::net::bind(&fd, &address)?;
        rustix::net::listen(&fd, i32::from(options.backlog))?;
        Ok(TcpListener::from(fd))
    };
    open().map_err(|source| SocketError::Listen {
        address: address.into(),
        source,
    })
}

/// Connects to `address` and waits for it, at most `timeout`. The stream returned blocks, as
/// `std`'s streams do; a reactor takes it as it is.
pub fn connect(
    address: impl Into<Address>,
    timeout: Duration,
    options: &SocketOptions,
) -> Result<Stream, SocketError> {
    let address = address.into();
    let path = match &address {
        Address::Tcp(address) => return connect_tcp(*address, timeout, options).map(Stream::Tcp),
        Address::Unix(path) | Address::Shm(path) => path,
    };
    let open = || -> io::Result<Stream> {
        let stream = UnixStream::from(unix::open()?);
        apply_unix(&stream, options)?;
        if let Address::Unix(_) = &address {
            handed::refuse(&stream);
        }
        let deadline = Instant::now() + timeout;
        // The kernel says neither when the backlog has room again, nor lets a wait end in time.
        while let Err(error) = unix::connect(&stream, path, options.same_user) {
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(error);
            }
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(BACKLOG_RETRY);
        }
        stream.set_nonblocking(false)?;
        if let Address::Unix(_) = &address {
            return Ok(Stream::Unix(stream));
        }
        let stream = Shm::connecting(stream, &options.shm);
        stream.greet_until(deadline)?;
        Ok(stream.into())
    };
    open().map_err(|source| SocketError::Connect { address, source })
}

/// How often connecting tries anew while the backlog of a socket file is full.
const BACKLOG_RETRY: Duration = Duration::from_millis(1);

/// As [`connect`], for those that need a TCP stream.
pub fn connect_tcp(
    address: SocketAddr,
    timeout: Duration,
    options: &SocketOptions,
) -> Result<TcpStream, SocketError> {
    let open = || -> io::Result<TcpStream> {
        let stream = TcpStream::from(open_tcp_to(address, options)?);
        if !start_connect_tcp(&stream, address)? {
            wait_connected(&stream, timeout)?;
            sockopt::socket_error(&stream)??;
        }
        stream.set_nonblocking(false)?;
        Ok(stream)
    };
    open().map_err(|source| SocketError::Connect {
        address: address.into(),
        source,
    })
}

/// A socket that can connect to `address`. It does not block.
pub(crate) fn open_stream(address: &Address, options: &SocketOptions) -> io::Result<Stream> {
    match address {
        Address::Tcp(address) => Ok(Stream::Tcp(open_tcp_to(*address, options)?.into())),
        Address::Unix(_) => {
            let fd = unix::open()?;
            apply_unix(&fd, options)?;
            handed::refuse(&fd);
            Ok(Stream::Unix(fd.into()))
        }
        Address::Shm(_) => Ok(Shm::connecting(unix::open()?.into(), &options.shm).into()),
    }
}

/// Starts to connect; true if that is done already.
pub(crate) fn start_connect(
    stream: &Stream,
    address: &Address,
    options: &SocketOptions,
) -> io::Result<bool> {
    match address {
        Address::Tcp(address) => start_connect_tcp(stream, *address),
        Address::Unix(path) => unix::connect(stream, path, options.same_user).map(|()| true),
        Address::Shm(path) => {
            unix::connect(stream, path, options.same_user)?;
            match stream {
                Stream::Shm(stream) => stream.greet(),
                _ => Ok(true),
            }
        }
    }
}

fn start_connect_tcp(stream: impl AsFd, address: SocketAddr) -> io::Result<bool> {
    match rustix::net::connect(stream, &address) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::INPROGRESS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn wait_connected(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(stream, PollFlags::OUT)];
        match rustix::event::poll(&mut fds, Some(&timespec(left))) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// For timeouts of system calls. Longer than 68 years is as good as 68 years.
pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs().min(i32::MAX as u64) as i64,
        tv_nsec: time.subsec_nanos().into(),
    }
}

fn open_tcp(address: SocketAddr, options: &SocketOptions) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    // Before listen or connect, because the window scale is agreed on with the first packet.
    apply(&fd, options)?;
    Ok(fd)
}

/// A TCP socket that is to be connected to `address`.
fn open_tcp_to(address: SocketAddr, options: &SocketOptions) -> io::Result<OwnedFd> {
    let fd = open_tcp(address, options)?;
    if address.ip().is_loopback() {
        apply_loopback(&fd, options)?;
    }
    Ok(fd)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::Ipv4Addr;

    use socket2::SockRef;

    fn loopback() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 0).into()
    }

    #[test]
    fn every_option_acts_on_a_connection_and_on_what_a_listener_accepts() {
        let options = SocketOptions {
            nodelay: true,
            dead_peer_timeout: Some(Duration::from_secs(12)),
            unacknowledged_timeout: Some(Duration::from_secs(40)),
            recv_buffer_bytes: Some(32 * 1024),
            send_buffer_bytes: Some(48 * 1024),
            unsent_bytes: Some(20_000),
            backlog: 4,
            ..SocketOptions::default()
        };
        let listener = listen_tcp(loopback(), &options).unwrap();
        let address = listener.local_addr().unwrap();
        let client = connect_tcp(address, Duration::from_secs(2), &options).unwrap();
        listener.set_nonblocking(false).unwrap();
        let (server, _) = listener.accept().unwrap();
        for stream in [&client, &server] {
            assert!(stream.nodelay().unwrap());
            assert_eq!(sockopt::tcp_user_timeout(stream).unwrap(), 40_000);
            assert_eq!(sockopt::tcp_keepcnt(stream).unwrap(), 3);
            assert!(sockopt::socket_keepalive(stream).unwrap());
            assert_eq!(
                sockopt::tcp_keepidle(stream).unwrap(),
                Duration::from_secs(6)
            );
            assert_eq!(
                sockopt::tcp_keepintvl(stream).unwrap(),
                Duration::from_secs(2)
            );
            let granted = granted(stream).unwrap();
            assert_eq!(granted.recv_bytes, 64 * 1024);
            assert_eq!(granted.send_bytes, 96 * 1024);
            let unsent = SockRef::from(stream).tcp_notsent_lowat();
            assert_eq!(unsent.unwrap(), 20_000);
        }
    }

    #[test]
    fn unix_sockets_have_the_send_buffer_that_is_meant_for_them() {
        let dir = tempfile::tempdir().unwrap();
        let address = Address::Unix(dir.path().join("s"));
        let options = SocketOptions {
            unix_send_buffer_bytes: Some(48 * 1024),
            ..SocketOptions::default()
        };
        let listener = listen(&address, &options).unwrap();
        let client = connect(&address, Duration::from_secs(2), &options).unwrap();
        listener.set_nonblocking(false).unwrap();
        let (server, _) = listener.accept().unwrap();
        apply_accepted(&server, &options).unwrap();
        for stream in [&client, &server] {
            assert_eq!(granted(stream).unwrap().send_bytes, 96 * 1024);
        }
        let tcp = listen_tcp(loopback(), &options).unwrap();
        let plain = TcpListener::bind(loopback()).unwrap();
        assert_eq!(granted(&plain).unwrap(), granted(&tcp).unwrap());
    }

    #[test]
    fn connections_of_this_machine_with_itself_have_the_send_buffer_that_is_meant_for_them() {
        let granted_both = |options: &SocketOptions| {
            let listener = listen(loopback(), options).unwrap();
            let address = listener.local_address().unwrap();
            let client = connect(address, Duration::from_secs(2), options).unwrap();
            listener.set_nonblocking(false).unwrap();
            let (server, _) = listener.accept().unwrap();
            apply_accepted(&server, options).unwrap();
            [&client, &server].map(|stream| granted(stream).unwrap().send_bytes)
        };
        let mut options = SocketOptions {
            loopback_send_buffer_bytes: Some(48 * 1024),
            ..SocketOptions::default()
        };
        assert_eq!(granted_both(&options), [96 * 1024; 2]);
        // What is said of all holds.
        options.send_buffer_bytes = Some(64 * 1024);
        assert_eq!(granted_both(&options), [128 * 1024; 2]);
    }

    #[test]
    fn listeners_share_an_address_only_if_all_of_them_are_told_to() {
        let shared = SocketOptions {
            reuse_port: true,
            ..SocketOptions::default()
        };
        let first = listen_tcp(loopback(), &shared).unwrap();
        let address = first.local_addr().unwrap();
        listen_tcp(address, &SocketOptions::default()).unwrap_err();
        let second = listen_tcp(address, &shared).unwrap();
        assert_eq!(second.local_addr().unwrap(), address);
        let alone = listen_tcp(loopback(), &SocketOptions::default()).unwrap();
        listen_tcp(alone.local_addr().unwrap(), &shared).unwrap_err();
    }

    #[test]
    fn unasked_buffer_sizes_stay_with_the_kernel() {
        let plain = TcpListener::bind(loopback()).unwrap();
        let ours = listen_tcp(loopback(), &SocketOptions::default()).unwrap();
        assert_eq!(granted(&plain).unwrap(), granted(&ours).unwrap());
    }

    #[test]
    fn a_used_address_is_named_in_the_error() {
        let first = listen_tcp(loopback(), &SocketOptions::default()).unwrap();
        let address = first.local_addr().unwrap();
        let error = listen(address, &SocketOptions::default()).unwrap_err();
        let SocketError::Listen {
            address: named,
            source,
        } = &error
        else {
            panic!("not a listen error: {error}");
        };
        assert_eq!(*named, address.into());
        assert_eq!(source.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&address.to_string()));
    }

    #[test]
    fn a_refused_connection_is_an_error_at_once() {
        let gone = listen_tcp(loopback(), &SocketOptions::default()).unwrap();
        let address = gone.local_addr().unwrap();
        drop(gone);
        let started = Instant::now();
        let error =
            connect_tcp(address, Duration::from_secs(20), &SocketOptions::default()).unwrap_err();
        let SocketError::Connect { source, .. } = &error else {
            panic!("not a connect error: {error}");
        };
        assert_eq!(source.kind(), io::ErrorKind::ConnectionRefused);
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_connection_nobody_answers_times_out() {
        // A listener whose backlog is full drops further handshakes, so they stay unanswered.
        let options = SocketOptions {
            backlog: 0,
            ..SocketOptions::default()
        };
        let listener = listen_tcp(loopback(), &options).unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        let error = loop {
            match connect_tcp(address, Duration::from_millis(100), &options) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 16, "the backlog never filled");
        };
        let SocketError::Connect { source, .. } = &error else {
            panic!("not a connect error: {error}");
        };
        assert_eq!(source.kind(), io::ErrorKind::TimedOut);
    }

    /// Sends until nothing more fits; the error if the connection is gone.
    fn stuff(stream: &TcpStream) -> Option<io::ErrorKind> {
        loop {
            match (&*stream).write(&[0; 64 << 10]) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) => return Some(error.kind()),
            }
        }
    }

    #[test]
    fn a_reader_that_pauses_is_cut_off_by_the_limit_for_unacknowledged_data_alone() {
        let listener = listen_tcp(loopback(), &SocketOptions::default()).unwrap();
        let connect = |unacknowledged_timeout| {
            let options = SocketOptions {
                dead_peer_timeout: Some(Duration::from_secs(1)),
                unacknowledged_timeout,
                ..SocketOptions::default()
            };
            let address = listener.local_addr().unwrap();
            let stream = connect_tcp(address, Duration::from_secs(2), &options).unwrap();
            stream.set_nonblocking(true).unwrap();
            // Its peer lives and never reads.
            (stream, listener.accept().unwrap())
        };
        listener.set_nonblocking(false).unwrap();
        let (patient, _reader) = connect(None);
        assert_eq!(stuff(&patient), None);
        let default = SocketOptions::default().unacknowledged_timeout;
        let (as_default, _reader_too) = connect(default);
        assert_eq!(stuff(&as_default), None);
        let (limited, _another) = connect(Some(Duration::from_secs(1)));
        let started = Instant::now();
        let cut = loop {
            if let Some(error) = stuff(&limited) {
                break error;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "never cut off");
            let mut fds = [PollFd::new(&limited, PollFlags::OUT)];
            let _ = rustix::event::poll(&mut fds, Some(&timespec(Duration::from_secs(1))));
        };
        assert_eq!(cut, io::ErrorKind::TimedOut);
        assert_eq!(stuff(&patient), None, "it waited longer");
        assert_eq!(stuff(&as_default), None, "it waited longer, too");
    }
}
