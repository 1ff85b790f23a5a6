//! The driver of an encrypted session. Between the session's core and the reactor stands a TLS
//! channel, which encrypts what the core sends and decrypts what the reactor received.

use std::io;

use embar_frame::{Now, Protocol};
use embar_transport::tls::{TlsError, TlsFault, Turn};
use embar_transport::{Epoll, Reactor};

use super::{DriverState, SessionDriver};
use crate::{CloseReason, Closed, Side};

impl<P: Protocol> SessionDriver<P> {
    /// Carries out what the core and the channel want done.
    #[cold]
    pub(super) fn settle_encrypted(&mut self, reactor: &mut Epoll, now: Now) -> DriverState {
        let token = self.session.0.token;
        loop {
            if self.carry_out(reactor, now) != DriverState::Live {
                // What waits in the channel will never be sent.
                self.give_back(now);
                return match self.carry_out(reactor, now) {
                    DriverState::Over => DriverState::Over,
                    _ => DriverState::Closing,
                };
            }
            let Some(channel) = &mut self.channel else {
                return DriverState::Live;
            };
            if self.core.is_ending() && channel.is_handshaking() {
                // There is no way to tell the peer why; the reason stays the one there is.
                self.core.close(CloseReason::HelloTimeout, "");
                continue;
            }
            match channel.turn() {
                Turn::Received(buf, result) => {
                    self.got(buf, &result, now);
                    // More of the same ciphertext may follow in this turn.
                    self.keep_pace(now);
                    self.deliver_more(now);
                }
                Turn::Sent(buf, result) => {
                    self.wrote(buf, &result, now);
                    self.deliver_more(now);
                }
                Turn::Failed(error) => self.core.over(tls_end(error)),
                Turn::Shutdown => drop(reactor.shutdown_write(token)),
                Turn::Wait { send, receive } => {
                    if let Some(buf) = send {
                        reactor.send(token, buf);
                    }
                    if let Some(buf) = receive {
                        reactor.recv(token, buf);
                    }
                    return DriverState::Live;
                }
            }
        }
    }

    fn give_back(&mut self, now: Now) {
        let Some(channel) = &mut self.channel else {
            return;
        };
        let (receiving, sending) = channel.take_all();
        let gone = || io::Error::from(io::ErrorKind::ConnectionAborted);
        if let Some(buf) = receiving {
            self.got(buf, &Err(gone()), now);
        }
        if let Some(buf) = sending {
            self.wrote(buf, &Err(gone()), now);
        }
    }
}

/// How a connection ends whose encryption failed.
pub(in crate::runtime) fn tls_end(error: TlsError) -> Closed {
    use TlsFault::{
        BadCertificate, NoAgreement, OutOfDate, PeerAlert, Refused, UnknownIssuer, WrongName,
    };
    let (by, reason) = match error.fault {
        UnknownIssuer | WrongName | OutOfDate | BadCertificate => {
            (Side::Local, CloseReason::Certificate)
        }
        Refused => (Side::Peer, CloseReason::Certificate),
        PeerAlert | NoAgreement => (Side::Peer, CloseReason::Tls),
        _ => (Side::Local, CloseReason::Tls),
    };
    Closed {
        by,
        reason,
        code: 0,
        text: error.text,
    }
}
