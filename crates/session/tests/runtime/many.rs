//! Many sessions, on few threads; and none left over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use embar_session::{Client, Flow, Handler, Message, Plain, SendError, Session};
use embar_transport::Address;

use crate::support::{
    LONG, descriptors, echo_server, loopback, message, recorder, small, threads, until,
};

/// Sends the next number when the one before came back.
struct Pinger {
    next: u32,
    rounds: u32,
    done: Arc<AtomicUsize>,
}

impl Pinger {
    fn ping(&self, session: &Session) {
        let number = self.next.to_le_bytes();
        session
            .send_with(1, 64, |buf| {
                buf.fill(0);
                buf[..4].copy_from_slice(&number);
            })
            .unwrap();
    }
}

impl Handler for Pinger {
    fn opened(&mut self, session: &Session, _: &[u8]) {
        self.ping(session);
    }

    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        assert_eq!(message.payload()[..4], self.next.to_le_bytes());
        self.next += 1;
        if self.next < self.rounds {
            self.ping(session);
        } else {
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        Flow::Continue
    }
}

#[test]
fn a_thousand_sessions_on_two_workers_lose_nothing() {
    const SESSIONS: usize = 1000;
    const ROUNDS: u32 = 20;
    let settings = small().with(|settings| {
        settings.workers = 2;
        settings.idle_rings = 16;
    });
    let server = echo_server(settings.clone(), loopback());
    let client = Client::with(Plain, settings).unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    let connecting: Vec<_> = (0..SESSIONS)
        .map(|_| {
            let done = Arc::clone(&done);
            let pinger = Pinger {
                next: 0,
                rounds: ROUNDS,
                done,
            };
            client.open(server.address(), &[], pinger)
        })
        .collect();
    let sessions: Vec<Session> = connecting.into_iter().map(|c| c.wait().unwrap()).collect();
    until("all rounds", || done.load(Ordering::Relaxed) == SESSIONS);
    assert_eq!(server.sessions().len(), SESSIONS);
    let rounds = u64::from(ROUNDS) * SESSIONS as u64;
    until("counted", || server.stats().messages_sent == rounds);
    assert!(sessions.iter().all(|s| s.closed().is_none()));
    client.shutdown(LONG);
    until("all gone", || server.stats().sessions == 0);
}

/// Pings for as long as it may, and counts the answers.
struct Endless {
    pinger: Pinger,
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
}

impl Handler for Endless {
    fn opened(&mut self, session: &Session, greeting: &[u8]) {
        self.pinger.opened(session, greeting);
    }

    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        if self.stop.load(Ordering::Relaxed) {
            self.pinger.rounds = 0;
        }
        let flow = self.pinger.message(session, message);
        // Behind the check that it is the right one.
        self.answers.fetch_add(1, Ordering::Relaxed);
        flow
    }
}

/// Asks once, and tells the answer.
struct Once(Pinger, Sender<()>);

impl Handler for Once {
    fn opened(&mut self, session: &Session, greeting: &[u8]) {
        self.0.opened(session, greeting);
    }

    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let flow = self.0.message(session, message);
        let _ = self.1.send(());
        flow
    }
}

/// Opens `connects` sessions one after the other, and ends them in all the ways there are.
fn come_and_go(client: &Client, address: &Address, connects: usize) {
    for round in 0..connects {
        let (tell, answered) = channel();
        let pinger = Pinger {
            next: 0,
            rounds: 1,
            done: Arc::default(),
        };
        let session = client.connect(address.clone(), Once(pinger, tell)).unwrap();
        match round % 3 {
            0 => session.close(),
            1 => session.abort(),
            _ => {
                answered.recv_timeout(LONG).unwrap();
                session.close();
            }
        }
    }
}

