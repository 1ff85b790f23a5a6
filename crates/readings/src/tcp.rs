//! What the kernel says of TCP connections: `TCP_INFO` and the sizes and fills of their buffers, of all processes, by netlink
//! (sock_diag(7)). It needs no root, and the processes notice nothing.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;

use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP, TCP_ESTABLISHED};
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags, nlas,
};

use crate::netlink::Asker;

/// One end of a connection. Its counters begin with the connection.
#[derive(Clone, Debug, PartialEq)]
pub struct TcpEnd {
    /// Its own address.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// The number of its socket, as `/proc/PID/fd` shows it.
    pub inode: u32,
    /// What tells it from all sockets of other times, and on which interface it is (0: on any).
    pub cookie: [u8; 8],
    /// See `cookie`.
    pub interface: u32,
    /// Bytes that wait to be received.
    pub receive_queue: u32,
    /// The receive buffer as granted, bytes.
    pub receive_buffer: u32,
    /// The send buffer as granted, bytes.
    pub send_buffer: u32,
    /// Smoothed round trip, microseconds.
    pub rtt_us: u32,
    /// The shortest round trip, microseconds; `u32::MAX` before there was one.
    pub min_rtt_us: u32,
    /// Congestion window, segments.
    pub congestion_window: u32,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// The peer's window, bytes.
    pub send_window: u32,
    /// Bytes that were handed to the kernel, and not sent yet.
    pub unsent_bytes: u32,
    /// Microseconds in which something was to be sent.
    pub busy_us: u64,
    /// Of them, the peer's window was full.
    pub window_limited_us: u64,
    /// Of them, the send buffer had too little in it.
    pub send_buffer_limited_us: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes sent again.
    pub bytes_resent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Bytes a second that were delivered of late, as the kernel estimates it.
    pub delivery_rate: u64,
}

/// Asks for connections.
#[derive(Debug)]
pub struct TcpReader {
    asker: Asker,
}

impl TcpReader {
    /// Opens a netlink socket.
    ///
    /// # Errors
    /// The kernel, or a filter of system calls, does not allow it.
    pub fn open() -> io::Result<Self> {
        let asker = Asker::open()?;
        Ok(Self { asker })
    }

    /// Both ends, as far as they are on this machine and in this network namespace, of all open connections that `keep` wants.
    ///
    /// # Errors
    /// The kernel does not answer, or not in the form of sock_diag(7).
    pub fn connections(&mut self, keep: impl Fn(&TcpEnd) -> bool) -> io::Result<Vec<TcpEnd>> {
        let mut ends = Vec::new();
        for socket_id in [SocketId::new_v4(), SocketId::new_v6()] {
            ends.extend(self.list(socket_id, &keep)?);
        }
        Ok(ends)
    }

    /// The same of connections that have one of these addresses at either end. Each list goes through a table of all the machine's
    /// connections, which has hundreds of thousands of places on a large one: a list of addresses of one kind takes half of the time.
    ///
    /// # Errors
    /// As [`TcpReader::connections`].
    pub fn connections_with(&mut self, servers: &BTreeSet<SocketAddr>) -> io::Result<Vec<TcpEnd>> {
        let is_one = |end: &TcpEnd| servers.contains(&end.local) || servers.contains(&end.remote);
        let mut ends = Vec::new();
        if servers.iter().any(SocketAddr::is_ipv4) {
            ends.extend(self.list(SocketId::new_v4(), is_one)?);
        }
        if servers.iter().any(SocketAddr::is_ipv6) {
            ends.extend(self.list(SocketId::new_v6(), is_one)?);
        }
        Ok(ends)
    }

    fn list(&mut self, all: SocketId, keep: impl Fn(&TcpEnd) -> bool) -> io::Result<Vec<TcpEnd>> {
        self.asker.dump(request(all), |message| match message {
            SockDiagMessage::InetResponse(response) => end_of(&response).filter(&keep),
            _ => None,
        })
    }

    /// One end, as it is now; `None` if its connection is not open any more. The kernel finds it at once.
    ///
    /// # Errors
    /// As [`TcpReader::connections`].
    pub fn again(&mut self, end: &TcpEnd) -> io::Result<Option<TcpEnd>> {
        let answer = self.asker.one(request(SocketId {
            source_port: end.local.port(),
            destination_port: end.remote.port(),
            source_address: end.local.ip(),
            destination_address: end.remote.ip(),
            interface_id: end.interface,
            cookie: end.cookie,
        }))?;
        let Some(SockDiagMessage::InetResponse(response)) = answer else {
            return Ok(None);
        };
        // One that closes is not open any more.
        let is_open = response.header.state == TCP_ESTABLISHED;
        let now = end_of(&response).filter(|_| is_open);
        Ok(now.filter(|now| now.inode == end.inode))
    }
}

fn request(socket_id: SocketId) -> SockDiagMessage {
    SockDiagMessage::InetRequest(InetRequest {
        family: match socket_id.source_address.is_ipv4() {
            true => AF_INET,
            false => AF_INET6,
        },
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::INFO | ExtensionFlags::SKMEMINFO,
        states: StateFlags::ESTABLISHED,
        socket_id,
    })
}

/// `None` if the kernel did not say what was asked for.
fn end_of(response: &InetResponse) -> Option<TcpEnd> {
    let find = |wanted: fn(&nlas::Nla) -> bool| response.nlas.iter().find(|nla| wanted(nla));
    let nlas::Nla::TcpInfo(info) = find(|nla| matches!(nla, nlas::Nla::TcpInfo(_)))? else {
        return None;
    };
    let nlas::Nla::MemInfo(memory) = find(|nla| matches!(nla, nlas::Nla::MemInfo(_)))? else {
        return None;
    };
    let id = &response.header.socket_id;
    Some(TcpEnd {
        local: SocketAddr::new(id.source_address, id.source_port),
        remote: SocketAddr::new(id.destination_address, id.destination_port),
        inode: response.header.inode,
        cookie: id.cookie,
        interface: id.interface_id,
        receive_queue: response.header.recv_queue,
        receive_buffer: memory.receive_queue_max,
        send_buffer: memory.send_queue_max,
        rtt_us: info.rtt,
        min_rtt_us: info.min_rtt,
        congestion_window: info.snd_cwnd,
        segment_bytes: info.snd_mss,
        send_window: info.snd_wnd,
        unsent_bytes: info.notsent_bytes,
        busy_us: info.busy_time,
        window_limited_us: info.rwnd_limited,
        send_buffer_limited_us: info.sndbuf_limited,
        bytes_sent: info.bytes_sent,
        bytes_resent: info.bytes_retrans,
        bytes_received: info.bytes_received,
        delivery_rate: info.delivery_rate,
    })
}
