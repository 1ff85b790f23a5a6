//! Peers that are asked to connect elsewhere.

use std::io::Write;
use std::time::Duration;

use embar_session::{Client, CloseReason, Redirect, Settings};

use crate::admission::{WELCOME, connect_from, first_id};
use crate::hello::hello;
use crate::support::{
    Event, LONG, closed, echo_server, loopback, message, recorder, recording_server, until,
};

/// The next goodbye.
fn goodbye(seen: &std::sync::mpsc::Receiver<Event>) -> Option<(String, Duration)> {
    loop {
        match seen.recv_timeout(LONG).expect("a goodbye in time") {
            Event::Goodbye(redirect) => return redirect,
            Event::Closed(why) => panic!("closed before a goodbye: {why}"),
            _ => {}
        }
    }
}

#[test]
fn peers_learn_where_to_connect_instead_and_decide_for_themselves() {
    let server = echo_server(Settings::default(), loopback());
    let client = Client::new().unwrap();
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let (handler, seen) = recorder();
        let session = client.connect(server.address(), handler).unwrap();
        sessions.push((session, seen));
    }
    let wait = Duration::from_millis(250);
    let there = Redirect::to("game-2.example:7000").unwrap().after(wait);
    server.redirect(&there);
    let expected = Some(("game-2.example:7000".to_owned(), wait));
    for (session, seen) in &sessions {
        assert_eq!(goodbye(seen), expected);
        // It goes on as long as both want.
        session.send_with(1, 1, |to| to.fill(3)).unwrap();
        assert_eq!(message(seen).1, [3]);
    }
    assert_eq!(server.stats().redirected, 3);
    assert_eq!(client.sessions().len(), 3, "nobody followed");
    // Of a redirect and the end, the peer learns the one with the other.
    server.shutdown(LONG);
    for (_, seen) in &sessions {
        assert_eq!(goodbye(seen), expected);
        assert_eq!(closed(seen).reason, CloseReason::Shutdown);
    }
}

#[test]
fn who_is_refused_right_after_a_redirect_learns_of_both() {
    let server = echo_server(Settings::default(), loopback());
    let client = Client::new().unwrap();
    let (handler, seen) = recorder();
    client.connect(server.address(), handler).unwrap();
    let session = &server.sessions()[0];
    session.goodbye_to(&Redirect::to("game-2.example:7000").unwrap());
    session.refuse(7, "moved");
    let expected = Some(("game-2.example:7000".to_owned(), Duration::ZERO));
    assert_eq!(goodbye(&seen), expected);
    let why = closed(&seen);
    assert_eq!((why.reason, why.code), (CloseReason::Refused, 7));
}

#[test]
fn a_goodbye_without_a_redirect_is_as_before_and_a_client_may_redirect_too() {
    let (server, at_server) = recording_server(Settings::default(), loopback());
    let client = Client::new().unwrap();
    let session = client.connect(server.address(), recorder().0).unwrap();
    session.goodbye();
    assert_eq!(goodbye(&at_server), None);
    session.goodbye_to(&Redirect::to("unix:/run/other").unwrap());
    let expected = Some(("unix:/run/other".to_owned(), Duration::ZERO));
    assert_eq!(goodbye(&at_server), expected);
    assert_eq!(client.stats().redirected, 1);
}

#[test]
fn a_redirect_that_is_no_text_for_people_ends_its_session() {
    let (server, at_server) = recording_server(Settings::default(), loopback());
    for redirect in [vec![b'a'; 256], b"\x1b[2J".to_vec()] {
        let mut stream = connect_from(1, &server);
        stream.write_all(&hello()).unwrap();
        assert_eq!(first_id(&mut stream), Some(WELCOME));
        // Field 2, with its length in two bytes.
        let length = redirect.len() as u8;
        let high = (redirect.len() >> 7) as u8;
        let body = [&[0x12, length | 0x80, high], &redirect[..]].concat();
        let mut frame = (body.len() as u32).to_le_bytes().to_vec();
        frame.extend([0x04, 0xFF, 0, 0]);
        frame.extend(body);
        stream.write_all(&frame).unwrap();
        let why = closed(&at_server);
        assert_eq!(why.reason, CloseReason::BadFrame, "{why}");
        assert!(why.text.contains("redirect"), "{why}");
    }
    until("both are gone", || server.stats().sessions == 0);
    assert_eq!(server.stats().malformed, 2);
}
