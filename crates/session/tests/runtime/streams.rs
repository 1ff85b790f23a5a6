//! Async sessions on an executor of ten lines.

use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use embar_memory::Buffer;
use embar_session::{
    BodyStore, Client, CloseReason, Closed, Flow, Handler, Message, OnFull, Plain, Redirect,
    SendError, Server, Session,
};
use embar_transport::Address;

use crate::support::{
    Event, LONG, Recorder, closed, echo_server, in_time, loopback, recorder, small, until,
    while_ok, with_bodies,
};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park_timeout(LONG);
    }
}

#[test]
fn async_ends_echo_and_the_stream_ends_with_the_session() {
    let (server, mut incoming) = Server::builder().listen(loopback()).start_async().unwrap();
    let echo = std::thread::spawn(move || {
        block_on(async {
            let mut session = incoming.next().await;
            let mut count = 0;
            while let Some(message) = session.next().await {
                let message = message.unwrap();
                session.send_bytes(message.id(), &message).await.unwrap();
                count += 1;
            }
            count
        })
    });
    let client = Client::new().unwrap();
    block_on(async {
        let mut session = client.connect_async(server.address()).await.unwrap();
        for number in 0..100u8 {
            session.send_bytes(3, &[number; 40]).await.unwrap();
            let message = session.next().await.unwrap().unwrap();
            assert_eq!((message.id(), &*message), (3, &[number; 40][..]));
        }
    });
    // Dropped, it closed.
    assert_eq!(echo.join().unwrap(), 100);
}

/// Sends more than a stream queues, and tells of the body that comes.
struct Talkative(Recorder);

impl Handler for Talkative {
    fn opened(&mut self, session: &Session, _: &[u8]) {
        for _ in 0..3000 {
            session.send_with(1, 1, |to| to.fill(1)).unwrap();
        }
    }

    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        self.0.message(session, message)
    }

    fn body_done(&mut self, session: &Session, id: u16, store: BodyStore, range: Range<usize>) {
        self.0.body_done(session, id, store, range);
    }

    fn closed(&mut self, session: &Session, why: &Closed) {
        self.0.closed(session, why);
    }
}

/// What is left to read does not stand between a body and the answer that it waits for.
#[test]
fn a_session_that_is_dropped_unread_sends_its_bodies() {
    let settings = with_bodies().with(|settings| settings.session.body_lanes = 1);
    let (talkative, seen) = recorder();
    let talkative = Mutex::new(Some(Talkative(talkative)));
    let server = Server::builder()
        .settings(settings.clone())
        .listen(loopback())
        .start(move |_| talkative.lock().unwrap().take().expect("one session"))
        .unwrap();
    let client = Client::with(Plain, settings).unwrap();
    let session = block_on(client.connect_async(server.address())).unwrap();
    let handle = session.session().clone();
    until("no more is read", || {
        handle.stats().messages_received >= 1024
    });
    // More than goes before the other end has a place for it.
    let body = vec![1; 1 << 20];
    let shared = Arc::new(Buffer::from(body.clone()));
    handle.send_body_on(1, 2, b"", shared).unwrap();
    drop(session);
    match seen.recv_timeout(LONG).unwrap() {
        Event::Body(id, bytes) => assert!(id == 2 && bytes == body),
        other => panic!("{other:?}"),
    }
    assert_eq!(closed(&seen).reason, CloseReason::Finished);
}

/// The reader starts late: what it has not room for stays with the sender, and nothing is lost.
#[test]
fn a_slow_reader_holds_the_sender_back() {
    const MESSAGES: u32 = 5000;
    let (server, mut incoming) = Server::builder()
        .settings(small())
        .listen(loopback())
        .start_async()
        .unwrap();
    let client = Client::with(Plain, small()).unwrap();
    let session = block_on(client.connect_async(server.address())).unwrap();
    let handle = session.session().clone();
    let sender = std::thread::spawn(move || {
        block_on(async {
            for number in 0..MESSAGES {
                let mut bytes = [0; 1000];
                bytes[..4].copy_from_slice(&number.to_le_bytes());
                session.send_bytes(1, &bytes).await.unwrap();
            }
        });
    });
    let mut reader = block_on(incoming.next());
    // Bounded: far less than all was taken while nobody read.
    crate::support::until("the ring is full", || handle.stats().queued_bytes > 14_000);
    block_on(async {
        let mut kept = Vec::new();
        for number in 0..MESSAGES {
            let message = reader.next().await.unwrap().unwrap();
            assert_eq!(message[..4], number.to_le_bytes());
            // Some are held for a while, but not so many that they block the ring.
            kept.push(message);
            if kept.len() > 5 {
                kept.clear();
            }
        }
        assert!(reader.next().await.is_none());
    });
    sender.join().unwrap();
}

