//! Datagrams of one session, on their way to its handler.

use std::mem;

use embar_frame::{Now, Protocol};

use super::SessionDriver;
use super::timing::due;
use crate::runtime::shared::request;

impl<P: Protocol> SessionDriver<P> {
    /// Hands over the datagrams that came, up to the session's share and its rates. When they take all of it, its messages have the next
    /// turn: a peer's datagrams do not keep its messages waiting for ever.
    pub(super) fn deliver_datagrams(&mut self, now: Now) {
        let session = self.session.clone();
        let Some(link) = session.0.link.get() else {
            return;
        };
        if mem::take(&mut self.datagrams_wait) {
            return session.0.request(request::DATAGRAMS);
        }
        if self.paced_until().is_some() {
            // Of those that come meanwhile the newest wait.
            self.due |= due::DATAGRAMS;
            return;
        }
        while self.pace.as_ref().is_none_or(|pace| pace.has_bytes()) && self.share.take_one() {
            let Some(received) = link.take_received() else {
                return;
            };
            if let Some(pace) = &mut self.pace {
                pace.count_datagram(received.bytes());
            }
            self.call_handler(now, |handler, session| {
                handler.datagram(session, received.view());
            });
        }
        self.datagrams_wait = true;
        session.0.request(request::DATAGRAMS);
    }
}
