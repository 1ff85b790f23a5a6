//! Options of sockets, and what sets them.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;
use socket2::SockRef;

use super::stream::Stream;
use crate::shm::ShmOptions;

/// What may be on its way by a Unix socket, for [`SocketOptions::unix_send_buffer_bytes`]: half a batch of 2 MiB. With the
/// kernel's 208 KiB such a batch takes 18 receives, with this 3; with more it leaves the cache.
pub const UNIX_SEND_BUFFER_BYTES: usize = 1 << 20;
/// The same by TCP, for [`SocketOptions::loopback_send_buffer_bytes`]. The kernel's tuning ends at 4 MiB for each connection,
/// which leave the cache before the peer receives them.
pub const LOOPBACK_SEND_BUFFER_BYTES: usize = 512 << 10;

/// Options of sockets; Unix sockets have the buffer sizes and the backlog only. Given to a listener, the TCP sockets that it
/// accepts inherit all of them that do not depend on the peer, and the Unix sockets none: see [`apply_accepted`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketOptions {
    /// `TCP_NODELAY`: do not hold small segments back. Default true, because whole frames are
    /// handed to the kernel.
    pub nodelay: bool,
    /// Keep-alive probes: how long a host that answers nothing counts as alive while no data is on
    /// its way to it. Probes begin after half of it. A host that is alive answers them, whatever
    /// the peer's process does. If `unacknowledged_timeout` is set and longer, the kernel lets that
    /// time pass before it ends the connection. Default 30 s; `None`: no probes; at least 1 s.
    pub dead_peer_timeout: Option<Duration>,
    /// `TCP_USER_TIMEOUT`: how long data may be on its way, or wait for the peer to take any,
    /// before the kernel ends the connection. Probes are not sent meanwhile, so without it a host
    /// that vanished is noticed only by who expects to hear from it, or after about 15 minutes.
    ///
    /// It cuts off living peers, too: one that reads nothing for this long while more is sent than
    /// its receive buffer holds loses the connection, although its kernel answers. So it is the
    /// longest pause that a reader may make. Default 5 minutes; `None` leaves it to the kernel: a
    /// living reader may pause for ever; at least 1 s.
    pub unacknowledged_timeout: Option<Duration>,
    /// `SO_RCVBUF` in bytes. Default `None`: the kernel tunes it.
    pub recv_buffer_bytes: Option<usize>,
    /// `SO_SNDBUF` in bytes. Default `None`: the kernel tunes it.
    pub send_buffer_bytes: Option<usize>,
    /// `TCP_NOTSENT_LOWAT` in bytes: so much the kernel takes beyond what it has on its way to the peer. What it has taken
    /// nothing overtakes, so where the network is slow this is how long an urgent message waits behind others. Less costs more
    /// system calls. Default `None`: up to the send buffer.
    pub unsent_bytes: Option<u32>,
    /// `SO_SNDBUF` of Unix sockets, where `send_buffer_bytes` says nothing. The kernel does not tune theirs: it is what may
    /// be on its way in one direction. Default `None`: the kernel's `net.core.wmem_default`, often 208 KiB.
    pub unix_send_buffer_bytes: Option<usize>,
    /// The same of TCP connections of this machine with itself, where `send_buffer_bytes` says nothing: to a loopback
    /// address, and accepted from the address that they came to. There is no way on which more could be; what is on its
    /// way beyond the cache only costs. Default `None`: the kernel tunes it.
    pub loopback_send_buffer_bytes: Option<usize>,
    /// How many connections may wait to be accepted (listeners only; capped by
    /// `net.core.somaxconn`). Default 1024.
    pub backlog: u16,
    /// `SO_REUSEPORT` (TCP listeners only): several listeners may have one address, if all of them have this option and are of one
    /// user, and the kernel deals the connections out to them by their peers' addresses and ports. Without it a second listener is an
    /// error. One that is closed takes the connections along that waited in its backlog. Default false.
    pub reuse_port: bool,
    /// Connect by a socket file only to a listener of this process's user or of root, and refuse any
    /// other with `PermissionDenied`, before a byte is sent: so nobody else can put a file in the place
    /// of one that is expected. The user is that of the process that listened. Default false.
    pub same_user: bool,
    /// Of streams by shared memory only. Those that are accepted have the options of their listener.
    pub shm: ShmOptions,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            nodelay: true,
            dead_peer_timeout: Some(Duration::from_secs(30)),
            unacknowledged_timeout: Some(Duration::from_secs(300)),
            recv_buffer_bytes: None,
            send_buffer_bytes: None,
            unsent_bytes: None,
            unix_send_buffer_bytes: None,
            loopback_send_buffer_bytes: None,
            backlog: 1024,
            reuse_port: false,
            same_user: false,
            shm: ShmOptions::default(),
        }
    }
}