/// A handle of an async session, on either end, never blocks its executor's thread.
#[test]
fn handles_of_async_sessions_do_not_wait() {
    let patient = small().with(|settings| {
        settings.on_full = OnFull::Wait {
            timeout: 100 * LONG,
        };
        settings.max_queued_body_bytes = 64 << 10;
    });
    let (server, mut incoming) = Server::builder()
        .settings(patient.clone())
        .listen(loopback())
        .start_async()
        .unwrap();
    let client = Client::with(Plain, patient).unwrap();
    let session = block_on(client.connect_async(server.address())).unwrap();
    let accepted = block_on(incoming.next());
    // Nobody takes what they send.
    for end in [&session, &accepted] {
        let handle = end.session().clone();
        let full = in_time("a full ring", move || {
            while_ok(|| handle.send_with(1, 4000, |buf| buf.fill(1)))
        });
        assert_eq!(full, SendError::Full);
        let handle = end.session().clone();
        let full = in_time("bodies beyond the limit", move || {
            let body = Arc::new(Buffer::from(vec![0; 48 << 10]));
            while_ok(|| handle.send_body(2, &[], Arc::clone(&body)))
        });
        assert_eq!(full, SendError::Full);
    }
}

#[test]
fn a_lost_session_says_why_once() {
    let (server, mut incoming) = Server::builder().listen(loopback()).start_async().unwrap();
    let client = Client::new().unwrap();
    let _session = block_on(client.connect_async(server.address())).unwrap();
    let mut session = block_on(incoming.next());
    session.session().abort();
    // An abort of this end is an end in good order; the loss of the peer is not.
    assert!(block_on(session.next()).is_none());

    let mut other = block_on(client.connect_async(server.address())).unwrap();
    let _at_server = block_on(incoming.next());
    drop(server);
    let why = block_on(other.next()).unwrap().unwrap_err();
    assert_ne!(why.reason, CloseReason::Finished);
    assert!(block_on(other.next()).is_none());
}

/// A connect that is given up leaves no session behind, whether it had opened already or not.
#[test]
fn a_connect_that_is_dropped_leaves_no_session() {
    let server = echo_server(Default::default(), loopback());
    let client = Client::new().unwrap();
    let mut context = Context::from_waker(Waker::noop());
    // Nobody accepts yet: the connect is on its way when it is dropped.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = Address::Tcp(listener.local_addr().unwrap());
    let mut late = Box::pin(client.connect_async(silent));
    assert!(late.as_mut().poll(&mut context).is_pending());
    drop(late);
    // Only now does it open: the bytes go to and fro between the client and the server.
    let (front, _) = listener.accept().unwrap();
    let Address::Tcp(address) = server.address() else {
        panic!("not TCP");
    };
    let back = std::net::TcpStream::connect(address).unwrap();
    let pump = |from: &std::net::TcpStream, to: &std::net::TcpStream| {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Write);
        })
    };
    let pumps = [pump(&front, &back), pump(&back, &front)];
    until("it opened", || client.stats().opened == 1);
    until("and closed", || client.stats().sessions == 0);

    // It opened, but nobody took it.
    let mut open = Box::pin(client.connect_async(server.address()));
    assert!(open.as_mut().poll(&mut context).is_pending());
    until("it opened", || client.stats().opened == 2);
    drop(open);
    until("and closed", || client.stats().sessions == 0);
    until("at the server, too", || server.stats().sessions == 0);
    for pump in pumps {
        pump.join().unwrap();
    }
}

#[test]
fn a_task_hears_the_goodbye_of_its_peer_while_it_waits_for_messages() {
    let server = echo_server(small(), loopback());
    let client = Client::new().unwrap();
    block_on(async {
        let mut session = client.connect_async(server.address()).await.unwrap();
        let (mut first, dropped) = (session.farewell(), session.farewell());
        let mut nobody = Context::from_waker(Waker::noop());
        assert!(pin!(&mut first).poll(&mut nobody).is_pending());
        assert!(pin!(dropped).poll(&mut nobody).is_pending());
        for session in server.sessions() {
            let elsewhere = Redirect::to("127.0.0.1:7").unwrap().after(LONG);
            session.goodbye_to(&elsewhere);
        }
        let said = {
            let mut next = pin!(session.next());
            std::future::poll_fn(|cx| {
                assert!(next.as_mut().poll(cx).is_pending(), "there is no message");
                pin!(&mut first).poll(cx)
            })
            .await
        };
        let said = said.unwrap();
        assert_eq!(said.redirect.as_deref(), Some("127.0.0.1:7"));
        assert_eq!(said.after, LONG);
        assert_eq!(session.farewell().await, Some(said));
        // The session goes on.
        session.send_bytes(3, b"hello").await.unwrap();
        assert_eq!(&*session.next().await.unwrap().unwrap(), b"hello");
        let silent = client.connect_async(server.address()).await.unwrap();
        let farewell = silent.farewell();
        silent.session().abort();
        assert_eq!(farewell.await, None);
    });
}
