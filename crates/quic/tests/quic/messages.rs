//! Reliable messages: the same as over TCP.

use std::sync::Arc;

use embar_session::{Address, OnFull, Peer, Settings};

use crate::support::{Both, Caller, Echo, Event, LONG, closed, message, opened, recorder};

#[test]
fn messages_of_all_sizes_come_back() {
    let both = Both::start(Settings::default(), || Echo);
    let caller = Caller::new(Settings::default());
    let (handler, seen) = recorder();
    let session = caller.connect(&both, handler).unwrap();
    for len in [0, 1, 100, 1200, 16_385, 60_000, 64 << 10] {
        let fill = (len % 251) as u8;
        session.send_with(3, len, |buf| buf.fill(fill)).unwrap();
        let (id, payload) = message(&seen);
        assert_eq!((id, payload.len()), (3, len));
        assert!(payload.iter().all(|&byte| byte == fill));
    }
    assert_eq!(session.peer(), &Peer::Quic(both.listener.address()));
    let [its] = &both.server.sessions()[..] else {
        panic!("one session");
    };
    assert!(matches!(its.peer(), Peer::Quic(address) if address.ip().is_loopback()));
}

/// One server, two ways to it, the same handlers.
#[test]
fn a_server_has_sessions_by_tcp_and_by_quic_side_by_side() {
    let authority = crate::support::Authority::new();
    let tcp = Address::Tcp(crate::support::loopback());
    let server = embar_session::Server::builder().listen(tcp).start(|_| Echo);
    let server = server.unwrap();
    let listener = embar_quic::Listener::builder(crate::support::loopback(), authority.server());
    let listener = listener.start(&server).unwrap();
    let caller = Caller::new(Settings::default());
    let (handler, by_tcp) = recorder();
    let first = caller.client.connect(server.address(), handler).unwrap();
    let (handler, by_quic) = recorder();
    let second = caller.connect_at(listener.address(), &authority.target(), handler);
    let second = second.unwrap();
    for (session, seen) in [(first, by_tcp), (second, by_quic)] {
        session
            .send_with(1, 5, |buf| buf.copy_from_slice(b"hello"))
            .unwrap();
        assert_eq!(message(&seen), (1, b"hello".to_vec()));
    }
}

/// QUIC encrypts: a server that wants TLS of others does not want it once more.
#[test]
fn a_server_that_wants_tls_has_sessions_by_quic() {
    let authority = crate::support::Authority::new();
    let server = embar_session::Server::builder().tls(authority.server());
    let server = server.start(|_| Echo).unwrap();
    let listener = embar_quic::Listener::builder(crate::support::loopback(), authority.server());
    let listener = listener.start(&server).unwrap();
    let caller = Caller::new(Settings::default());
    let (handler, seen) = recorder();
    let session = caller.connect_at(listener.address(), &authority.target(), handler);
    session.unwrap().send_with(1, 1, |buf| buf.fill(4)).unwrap();
    assert_eq!(message(&seen), (1, vec![4]));
}

#[test]
fn greetings_and_bodies_pass_both_ways() {
    let mut settings = Settings::default();
    settings.session.max_body_bytes = 16 << 20;
    let (both, at_server) = Both::recording(settings.clone());
    let caller = Caller::new(settings);
    let (handler, seen) = recorder();
    let target = both.authority.target();
    let address = both.listener.address();
    let connecting = caller
        .connector
        .open(&caller.client, address, &target, b"it is me", handler);
    let session = connecting.unwrap().wait().unwrap();
    let Event::Opened(other, greeting) = at_server.recv_timeout(LONG).unwrap() else {
        panic!("opening comes first");
    };
    assert_eq!(greeting, b"it is me");
    // Far more than rings, sockets and windows hold.
    let body: Vec<u8> = (0..4_000_000u32).map(|n| (n % 253) as u8).collect();
    let body = Arc::new(body.into());
    for (from, to) in [(&session, &at_server), (&other, &seen)] {
        from.send_body(2, b"head", Arc::clone(&body)).unwrap();
        loop {
            match to.recv_timeout(LONG).unwrap() {
                Event::Body(bytes) => break assert!(bytes == **body, "another body"),
                Event::Opened(..) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Rings, sockets and windows fill, the sender waits, and all of it comes.
#[test]
fn a_flood_waits_for_its_receiver_and_arrives_in_full() {
    const MESSAGES: u32 = 2000;
    let settings = Settings::default().with(|settings| {
        settings.send_ring_bytes = 16 << 10;
        settings.recv_ring_bytes = 16 << 10;
        settings.on_full = OnFull::Wait { timeout: LONG };
    });
    let (both, at_server) = Both::recording(settings.clone());
    let caller = Caller::new(settings);
    let (handler, _seen) = recorder();
    let session = caller.connect(&both, handler).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..MESSAGES {
                let sent = session.send_with(1, 1000, |buf| {
                    buf[..4].copy_from_slice(&number.to_le_bytes());
                });
                sent.unwrap();
            }
        });
        for number in 0..MESSAGES {
            let (_, payload) = message(&at_server);
            assert_eq!(payload[..4], number.to_le_bytes());
        }
    });
}

#[test]
fn what_was_sent_before_a_polite_end_arrives() {
    let (both, at_server) = Both::recording(Settings::default());
    let caller = Caller::new(Settings::default());
    let (handler, seen) = recorder();
    let session = caller.connect(&both, handler).unwrap();
    let other = opened(&at_server);
    for number in 0..100 {
        session.send_with(number, 1000, |buf| buf.fill(1)).unwrap();
    }
    session.close();
    for number in 0..100 {
        assert_eq!(message(&at_server).0, number);
    }
    use embar_session::{CloseReason::Finished, Side};
    let (here, there) = (closed(&seen), closed(&at_server));
    assert_eq!((here.by, here.reason), (Side::Local, Finished));
    assert_eq!((there.by, there.reason), (Side::Peer, Finished));
    assert!(other.send_with(1, 0, |_| ()).is_err());
}
