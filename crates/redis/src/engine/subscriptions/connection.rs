//! A subscriber's connection to one node, and the requests that wait for an answer there.

use std::collections::VecDeque;

use embar_mux::Connection;

use crate::endpoint::Endpoint;
use crate::pubsub_event::Kind;
use crate::resp::{Out, bulk_len, header_len};

/// A connection that a subscriber needs.
pub(super) struct ConnectRequest {
    pub endpoint: Endpoint,
    /// Names the connection; never used twice.
    pub number: u64,
    /// How many attempts to connect failed before.
    pub attempt: u32,
}

/// A subscriber's connection to one node.
pub(super) struct NodeSubscriptions {
    pub endpoint: Endpoint,
    pub number: u64,
    /// `None` until it is opened.
    conn: Option<Connection>,
    /// Requests without an answer, oldest first.
    requests: VecDeque<Request>,
    /// Subscriptions to end there as soon as there is room for the request.
    unwanted: Vec<(Kind, Vec<u8>)>,
}

/// A request to a node.
#[derive(PartialEq)]
pub(super) struct Request {
    /// It begins a subscription; otherwise it ends one.
    pub begin: bool,
    pub kind: Kind,
    pub name: Vec<u8>,
}

impl NodeSubscriptions {
    pub fn new(endpoint: Endpoint, number: u64) -> Self {
        Self {
            endpoint,
            number,
            conn: None,
            requests: VecDeque::new(),
            unwanted: Vec::new(),
        }
    }

    pub fn opened(&mut self, conn: Connection) {
        self.conn = Some(conn);
    }

    pub fn is_open(&self) -> bool {
        self.conn.is_some()
    }

    pub fn close(&self) {
        if let Some(conn) = &self.conn {
            conn.close();
        }
    }

    /// Requests a subscription. False when there is no room for that at the moment, or the connection
    /// is over.
    pub fn subscribe(&mut self, kind: Kind, name: &[u8]) -> bool {
        // A subscription that is wanted again need not end.
        self.unwanted
            .retain(|(other, unwanted)| *other != kind || unwanted != name);
        self.post(true, kind, name)
    }

    /// Requests the end of a subscription. False when that has to wait until there is room; see
    /// [`NodeSubscriptions::end_unwanted`].
    pub fn unsubscribe(&mut self, kind: Kind, name: &[u8]) -> bool {
        let posted = self.post(false, kind, name);
        if !posted {
            self.unwanted.push((kind, name.to_vec()));
        }
        posted
    }

    /// Requests the end of subscriptions for which there was no room before. False when some are left.
    pub fn end_unwanted(&mut self) -> bool {
        while let Some((kind, name)) = self.unwanted.pop() {
            if !self.post(false, kind, &name) {
                self.unwanted.push((kind, name));
                return false;
            }
        }
        true
    }

    fn post(&mut self, begin: bool, kind: Kind, name: &[u8]) -> bool {
        let Some(conn) = &self.conn else {
            return false;
        };
        let word: &[u8] = match (begin, kind) {
            (true, Kind::Channel) => b"SUBSCRIBE",
            (true, Kind::Pattern) => b"PSUBSCRIBE",
            (true, Kind::Sharded) => b"SSUBSCRIBE",
            (false, Kind::Channel) => b"UNSUBSCRIBE",
            (false, Kind::Pattern) => b"PUNSUBSCRIBE",
            (false, Kind::Sharded) => b"SUNSUBSCRIBE",
        };
        let len = header_len(2) + bulk_len(word.len()) + bulk_len(name.len());
        let posted = conn.post(len, |out| {
            let mut out = Out::new(out);
            out.header(2);
            out.bulk(word);
            out.bulk(name);
            out.finish();
        });
        if posted.is_ok() {
            self.requests.push_back(Request {
                begin,
                kind,
                name: name.to_vec(),
            });
        }
        posted.is_ok()
    }

    /// Takes an answer. True when it answers the oldest request.
    pub fn answered(&mut self, begin: bool, kind: Kind, name: &[u8]) -> bool {
        let is_it = self.requests.front().is_some_and(|request| {
            (request.begin, request.kind, request.name.as_slice()) == (begin, kind, name)
        });
        if is_it {
            self.requests.pop_front();
        }
        is_it
    }

    /// Takes an error: the oldest request, which the server refused.
    pub fn refused(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// Whether a request about this subscription waits for an answer.
    pub fn has_request(&self, kind: Kind, name: &[u8]) -> bool {
        let mut requests = self.requests.iter();
        requests.any(|request| request.kind == kind && request.name == name)
    }
}
