//! An encrypted line: a channel stands between it and the reactor.
//!
//! What the ring holds is encrypted in pieces and counts as written from then on, as nobody can
//! tell which plaintext is in the ciphertext that the kernel took: so nothing that may have left is
//! ever told to be "not sent".

use std::io;
use std::task::Waker;

use embar_transport::tls::{Channel, TlsError, TlsFault, Turn};
use embar_transport::{Epoll, Reactor, RecvBuf, SendBuf};

use super::{Line, READ_BYTES, State};
use crate::error::Reason;
use crate::protocol::Protocol;

/// What a line is encrypted by.
pub(crate) struct Secure {
    channel: Channel,
    /// There is a connection that can be encrypted.
    begun: bool,
}

impl Secure {
    pub fn new(channel: Channel) -> Self {
        Self {
            channel,
            begun: false,
        }
    }

    /// The connection stands: the ends may agree on how to encrypt.
    pub fn begin(&mut self) {
        self.begun = true;
        self.receive(vec![0; READ_BYTES]);
    }

    /// Wants plaintext in all of `bytes`.
    pub fn receive(&mut self, bytes: Vec<u8>) {
        let len = bytes.len();
        self.channel.receive(RecvBuf::heap(bytes, 0..len));
    }

    pub fn send(&mut self, plaintext: SendBuf) {
        self.channel.send(plaintext);
    }

    /// The reactor received ciphertext.
    pub fn arrived(&mut self, buf: RecvBuf, result: &io::Result<usize>) {
        self.channel.arrived(buf, result);
    }

    /// The reactor sent ciphertext.
    pub fn sent(&mut self, buf: SendBuf, result: &io::Result<()>) {
        self.channel.sent(buf, result);
    }

    /// What was to be sent; as much of it as was encrypted counts as sent.
    pub fn take_back(&mut self) -> Option<SendBuf> {
        self.channel.take_all().1
    }

    /// The connection stands, and the peer has not answered yet.
    fn is_unanswered(&self) -> bool {
        self.begun && self.channel.is_handshaking()
    }
}

impl<P: Protocol> Line<P> {
    /// Goes as far as it can: after everything that happened to an encrypted line. True: the ring
    /// holds more, for the next turn.
    pub(super) fn flush_secure(&mut self, reactor: &mut Epoll, wakers: &mut Vec<Waker>) -> bool {
        loop {
            let more = self.flush_ring(reactor);
            let Some(secure) = self.secure.as_mut().filter(|secure| secure.begun) else {
                return more;
            };
            if matches!(self.state, State::Ending(_)) {
                return more;
            }
            let turn = secure.channel.turn();
            let is_ready = !secure.channel.is_handshaking();
            match turn {
                Turn::Received(buf, result) => self.got(reactor, buf, &result, wakers),
                // Why it ended the connection is still to be read, if it says so.
                Turn::Sent(buf, Err(_)) if self.heard_nothing() => {
                    self.was_sent(reactor, buf, &Ok(()));
                }
                Turn::Sent(buf, result) => self.was_sent(reactor, buf, &result),
                Turn::Failed(error) => self.fail(reactor, error),
                // Nobody asks for it.
                Turn::Shutdown => {}
                Turn::Wait { send, receive } => {
                    if let Some(token) = self.token {
                        send.into_iter().for_each(|buf| reactor.send(token, buf));
                        receive.into_iter().for_each(|buf| reactor.recv(token, buf));
                    }
                    if !is_ready || !matches!(self.state, State::Connecting) {
                        return more;
                    }
                    self.greet(reactor, None);
                }
            }
        }
    }

    /// Connecting took too long.
    pub(super) fn too_late(&mut self, reactor: &mut Epoll) {
        match &self.secure {
            Some(secure) if secure.is_unanswered() => {
                let text = "the server does not answer";
                self.fail(reactor, TlsError::new(TlsFault::Unanswered, text));
            }
            _ => self.end(reactor, Reason::ConnectTimeout),
        }
    }

    /// The kernel has no use for the connection any more.
    #[cold]
    pub(super) fn lost(&mut self, reactor: &mut Epoll, kind: io::ErrorKind) {
        if self.heard_nothing() {
            // As servers do that want encryption, or none, or a certificate.
            let text = "the server ended the connection before it said anything";
            return self.fail(reactor, TlsError::new(TlsFault::Cut, text));
        }
        self.end(reactor, Reason::Io(kind));
    }

    fn fail(&mut self, reactor: &mut Epoll, error: TlsError) {
        let text = self.protocol.explain(&error);
        self.end(reactor, Reason::Tls(TlsError { text, ..error }));
    }

    /// Whether the peer has not begun to answer the greeting.
    fn heard_nothing(&self) -> bool {
        match &self.state {
            State::Connecting => true,
            State::Greeting { reply, .. } => reply.is_empty(),
            State::Open | State::Ending(_) => false,
        }
    }
}
