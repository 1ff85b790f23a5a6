//! Peers that break the rules.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use embar_rpc::session::{Client, CloseReason, Flow, Handler, Message, Server, Session, Settings};
use embar_rpc::{Channel, ChannelSettings, Code, Role, Rpc, frame};

use crate::rude::{COUNT, ECHO, HOLD, OBEY, Rude, request};
use crate::support::proto::TestingClient;
use crate::support::{LONG, Pair, block_on, loopback, number, text};

#[test]
fn requests_that_are_wrong_end_alone() {
    let pair = Pair::new();
    let rude = Rude::connect(&pair);
    for (id, content, code) in [
        (
            frame::REQUEST,
            request(0, 1, ECHO, 0, b"\x0a\x05hell"),
            Code::InvalidArgument,
        ),
        (
            frame::REQUEST,
            request(0, 1, ECHO, 9, b"short"),
            Code::InvalidArgument,
        ),
        (
            frame::REQUEST,
            request(0, 1, ECHO, 5, b"\x01\x09\x00kv"),
            Code::InvalidArgument,
        ),
        (
            frame::REQUEST,
            request(0, 1, 12345, 0, b""),
            Code::Unimplemented,
        ),
        (
            frame::REQUEST,
            request(0, 1, COUNT, 0, b""),
            Code::Unimplemented,
        ),
        (
            frame::STREAM_REQUEST,
            request(0, 1, ECHO, 0, &[0xFF; 8]),
            Code::Unimplemented,
        ),
        (
            frame::REQUEST,
            request(256, 1, ECHO, 0, b""),
            Code::ResourceExhausted,
        ),
        (
            frame::REQUEST,
            request(u32::MAX, 1, ECHO, 0, b""),
            Code::ResourceExhausted,
        ),
        (frame::REQUEST, request(0, u32::MAX, ECHO, 0, b""), Code::Ok),
    ] {
        let end = if id == frame::REQUEST {
            frame::REPLY
        } else {
            frame::END
        };
        rude.send(id, &content);
        let (seen, slot, generation, was) = rude.end();
        assert_eq!((seen, was), (end, code), "{content:?}");
        assert_eq!(slot.to_le_bytes(), content[..4]);
        assert_eq!(generation.to_le_bytes(), content[4..8]);
    }
    pair.until_quiet();
}

#[test]
fn a_slot_that_has_a_call_takes_no_other() {
    let pair = Pair::new();
    let rude = Rude::connect(&pair);
    rude.send(frame::REQUEST, &request(3, 1, OBEY, 0, HOLD));
    let (call, reply) = pair.held();
    for generation in [1, 2] {
        rude.send(frame::REQUEST, &request(3, generation, ECHO, 0, b""));
        assert_eq!(
            rude.end(),
            (frame::REPLY, 3, generation, Code::FailedPrecondition)
        );
    }
    // Words on calls that there are not.
    for (slot, generation) in [(3, 2), (4, 1), (255, 1), (256, 1), (u32::MAX, u32::MAX)] {
        let number = &request(slot, generation, 0, 0, b"")[..8];
        rude.send(frame::CANCEL, number);
        rude.send(frame::CREDIT, &[number, &[0xFF; 8]].concat());
    }
    rude.send(frame::REQUEST, &request(0, 1, ECHO, 0, b""));
    assert_eq!(rude.end(), (frame::REPLY, 0, 1, Code::Ok));
    assert!(!call.is_cancelled());
    reply.send(&text("done"));
    assert_eq!(rude.end(), (frame::REPLY, 3, 1, Code::Ok));
    pair.until_quiet();
}

#[test]
fn credit_never_wraps() {
    let pair = Pair::new();
    let rude = Rude::connect(&pair);
    rude.send(frame::STREAM_REQUEST, &request(0, 1, COUNT, 0, &[0xFF; 8]));
    let (_, mut sink) = pair.stream();
    let number_ = &request(0, 1, 0, 0, b"")[..8];
    for _ in 0..100 {
        rude.send(frame::CREDIT, &[number_, &[0xFF; 8]].concat());
    }
    for index in 0..10 {
        sink.wait_send(&number(index, 0)).unwrap();
        assert_eq!(rude.seen.recv_timeout(LONG).unwrap().0, frame::ITEM);
    }
    sink.finish(Ok(()));
    assert_eq!(rude.end(), (frame::END, 0, 1, Code::Ok));
    pair.until_quiet();
}

