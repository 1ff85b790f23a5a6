//! The TCP connections of some servers in a span, and what both ends of them did.
//!
//! The kernel lists connections by going through its table of all of them, which takes it half a millisecond on a machine with much
//! memory, however few there are. One that is known it finds at once. So those that are known are asked for one by one, and a list is
//! made where there may be others. Counters begin with a connection, so what came between two lists is counted from its beginning.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use embar_diagnose::observed::{ReceivingEnd, SendingEnd, Step};
use embar_readings::tcp::{TcpEnd, TcpReader};

use crate::diagnose::over_time::OverTime;

/// Connections that are watched, at most: more are left out, and said to be. Each takes half a kilobyte.
pub(super) const CONNECTIONS_MAX: usize = 16_384;
/// More ends are not asked for one by one: a list takes less time.
const ASKED_MAX: usize = 64;
/// New connections are found after so long at the latest,
const LIST_EVERY: Duration = Duration::from_millis(500);
/// and at each look for so long after one has closed: another one may take its place.
const LIST_AFTER_CLOSE: Duration = Duration::from_millis(200);

/// Connections that are watched.
pub(super) struct Connections {
    /// `None` once the kernel has refused to tell.
    reader: Option<TcpReader>,
    servers: BTreeSet<SocketAddr>,
    seen: BTreeMap<Key, Ends>,
    /// Ends that were open at the last look; none if they are too many to be asked for.
    open: Vec<TcpEnd>,
    listed: Option<Instant>,
    closed: Option<Instant>,
    over_time: OverTime,
    /// Some were left out.
    pub has_too_many: bool,
}

/// A connection by its two addresses: the client's and the server's.
type Key = (SocketAddr, SocketAddr);

/// Both ends of a connection.
#[derive(Default)]
struct Ends {
    client: Watched,
    server: Watched,
}

/// One end: as it was at the beginning of the span if it was there, as it is now, and what its gauges summed up to.
#[derive(Default)]
struct Watched {
    first: Option<TcpEnd>,
    last: Option<TcpEnd>,
    looks: f64,
    round_trip_us: f64,
    congestion_window: f64,
    unsent: f64,
    queued: f64,
    window_most: u32,
    /// Bytes that arrived, also by earlier connections between the same two addresses.
    received: u64,
    /// Bytes that left, without those that left again.
    sent: u64,
}

/// A connection, seen from both ends.
pub struct SeenConnection {
    /// The server's address.
    pub server: SocketAddr,
    /// The client as the one that sends, and the server as the one that receives.
    pub upward: (Option<SendingEnd>, Option<ReceivingEnd>),
    /// The other way round.
    pub downward: (Option<SendingEnd>, Option<ReceivingEnd>),
}

impl Connections {
    /// Nothing is watched before the first look.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn of(servers: BTreeSet<SocketAddr>) -> io::Result<Self> {
        Ok(Self {
            reader: Some(TcpReader::open()?),
            servers,
            seen: BTreeMap::new(),
            open: Vec::new(),
            listed: None,
            closed: None,
            over_time: OverTime::default(),
            has_too_many: false,
        })
    }

    /// Takes in what all connections are like now.
    ///
    /// # Errors
    /// The kernel does not tell any more: what was seen before stays, and further looks see nothing.
    pub fn look(&mut self, now: Instant) -> io::Result<()> {
        let Some(mut reader) = self.reader.take() else {
            return Ok(());
        };
        if self.may_have_others(now) || !self.ask(&mut reader, now)? {
            self.list(&mut reader, now)?;
        }
        self.reader = Some(reader);
        let carried = self.seen.values().map(Ends::carried).sum();
        self.over_time.see(carried, now);
        Ok(())
    }

    /// The last look, at all that there are.
    ///
    /// # Errors
    /// As [`Connections::look`].
    pub fn last_look(&mut self, now: Instant) -> io::Result<()> {
        self.open.clear();
        self.look(now)
    }

    /// Whether only a list shows all that there are.
    fn may_have_others(&self, now: Instant) -> bool {
        let within = |then: Option<Instant>, span| {
            then.is_some_and(|then| now.saturating_duration_since(then) < span)
        };
        self.open.is_empty()
            || !within(self.listed, LIST_EVERY)
            || within(self.closed, LIST_AFTER_CLOSE)
    }

    /// Asks for each that was open; `false`, and nothing is taken in, if one is not any more.
    fn ask(&mut self, reader: &mut TcpReader, now: Instant) -> io::Result<bool> {
        let mut ends = Vec::with_capacity(self.open.len());
        for end in &self.open {
            match reader.again(end)? {
                Some(end) => ends.push(end),
                None => {
                    self.closed = Some(now);
                    return Ok(false);
                }
            }
        }
        for end in ends {
            self.see(end, false);
        }
        Ok(true)
    }

    fn list(&mut self, reader: &mut TcpReader, now: Instant) -> io::Result<()> {
        let ends = reader.connections_with(&self.servers)?;
        let is_first = self.listed.is_none();
        let still = |open: &TcpEnd| ends.iter().any(|end| end.cookie == open.cookie);
        if !self.open.iter().all(still) {
            self.closed = Some(now);
        }
        self.listed = Some(now);
        self.open = match ends.len() <= ASKED_MAX {
            true => ends.clone(),
            false => Vec::new(),
        };
        for end in ends {
            self.see(end, is_first);
        }
        Ok(())
    }

    /// Those of the first look were there before the span.
    fn see(&mut self, end: TcpEnd, was_there: bool) {
        let is_client = self.servers.contains(&end.remote);
        let key = match is_client {
            true => (end.local, end.remote),
            false => (end.remote, end.local),
        };
        if !self.seen.contains_key(&key) && self.seen.len() >= CONNECTIONS_MAX {
            self.has_too_many = true;
            return;
        }
        let ends = self.seen.entry(key).or_default();
        match is_client {
            true => ends.client.see(end, was_there),
            false => ends.server.see(end, was_there),
        }
    }

    /// Bytes that arrived, step by step; nothing where the kernel shows no connection, as of Unix sockets.
    pub fn over_time(&self) -> Vec<Step> {
        match self.seen.is_empty() {
            true => Vec::new(),
            false => self.over_time.steps(),
        }
    }

    /// What they did in a span so long.
    pub fn seen(&self, seconds: f64) -> Vec<SeenConnection> {
        let seen = self.seen.iter().map(|((_, server), ends)| SeenConnection {
            server: *server,
            upward: (ends.client.sending(seconds), ends.server.receiving()),
            downward: (ends.server.sending(seconds), ends.client.receiving()),
        });
        seen.collect()
    }
}

