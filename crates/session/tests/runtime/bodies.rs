//! Bodies, and what is sent while one is on its way.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use embar_session::{BodyStore, Client, Closed, Flow, Handler, Message, Server, Session};

use crate::support::{LONG, loopback};

const GIVE: u16 = 1;
const FILL: u16 = 2;
const BODY: u16 = 10;
const FILLING: u16 = 11;

/// Sends a large body when asked, and fills its ring when asked.
struct Giver(Arc<Vec<u8>>);

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
    let body = Arc::new(vec![0xAB; 12 << 20]);
    let given = Arc::clone(&body);
    let server = Server::builder()
        .listen(loopback())
        .start(move |_| Giver(Arc::clone(&given)))
        .unwrap();
    let client = Client::new().unwrap();
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
