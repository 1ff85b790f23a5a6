//! Hears from one sentinel when something changes, by a subscription, and has the client look again then.
//!
//! What a message says does not count, but that it is about the client's primary: sentinels are asked, and several of
//! them, whom they name. A connection of its own, as RESP2 has no other way.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use embar_mux::{CloseReason, Connection, ConnectionLimits};

use crate::endpoint::Endpoint;
use crate::engine::greeting::Purpose;
use crate::engine::protocol::{ConnectionOwner, RedisProtocol};
use crate::engine::schedule::Task;
use crate::engine::shared::Shared;
use crate::engine::timers::after;
use crate::resp::{View, encode_all, parse};

/// The channels of what may change the primary, or which replicas may be read.
const SUBSCRIBE: &[&str] = &[
    "SUBSCRIBE",
    "+switch-master",
    "+failover-state-reconf-slaves",
    "+slave-reconf-done",
    "+convert-to-slave",
    "+slave",
    "+sdown",
    "-sdown",
];

/// Bytes of the longest message that it takes: each has a few names and addresses.
const MAX_MESSAGE_BYTES: usize = 64 << 10;

/// Listens to one sentinel until it is dropped.
pub struct SentinelWatch {
    me: Weak<Self>,
    pub endpoint: Endpoint,
    master_name: String,
    sentinels: Arc<Shared>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    conn: Option<Connection>,
    /// The number of the connection, or of the attempt; what others report does not count.
    number: u64,
    /// How many attempts failed one after the other.
    failures: u32,
    /// The sentinel has confirmed the subscriptions.
    is_up: bool,
    /// It refused them: there is nothing to hear.
    is_refused: bool,
}

