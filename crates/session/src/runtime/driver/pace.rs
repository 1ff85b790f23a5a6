//! Whether a session keeps to its rates. One that does not is held, and its bodies are not received either, until it may
//! send again.

use std::sync::{Arc, Mutex, PoisonError};

use embar_frame::{Now, Protocol};

use super::SessionDriver;
use crate::CloseReason;
use crate::runtime::clock;
use crate::runtime::rates::{Beyond, Buckets, RateLimit};
use crate::runtime::session::Session;

/// The rates of one session, and what of it was counted.
pub(super) struct Pace {
    own: Buckets,
    address: Option<Arc<Mutex<Buckets>>>,
    messages: u64,
    bytes: u64,
    /// Until then nothing is received.
    until: Option<Now>,
}

impl Pace {
    /// `None`: there are no limits.
    pub(super) fn of(session: &Session) -> Option<Box<Self>> {
        let group = &session.0.group;
        let rates = &group.settings.rates;
        if rates.are_off() {
            return None;
        }
        let network = group.settings.admission.network_of(session.peer());
        let address = |network| group.addresses.of(network, rates, clock::now());
        Some(Box::new(Self {
            own: rates.of_session(),
            address: network.map(address),
            messages: 0,
            bytes: 0,
            until: None,
        }))
    }

    /// Whether it may be received.
    pub(super) fn is_on(&self) -> bool {
        self.until.is_none()
    }

    /// Takes what came since it was asked last. The limit that this went beyond, and how many messages may come
    /// now, or until when none.
    fn look(
        &mut self,
        (messages, bytes): (u64, u64),
        now: Now,
    ) -> (Option<RateLimit>, Result<u64, (RateLimit, Now)>) {
        // A message that a handler put back is counted when it comes again.
        let new_messages = messages.saturating_sub(self.messages);
        let new_bytes = bytes.saturating_sub(self.bytes);
        self.messages = self.messages.max(messages);
        self.bytes = bytes;
        let mut beyond = self.own.take(new_messages, new_bytes, now);
        let mut allowed = self.own.allowed(now);
        if let Some(address) = &self.address {
            let mut address = address.lock().unwrap_or_else(PoisonError::into_inner);
            beyond = beyond.or(address.take(new_messages, new_bytes, now));
            allowed = match (allowed, address.allowed(now)) {
                (Ok(own), Ok(all)) => Ok(own.min(all)),
                (Err((limit, own)), Err((_, all))) => Err((limit, own.max(all))),
                (Err(none), _) | (_, Err(none)) => Err(none),
            };
        }
        (beyond, allowed)
    }
}

impl<P: Protocol> SessionDriver<P> {
    /// When it is received again, if it is not.
    pub(super) fn paced_until(&self) -> Option<Now> {
        self.pace.as_ref()?.until
    }

    /// Before each turn, where there are rates: lets the session have as many messages as it may.
    #[cold]
    pub(super) fn keep_pace(&mut self, now: Now) {
        let counted = self.core.received_so_far();
        let Some(pace) = self.pace.as_mut() else {
            return;
        };
        if !self.core.is_open() {
            // A body that is held must come to its end, too.
            pace.until = None;
            return;
        }
        let (beyond, allowed) = pace.look(counted, now);
        let group = &self.session.0.group;
        let rates = &group.settings.rates;
        if rates.beyond == Beyond::Close {
            if let Some(limit) = beyond {
                group.counters.rates.count(limit);
                let text = format!("too many {limit}");
                self.core.fail(CloseReason::RateLimited, &text, now);
            }
            return;
        }
        let was_held = pace.until.is_some();
        match allowed {
            Ok(messages) => {
                pace.until = None;
                self.share.limit(messages);
                if was_held {
                    self.core.hold(self.paused, now);
                }
            }
            Err((limit, until)) => {
                pace.until = Some(until);
                if !was_held {
                    group.counters.rates.count(limit);
                    self.core.hold(true, now);
                }
            }
        }
    }
}
