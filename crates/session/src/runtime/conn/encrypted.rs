//! An encrypted session: the channel stands between the link and the reactor.

use std::io;

use embar_frame::{Now, Protocol};
use embar_transport::tls::{TlsError, TlsFault, Turn};
use embar_transport::{Epoll, Reactor};

use super::{Conn, Standing};
use crate::{CloseReason, Closed, Side};

impl<P: Protocol> Conn<P> {
    /// Carries out what the link and the channel want done.
    #[cold]
    pub(super) fn settle_encrypted(&mut self, reactor: &mut Epoll, now: Now) -> Standing {
        let token = self.session.0.token;
        loop {
            if self.carry_out(reactor, now) != Standing::Lives {
                // What waits in the channel waits in vain.
                self.give_back(now);
                return match self.carry_out(reactor, now) {
                    Standing::Over => Standing::Over,
                    _ => Standing::Closing,
                };
            }
            let Some(channel) = &mut self.channel else {
                return Standing::Lives;
            };
            if self.link.is_ending() && channel.is_handshaking() {
                // There is no way to tell the peer why; the reason stays the one there is.
                self.link.close(CloseReason::HelloTimeout, "");
                continue;
            }
            match channel.turn() {
                Turn::Received(buf, result) => {
                    self.got(buf, &result, now);
                    self.deliver(now);
                }
                Turn::Sent(buf, result) => {
                    self.wrote(buf, &result, now);
                    self.deliver(now);
                }
                Turn::Failed(error) => self.link.over(closed(error)),
                Turn::Shutdown => drop(reactor.shutdown_write(token)),
                Turn::Wait { send, receive } => {
                    if let Some(buf) = send {
                        reactor.send(token, buf);
                    }
                    if let Some(buf) = receive {
                        reactor.recv(token, buf);
                    }
                    return Standing::Lives;
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

/// How a session ends for this reason.
fn closed(error: TlsError) -> Closed {
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
