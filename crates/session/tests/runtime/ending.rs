//! Graceful ends deliver what was sent, and leave nothing behind.

use std::sync::Arc;
use std::time::Duration;

use embar_memory::Buffer;
use embar_session::{Client, CloseReason, Plain, Settings};
use embar_transport::Address;

use crate::support::{
    Event, LONG, closed, echo_server, in_time, loopback, message, recorder, recording_server,
    small, until,
};

#[test]
fn a_polite_close_delivers_everything_bodies_too() {
    let (server, at_server) = recording_server(small(), loopback());
    let client = Client::with(Plain, small()).unwrap();
    let (handler, seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    for number in 0..500u32 {
        session
            .send_with(1, 4, |buf| buf.copy_from_slice(&number.to_le_bytes()))
            .unwrap();
        if number % 100 == 0 {
            let body = Arc::new(Buffer::from(vec![1; 50_000]));
            session.send_body(2, &[], body).unwrap();
        }
    }
    session.close();
    let (mut messages, mut bodies) = (0u32, 0);
    loop {
        match at_server.recv_timeout(LONG).unwrap() {
            Event::Message(_, payload) => {
                assert_eq!(payload, messages.to_le_bytes());
                messages += 1;
            }
            Event::Body(_, body) => {
                assert_eq!(body.len(), 50_000);
                bodies += 1;
            }
            Event::Closed(why) => {
                assert_eq!(why.reason, CloseReason::Finished, "{why}");
                break;
            }
            _ => {}
        }
    }
    assert_eq!((messages, bodies), (500, 5));
    assert_eq!(closed(&seen).reason, CloseReason::Finished);
}

#[test]
fn shutdown_delivers_what_was_sent_and_says_why() {
    let (server, at_server) = recording_server(small(), loopback());
    let client = Client::new().unwrap();
    let mut ends = Vec::new();
    for _ in 0..10 {
        let (handler, seen) = recorder();
        client.connect(server.address(), handler).unwrap();
        ends.push(seen);
    }
    let mut sent = 0;
    while sent < 10 {
        if let Event::Opened(session, _) = at_server.recv_timeout(LONG).unwrap() {
            for number in 0..100u8 {
                session.send_with(1, 1, |buf| buf[0] = number).unwrap();
            }
            sent += 1;
        }
    }
    let address = server.address();
    server.shutdown(LONG);
    for seen in ends {
        let (mut next, mut goodbye) = (0, false);
        let why = loop {
            match seen.recv_timeout(LONG).unwrap() {
                Event::Message(_, payload) => {
                    assert_eq!(payload, [next]);
                    next += 1;
                }
                Event::Goodbye(_) => goodbye = true,
                Event::Closed(why) => break why,
                _ => {}
            }
        };
        assert_eq!((next, why.reason), (100, CloseReason::Shutdown), "{why}");
        assert!(goodbye, "a goodbye comes before the end");
    }
    let (handler, _seen) = recorder();
    assert!(client.connect(address, handler).is_err(), "nobody listens");
}

#[test]
fn shutdown_is_bounded_even_if_a_peer_does_not_read() {
    let mut settings = small();
    settings.session.linger = 2 * LONG;
    let server = echo_server(settings, loopback());
    let Address::Tcp(address) = server.address() else {
        panic!("not TCP");
    };
    let _stranger = std::net::TcpStream::connect(address).unwrap();
    until("accepted", || server.stats().arrivals == 1);
    in_time("the shutdown", || {
        server.shutdown(Duration::from_millis(50));
    });
}

#[test]
fn dropping_a_client_or_server_ends_its_sessions() {
    let (server, at_server) = recording_server(small(), loopback());
    let client = Client::new().unwrap();
    let (handler, seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    drop(client);
    closed(&seen);
    closed(&at_server);
    assert!(session.send_with(1, 0, |_| ()).is_err());

    let client = Client::new().unwrap();
    let (handler, seen) = recorder();
    client.connect(server.address(), handler).unwrap();
    drop(server);
    closed(&seen);
    closed(&at_server);
}

#[test]
fn a_reservation_held_for_too_long_ends_the_session() {
    let server = echo_server(small(), loopback());
    let mut settings = small();
    settings.session.reservation_timeout = Duration::from_millis(50);
    let client = Client::with(Plain, settings).unwrap();
    let (handler, seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    let mut held = session.reserve(1, 10).unwrap();
    session.send_with(1, 1, |buf| buf.fill(1)).unwrap();
    assert_eq!(closed(&seen).reason, CloseReason::ReservationHeld);
    // Its memory is still the holder's.
    held.fill(7);
    held.commit();
}

#[test]
fn a_packet_that_is_committed_after_a_polite_close_still_leaves_with_all_behind_it() {
    let (server, seen) = recording_server(Settings::default(), loopback());
    let client = Client::new().unwrap();
    let (handler, events) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    let mut packet = session.reserve(1, 3).unwrap();
    session
        .send_with(2, 6, |to| to.copy_from_slice(b"behind"))
        .unwrap();
    session.close();
    assert_eq!(closed(&events).reason, CloseReason::Finished);
    packet.copy_from_slice(b"odd");
    packet.commit();
    assert_eq!(message(&seen), (1, b"odd".to_vec()));
    assert_eq!(message(&seen), (2, b"behind".to_vec()));
    assert_eq!(closed(&seen).reason, CloseReason::Finished);
}
