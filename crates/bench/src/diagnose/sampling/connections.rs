//! The TCP connections of some servers in a span, and what both ends of them did.
//!
//! The kernel lists connections by going through its table of all of them, which takes it half a millisecond on a machine with much
//! memory, however few there are. One connection it finds at once. So those that are known are asked for one by one, and a list is
//! made where there may be others.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use embar_diagnose::observed::{ReceivingEnd, SendingEnd};
use embar_readings::tcp::{TcpEnd, TcpReader};

/// Connections that are watched, at most: more are left out, and said to be. Each takes half a kilobyte.
pub(super) const CONNECTIONS_MAX: usize = 16_384;
/// More ends are not asked for one by one: a list takes less time.
const ASKED_MAX: usize = 128;
/// New connections are found after so long at the latest,
const LIST_EVERY: Duration = Duration::from_millis(500);
/// and at each look for so long after one has closed: another one may take its place.
const LIST_AFTER_CLOSE: Duration = Duration::from_millis(200);

/// Connections that are watched.
pub(super) struct Connections {
    reader: TcpReader,
    servers: BTreeSet<SocketAddr>,
    seen: BTreeMap<Key, Ends>,
    /// Ends that were open at the last look: their own address, and the peer's.
    open: Vec<(SocketAddr, SocketAddr)>,
    listed: Option<Instant>,
    closed: Option<Instant>,
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

/// One end: as it was first, as it is now, and what its gauges summed up to.
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
            reader: TcpReader::open()?,
            servers,
            seen: BTreeMap::new(),
            open: Vec::new(),
            listed: None,
            closed: None,
            has_too_many: false,
        })
    }

    /// Takes in what all connections are like now.
    ///
    /// # Errors
    /// The kernel does not tell any more.
    pub fn look(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let within = |then: Option<Instant>, span| {
            then.is_some_and(|then| now.saturating_duration_since(then) < span)
        };
        if within(self.listed, LIST_EVERY)
            && !within(self.closed, LIST_AFTER_CLOSE)
            && self.open.len() <= ASKED_MAX
        {
            if self.ask()? {
                return Ok(());
            }
            self.closed = Some(now);
        }
        self.list(now)
    }

    /// The last look, at all that there are.
    ///
    /// # Errors
    /// As [`Connections::look`].
    pub fn last_look(&mut self) -> io::Result<()> {
        self.list(Instant::now())
    }

    /// Asks for each that was open; `false`, and nothing is taken in, if one is not any more.
    fn ask(&mut self) -> io::Result<bool> {
        let mut ends = Vec::with_capacity(self.open.len());
        for (local, remote) in &self.open {
            match self.reader.end(*local, *remote)? {
                Some(end) => ends.push(end),
                None => return Ok(false),
            }
        }
        for end in ends {
            self.see(end);
        }
        Ok(true)
    }

    fn list(&mut self, now: Instant) -> io::Result<()> {
        let ends = self.reader.connections_with(&self.servers)?;
        self.listed = Some(now);
        self.open = ends.iter().map(|end| (end.local, end.remote)).collect();
        for end in ends {
            self.see(end);
        }
        Ok(())
    }

    fn see(&mut self, end: TcpEnd) {
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
            true => ends.client.see(end),
            false => ends.server.see(end),
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

impl Watched {
    fn see(&mut self, end: TcpEnd) {
        self.looks += 1.0;
        self.round_trip_us += f64::from(end.rtt_us);
        self.congestion_window += f64::from(end.congestion_window) * f64::from(end.segment_bytes);
        self.unsent += f64::from(end.unsent_bytes);
        self.queued += f64::from(end.receive_queue);
        self.window_most = self.window_most.max(end.send_window);
        self.first.get_or_insert_with(|| end.clone());
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
        let (first, last) = (self.first.as_ref()?, self.last.as_ref()?);
        let share = |of: fn(&TcpEnd) -> u64| {
            let us = of(last).saturating_sub(of(first)) as f64;
            (us / 1e6 / seconds).min(1.0)
        };
        Some(SendingEnd {
            busy: share(|end| end.busy_us),
            window_full: share(|end| end.window_limited_us),
            send_buffer_full: share(|end| end.send_buffer_limited_us),
            sent_bytes: last.bytes_sent.saturating_sub(first.bytes_sent),
            resent_bytes: last.bytes_resent.saturating_sub(first.bytes_resent),
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
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn listening() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = listener.local_addr().expect("an address");
        (listener, server)
    }

    #[test]
    fn connections_that_come_and_go_are_seen() {
        let (listener, server) = listening();
        let connect = || {
            let client = TcpStream::connect(server).expect("it listens");
            (client, listener.accept().expect("it connected"))
        };
        let first = connect();
        let mut connections = Connections::of(BTreeSet::from([server])).expect("sock_diag");
        connections.look().expect("sock_diag");
        connections.look().expect("sock_diag");
        assert_eq!(connections.seen.len(), 1);
        assert_eq!(connections.open.len(), 2, "both ends");
        drop(first);
        let _second = connect();
        connections.look().expect("sock_diag");
        assert_eq!(connections.seen.len(), 2, "it is found because one closed");
        let _third = connect();
        let deadline = Instant::now() + Duration::from_secs(60);
        while connections.seen.len() < 3 {
            assert!(Instant::now() < deadline, "others are found in time");
            connections.look().expect("sock_diag");
        }
        let ends = connections.seen.values();
        assert!(
            ends.clone()
                .all(|it| it.client.last.is_some() && it.server.last.is_some())
        );
    }

    #[test]
    fn what_came_late_is_seen_at_the_last_look() {
        let (listener, server) = listening();
        let mut connections = Connections::of(BTreeSet::from([server])).expect("sock_diag");
        connections.look().expect("sock_diag");
        let _client = TcpStream::connect(server).expect("it listens");
        let _server = listener.accept().expect("it connected");
        connections.last_look().expect("sock_diag");
        assert_eq!(connections.seen(1.0).len(), 1);
    }

    #[test]
    fn connections_beyond_the_bound_are_left_out_and_said_to_be() {
        let (_listener, server) = listening();
        let _client = TcpStream::connect(server).expect("it listens");
        let mut connections = Connections::of(BTreeSet::from([server])).expect("sock_diag");
        connections.look().expect("sock_diag");
        assert_eq!(connections.seen.len(), 1);
        for number in 0..CONNECTIONS_MAX {
            let address = SocketAddr::from(([10, 0, (number >> 8) as u8, number as u8], 1));
            connections.seen.entry((address, address)).or_default();
        }
        let full = connections.seen.len();
        let _another = TcpStream::connect(server).expect("it listens");
        connections.last_look().expect("sock_diag");
        assert!(connections.has_too_many);
        assert_eq!(connections.seen.len(), full);
    }
}