#[test]
fn frames_that_are_none_end_the_session_with_a_reason() {
    let pair = Pair::new();
    for (id, content, reason) in [
        (frame::REPLY, vec![0; 12], CloseReason::UnknownFrame),
        (99, vec![0; 12], CloseReason::UnknownFrame),
        (frame::REQUEST, vec![0; 23], CloseReason::BadFrame),
        (frame::CANCEL, vec![0; 7], CloseReason::BadFrame),
    ] {
        let rude = Rude::connect(&pair);
        rude.send(id, &content);
        let why = rude.closed.recv_timeout(LONG).unwrap();
        assert_eq!(why.reason, reason, "{why}");
    }
    pair.until_quiet();
}

#[test]
fn whatever_a_client_sends_others_go_on() {
    let pair = Pair::new();
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let rude = Rude::connect(&pair);
    for _ in 0..3000 {
        let id = (next() % 4) as u16 + 1;
        let method = [ECHO, COUNT, next() as u32][(next() % 3) as usize];
        let (slot, generation) = ((next() % 5) as u32, (next() % 3) as u32);
        let rest: Vec<u8> = (0..next() % 40).map(|_| next() as u8).collect();
        let mut content = request(slot, generation, method, (next() % 8) as u16, &rest);
        content.resize(content.len().max(32), 0);
        while let Err(error) = rude.session.send_with(id, content.len(), |to| {
            to.copy_from_slice(&content);
        }) {
            assert_eq!(error, embar_rpc::session::SendError::Full);
            std::thread::yield_now();
        }
        while rude.seen.try_recv().is_ok() {}
    }
    assert!(rude.closed.try_recv().is_err());
    assert_eq!(pair.echo("others go on"), "others go on");
    // What it left behind goes with it.
    drop(rude);
    crate::support::until("all calls end", || {
        let left = pair.events.lock().unwrap().try_iter().count();
        let methods = pair.server.stats().methods();
        left == 0 && methods.iter().all(|method| method.in_flight == 0)
    });
    pair.until_quiet();
}

/// A server without manners: sends what the test says for each request that comes.
struct Liar(fn(&Session, u16, &[u8]));

impl Handler for Liar {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        (self.0)(session, message.id(), message.payload());
        Flow::Continue
    }
}

fn lying(lie: fn(&Session, u16, &[u8])) -> (Server, Client, Channel) {
    let server = Server::builder()
        .protocol(Rpc::new(Role::Server))
        .listen(loopback());
    let lie = Mutex::new(lie);
    let server = server.start(move |_| Liar(*lie.lock().unwrap())).unwrap();
    let client = embar_rpc::client(Settings::default()).unwrap();
    let channel = Channel::connect(&client, server.address()).unwrap();
    (server, client, channel)
}

fn post(session: &Session, id: u16, parts: &[&[u8]]) {
    let content = parts.concat();
    let _ = session.send_with(id, content.len(), |to| to.copy_from_slice(&content));
}

#[test]
fn replies_to_nobody_are_counted_and_no_more() {
    let (_server, _client, channel) = lying(|session, _, content| {
        let mut number: [u8; 8] = content[..8].try_into().unwrap();
        for slot in [0, 1, 255, 256, u32::MAX] {
            number[..4].copy_from_slice(&u32::to_le_bytes(slot));
            number[4] = 77;
            for id in [frame::REPLY, frame::END, frame::ITEM] {
                post(session, id, &[&number, &[0; 4], b"stray"]);
            }
        }
        post(
            session,
            frame::REPLY,
            &[&content[..8], &[0; 4], b"\x0a\x02ok"],
        );
        post(
            session,
            frame::REPLY,
            &[&content[..8], &[0; 4], b"\x0a\x02no"],
        );
    });
    // It says nothing of its limit: so there is one call at a time.
    assert_eq!(channel.stats().max_in_flight, 1);
    let testing = TestingClient::new(channel.clone());
    let request = text("hello");
    for _ in 0..3 {
        let reply = testing.echo(&request).wait().unwrap();
        assert_eq!(reply.view().unwrap().text, "ok");
    }
    crate::support::until("all strays are counted", || {
        channel.stats().strays == 3 * 16
    });
}

