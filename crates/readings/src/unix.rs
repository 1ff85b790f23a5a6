//! Unix sockets and who is at their other end, of all processes, by netlink (sock_diag(7)).

use std::io;
use std::path::PathBuf;

use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::unix::nlas::{Nla, UnixDiagName};
use netlink_packet_sock_diag::unix::{ShowFlags, StateFlags, UnixRequest, UnixResponse};

use crate::netlink::Asker;

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixEnd {
    /// The number of its socket, as `/proc/PID/fd` shows it.
    pub inode: u32,
    /// That of the other end, while there is one.
    pub peer: Option<u32>,
    /// The file that it was bound to; connections that were accepted have that of their listener.
    pub path: Option<PathBuf>,
}

/// All connections by Unix sockets of this network namespace that `keep` wants.
///
/// # Errors
/// The kernel, or a filter of system calls, does not allow it, or its answer is not of the form of sock_diag(7).
pub fn connections(keep: impl Fn(&UnixEnd) -> bool) -> io::Result<Vec<UnixEnd>> {
    let request = SockDiagMessage::UnixRequest(UnixRequest {
        state_flags: StateFlags::ESTABLISHED,
        inode: 0,
        show_flags: ShowFlags::NAME | ShowFlags::PEER,
        cookie: [0xFF; 8],
    });
    Asker::open()?.dump(request, |message| match message {
        SockDiagMessage::UnixResponse(response) => Some(end_of(&response)).filter(&keep),
        _ => None,
    })
}

fn end_of(response: &UnixResponse) -> UnixEnd {
    let mut end = UnixEnd {
        inode: response.header.inode,
        peer: None,
        path: None,
    };
    for nla in &response.nlas {
        match nla {
            Nla::Peer(inode) => end.peer = Some(*inode),
            Nla::Name(UnixDiagName::Pathname(path)) => end.path = Some(path.into()),
            _ => {}
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn both_ends_of_a_connection_know_each_other() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("bound");
        let _client = UnixStream::connect(&path).expect("connected");
        let _server = listener.accept().expect("accepted");
        let servers = connections(|end| end.path.as_ref() == Some(&path)).expect("sock_diag");
        let [server] = &servers[..] else {
            panic!("{servers:?}");
        };
        let peer = server.peer.expect("it is connected");
        let clients = connections(|end| end.inode == peer).expect("sock_diag");
        assert_eq!(clients[0].peer, Some(server.inode));
    }
}
