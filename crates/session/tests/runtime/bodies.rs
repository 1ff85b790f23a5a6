//! Bodies, and what is sent while one is on its way.

use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use embar_memory::{Buffer, Coherence, Extent, Mapped, PayloadFile, Span};
use embar_session::{
    BodyStore, BodyTarget, Client, CloseReason, Closed, Flow, Handler, Message, Plain, Server,
    Session,
};

use crate::support::{LONG, closed, loopback, recorder, until, with_bodies};

const GIVE: u16 = 1;
const FILL: u16 = 2;
const BODY: u16 = 10;
const FILLING: u16 = 11;

/// Sends a large body when asked, and fills its ring when asked.
struct Giver(Arc<Buffer>);

impl Handler for Giver {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        match message.id() {
            GIVE => session
                .send_body(BODY, b"head", Arc::clone(&self.0))
                .unwrap(),
            _ => {
                while session
                    .send_with(FILLING, 1000, |buf| buf.fill(0xCD))
                    .is_ok()
                {}
            }
        }
        Flow::Continue
    }
}

/// Tells of everything that is not as it was sent, and of each whole body.
struct Checker(Sender<Result<(), String>>);

impl Handler for Checker {
    fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
        let payload = message.payload();
        if message.id() != FILLING || payload.len() != 1000 || payload.iter().any(|b| *b != 0xCD) {
            let what = format!("message {} of {} bytes", message.id(), payload.len());
            let _ = self.0.send(Err(what));
        }
        Flow::Continue
    }

    fn body_done(&mut self, _: &Session, _: u16, store: BodyStore, range: Range<usize>) {
        let bytes = store.into_heap().unwrap();
        let foreign = bytes[range].iter().filter(|b| **b != 0xAB).count();
        let whole = match foreign {
            0 => Ok(()),
            _ => Err(format!("{foreign} foreign bytes in a body")),
        };
        let _ = self.0.send(whole);
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        let _ = self.0.send(Err(format!("closed: {why:?}")));
    }
}

/// A handler that finds its ring full writes what it holds right away, but never into a body.
#[test]
fn a_handler_that_fills_its_ring_writes_into_no_body() {
    let body = Arc::new(Buffer::from(vec![0xAB; 12 << 20]));
    let given = Arc::clone(&body);
    let server = Server::builder()
        .listen(loopback())
        .start(move |_| Giver(Arc::clone(&given)))
        .unwrap();
    let client = Client::with(Plain, with_bodies()).unwrap();
    let (told, results) = channel();
    let session = client.connect(server.address(), Checker(told)).unwrap();
    for _ in 0..5 {
        session.send_with(GIVE, 0, |_| ()).unwrap();
        // While the body is on its way, the handler is asked again and again to fill the ring.
        let deadline = Instant::now() + LONG;
        let mut asked = 0;
        loop {
            match results.recv_timeout(Duration::from_micros(200)) {
                Ok(result) => break result.unwrap(),
                Err(_) => assert!(Instant::now() < deadline, "no body comes"),
            }
            if asked < 50
                && let Ok(packet) = session.try_reserve(FILL, 0)
            {
                packet.commit();
                asked += 1;
            }
        }
    }
    drop((session, server));
}

/// One extent of payload memory.
struct Log {
    extent: Arc<Mutex<Extent<Mapped>>>,
}

impl Log {
    const BYTES: u32 = 1 << 20;

    fn new() -> Self {
        let file = PayloadFile::anonymous(Self::BYTES.into(), Coherence::Coherent).unwrap();
        let extent = file.allocate(Self::BYTES).unwrap();
        Self {
            extent: Arc::new(Mutex::new(extent)),
        }
    }
}

/// What a handler writes before each body itself.
const MARK: &[u8; 64] = &[0xEE; 64];

/// Receives bodies into the log, behind a mark, and tells of what is committed then.
struct Keeper {
    extent: Arc<Mutex<Extent<Mapped>>>,
    /// The session ends while its body is on the way.
    aborts: bool,
    kept: Sender<(u16, Span<Mapped>)>,
}

impl Handler for Keeper {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Continue
    }

    fn body(&mut self, session: &Session, _: u16, _: &[u8], len: usize) -> BodyTarget {
        let whole = MARK.len() + len;
        let reserved = self.extent.lock().unwrap().reserve(whole as u32);
        let Some(mut reservation) = reserved else {
            return BodyTarget::Refuse("the log is full".to_owned());
        };
        reservation.write(0, MARK);
        if self.aborts {
            session.abort();
        }
        BodyTarget::reserved(reservation, MARK.len()..whole)
    }

    fn body_done(&mut self, _: &Session, id: u16, store: BodyStore, range: Range<usize>) {
        let reservation = store.into_reserved().expect("what was given");
        assert_eq!(range, MARK.len()..reservation.len());
        self.kept.send((id, reservation.commit())).unwrap();
    }
}

fn keeper_server(log: &Log, aborts: bool) -> (Server, Receiver<(u16, Span<Mapped>)>) {
    let (kept, seen) = channel();
    let (kept, extent) = (Mutex::new(kept), Arc::clone(&log.extent));
    let server = Server::builder()
        .settings(with_bodies())
        .listen(loopback())
        .start(move |_| Keeper {
            extent: Arc::clone(&extent),
            aborts,
            kept: kept.lock().unwrap().clone(),
        })
        .unwrap();
    (server, seen)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 % 251) as u8).collect()
}

#[test]
fn bodies_are_received_straight_into_the_log() {
    let log = Log::new();
    let (server, kept) = keeper_server(&log, false);
    let client = Client::new().unwrap();
    let (handler, events) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    // Some come whole with their head, some in many pieces; messages are between them.
    let lengths = [1, 64, 5000, 300_000, 10, 400_000, 77];
    for (id, len) in (10u16..).zip(lengths) {
        session.send_with(1, 100, |buf| buf.fill(0)).unwrap();
        let body = Arc::new(Buffer::from(pattern(len)));
        session.send_body(id, b"head", body).unwrap();
    }
    for (id, len) in (10u16..).zip(lengths) {
        let (kept_id, span) = kept.recv_timeout(LONG).unwrap();
        assert_eq!(kept_id, id);
        span.with_bytes(|bytes| {
            assert_eq!(bytes[..MARK.len()], *MARK);
            assert!(bytes[MARK.len()..] == pattern(len), "other bytes");
        });
    }
    // Without room in the log the handler refuses, and the peer is told why.
    session
        .send_body(9, b"", Arc::new(pattern(500_000).into()))
        .unwrap();
    let why = closed(&events);
    assert_eq!(
        (why.reason, &*why.text),
        (CloseReason::Refused, "the log is full")
    );
}

#[test]
fn a_place_in_the_log_is_given_up_with_its_session() {
    let log = Log::new();
    let (server, kept) = keeper_server(&log, true);
    let client = Client::new().unwrap();
    let (handler, events) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    session
        .send_body(10, b"head", Arc::new(pattern(900_000).into()))
        .unwrap();
    closed(&events);
    until("the session is gone", || server.stats().sessions == 0);
    let pins = log.extent.lock().unwrap().pins();
    assert_eq!(pins, 0, "somebody still has the place");
    assert!(kept.try_recv().is_err(), "it was never complete");
}