impl Ends {
    /// Bytes that went either way: as they arrived, or left for an end that cannot be seen.
    fn carried(&self) -> u64 {
        let arrived = |at: &Watched, from: &Watched| match at.last {
            Some(_) => at.received,
            None => from.sent,
        };
        arrived(&self.server, &self.client) + arrived(&self.client, &self.server)
    }
}

impl Watched {
    fn see(&mut self, end: TcpEnd, was_there: bool) {
        // Counters begin with a connection.
        let before = match &self.last {
            Some(last) if last.cookie == end.cookie => Some(last),
            None if was_there => Some(&end),
            _ => None,
        };
        let sent = |end: &TcpEnd| end.bytes_sent.saturating_sub(end.bytes_resent);
        let since = |of: fn(&TcpEnd) -> u64| of(&end).saturating_sub(before.map_or(0, of));
        self.received += since(|it| it.bytes_received);
        self.sent += since(sent);
        self.looks += 1.0;
        self.round_trip_us += f64::from(end.rtt_us);
        self.congestion_window += f64::from(end.congestion_window) * f64::from(end.segment_bytes);
        self.unsent += f64::from(end.unsent_bytes);
        self.queued += f64::from(end.receive_queue);
        self.window_most = self.window_most.max(end.send_window);
        if was_there {
            self.first = Some(end.clone());
        } else if self.last.as_ref().is_some_and(|it| it.cookie != end.cookie) {
            // Another connection between the same two addresses began at zero.
            self.first = None;
        }
        self.last = Some(end);
    }

    fn mean(&self, sum: f64) -> f64 {
        if self.looks > 0.0 {
            sum / self.looks
        } else {
            0.0
        }
    }

    fn sending(&self, seconds: f64) -> Option<SendingEnd> {
        let (first, last) = (self.first.as_ref(), self.last.as_ref()?);
        let since = |of: fn(&TcpEnd) -> u64| of(last).saturating_sub(first.map_or(0, of));
        let share = |of: fn(&TcpEnd) -> u64| (since(of) as f64 / 1e6 / seconds).min(1.0);
        Some(SendingEnd {
            busy: share(|end| end.busy_us),
            window_full: share(|end| end.window_limited_us),
            send_buffer_full: share(|end| end.send_buffer_limited_us),
            sent_bytes: since(|end| end.bytes_sent),
            resent_bytes: since(|end| end.bytes_resent),
            round_trip_s: self.mean(self.round_trip_us) / 1e6,
            // The kernel has seen none yet.
            round_trip_min_s: match last.min_rtt_us {
                u32::MAX => 0.0,
                us => f64::from(us) / 1e6,
            },
            window_bytes: self.window_most.into(),
            congestion_window_bytes: self.mean(self.congestion_window) as u64,
            buffer_bytes: last.send_buffer.into(),
            unsent_bytes: self.mean(self.unsent) as u64,
        })
    }

