//! One connection that has not become a session: carries the steps of its [`Arrival`] to the
//! reactor, by way of TLS if the server wants that.

use std::io;
use std::mem;

use embar_frame::{Now, Protocol};
use embar_transport::tls::{Acceptor, Channel, Turn};
use embar_transport::{Epoll, Peer, Reactor, RecvBuf, SendBuf, Token};

use super::datagrams::UnclaimedLink;
use super::driver::tls_end;
use super::group::GroupCounters;
use super::proxy_header::ProxyHeader;
use super::refusal::Refusal;
use crate::{Arrival, CloseReason, SessionConfig, SessionCore, Side, Step};

/// Bytes of ciphertext that are received before there is any TLS state: the beginning of a handshake.
const FIRST_CIPHERTEXT_BYTES: usize = 128;

/// How far the encryption is.
enum Tls {
    /// There is none.
    Off,
    /// The peer has not said anything.
    Silent,
    /// And that is received.
    Asked,
    /// The handshake waits for its turn. What came of it lies here.
    Waiting(RecvBuf, usize),
    /// It goes on, or is over.
    On(Channel),
}

/// How far the proxy is that says for whom it speaks.
enum Introduction {
    /// There is none, or it is over.
    None,
    /// It is to be received.
    Due(Box<ProxyHeader>),
    /// And is.
    Asked(Box<ProxyHeader>),
    /// It is complete.
    Heard,
}

/// A connection that has not become a session.
pub(super) struct Guest<P: Protocol> {
    arrival: Arrival<P>,
    token: Token,
    /// For whom it comes, as far as is known.
    pub(super) peer: Peer,
    /// Who carries it, if that is not the kernel.
    pub(super) link: Option<UnclaimedLink>,
    introduction: Introduction,
    tls: Tls,
    /// Why there is no session, if somebody else than the arrival found that.
    refusal: Option<Refusal>,
    /// What became of it was counted.
    counted: bool,
}

/// What to do about a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing before the next event.
    Waits,
    /// To let it in as of the peer that its proxy speaks for, or not.
    Introduced,
    /// To give its TLS handshake a turn.
    WantsHandshake,
    /// To make a session of it, or refuse it.
    Greeted,
    /// To forget it.
    Over,
}

impl<P: Protocol> Guest<P> {
    pub(super) fn new(
        config: &SessionConfig,
        token: Token,
        peer: Peer,
        encrypted: bool,
        now: Now,
    ) -> Self {
        Self {
            arrival: Arrival::new(config, now),
            token,
            peer,
            link: None,
            introduction: Introduction::None,
            tls: if encrypted { Tls::Silent } else { Tls::Off },
            refusal: None,
            counted: false,
        }
    }

    /// Its proxy says first for whom it speaks.
    pub(super) fn await_introduction(&mut self) {
        self.introduction = Introduction::Due(Box::new(ProxyHeader::new()));
    }

    /// It is let in as of the peer that its proxy speaks for.
    pub(super) fn begin(&mut self) {
        self.introduction = Introduction::None;
    }

    pub(super) fn next_tick(&self) -> Option<Now> {
        self.arrival.next_tick()
    }

    pub(super) fn tick(&mut self, now: Now) {
        self.arrival.tick(now);
    }

    /// The reactor is done with a receive.
    pub(super) fn received(&mut self, buf: RecvBuf, result: &io::Result<usize>, now: Now) {
        let introduction = mem::replace(&mut self.introduction, Introduction::None);
        if let Introduction::Asked(header) = introduction {
            return self.heard(header, buf, result, now);
        }
        match &mut self.tls {
            Tls::Off => self.arrival.received(buf, result, now),
            Tls::On(channel) => channel.arrived(buf, result),
            Tls::Silent | Tls::Asked => match result {
                Ok(count @ 1..) => self.tls = Tls::Waiting(buf, *count),
                _ => self.arrival.received(buf, result, now),
            },
            Tls::Waiting(..) => {}
        }
    }

    /// A piece of the proxy's header is there.
    fn heard(
        &mut self,
        mut header: Box<ProxyHeader>,
        buf: RecvBuf,
        result: &io::Result<usize>,
        now: Now,
    ) {
        if !matches!(result, Ok(1..)) {
            return self.arrival.received(buf, result, now);
        }
        let filled = buf.filled();
        if buf.with_filled(filled, |bytes| header.take(bytes)).is_err() {
            return self.dismiss(Refusal::ProxyHeader);
        }
        self.introduction = if header.wants() > 0 {
            Introduction::Due(header)
        } else {
            if let Some(address) = header.peer() {
                self.peer = Peer::Tcp(address);
            }
            Introduction::Heard
        };
    }

    /// Receives what comes first, if that is not the arrival's own business. False: it is.
    fn receive_first(&mut self, reactor: &mut Epoll) -> bool {
        let mut receive = |bytes: usize| {
            reactor.recv(self.token, RecvBuf::heap(vec![0; bytes], 0..bytes));
        };
        match mem::replace(&mut self.introduction, Introduction::None) {
            Introduction::None => {}
            Introduction::Due(header) => {
                receive(header.wants());
                self.introduction = Introduction::Asked(header);
                return true;
            }
            other => {
                self.introduction = other;
                return true;
            }
        }
        match self.tls {
            Tls::Silent => {
                receive(FIRST_CIPHERTEXT_BYTES);
                self.tls = Tls::Asked;
                true
            }
            Tls::Asked => true,
            Tls::Off | Tls::Waiting(..) | Tls::On(_) => false,
        }
    }

