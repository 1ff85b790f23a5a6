//! A subscriber's connection to one node, and the requests that wait for an answer there.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use embar_mux::Connection;

use super::names::{ByName, Name};
use crate::endpoint::Endpoint;
use crate::pubsub_event::Kind;
use crate::resp::{Out, bulk_len, header_len};

/// Most names in one request. A server answers each, and serves nobody else before it has answered all.
const MAX_NAMES: usize = 1000;

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
    /// `None` until it is opened.
    conn: Option<Connection>,
    /// The subscriptions that are assigned to it, by their numbers.
    pub members: HashSet<u64>,
    /// Those of them that are to be requested, first come, first served.
    pub new: VecDeque<u64>,
    /// Such of them as the server refused together: what is still to be found out is which one it means. The last ones are next.
    pub halves: Vec<Vec<u64>>,
    /// Requests without an answer, oldest first; `None`: the server was told who the client is.
    requests: VecDeque<Option<Request>>,
    /// How many of these are about a name.
    pending: ByName<u32>,
    /// Subscriptions to end there as soon as there is room for the request.
    unwanted: ByName<()>,
    /// What tells the server who the client is now, as soon as there is room for it.
    auth: Option<Arc<[u8]>>,
    /// Subscriptions that were made again and are not logged yet.
    pub renewed: usize,
}

/// A request to a node about some names of one kind.
pub(super) struct Request {
    /// It begins subscriptions; otherwise it ends them.
    pub begin: bool,
    pub kind: Kind,
    names: Vec<Name>,
    /// How many of them the server has answered.
    answered: usize,
}

impl Request {
    /// Those without an answer.
    pub fn open(&self) -> &[Name] {
        &self.names[self.answered..]
    }
}

/// Names for one request: as many as fit.
pub(super) struct Batch {
    pub kind: Kind,
    /// All have it, if they are sharded: a server takes only names of one slot.
    slot: u16,
    pub numbers: Vec<u64>,
    names: Vec<Name>,
    /// What is left for further names.
    bytes_left: usize,
}

impl Batch {
    /// Several names have at most so many bytes with what goes around them; one may have more.
    pub fn of(kind: Kind, slot: u16, max_bytes: usize) -> Self {
        Self {
            kind,
            slot,
            numbers: Vec::new(),
            names: Vec::new(),
            bytes_left: max_bytes,
        }
    }

    /// False: this one does not go with the others.
    pub fn add(&mut self, kind: Kind, slot: u16, number: u64, name: &Name) -> bool {
        let bytes = bulk_len(name.len());
        let fits = self.names.len() < MAX_NAMES && bytes <= self.bytes_left;
        let goes = (kind, slot) == (self.kind, self.slot) && (fits || self.names.is_empty());
        if goes {
            self.numbers.push(number);
            self.names.push(Arc::clone(name));
            self.bytes_left = self.bytes_left.saturating_sub(bytes);
        }
        goes
    }
}

impl NodeSubscriptions {
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            conn: None,
            members: HashSet::new(),
            new: VecDeque::new(),
            halves: Vec::new(),
            requests: VecDeque::new(),
            pending: ByName::default(),
            unwanted: ByName::default(),
            auth: None,
            renewed: 0,
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

    /// Whether an answer is to come.
    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Whether everything was requested and answered.
    pub fn is_settled(&self) -> bool {
        self.new.is_empty() && self.halves.is_empty() && self.requests.is_empty()
    }

    /// Requests subscriptions. False when there is no room for that at the moment, or the connection
    /// is over.
    pub fn subscribe(&mut self, batch: &Batch) -> bool {
        for name in &batch.names {
            // A subscription that is wanted again need not end.
            self.unwanted.remove(batch.kind, name);
        }
        self.post(true, batch.kind, batch.names.clone())
    }

    /// Requests the end of a subscription. False when that has to wait until there is room; see
    /// [`NodeSubscriptions::end_unwanted`].
    pub fn unsubscribe(&mut self, kind: Kind, name: &Name) -> bool {
        let posted = self.post(false, kind, vec![Arc::clone(name)]);
        if !posted {
            self.unwanted.insert(kind, Arc::clone(name), ());
        }
        posted
    }

    /// Requests the end of subscriptions for which there was no room before. False when some are left.
    pub fn end_unwanted(&mut self) -> bool {
        while let Some((kind, name)) = self.unwanted.any() {
            if !self.post(false, kind, vec![Arc::clone(&name)]) {
                return false;
            }
            self.unwanted.remove(kind, &name);
        }
        true
    }

    /// Tells the server who the client is now. False when that has to wait until there is room. A connection that is not open yet
    /// begins with that.
    pub fn authenticate(&mut self, auth: &Arc<[u8]>) -> bool {
        if self.is_open() {
            self.auth = Some(Arc::clone(auth));
        }
        self.send_auth()
    }

    /// Sends what there was no room for before. False when there is none yet.
    pub fn send_auth(&mut self) -> bool {
        let (Some(conn), Some(auth)) = (&self.conn, self.auth.take()) else {
            return true;
        };
        let posted = conn.post(auth.len(), |out| out.copy_from_slice(&auth));
        match posted {
            Ok(()) => self.requests.push_back(None),
            Err(_) => self.auth = Some(auth),
        }
        posted.is_ok()
    }

    /// Takes an answer, if it is the one to that.
    pub fn authenticated(&mut self) -> Option<Endpoint> {
        self.requests.pop_front_if(|request| request.is_none())?;
        Some(self.endpoint.clone())
    }

    fn post(&mut self, begin: bool, kind: Kind, names: Vec<Name>) -> bool {
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
        let words = 1 + names.len();
        let bulks: usize = names.iter().map(|name| bulk_len(name.len())).sum();
        let posted = conn.post(header_len(words) + bulk_len(word.len()) + bulks, |out| {
            let mut out = Out::new(out);
            out.header(words);
            out.bulk(word);
            for name in &names {
                out.bulk(&**name);
            }
            out.finish();
        });
        if posted.is_err() {
            return false;
        }
        for name in &names {
            match self.pending.get_mut(kind, name) {
                Some(count) => *count += 1,
                None => self.pending.insert(kind, Arc::clone(name), 1),
            }
        }
        self.requests.push_back(Some(Request {
            begin,
            kind,
            names,
            answered: 0,
        }));
        true
    }

    /// Takes an answer. True when it answers the oldest request.
    pub fn answered(&mut self, begin: bool, kind: Kind, name: &[u8]) -> bool {
        let Some(Some(request)) = self.requests.front_mut() else {
            return false;
        };
        let is_next = request.open().first().is_some_and(|next| **next == *name);
        if !is_next || (request.begin, request.kind) != (begin, kind) {
            return false;
        }
        request.answered += 1;
        if request.open().is_empty() {
            self.requests.pop_front();
        }
        self.is_over(kind, name);
        true
    }

    /// Takes an error: the oldest request, which the server refused.
    pub fn refused(&mut self) -> Option<Request> {
        let request = self.requests.pop_front()??;
        for name in request.open() {
            self.is_over(request.kind, name);
        }
        Some(request)
    }

    fn is_over(&mut self, kind: Kind, name: &[u8]) {
        match self.pending.get_mut(kind, name) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.pending.remove(kind, name)),
        }
    }

    /// Whether a request about this subscription waits for an answer.
    pub fn has_request(&self, kind: Kind, name: &[u8]) -> bool {
        self.pending.get(kind, name).is_some()
    }
}
