//! Encrypted connections: a TLS channel stands between the connection and the reactor.
//!
//! The channel encrypts what the ring holds in pieces. A piece counts as sent once it is encrypted,
//! because nothing tells which plaintext is in the ciphertext that the kernel took. So a command that
//! may have left never counts as "not sent".

use std::io;
use std::task::Waker;

use embar_transport::tls::{Channel, TlsError, TlsFault, Turn};
use embar_transport::{Epoll, Reactor, RecvBuf, SendBuf};

use super::{ConnectionDriver, READ_BYTES, State};
use crate::error::CloseReason;
use crate::protocol::Protocol;

/// Encrypts one connection.
pub(crate) struct Encryption {
    channel: Channel,
    /// The socket is connected.
    begun: bool,
}

impl Encryption {
    pub fn new(channel: Channel) -> Self {
        Self {
            channel,
            begun: false,
        }
    }

    /// The socket is connected: the handshake may begin.
    pub fn begin(&mut self) {
        self.begun = true;
        self.receive(vec![0; READ_BYTES]);
    }

    /// Asks the channel for plaintext in all of `bytes`.
    pub fn receive(&mut self, bytes: Vec<u8>) {
        let len = bytes.len();
        self.channel.receive(RecvBuf::heap(bytes, 0..len));
    }

    pub fn send(&mut self, plaintext: SendBuf) {
        self.channel.send(plaintext);
    }

    /// The reactor has received ciphertext.
    pub fn arrived(&mut self, buf: RecvBuf, result: &io::Result<usize>) {
        self.channel.arrived(buf, result);
    }

    /// The reactor has sent ciphertext.
    pub fn sent(&mut self, buf: SendBuf, result: &io::Result<()>) {
        self.channel.sent(buf, result);
    }

    /// The plaintext that was to be sent; as much of it as was encrypted counts as sent.
    pub fn take_back(&mut self) -> Option<SendBuf> {
        self.channel.take_all().1
    }

    /// The socket is connected, and the peer has not completed the handshake.
    fn is_unanswered(&self) -> bool {
        self.begun && self.channel.is_handshaking()
    }
}

impl<P: Protocol> ConnectionDriver<P> {
    /// Takes an encrypted connection as far as it can go; the driver calls this after each of its
    /// events. True when the ring holds more, for the next turn.
    pub(super) fn flush_encrypted(&mut self, reactor: &mut Epoll, wakers: &mut Vec<Waker>) -> bool {
        loop {
            let more = self.flush_ring(reactor);
            let Some(encryption) = self
                .encryption
                .as_mut()
                .filter(|encryption| encryption.begun)
            else {
                return more;
            };
            if matches!(self.state, State::Ending(_)) {
                return more;
            }
            let turn = encryption.channel.turn();
            let is_ready = !encryption.channel.is_handshaking();
            match turn {
                Turn::Received(buf, result) => {
                    self.plaintext_received(reactor, buf, &result, wakers)
                }
                // The peer may have said why it closed the connection: read on.
                Turn::Sent(buf, Err(_)) if self.has_received_nothing() => {
                    self.was_sent(reactor, buf, &Ok(()));
                }
                Turn::Sent(buf, result) => self.was_sent(reactor, buf, &result),
                Turn::Failed(error) => self.fail(reactor, error),
                // The driver never asks for it.
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
        match &self.encryption {
            Some(encryption) if encryption.is_unanswered() => {
                let text = "the server does not answer";
                self.fail(reactor, TlsError::new(TlsFault::Unanswered, text));
            }
            _ => self.end(reactor, CloseReason::ConnectTimeout),
        }
    }

    /// The kernel reports that the connection is broken, or that the peer closed it.
    #[cold]
    pub(super) fn lost(&mut self, reactor: &mut Epoll, kind: io::ErrorKind) {
        if self.has_received_nothing() {
            // Servers do this that want encryption, or none, or a certificate.
            let text = "the server ended the connection before it said anything";
            return self.fail(reactor, TlsError::new(TlsFault::Cut, text));
        }
        self.end(reactor, CloseReason::Io(kind));
    }

    fn fail(&mut self, reactor: &mut Epoll, error: TlsError) {
        let text = self.protocol.explain(&error);
        self.end(reactor, CloseReason::Tls(TlsError { text, ..error }));
    }

    /// Whether nothing of an answer to the greeting has come.
    fn has_received_nothing(&self) -> bool {
        match &self.state {
            State::Connecting => true,
            State::Greeting { reply, .. } => reply.is_empty(),
            State::Open | State::Ending(_) => false,
        }
    }
}
