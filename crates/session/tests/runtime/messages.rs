//! Messages and bodies get there, whole and in order.

use std::sync::Arc;
use std::sync::mpsc::channel;

use embar_memory::Buffer;
use embar_session::{Client, SendError, Settings};
use embar_transport::Address;

use crate::support::{
    Event, LONG, Recorder, echo_server, loopback, message, patient, recorder, recording_server,
    small,
};

fn echoes_over(address: Address) {
    let server = echo_server(Settings::default(), address);
    let client = Client::new().unwrap();
    let (handler, seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    for (id, payload) in [(1u16, &b"one"[..]), (2, b""), (0xFEFF, &[7; 5000])] {
        session
            .send_with(id, payload.len(), |buf| buf.copy_from_slice(payload))
            .unwrap();
        assert_eq!(message(&seen), (id, payload.to_vec()));
    }
    assert_eq!(server.stats().messages_sent, 3);
    assert_eq!(server.stats().messages_received, 3);
    assert_eq!(session.stats().messages_sent, 3);
}

#[test]
fn tcp_echoes() {
    echoes_over(loopback());
}

#[test]
fn unix_sockets_echo() {
    let folder = tempfile::tempdir().unwrap();
    echoes_over(Address::Unix(folder.path().join("socket")));
}

#[test]
fn shared_memory_echoes() {
    let folder = tempfile::tempdir().unwrap();
    echoes_over(Address::Shm(folder.path().join("socket")));
}

#[test]
fn the_server_may_speak_first() {
    let (server, at_server) = recording_server(Settings::default(), loopback());
    let client = Client::new().unwrap();
    let (handler, seen) = recorder();
    let _session = client.connect(server.address(), handler).unwrap();
    let Event::Opened(session, greeting) = at_server.recv_timeout(LONG).unwrap() else {
        panic!("opening comes first");
    };
    assert_eq!(greeting, b"");
    session
        .send_with(9, 2, |buf| buf.copy_from_slice(b"hi"))
        .unwrap();
    assert_eq!(message(&seen), (9, b"hi".to_vec()));
}

#[test]
fn what_cannot_be_sent_is_refused_and_the_session_goes_on() {
    let server = echo_server(Settings::default(), loopback());
    let client = Client::new().unwrap();
    let (handler, seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    let too_long = session.send_with(1, 1 << 20, |_| panic!("it does not fit"));
    assert!(matches!(too_long, Err(SendError::TooLong { .. })));
    let reserved = session.send_with(0xFF00, 1, |_| panic!("not ours"));
    assert_eq!(reserved, Err(SendError::ReservedId { id: 0xFF00 }));
    drop(session.reserve(1, 100).unwrap());
    let mut packet = session.reserve(3, 1).unwrap();
    packet[0] = 5;
    packet.commit();
    assert_eq!(message(&seen), (3, vec![5]));
}

/// Many messages without waiting for anything, through rings that are far too small for them.
#[test]
fn nothing_pipelined_is_lost_or_out_of_order() {
    const MESSAGES: u64 = 200_000;
    let (server, at_server) = recording_server(small(), loopback());
    let client = Client::with(embar_session::Plain, patient(small())).unwrap();
    let (handler, _seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    let sender = std::thread::spawn(move || {
        for number in 0..MESSAGES {
            session
                .send_with(1, 8, |buf| buf.copy_from_slice(&number.to_le_bytes()))
                .unwrap();
        }
    });
    for number in 0..MESSAGES {
        let (_, payload) = message(&at_server);
        assert_eq!(payload, number.to_le_bytes());
    }
    sender.join().unwrap();
}

#[test]
fn threads_share_a_session_and_each_keeps_its_order() {
    const THREADS: u16 = 4;
    const MESSAGES: u64 = 20_000;
    let (server, at_server) = recording_server(small(), loopback());
    let client = Client::with(embar_session::Plain, patient(Settings::default())).unwrap();
    let (handler, _seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    let senders: Vec<_> = (0..THREADS)
        .map(|thread| {
            let session = session.clone();
            std::thread::spawn(move || {
                for number in 0..MESSAGES {
                    // Lengths differ, and now and then a reservation is dropped.
                    let len = 8 + (number % 23) as usize;
                    if number % 97 == 0 {
                        drop(session.reserve(thread, len).unwrap());
                    }
                    session
                        .send_with(thread, len, |buf| {
                            buf.fill(0);
                            buf[..8].copy_from_slice(&number.to_le_bytes());
                        })
                        .unwrap();
                }
            })
        })
        .collect();
    let mut next = [0u64; THREADS as usize];
    for _ in 0..u64::from(THREADS) * MESSAGES {
        let (thread, payload) = message(&at_server);
        let number = u64::from_le_bytes(payload[..8].try_into().unwrap());
        assert_eq!(number, next[thread as usize], "thread {thread}");
        assert_eq!(payload.len(), 8 + (number % 23) as usize);
        next[thread as usize] += 1;
    }
    for sender in senders {
        sender.join().unwrap();
    }
}

#[test]
fn bodies_keep_their_place_among_the_messages() {
    const ROUNDS: u8 = 40;
    let (server, at_server) = recording_server(small(), loopback());
    let client = Client::with(embar_session::Plain, small()).unwrap();
    let (handler, _seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    let bodies: Vec<_> = [0usize, 1, 5000, 300_000]
        .map(|len| Arc::new(Buffer::from(vec![9u8; len])))
        .into();
    let sender = {
        let bodies = bodies.clone();
        std::thread::spawn(move || {
            for round in 0..ROUNDS {
                session.send_with(1, 1, |buf| buf[0] = round).unwrap();
                let body = Arc::clone(&bodies[usize::from(round) % bodies.len()]);
                session.send_body(2, &[round, round], body).unwrap();
                session.send_with(3, 1, |buf| buf[0] = round).unwrap();
            }
            session
        })
    };
    let mut events = at_server.iter().filter(|e| !matches!(e, Event::Opened(..)));
    for round in 0..ROUNDS {
        assert!(matches!(events.next(), Some(Event::Message(1, p)) if p == [round]));
        let Some(Event::Body(2, body)) = events.next() else {
            panic!("no body in round {round}");
        };
        assert_eq!(body, *bodies[usize::from(round) % bodies.len()]);
        assert!(matches!(events.next(), Some(Event::Message(3, p)) if p == [round]));
    }
    let session = sender.join().unwrap();
    // The last of each is released when the kernel has it.
    drop(session);
    crate::support::until("released", || {
        bodies.iter().all(|b| Arc::strong_count(b) == 1)
    });
}

#[test]
fn a_protobuf_message_arrives_as_a_view() {
    use crate::support::proto::{Packet, PacketView};
    use embar_session::{Flow, Handler, Message, Session};

    struct Reads(std::sync::mpsc::Sender<String>);
    impl Handler for Reads {
        fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
            let view = message.decode::<PacketView<'_>>().unwrap();
            self.0.send(view.name.to_owned()).unwrap();
            Flow::Continue
        }
    }
    let (names, read) = channel();
    let names = std::sync::Mutex::new(names);
    let server = embar_session::Server::builder()
        .listen(loopback())
        .start(move |_| Reads(names.lock().unwrap().clone()))
        .unwrap();
    let client = Client::new().unwrap();
    let (handler, _seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    let packet = Packet {
        name: "ann".to_owned(),
        ..Default::default()
    };
    session.send(4, &packet).unwrap();
    session.try_send(4, &packet).unwrap();
    for _ in 0..2 {
        assert_eq!(read.recv_timeout(LONG).unwrap(), "ann");
    }
}

#[test]
fn greetings_are_exchanged_and_may_be_refused() {
    use embar_session::{CloseReason, Flow, Handler, Message, Session};

    struct Picky;
    impl Handler for Picky {
        fn greeted(&mut self, _: &Session, greeting: &[u8]) -> Result<Vec<u8>, String> {
            match greeting {
                b"friend" => Ok(b"welcome".to_vec()),
                _ => Err("say friend".to_owned()),
            }
        }
        fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
            Flow::Continue
        }
    }
    let server = embar_session::Server::builder()
        .listen(loopback())
        .start(|_| Picky)
        .unwrap();
    let client = Client::new().unwrap();
    let (events, seen) = channel();
    let opened = client
        .open(server.address(), b"friend", Recorder(events))
        .wait();
    assert!(opened.is_ok());
    let Event::Opened(_, greeting) = seen.recv_timeout(LONG).unwrap() else {
        panic!("opening comes first");
    };
    assert_eq!(greeting, b"welcome");

    let (handler, _seen) = recorder();
    let refused = client.open(server.address(), b"foe", handler).wait();
    let why = refused.unwrap_err();
    assert_eq!(
        (why.reason, &*why.text),
        (CloseReason::Refused, "say friend")
    );
}