/// Buffer sizes in bytes as the kernel reports them: it doubles what was asked for, to count its
/// own bookkeeping, after it capped it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// Receive buffer, bytes.
    pub recv_bytes: usize,
    /// Send buffer, bytes.
    pub send_bytes: usize,
}

/// Sets `options` on a TCP socket that exists already. A receive buffer size set on a connected socket
/// comes too late for the window scale of that connection; set it on the listener instead.
pub fn apply(socket: impl AsFd, options: &SocketOptions) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_tcp_nodelay(socket, options.nodelay)?;
    apply_sizes(socket, options)?;
    let second = Duration::from_secs(1);
    if let Some(timeout) = options.dead_peer_timeout {
        // The kernel's limits are 32767 s each.
        let most = Duration::from_secs(32_767);
        let interval = (timeout / (2 * KEEPALIVE_PROBES)).clamp(second, most);
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, (timeout / 2).clamp(second, most))?;
        sockopt::set_tcp_keepintvl(socket, interval)?;
        sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    }
    if let Some(timeout) = options.unacknowledged_timeout {
        let millis = timeout.max(second).as_millis().min(i32::MAX as u128) as u32;
        sockopt::set_tcp_user_timeout(socket, millis)?;
    }
    if let Some(bytes) = options.unsent_bytes {
        SockRef::from(&socket).set_tcp_notsent_lowat(bytes.max(1))?;
    }
    Ok(())
}

/// Sets on a connection that was accepted what it does not inherit from its listener.
///
/// # Errors
/// What the kernel says.
pub fn apply_accepted(stream: &Stream, options: &SocketOptions) -> io::Result<()> {
    match stream {
        Stream::Unix(socket) => apply_unix(socket, options),
        // Its socket carries no more than bytes that wake.
        Stream::Shm(_) => Ok(()),
        Stream::Tcp(socket) if socket.peer_addr()?.ip() == socket.local_addr()?.ip() => {
            apply_loopback(socket, options)
        }
        Stream::Tcp(_) => Ok(()),
    }
}

pub(super) fn apply_unix(socket: impl AsFd, options: &SocketOptions) -> io::Result<()> {
    let send = options.send_buffer_bytes.or(options.unix_send_buffer_bytes);
    let sizes = SocketOptions {
        send_buffer_bytes: send,
        ..options.clone()
    };
    apply_sizes(socket, &sizes)
}

pub(super) fn apply_loopback(socket: impl AsFd, options: &SocketOptions) -> io::Result<()> {
    match (
        options.send_buffer_bytes,
        options.loopback_send_buffer_bytes,
    ) {
        (None, Some(bytes)) => Ok(sockopt::set_socket_send_buffer_size(socket, bytes)?),
        _ => Ok(()),
    }
}

/// Probes in a row that may stay unanswered.
const KEEPALIVE_PROBES: u32 = 3;

fn apply_sizes(socket: impl AsFd, options: &SocketOptions) -> io::Result<()> {
    let socket = socket.as_fd();
    if let Some(bytes) = options.recv_buffer_bytes {
        sockopt::set_socket_recv_buffer_size(socket, bytes)?;
    }
    if let Some(bytes) = options.send_buffer_bytes {
        sockopt::set_socket_send_buffer_size(socket, bytes)?;
    }
    Ok(())
}

/// The buffer sizes that `socket` has now.
pub fn granted(socket: impl AsFd) -> io::Result<Granted> {
    let socket = socket.as_fd();
    Ok(Granted {
        recv_bytes: sockopt::socket_recv_buffer_size(socket)?,
        send_bytes: sockopt::socket_send_buffer_size(socket)?,
    })
}
