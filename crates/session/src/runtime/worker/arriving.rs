//! How connections come to a worker, and become sessions.
//!
//! Nothing of a session is made before its HELLO is there and good: no ring, no handler, no place
//! in the registry.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use embar_frame::{Now, Protocol};
use embar_transport::{Completion, Peer, Reactor, Stream, Token, marks};

use super::Worker;
use crate::CloseReason;
use crate::runtime::admission::NoPlace;
use crate::runtime::arrivals::{Counted, Newcomer};
use crate::runtime::driver::SessionDriver;
use crate::runtime::guest::{Guest, Standing};
use crate::runtime::mailbox::Command;
use crate::runtime::refusal::Refusal;

impl<P: Protocol + Clone> Worker<P> {
    /// Connections are dealt out in turn.
    pub(super) fn accepted(&mut self, listener: Token, stream: Stream, peer: Peer, now: Now) {
        let refusals = &self.group.counters.refusals;
        if self.draining.is_some() {
            return refusals.count(Refusal::Shutdown);
        }
        let entrance = self.entrances.iter().find(|it| it.token == listener);
        let proxies = entrance.and_then(|it| it.proxies.as_ref());
        match proxies {
            Some(proxies) if !proxies.trusts(&peer) => {
                return refusals.count(Refusal::UntrustedProxy);
            }
            None if !self.registry.accepts(&peer) => return refusals.count(Refusal::Filtered),
            _ => {}
        }
        let counted = Counted::new(&self.group);
        let newcomer = Newcomer {
            stream,
            peer,
            link: None,
            introduction: proxies.is_some(),
            counted,
        };
        if entrance.is_some_and(|it| it.stay) {
            return self.adopt(newcomer, now);
        }
        let mut command = Box::new(Command::Adopt(newcomer));
        // Workers that have ended or are held up are left out; this one is neither.
        loop {
            let target = &self.mailboxes[self.next_mailbox % self.mailboxes.len()];
            self.next_mailbox += 1;
            if Arc::ptr_eq(target, &self.mailbox) {
                return self.execute(*command, now);
            }
            if target.marks.is_held_up(now) {
                continue;
            }
            match target.send(*command) {
                Ok(()) => return,
                Err(back) => command = back,
            }
        }
    }

    pub(super) fn adopt(&mut self, newcomer: Newcomer, now: Now) {
        let Newcomer {
            stream,
            peer,
            link,
            introduction,
            counted,
        } = newcomer;
        let refusals = &self.group.counters.refusals;
        if self.draining.is_some() {
            return refusals.count(Refusal::Shutdown);
        }
        let token = match self.reactor.add(stream) {
            Ok(token) => token,
            Err(error) => {
                tracing::warn!(%peer, "cannot take a connection: {error}");
                return refusals.count(Refusal::OutOfMemory);
            }
        };
        if token.index() >= marks::SLOTS {
            self.reactor.close(token);
            return refusals.count(Refusal::TooManySessions);
        }
        if let Some(oldest) = self.arrivals.in_the_way() {
            self.dismiss(oldest, Refusal::Crowded, now);
        }
        let config = &self.group.settings.session;
        // Who carries a connection has encrypted it already.
        let encrypted = self.group.acceptor.is_some() && link.is_none();
        let mut guest = Guest::new(config, token, peer, encrypted, now);
        guest.link = link;
        if introduction {
            guest.await_introduction();
        }
        self.arrivals.enter(token, guest, counted);
        self.settle_arrival(token, now);
        self.next_handshakes(now);
    }

    #[inline]
    pub(super) fn is_of_arrival(&self, completion: &Completion) -> bool {
        if self.arrivals.is_empty() {
            return false;
        }
        match completion {
            Completion::Received { token, .. } | Completion::Sent { token, .. } => {
                self.arrivals.has(*token)
            }
            _ => false,
        }
    }

    #[cold]
    pub(super) fn arrival_went_on(&mut self, completion: Completion, now: Now) {
        let token = match completion {
            Completion::Received {
                token, buf, result, ..
            } => {
                if let Some(guest) = self.arrivals.get_mut(token) {
                    guest.received(buf, &result, now);
                }
                token
            }
            Completion::Sent {
                token, buf, result, ..
            } => {
                if let Some(guest) = self.arrivals.get_mut(token) {
                    guest.sent(buf, &result);
                }
                token
            }
            _ => return,
        };
        self.settle_arrival(token, now);
        self.next_handshakes(now);
    }

    pub(super) fn look_at_arrivals(&mut self, now: Now) {
        while let Some(token) = self.arrivals.due(now) {
            if let Some(guest) = self.arrivals.get_mut(token) {
                guest.tick(now);
            }
            self.settle_arrival(token, now);
        }
        while let Some(token) = self.arrivals.stuck(now) {
            self.dismiss(token, Refusal::HelloTimeout, now);
            self.next_handshakes(now);
        }
        self.next_handshakes(now);
    }

    /// The worker stops: who has not greeted by now learns that.
    pub(super) fn refuse_arrivals(&mut self, now: Now) {
        for token in self.arrivals.tokens() {
            if let Some(guest) = self.arrivals.get_mut(token) {
                guest.refuse(Refusal::Shutdown, CloseReason::Shutdown, "", now);
            }
            self.settle_arrival(token, now);
        }
    }