    fn receiving(&self) -> Option<ReceivingEnd> {
        let last = self.last.as_ref()?;
        Some(ReceivingEnd {
            buffer_bytes: last.receive_buffer.into(),
            queued_bytes: self.mean(self.queued) as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn listening() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = listener.local_addr().expect("an address");
        (listener, server)
    }

    fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let server = listener.local_addr().expect("an address");
        let client = TcpStream::connect(server).expect("it listens");
        (client, listener.accept().expect("it connected").0)
    }

    /// After the first look, and when that was.
    fn looked_at(server: SocketAddr) -> (Connections, Instant) {
        let mut connections = Connections::of(BTreeSet::from([server])).expect("sock_diag");
        let start = Instant::now();
        connections.look(start).expect("sock_diag");
        (connections, start)
    }

    fn watching(server: SocketAddr) -> impl FnMut(Instant) -> Vec<(bool, u64)> {
        let mut connections = Connections::of(BTreeSet::from([server])).expect("sock_diag");
        move |now| {
            connections.look(now).expect("sock_diag");
            let seen = connections.seen.values();
            seen.map(|ends| {
                let sent = ends.client.sending(1.0).map_or(0, |it| it.sent_bytes);
                (ends.server.last.is_some(), sent)
            })
            .collect()
        }
    }

    #[test]
    fn connections_that_come_and_go_are_seen() {
        let (listener, server) = listening();
        let mut look = watching(server);
        let start = Instant::now();
        assert_eq!(look(start), []);
        let first = connect(&listener);
        let soon = Duration::from_millis(1);
        assert_eq!(look(start + soon).len(), 1, "there was none to ask for");
        let second = connect(&listener);
        assert_eq!(look(start + 2 * soon).len(), 1, "the one that is known");
        drop(first);
        assert_eq!(look(start + 3 * soon).len(), 2, "one closed");
        let _third = connect(&listener);
        assert_eq!(look(start + 4 * soon).len(), 3, "one closed of late");
        let _fourth = connect(&listener);
        let later = start + LIST_AFTER_CLOSE + 10 * soon;
        assert_eq!(look(later).len(), 3);
        // The list that is due is the first to miss another one.
        drop(second);
        let due = start + LIST_EVERY + 10 * soon;
        assert_eq!(look(due).len(), 4);
        let _fifth = connect(&listener);
        let all = look(due + soon);
        assert_eq!(all.len(), 5);
        assert!(all.iter().all(|(both_ends, _)| *both_ends));
    }

    #[test]
    fn what_is_sent_before_a_connection_is_found_counts_unless_it_was_before_the_span() {
        let (listener, server) = listening();
        let (mut old, _old) = connect(&listener);
        old.write_all(&[0; 100]).expect("room");
        let mut look = watching(server);
        let start = Instant::now();
        look(start);
        let (mut new, _new) = connect(&listener);
        new.write_all(&[0; 70]).expect("room");
        old.write_all(&[0; 5]).expect("room");
        let sent = look(start + LIST_EVERY);
        let mut sent: Vec<u64> = sent.into_iter().map(|it| it.1).collect();
        sent.sort_unstable();
        assert_eq!(sent, [5, 70]);
    }

    #[test]
    fn what_was_seen_stays_when_the_kernel_tells_no_more() {
        let (listener, server) = listening();
        let _first = connect(&listener);
        let (mut connections, start) = looked_at(server);
        connections.reader = None;
        connections.look(start).expect("nobody is asked");
        assert_eq!(connections.seen(1.0).len(), 1);
    }

    #[test]
    fn what_came_late_is_seen_at_the_last_look() {
        let (listener, server) = listening();
        let _first = connect(&listener);
        let (mut connections, start) = looked_at(server);
        let _second = connect(&listener);
        connections.last_look(start).expect("sock_diag");
        assert_eq!(connections.seen(1.0).len(), 2);
    }

    #[test]
    fn connections_beyond_the_bound_are_left_out_and_said_to_be() {
        let (listener, server) = listening();
        let _first = connect(&listener);
        let (mut connections, start) = looked_at(server);
        assert_eq!(connections.seen.len(), 1);
        for number in 0..CONNECTIONS_MAX {
            let address = SocketAddr::from(([10, 0, (number >> 8) as u8, number as u8], 1));
            connections.seen.entry((address, address)).or_default();
        }
        let full = connections.seen.len();
        let _another = connect(&listener);
        connections.last_look(start).expect("sock_diag");
        assert!(connections.has_too_many);
        assert_eq!(connections.seen.len(), full);
    }
}