#[test]
fn replies_that_make_no_sense_fail_their_calls() {
    let (_server, _client, channel) = lying(|session, id, content| {
        let number = &content[..8];
        let kind = content.last().copied().unwrap_or_default();
        match (id, kind) {
            // Its text is longer than the frame.
            (frame::REQUEST, b'a') => post(session, frame::REPLY, &[number, &[5, 0, 9, 0], b"x"]),
            // An item, and no stream.
            (frame::REQUEST, b'b') => post(session, frame::ITEM, &[number, b"x"]),
            // The end of a stream.
            (frame::REQUEST, b'c') => post(session, frame::END, &[number, &[0; 4]]),
            // No message.
            (frame::REQUEST, b'd') => post(session, frame::REPLY, &[number, &[0; 4], b"\x0a\xFF"]),
            // A code that nobody knows, and a text that is none.
            (frame::REQUEST, _) => post(session, frame::REPLY, &[number, &[99, 0, 1, 0], b"\xFF"]),
            // More items than it may send, and then the end.
            (frame::STREAM_REQUEST, _) => {
                (0..100).for_each(|_| post(session, frame::ITEM, &[number]));
            }
            // It was told that the call is over.
            (frame::CANCEL, _) => {
                post(session, frame::REPLY, &[number, &[1, 0, 0, 0]]);
            }
            _ => {}
        }
    });
    let testing = TestingClient::new(channel.with_timeout(LONG));
    let error = |what: &str| {
        let request = text(what);
        let reply = testing.echo(&request).wait();
        let view = reply.and_then(|reply| reply.to_message());
        view.unwrap_err()
    };
    for what in ["a", "b", "c", "d"] {
        assert_eq!(error(what).code(), Code::Internal, "{what}");
    }
    assert_eq!(error("e").code(), Code::Unknown);
    let request = number(0, 0);
    let mut items = testing.count(&request);
    let received = || channel.session().stats().messages_received;
    items.start().unwrap();
    // Nothing is taken before all of them are there, and the end: 6 frames came before them.
    crate::support::until("all came", || received() == 6 + 100 + 1);
    let status = block_on(async {
        loop {
            if let Err(status) = items.next().await.unwrap() {
                return status;
            }
        }
    });
    assert_eq!(status.code(), Code::Internal);
    assert!(status.text().contains("more items than it may"), "{status}");
    assert_eq!(error("a").code(), Code::Internal, "its slot is free again");
}

#[test]
fn replies_come_although_the_server_takes_no_requests() {
    // What it sends, it sends before it leaves the next request where it is.
    struct Busy(Sender<(Session, Vec<u8>)>, bool);
    impl Handler for Busy {
        fn greeted(&mut self, _: &Session, _: &[u8]) -> Result<Vec<u8>, String> {
            Ok(u32::MAX.to_le_bytes().to_vec())
        }

        fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
            if std::mem::replace(&mut self.1, true) {
                return Flow::Pause;
            }
            let number = message.payload()[..8].to_vec();
            self.0.send((session.clone(), number)).unwrap();
            Flow::Continue
        }
    }
    let (told, first) = channel();
    let server = Server::builder()
        .protocol(Rpc::new(Role::Server))
        .listen(loopback());
    let told = Mutex::new(told);
    let server = server.start(move |_| Busy(told.lock().unwrap().clone(), false));
    let server = server.unwrap();
    let client = embar_rpc::client(Settings::default()).unwrap();
    let settings = ChannelSettings::default().with(|settings| settings.max_in_flight = 1000);
    let channel = Channel::open(&client, server.address(), settings).wait();
    let channel = channel.unwrap();
    let testing = TestingClient::new(channel.clone());
    let hello = text("hello");
    let mut call = testing.echo(&hello);
    call.start().unwrap();
    let (session, number) = first.recv_timeout(LONG).unwrap();
    let long = text(&"x".repeat(60_000));
    let mut others = Vec::new();
    // All buffers between the two are full when no room comes any more.
    let mut quiet = 0;
    while quiet < 100 {
        match channel.session().has_room(64 << 10) {
            true => {
                quiet = 0;
                let mut call = testing.echo(&long);
                call.start().unwrap();
                others.push(call);
            }
            false => {
                quiet += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
    post(&session, frame::REPLY, &[&number, &[0; 4], b"\x0a\x02ok"]);
    let reply = call.timeout(LONG).wait().unwrap();
    assert_eq!(reply.view().unwrap().text, "ok");
}