    /// The reactor is done with a send.
    pub(super) fn sent(&mut self, buf: SendBuf, result: &io::Result<()>) {
        match &mut self.tls {
            Tls::On(channel) => channel.sent(buf, result),
            _ => self.arrival.sent(buf, result),
        }
    }

    /// It is the turn of its handshake.
    pub(super) fn shake_hands(&mut self, acceptor: &Acceptor) {
        let Tls::Waiting(buf, count) = mem::replace(&mut self.tls, Tls::Asked) else {
            return;
        };
        match acceptor.accept() {
            Ok(mut channel) => {
                channel.arrived(buf, &Ok(count));
                self.tls = Tls::On(channel);
            }
            Err(error) => {
                tracing::error!(
                    "the server's TLS configuration is of no use: {}",
                    error.text
                );
                self.dismiss(Refusal::Tls);
            }
        }
    }

    /// There will be no session, and the peer learns why as far as that is possible.
    pub(super) fn refuse(&mut self, refusal: Refusal, reason: CloseReason, text: &str, now: Now) {
        self.refusal = Some(refusal);
        self.arrival.refuse(reason, 0, text, now);
    }

    /// There will be no session, and not a word about it.
    pub(super) fn dismiss(&mut self, refusal: Refusal) {
        self.refusal.get_or_insert(refusal);
        self.arrival.cut();
    }

    /// Carries out what it wants done.
    pub(super) fn settle(
        &mut self,
        reactor: &mut Epoll,
        counters: &GroupCounters,
        now: Now,
    ) -> Standing {
        let standing = self.go_on(reactor, now);
        self.count(counters);
        standing
    }

    fn go_on(&mut self, reactor: &mut Epoll, now: Now) -> Standing {
        loop {
            let is_reading = self.arrival.is_reading();
            if is_reading && self.receive_first(reactor) {
                return match self.introduction {
                    Introduction::Heard => Standing::Introduced,
                    _ => Standing::Waits,
                };
            }
            let speechless = match &self.tls {
                _ if !matches!(self.introduction, Introduction::None) => true,
                Tls::Off => false,
                Tls::Waiting(..) if is_reading => return Standing::WantsHandshake,
                Tls::Silent | Tls::Asked | Tls::Waiting(..) => true,
                Tls::On(channel) => channel.is_handshaking(),
            };
            if speechless && !is_reading {
                // There is no way to tell the peer why.
                self.arrival.cut();
            }
            if self.carry_out(reactor) {
                return Standing::Over;
            }
            if self.arrival.has_greeted() {
                return Standing::Greeted;
            }
            let Tls::On(channel) = &mut self.tls else {
                return Standing::Waits;
            };
            match channel.turn() {
                Turn::Received(buf, result) => self.arrival.received(buf, &result, now),
                Turn::Sent(buf, result) => self.arrival.sent(buf, &result),
                Turn::Failed(error) => self.dismiss(Refusal::of(tls_end(error).reason)),
                Turn::Shutdown => drop(reactor.shutdown_write(self.token)),
                Turn::Wait { send, receive } => {
                    if let Some(buf) = send {
                        reactor.send(self.token, buf);
                    }
                    if let Some(buf) = receive {
                        reactor.recv(self.token, buf);
                    }
                    return Standing::Waits;
                }
            }
        }
    }

    /// True: it is closed.
    fn carry_out(&mut self, reactor: &mut Epoll) -> bool {
        while let Some(step) = self.arrival.poll() {
            match (step, &mut self.tls) {
                (Step::Recv(buf), Tls::On(channel)) => channel.receive(buf),
                (Step::Recv(buf), _) => reactor.recv(self.token, buf),
                (Step::Send(buf), Tls::On(channel)) => channel.send(buf),
                (Step::Send(buf), _) => reactor.send(self.token, buf),
                (Step::ShutdownWrite, Tls::On(channel)) => channel.shutdown(),
                (Step::ShutdownWrite, _) => drop(reactor.shutdown_write(self.token)),
                (Step::Close, _) => {
                    reactor.close(self.token);
                    return true;
                }
            }
        }
        false
    }

    fn count(&mut self, counters: &GroupCounters) {
        if self.counted {
            return;
        }
        let closed = self.arrival.closed();
        if let Some(refusal) = self.refusal {
            counters.refusals.count(refusal);
        } else if let Some(closed) = closed.filter(|closed| closed.by == Side::Local) {
            counters.refusals.count(Refusal::of(closed.reason));
        } else if closed.is_some() {
            counters.left_early.add(1);
        } else {
            return;
        }
        self.counted = true;
    }

    /// What its HELLO says beside what is the session's, if it has greeted.
    pub(super) fn greeting(&self) -> &[u8] {
        self.arrival.greeting()
    }

    /// Its session, if it has greeted.
    ///
    /// # Errors
    /// As [`Arrival::session`].
    pub(super) fn session(
        &self,
        protocol: P,
        group: &super::group::Group,
        now: Now,
    ) -> io::Result<SessionCore<P>> {
        let config = &group.settings.session;
        self.arrival.session(protocol, config, &group.rings, now)
    }

    /// Its encryption, for the session.
    pub(super) fn into_channel(self) -> Option<Channel> {
        match self.tls {
            Tls::On(channel) => Some(channel),
            Tls::Off | Tls::Silent | Tls::Asked | Tls::Waiting(..) => None,
        }
    }
}