/// Sessions come and go while others work. Descriptors and threads are counted, so this has a
/// process of its own: the other tests of this binary would be in the way.
#[test]
fn connects_and_closes_under_load_leave_nothing_behind() {
    if !crate::support::alone("many::connects_and_closes_under_load_leave_nothing_behind") {
        return;
    }
    const CONNECTS: usize = 10_000;
    const STEPS: usize = 10;
    const LOAD: usize = 4;
    let (before_fds, before_threads) = (descriptors(), threads());
    {
        let settings = small().with(|settings| {
            settings.workers = 2;
            settings.idle_rings = 4;
        });
        let folder = tempfile::tempdir().unwrap();
        let unix = Address::Unix(folder.path().join("socket"));
        let servers = [loopback(), unix].map(|address| echo_server(settings.clone(), address));
        let client = Client::with(Plain, settings).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (done, answers): (Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
        for load in 0..LOAD {
            let pinger = Pinger {
                next: 0,
                rounds: u32::MAX,
                done: Arc::clone(&done),
            };
            let handler = Endless {
                pinger,
                stop: Arc::clone(&stop),
                answers: Arc::clone(&answers),
            };
            let server = &servers[load % servers.len()];
            client.connect(server.address(), handler).unwrap();
        }
        for _ in 0..STEPS {
            let before = answers.load(Ordering::Relaxed);
            std::thread::scope(|scope| {
                for server in &servers {
                    let connects = CONNECTS / STEPS / servers.len();
                    let (client, address) = (&client, server.address());
                    scope.spawn(move || come_and_go(client, &address, connects));
                }
            });
            assert!(answers.load(Ordering::Relaxed) > before, "the load stands");
        }
        assert_eq!(client.stats().opened, (CONNECTS + LOAD) as u64);
        stop.store(true, Ordering::Relaxed);
        until("the load", || done.load(Ordering::Relaxed) == LOAD);
        let left = || servers.iter().map(|server| server.stats().sessions);
        until("only the load is left", || {
            client.stats().sessions == LOAD as u64 && left().sum::<u64>() == LOAD as u64
        });
        assert_eq!(client.stats().panics, 0, "a wrong answer");
        client.shutdown(LONG);
        for server in servers {
            assert_eq!(server.stats().panics, 0);
            server.shutdown(LONG);
        }
    }
    until("descriptors", || descriptors() <= before_fds);
    until("threads", || threads() <= before_threads);
}

/// Mappings of rings that this process has.
fn rings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let rings = maps.lines().filter(|line| line.contains("embar-ring"));
    rings.count()
}

#[test]
fn handles_of_closed_sessions_keep_figures_and_reason_and_no_ring() {
    if !crate::support::alone(
        "many::handles_of_closed_sessions_keep_figures_and_reason_and_no_ring",
    ) {
        return;
    }
    const SESSIONS: usize = 50;
    let settings = small().with(|settings| settings.idle_rings = 0);
    let server = echo_server(settings.clone(), loopback());
    let client = Client::with(Plain, settings).unwrap();
    let handles: Vec<Session> = (0..SESSIONS)
        .flat_map(|_| {
            let (handler, seen) = recorder();
            let session = client.connect(server.address(), handler).unwrap();
            session.send_with(1, 10, |buf| buf.fill(0)).unwrap();
            message(&seen);
            let at_server = server.sessions().pop().unwrap();
            [session, at_server]
        })
        .collect();
    assert!(rings() >= 4 * SESSIONS);
    // Of one, while a message is being written.
    let packet = handles[0].reserve(1, 10).unwrap();
    for session in handles.iter().step_by(2) {
        session.abort();
    }
    until("all are over", || {
        server.stats().sessions == 0 && client.stats().sessions == 0
    });
    until("one ring is left", || rings() == 2);
    packet.commit();
    until("none is left", || rings() == 0);
    for session in handles {
        let its = session.stats();
        assert!(session.closed().is_some() && its.messages_received == 1);
        assert!(its.messages_sent >= 1 && its.bytes_sent > 10);
        let sent = session.send_with(1, 10, |_| panic!("it is over"));
        assert_eq!(sent, Err(SendError::Closed));
    }
}
