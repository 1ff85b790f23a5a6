//! Asks the kernel for its sockets (sock_diag(7)): a request for a dump, and its answers.

use std::io;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr as NetlinkAddr};

/// Room for one answer; the kernel sends at most 32 KiB of a dump at once.
const ANSWER_BYTES: usize = 64 << 10;

/// A netlink socket.
#[derive(Debug)]
pub(crate) struct Asker {
    socket: Socket,
    answer: Vec<u8>,
}

impl Asker {
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.connect(&NetlinkAddr::new(0, 0))?;
        Ok(Self {
            socket,
            answer: Vec::with_capacity(ANSWER_BYTES),
        })
    }

    /// Hands all that answers a request to `take`.
    pub fn dump(
        &mut self,
        request: SockDiagMessage,
        mut take: impl FnMut(SockDiagMessage),
    ) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        let mut message = NetlinkMessage::new(header, request.into());
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        loop {
            self.answer.clear();
            self.socket.recv(&mut self.answer, 0)?;
            if !messages(&self.answer, &mut take)? {
                return Ok(());
            }
        }
    }
}

/// Reads the messages of an answer; false if they end the dump.
pub(crate) fn messages(
    mut bytes: &[u8],
    take: &mut impl FnMut(SockDiagMessage),
) -> io::Result<bool> {
    while !bytes.is_empty() {
        let message =
            NetlinkMessage::<SockDiagMessage>::deserialize(bytes).map_err(io::Error::other)?;
        match message.payload {
            NetlinkPayload::InnerMessage(message) => take(message),
            NetlinkPayload::Done(_) => return Ok(false),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            _ => {}
        }
        // Messages are padded to 4 bytes (netlink(7)).
        let length = (message.header.length as usize).next_multiple_of(4).max(4);
        bytes = bytes.get(length..).unwrap_or_default();
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_comes_is_an_error_at_worst(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _an_error_or_not = messages(&bytes, &mut |_| ());
        }
    }
}
