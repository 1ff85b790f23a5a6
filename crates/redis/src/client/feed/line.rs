//! A connection of a subscriber to one node.

use std::collections::VecDeque;

use embar_mux::Connection;

use crate::config::Endpoint;
use crate::pubsub::Kind;
use crate::resp::{Out, bulk_len, header_len};

/// See the module.
pub(super) struct Line {
    pub endpoint: Endpoint,
    pub number: u64,
    /// `None` while it is being opened.
    conn: Option<Connection>,
    /// What it was asked, in order.
    asked: VecDeque<Request>,
    /// Subscriptions that are to be ended there as soon as there is room to say so.
    unwanted: Vec<(Kind, Vec<u8>)>,
}

/// What a node was asked.
#[derive(PartialEq)]
pub(super) struct Request {
    /// A subscription is to begin; otherwise, to end.
    pub begin: bool,
    pub kind: Kind,
    pub name: Vec<u8>,
}

impl Line {
    pub fn new(endpoint: Endpoint, number: u64) -> Self {
        Self {
            endpoint,
            number,
            conn: None,
            asked: VecDeque::new(),
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

    /// Asks for a subscription. False: there is no room for that at the moment, or the connection
    /// is over.
    pub fn subscribe(&mut self, kind: Kind, name: &[u8]) -> bool {
        // What is to be ended and was not yet is wanted again.
        self.unwanted
            .retain(|(other, unwanted)| *other != kind || unwanted != name);
        self.post(true, kind, name)
    }

    /// Ends a subscription. False: that is for later, when there is room; see [`Line::tidy`].
    pub fn unsubscribe(&mut self, kind: Kind, name: &[u8]) -> bool {
        let posted = self.post(false, kind, name);
        if !posted {
            self.unwanted.push((kind, name.to_vec()));
        }
        posted
    }

    /// Ends subscriptions that could not be ended when that was asked for. False: some are left.
    pub fn tidy(&mut self) -> bool {
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
            self.asked.push_back(Request {
                begin,
                kind,
                name: name.to_vec(),
            });
        }
        posted.is_ok()
    }

    /// Whether this answers the request that has waited longest.
    pub fn answered(&mut self, begin: bool, kind: Kind, name: &[u8]) -> bool {
        let is_it = self.asked.front().is_some_and(|asked| {
            (asked.begin, asked.kind, asked.name.as_slice()) == (begin, kind, name)
        });
        if is_it {
            self.asked.pop_front();
        }
        is_it
    }

    /// The request that has waited longest was refused.
    pub fn refused(&mut self) -> Option<Request> {
        self.asked.pop_front()
    }

    /// Whether it was asked something about this that is not answered yet.
    pub fn is_asked(&self, kind: Kind, name: &[u8]) -> bool {
        let mut asked = self.asked.iter();
        asked.any(|asked| asked.kind == kind && asked.name == name)
    }
}