impl SentinelWatch {
    /// Begins to connect.
    pub fn start(endpoint: Endpoint, master_name: &str, sentinels: &Arc<Shared>) -> Arc<Self> {
        let watch = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            endpoint,
            master_name: master_name.to_owned(),
            sentinels: Arc::clone(sentinels),
            state: Mutex::default(),
        });
        sentinels.schedule.run_at(watch.task(), None);
        watch
    }

    /// Whether the sentinel would say when something changes, or has refused to, which is no reason to look for another
    /// one.
    pub fn does_well(&self) -> bool {
        let state = self.state();
        state.is_up || state.is_refused
    }

    fn task(&self) -> Weak<dyn Task> {
        Weak::clone(&self.me) as Weak<dyn Task>
    }

    /// Connects and subscribes. Blocks while it resolves the host's name.
    fn connect(self: &Arc<Self>) {
        let (number, attempt) = {
            let mut state = self.state();
            state.number += 1;
            (state.number, state.failures)
        };
        let config = &*self.sentinels.config;
        let limits = ConnectionLimits {
            // Pushes answer no command, so none is ever in flight.
            in_flight: 1,
            connect_timeout: config.connect_timeout,
            max_reply_bytes: MAX_MESSAGE_BYTES,
            ..ConnectionLimits::default()
        };
        let owner = Box::new(Owner {
            watch: Weak::clone(&self.me),
            number,
        });
        // Those of sentinels are fixed, so they are there.
        let (credentials, _) = self.sentinels.current_credentials().unwrap_or_default();
        let credentials = credentials.as_ref();
        let protocol = RedisProtocol::new(config, credentials, Purpose::Subscriptions, owner);
        let dialer = &self.sentinels.dialer;
        match dialer.open(&self.endpoint, attempt, limits, protocol) {
            Ok(conn) => {
                let subscribe = encode_all(&[SUBSCRIBE]);
                let fill = |out: &mut [u8]| out.copy_from_slice(&subscribe);
                // If it is over already, its end was reported.
                let _sent = conn.post(subscribe.len(), fill);
                let mut state = self.state();
                match state.number == number {
                    true => state.conn = Some(conn),
                    false => conn.close(),
                }
            }
            Err(reason) => self.went_down(number, &reason),
        }
    }

    /// A connection is over, or an attempt failed: connects again later.
    fn went_down(&self, number: u64, reason: &CloseReason) {
        let mut state = self.state();
        if state.number != number {
            return;
        }
        tracing::debug!(sentinel = %self.endpoint, "no subscription: {reason}");
        state.number += 1;
        state.conn = None;
        let was_up = std::mem::take(&mut state.is_up);
        let pause = self.sentinels.config.retries.backoff(state.failures);
        state.failures = state.failures.saturating_add(1);
        let is_refused = state.is_refused;
        drop(state);
        let schedule = &self.sentinels.schedule;
        if !is_refused {
            schedule.run_at(self.task(), Some(after(pause)));
        }
        if was_up {
            // Another sentinel may be there to be heard, or this one will be missed.
            schedule.request_refresh();
        }
    }

    /// A frame came.
    fn received(&self, number: u64, frame: &[u8]) {
        let is_news = match parse(frame) {
            Ok((View::Push(items) | View::Array(items), _)) => {
                let words = items.map(|item| match item {
                    View::Bulk(word) | View::Simple(word) => word,
                    _ => b"",
                });
                let words: Vec<&[u8]> = words.collect();
                match words.as_slice() {
                    [b"message", _, text] => is_about(text, &self.master_name),
                    // What changed until now it has not said.
                    [b"subscribe", ..] => self.confirmed(number),
                    _ => false,
                }
            }
            Ok((View::Error(error), _)) => {
                self.refused(number, &error.text());
                false
            }
            _ => false,
        };
        if is_news {
            self.sentinels.schedule.request_refresh();
        }
    }

    /// True: it had not confirmed before.
    fn confirmed(&self, number: u64) -> bool {
        let mut state = self.state();
        let is_new = state.number == number && !state.is_up;
        if is_new {
            (state.is_up, state.failures) = (true, 0);
        }
        is_new
    }

    fn refused(&self, number: u64, answer: &str) {
        let mut state = self.state();
        if state.number != number {
            return;
        }
        state.is_refused = true;
        let conn = state.conn.take();
        drop(state);
        tracing::warn!(
            sentinel = %self.endpoint, answer,
            "a sentinel allows no subscription: a failover is noticed later, by a connection or a check"
        );
        if let Some(conn) = conn {
            conn.close();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a message names this primary: `+switch-master` begins with the name, others have it behind `master` or `@`.
fn is_about(text: &[u8], master_name: &str) -> bool {
    let mut words = text.split(|byte| *byte == b' ');
    words.any(|word| word == master_name.as_bytes())
}

impl Task for SentinelWatch {
    fn run(self: Arc<Self>) {
        let watch = Arc::clone(&self);
        let dialer = &self.sentinels.dialer;
        dialer.run(&self.endpoint, move || watch.connect());
    }
}

impl Drop for SentinelWatch {
    fn drop(&mut self) {
        if let Some(conn) = self.state().conn.take() {
            conn.close();
        }
    }
}

/// What the protocol reports of one connection goes to the watch, if that still exists.
struct Owner {
    watch: Weak<SentinelWatch>,
    number: u64,
}

impl ConnectionOwner for Owner {
    fn push(&self, frame: &[u8]) {
        if let Some(watch) = self.watch.upgrade() {
            watch.received(self.number, frame);
        }
    }

    fn closed(&self, reason: &CloseReason, _: bool) {
        if let Some(watch) = self.watch.upgrade() {
            watch.went_down(self.number, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_their_primary() {
        for text in [
            "mymaster 127.0.0.1 6379 127.0.0.1 6380",
            "master mymaster 127.0.0.1 6379",
            "slave 127.0.0.1:6380 127.0.0.1 6380 @ mymaster 127.0.0.1 6379",
        ] {
            assert!(is_about(text.as_bytes(), "mymaster"), "{text}");
            assert!(!is_about(text.as_bytes(), "master2"), "{text}");
        }
    }
}
