//! Asks the kernel for its sockets (sock_diag(7)): a request for a dump, and its answers.

use std::io;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
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

    /// What `take` makes of all that answers a request.
    ///
    /// # Errors
    /// The kernel refuses, cannot list what was asked for, or its list changed again and again while it was read. What it still has to
    /// say then nobody waits for, so this must not be asked again.
    pub fn dump<T>(
        &mut self,
        request: SockDiagMessage,
        mut take: impl FnMut(SockDiagMessage) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let bytes = serialized(request, NLM_F_DUMP);
        for _ in 0..TRIES {
            let (mut taken, mut is_torn) = (Vec::new(), false);
            self.socket.send(&bytes, 0)?;
            loop {
                self.answer.clear();
                self.socket.recv(&mut self.answer, 0)?;
                let part = messages(&self.answer, &mut |it| taken.extend(take(it)))?;
                is_torn |= part.is_torn;
                if part.is_last {
                    break;
                }
            }
            if !is_torn {
                return Ok(taken);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::Interrupted,
            "the kernel's list of sockets changed each time while it was read",
        ))
    }

    /// What the kernel says of the one socket that a request names; `None` if there is none.
    ///
    /// # Errors
    /// The kernel refuses, or answers something else.
    pub fn one(&mut self, request: SockDiagMessage) -> io::Result<Option<SockDiagMessage>> {
        self.socket.send(&serialized(request, 0), 0)?;
        self.answer.clear();
        self.socket.recv(&mut self.answer, 0)?;
        let mut answer = None;
        match messages(&self.answer, &mut |it| answer = Some(it)) {
            Ok(_) => Ok(answer),
            // Another one may have taken its place (ESTALE).
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::StaleNetworkFileHandle
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

fn serialized(request: SockDiagMessage, flags: u16) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut message = NetlinkMessage::new(header, request.into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// A list that changed while it was read is read again so often.
const TRIES: u32 = 3;

/// What one answer says of the list that it is a part of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The list ends with it.
    pub is_last: bool,
    /// The list changed meanwhile, so something may be missing or there twice.
    pub is_torn: bool,
}

/// Reads the messages of an answer.
pub(crate) fn messages(
    mut bytes: &[u8],
    take: &mut impl FnMut(SockDiagMessage),
) -> io::Result<Part> {
    let mut part = Part {
        is_last: false,
        is_torn: false,
    };
    while !bytes.is_empty() {
        let message =
            NetlinkMessage::<SockDiagMessage>::deserialize(bytes).map_err(io::Error::other)?;
        part.is_torn |= message.header.flags & NLM_F_DUMP_INTR != 0;
        match message.payload {
            NetlinkPayload::InnerMessage(message) => take(message),
            NetlinkPayload::Done(done) if done.code < 0 => return Err(cut_short(done.code)),
            NetlinkPayload::Done(_) => {
                part.is_last = true;
                return Ok(part);
            }
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            NetlinkPayload::Overrun(_) => {
                return Err(io::Error::other(
                    "the kernel lost a part of its list of sockets",
                ));
            }
            _ => {}
        }
        // Messages are padded to 4 bytes (netlink(7)).
        let length = (message.header.length as usize).next_multiple_of(4).max(4);
        bytes = bytes.get(length..).unwrap_or_default();
    }
    Ok(part)
}

/// A list that ends with an error is none: a kernel without the module that lists such sockets ends an empty one so.
fn cut_short(code: i32) -> io::Error {
    let error = io::Error::from_raw_os_error(code.saturating_neg());
    match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(
            error.kind(),
            "this kernel does not list such sockets: load its modules tcp_diag and unix_diag",
        ),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A message of the kernel: its kind, its flags, and a number.
    fn answer(kind: u16, flags: u16, code: i32) -> Vec<u8> {
        let mut bytes = 20u32.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(code.to_ne_bytes());
        bytes
    }

    /// NLMSG_DONE and NLMSG_OVERRUN of netlink(7), and ENOENT.
    const DONE: u16 = 3;
    const OVERRUN: u16 = 4;
    const NOT_THERE: i32 = 2;

    #[test]
    fn a_list_that_ends_with_an_error_is_no_empty_one() {
        let read = |bytes: Vec<u8>| messages(&bytes, &mut |_| ());
        let part = |is_last, is_torn| Part { is_last, is_torn };
        assert_eq!(
            read(answer(DONE, 0, 0)).expect("the end"),
            part(true, false)
        );
        let error = read(answer(DONE, 0, -NOT_THERE)).expect_err("it was not listed");
        assert!(error.to_string().contains("tcp_diag"), "{error}");
        read(answer(DONE, 0, i32::MIN)).expect_err("whatever it is");
        read(answer(OVERRUN, 0, 0)).expect_err("something is lost");
        let torn = read(answer(DONE, NLM_F_DUMP_INTR, 0)).expect("the end");
        assert_eq!(torn, part(true, true));
    }

    proptest! {
        #[test]
        fn whatever_comes_is_an_error_at_worst(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _an_error_or_not = messages(&bytes, &mut |_| ());
        }
    }
}
