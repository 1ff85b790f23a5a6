//! Many sessions, on few threads; and none left over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use embar_session::{Client, Flow, Handler, Message, Plain, Session, Settings};

use crate::support::{LONG, descriptors, echo_server, loopback, small, threads, until};

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
    let settings = Settings {
        workers: 2,
        idle_rings: 16,
        ..small()
    };
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

/// Sessions come and go while others work. Descriptors and threads are counted, so this has a
/// process of its own: the other tests of this binary would be in the way.
#[test]
fn connects_and_closes_under_load_leave_nothing_behind() {
    if !crate::support::alone("many::connects_and_closes_under_load_leave_nothing_behind") {
        return;
    }
    const CONNECTS: usize = 2000;
    let (before_fds, before_threads) = (descriptors(), threads());
    {
        let settings = Settings {
            workers: 2,
            idle_rings: 4,
            ..small()
        };
        let server = echo_server(settings.clone(), loopback());
        let client = Client::with(Plain, settings).unwrap();
        let (stop, done) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        struct Endless(Pinger, Arc<AtomicBool>);
        impl Handler for Endless {
            fn opened(&mut self, session: &Session, greeting: &[u8]) {
                self.0.opened(session, greeting);
            }
            fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
                if self.1.load(Ordering::Relaxed) {
                    self.0.rounds = 0;
                }
                self.0.message(session, message)
            }
        }
        for _ in 0..4 {
            let pinger = Pinger {
                next: 0,
                rounds: u32::MAX,
                done: Arc::clone(&done),
            };
            let handler = Endless(pinger, Arc::clone(&stop));
            client.connect(server.address(), handler).unwrap();
        }
        for round in 0..CONNECTS {
            let echoed = Arc::new(AtomicUsize::new(0));
            let pinger = Pinger {
                next: 0,
                rounds: 1,
                done: Arc::clone(&echoed),
            };
            let session = client.connect(server.address(), pinger).unwrap();
            match round % 3 {
                0 => session.close(),
                1 => session.abort(),
                _ => {
                    until("the echo", || echoed.load(Ordering::Relaxed) == 1);
                    session.close();
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        until("the load", || done.load(Ordering::Relaxed) == 4);
        until("only the load is left", || {
            client.stats().sessions == 4 && server.stats().sessions == 4
        });
        assert_eq!(server.stats().panics, 0);
        client.shutdown(LONG);
        server.shutdown(LONG);
    }
    until("descriptors", || descriptors() <= before_fds);
    until("threads", || threads() <= before_threads);
}