    /// The worker has stopped.
    pub(super) fn dismiss_arrivals(&mut self, now: Now) {
        for token in self.arrivals.tokens() {
            self.dismiss(token, Refusal::Shutdown, now);
        }
    }

    pub(super) fn dismiss(&mut self, token: Token, refusal: Refusal, now: Now) {
        if let Some(guest) = self.arrivals.get_mut(token) {
            guest.dismiss(refusal);
        }
        self.settle_arrival(token, now);
    }

    /// Does what follows for an arrival. When it is over others may have a turn: see [`Worker::next_handshakes`].
    fn settle_arrival(&mut self, token: Token, now: Now) {
        loop {
            let Some(guest) = self.arrivals.get_mut(token) else {
                return;
            };
            let counters = &self.group.counters;
            let reactor = &mut self.reactor;
            // The server's own code says which certificate a peer gets, and may panic.
            let settled = catch_unwind(AssertUnwindSafe(|| guest.settle(reactor, counters, now)));
            let Ok(standing) = settled else {
                tracing::error!(peer = %guest.peer, "a panic in the handshake with a peer: it is refused");
                counters.refusals.count(Refusal::HandlerPanicked);
                self.reactor.close(token);
                drop(self.arrivals.remove(token));
                return;
            };
            match standing {
                Standing::Waits => return self.arrivals.arm(token),
                Standing::Introduced => {
                    let peer = guest.peer;
                    if self.registry.accepts(&peer) {
                        guest.begin();
                    } else {
                        guest.dismiss(Refusal::Filtered);
                    }
                    self.arrivals.introduced(token);
                }
                Standing::WantsHandshake => {
                    if !self.arrivals.may_shake(token, now) {
                        return self.arrivals.arm(token);
                    }
                    let group = &self.group;
                    if let (Some(guest), Some(acceptor)) =
                        (self.arrivals.get_mut(token), &group.acceptor)
                    {
                        guest.shake_hands(acceptor);
                    }
                }
                Standing::Greeted => {
                    if self.admit(token, now) {
                        return;
                    }
                }
                Standing::Over => return drop(self.arrivals.remove(token)),
            }
        }
    }

    /// Gives turns that became free to those that wait. Not from within [`Worker::settle_arrival`]: thousands may end at once, each
    /// in the turn that the one before it left.
    pub(super) fn next_handshakes(&mut self, now: Now) {
        while let Some(token) = self.arrivals.next_handshake() {
            self.settle_arrival(token, now);
        }
    }

    /// Makes a session of an arrival that has greeted. False: it was refused.
    fn admit(&mut self, token: Token, now: Now) -> bool {
        let Some(guest) = self.arrivals.get_mut(token) else {
            return true;
        };
        let (group, peer) = (Arc::clone(&self.group), guest.peer);
        let priority = self.registry.priority_of(&peer, guest.greeting());
        let place = group.places.take_for(&peer, priority);
        let place = match place {
            Ok(_) if !group.has_memory_for_session(priority) => Err(NoPlace::Kept),
            place => place,
        };
        let place = match place {
            Ok(place) => place,
            Err(none) => {
                let (refusal, text) = match none {
                    NoPlace::Full => (Refusal::TooManySessions, String::new()),
                    NoPlace::Kept => (
                        Refusal::LowPriority,
                        "what is left is for others".to_owned(),
                    ),
                    NoPlace::OfAddress(its) => (
                        Refusal::AddressLimit,
                        format!("your address has {its} of them"),
                    ),
                };
                guest.refuse(refusal, CloseReason::TooManySessions, &text, now);
                return false;
            }
        };
        let mut core = guest.session(self.protocol.clone(), &group, now);
        let lacks =
            |core: &io::Result<_>| matches!(core, Err(error) if error.raw_os_error().is_some());
        if lacks(&core)
            && let Some(other) = self.arrivals.first_to_go().filter(|it| *it != token)
        {
            // To map a ring takes a descriptor, which one that has not greeted can give up.
            self.dismiss(other, Refusal::Crowded, now);
            core = match self.arrivals.get_mut(token) {
                Some(guest) => guest.session(self.protocol.clone(), &group, now),
                None => return true,
            };
        }
        let Some(guest) = self.arrivals.get_mut(token) else {
            return true;
        };
        let core = match core {
            Ok(core) => core,
            Err(error) => {
                tracing::warn!(%peer, "cannot make a session: {error}; lower the number of sessions or the size of their rings");
                guest.refuse(
                    Refusal::OutOfMemory,
                    CloseReason::TooManySessions,
                    "there is no memory for another one",
                    now,
                );
                return false;
            }
        };
        let Some(handler) = self.registry.handler_for(&peer) else {
            tracing::error!(%peer, "no handler could be made for a peer: it is refused");
            guest.refuse(
                Refusal::HandlerPanicked,
                CloseReason::HandlerPanicked,
                "",
                now,
            );
            return false;
        };
        let session = self.session(peer, priority, token, &core);
        let registry = Arc::clone(&self.registry);
        // Until it counts among the sessions: at no time it is neither.
        let _counted = Counted::new(&group);
        let mut guest = self.arrivals.remove(token);
        session
            .0
            .carry(guest.as_mut().and_then(|guest| guest.link.take()));
        let channel = guest.and_then(Guest::into_channel);
        let mut driver = SessionDriver::new(core, handler, session, registry, None, channel);
        driver.connected(&self.reactor);
        self.enter(token, driver, place, now);
        true
    }
}
