//! How sessions begin and end: typed reasons, told to both ends, in time in any case.

mod common;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use common::{End, Pair, Told, accepted, at, config, first_bytes, frame, hello, rings, seconds};
use embar_frame::{FrameError, FrameHeader, Now, Protocol, Shape};
use embar_session::{CloseReason, Plain, SendError, SessionConfig, SessionCore, Side};
use embar_transport::Body;

/// Another protocol, or another version of `Plain`.
#[derive(Clone, Copy)]
struct Other<const VERSION: u32>;

impl<const VERSION: u32> Protocol for Other<VERSION> {
    const NAME: &'static str = if VERSION == 2 { "plain" } else { "other" };
    const VERSION: u32 = VERSION;

    fn shape(&self, header: FrameHeader) -> Result<Shape, FrameError> {
        match header.id {
            1 => Ok(Shape::Whole),
            2 => Ok(Shape::Body { head: 16 }),
            id => Err(FrameError::UnknownId { id }),
        }
    }
}

fn accepting<P: Protocol>(protocol: P, config: &SessionConfig) -> End<P> {
    End::new(SessionCore::accepting(protocol, config, &rings(), Now(0)).expect("a core"))
}

fn connecting<P: Protocol>(protocol: P, config: &SessionConfig) -> End<P> {
    End::new(SessionCore::connecting(protocol, config, &rings(), b"hello", Now(0)).expect("a core"))
}

/// Runs a connecting core against an accepting one of another kind.
fn meet<A: Protocol, B: Protocol>(a: &mut End<A>, b: &mut End<B>) {
    for _ in 0..100_000 {
        a.listen();
        a.poll();
        b.listen();
        b.poll();
        let mut moved = a.transmit(3, &mut b.inbox) | b.transmit(3, &mut a.inbox);
        moved |= (a.write_ended && !b.inbox_ended) | (b.write_ended && !a.inbox_ended);
        b.inbox_ended |= a.write_ended;
        a.inbox_ended |= b.write_ended;
        moved |= a.receive(3) | b.receive(3);
        if !moved {
            return;
        }
    }
    panic!("the two never come to rest");
}

#[test]
fn ends_that_speak_different_protocols_both_learn_it() {
    fn check<A: Protocol, B: Protocol>(a: A, b: B) {
        let (mut a, mut b) = (connecting(a, &config()), accepting(b, &config()));
        meet(&mut a, &mut b);
        let (a, b) = (a.end().expect("an end"), b.end().expect("an end"));
        assert_eq!((a.by, a.reason), (Side::Peer, CloseReason::Protocol));
        assert_eq!((b.by, b.reason), (Side::Local, CloseReason::Protocol));
        assert_eq!(a.text, b.text);
        assert!(a.text.contains("version"), "{}", a.text);
    }
    check(Plain, Other::<2>);
    check(Other::<2>, Plain);
    check(Plain, Other::<1>);
}

#[test]
fn strangers_are_told_that_they_are_at_the_wrong_address() {
    let strangers: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        &[0; 64],
        &[0xFF; 64],
        &frame(7, 0, b"a good frame, too early"),
    ];
    for stranger in strangers {
        for piece in [1, usize::MAX] {
            let mut end = accepting(Plain, &config());
            end.feed(stranger, piece);
            let closed = end.end().expect("an end");
            assert_eq!(closed.reason, CloseReason::NotSession);
            let mut said = std::collections::VecDeque::new();
            end.transmit(usize::MAX, &mut said);
            let said: Vec<u8> = said.into();
            assert_eq!(said[4..6], 0xFF05u16.to_le_bytes(), "CLOSE");
        }
    }
}

#[test]
fn a_wrong_magic_or_version_of_the_session_layer_is_told_apart() {
    let good = hello();
    // magic: tag 0x0D at 8, then 4 bytes; version: tag 0x10 at 13, then 1 byte.
    assert_eq!(
        (good[8], &good[9..13], good[13], good[14]),
        (0x0D, &b"EMBS"[..], 0x10, 1)
    );
    let mut wrong = good.clone();
    wrong[9] = b'X';
    let mut end = accepting(Plain, &config());
    end.feed(&wrong, 1);
    assert_eq!(end.end().map(|c| c.reason), Some(CloseReason::NotSession));
    let mut newer = good.clone();
    newer[14] = 2;
    let mut end = accepting(Plain, &config());
    end.feed(&newer, 1);
    let closed = end.end().expect("an end");
    assert_eq!(closed.reason, CloseReason::SessionVersion);
    assert!(closed.text.contains("the peer 2"), "{}", closed.text);
}

#[test]
fn a_peer_may_be_refused_before_and_after_its_hello() {
    for early in [true, false] {
        let (mut a, mut b) = (connecting(Plain, &config()), accepting(Plain, &config()));
        b.greeting = None;
        if !early {
            meet(&mut a, &mut b);
            assert_eq!(b.told, [Told::Opened(b"hello".to_vec())]);
        }
        b.core.refuse(42, "not today", Now(0));
        meet(&mut a, &mut b);
        let closed = a.end().expect("an end");
        assert_eq!(
            (closed.by, closed.reason),
            (Side::Peer, CloseReason::Refused)
        );
        assert_eq!((closed.code, closed.text.as_str()), (42, "not today"));
        assert!(a.closed && b.closed && a.core.is_over() && b.core.is_over());
    }
}

#[test]
fn greetings_have_a_limit() {
    let long = vec![0; embar_session::MAX_GREETING_BYTES + 1];
    let core = SessionCore::<_>::connecting(Plain, &config(), &rings(), &long, Now(0));
    let core: Result<SessionCore<Plain>, io::Error> = core;
    assert_eq!(
        core.err().map(|e| e.kind()),
        Some(io::ErrorKind::InvalidInput)
    );
    let mut end = accepting(Plain, &config());
    end.greeting = None;
    end.feed(&hello(), 1);
    assert!(matches!(
        end.core.welcome(&long, Now(0)),
        Err(SendError::TooLong { .. })
    ));
    let longest = &long[1..];
    assert_eq!(end.core.welcome(longest, Now(0)), Ok(()));
    assert_eq!(end.core.welcome(longest, Now(0)), Err(SendError::Closed));
}

#[test]
fn a_disconnect_at_every_byte_of_handshake_and_frame_has_its_reason() {
    let content = [&3u32.to_le_bytes()[..], b"hd!", &[1; 40]].concat();
    let frames = [
        frame(1, 0, b"first"),
        frame(2, 1, &content),
        frame(3, 0, b""),
    ];
    let bytes = [hello(), frames.concat()].concat();
    let mut edges = vec![0, hello().len()];
    for frame in &frames {
        edges.push(edges.last().copied().unwrap_or(0) + frame.len());
    }
    for cut in 0..=bytes.len() {
        for piece in [1, usize::MAX] {
            let mut end = accepting(Plain, &config());
            end.feed(&bytes[..cut], piece);
            end.inbox_ended = true;
            end.poll();
            end.receive(1);
            let closed = end.end().unwrap_or_else(|| panic!("no end at {cut}"));
            let expected = match edges.contains(&cut) {
                true => CloseReason::Disconnected,
                false => CloseReason::CutFrame,
            };
            assert_eq!(
                (closed.by, closed.reason),
                (Side::Network, expected),
                "at {cut}"
            );
            let whole = edges[2..].iter().filter(|edge| **edge <= cut).count();
            let told = end
                .told
                .iter()
                .filter(|told| matches!(told, Told::Message(..) | Told::Body { .. }));
            assert_eq!(told.count(), whole, "at {cut}");
            assert!(end.closed && end.core.is_over());
            assert!(end.core.next(Now(0)).is_none(), "told once, last");
        }
    }
}

#[test]
fn a_connecting_link_is_told_of_every_disconnect_as_well() {
    let mut end = accepting(Plain, &config());
    end.feed(&hello(), 1);
    let mut welcome = std::collections::VecDeque::new();
    end.transmit(usize::MAX, &mut welcome);
    let welcome: Vec<u8> = welcome.into();
    for cut in 0..welcome.len() {
        let mut end = connecting(Plain, &config());
        end.feed(&welcome[..cut], 1);
        end.inbox_ended = true;
        end.receive(1);
        let expected = match cut {
            0 => CloseReason::Disconnected,
            _ => CloseReason::CutFrame,
        };
        assert_eq!(end.end().map(|c| c.reason), Some(expected), "at {cut}");
    }
}

#[test]
fn frames_that_the_protocol_refuses_end_the_session_by_their_header() {
    let other = |header: FrameHeader| {
        let mut end = accepting(Other::<1>, &config());
        let hello = connecting(Other::<1>, &config());
        end.feed(&first_bytes(hello.core), usize::MAX);
        assert!(end.core.is_open());
        end.feed(&header.to_bytes(), 1);
        end.end().cloned()
    };
    let header = |id, length| FrameHeader {
        length,
        id,
        flags: 0,
    };
    let reason = |id, length| other(header(id, length)).map(|closed| closed.reason);
    assert_eq!(reason(3, 0), Some(CloseReason::UnknownFrame));
    assert_eq!(reason(1, 1001), Some(CloseReason::TooLarge));
    assert_eq!(reason(2, 100_001), Some(CloseReason::TooLarge));
    assert_eq!(reason(2, 15), Some(CloseReason::BadFrame));
    assert_eq!(reason(2, 16), None);
    // A head that says it is longer than its frame, or than what is shown.
    for (length, head) in [(3, 0), (20, 17), (50_000, 1000), (20, u32::MAX)] {
        let mut end = accepted(&config());
        let mut bytes = frame(2, Plain::BODY, &[]);
        bytes[..4].copy_from_slice(&u32::to_le_bytes(length));
        bytes.extend(head.to_le_bytes());
        end.feed(&bytes, 1);
        let expected = if length == 50_000 {
            CloseReason::TooLarge
        } else {
            CloseReason::BadFrame
        };
        assert_eq!(
            end.end().map(|c| c.reason),
            Some(expected),
            "{length} {head}"
        );
    }
}

#[test]
fn finish_drains_and_both_ends_know() {
    for piece in [1, 100, usize::MAX] {
        let mut pair = Pair::open();
        for number in 0..10 {
            pair.a
                .core
                .send_with(number, 800, |out| out.fill(1))
                .expect("room");
        }
        pair.a.core.finish(Now(0));
        pair.run(piece);
        assert_eq!(pair.b.messages().len(), 10);
        let (a, b) = (pair.a.end().expect("told"), pair.b.end().expect("told"));
        assert_eq!((a.by, a.reason), (Side::Local, CloseReason::Finished));
        assert_eq!((b.by, b.reason), (Side::Peer, CloseReason::Finished));
        assert!(pair.a.core.is_over() && pair.b.core.is_over());
        assert!(pair.a.closed && pair.b.closed);
    }
}

/// A goodbye goes before the end although the ring has no room for it, or the end follows at once.
#[test]
fn a_goodbye_that_is_owed_comes_before_the_end() {
    for fills in [false, true] {
        let mut pair = Pair::open();
        pair.a.stuck_send = true;
        while fills && pair.a.core.send_with(1, 900, |out| out.fill(1)).is_ok() {}
        while fills && pair.a.core.send_with(1, 1, |out| out.fill(1)).is_ok() {}
        if fills {
            pair.a.core.goodbye("over there");
            pair.a.poll();
        } else {
            pair.a.poll();
            pair.a.core.goodbye("over there");
        }
        pair.a.core.refuse(7, "full", at(0));
        pair.a.stuck_send = false;
        pair.run(50);
        let [.., goodbye, end] = &pair.b.told[..] else {
            panic!("{:?}", pair.b.told);
        };
        assert_eq!(*goodbye, Told::Goodbye("over there".to_owned()));
        assert!(matches!(end, Told::Closed(it) if it.code == 7), "{end:?}");
    }
}

#[test]
fn both_may_finish_at_once() {
    let mut pair = Pair::open();
    pair.a.core.finish(Now(0));
    pair.b.core.finish(Now(0));
    pair.run(1);
    assert!(pair.a.core.is_over() && pair.b.core.is_over());
}

#[test]
fn finish_waits_for_an_open_reservation_and_is_cut_in_time() {
    let mut pair = Pair::open();
    let sender = pair.a.core.sender().clone();
    let mut draft = sender.reserve(1, 2).expect("room");
    pair.a.core.finish(Now(0));
    pair.run(usize::MAX);
    assert!(!pair.a.core.is_over() && pair.b.end().is_none());
    let soon = pair.a.core.next_tick().expect("a deadline");
    assert!(soon < at(1), "it looks again before its deadline");
    draft.copy_from_slice(b"ok");
    let _ = draft.commit();
    pair.run(usize::MAX);
    assert_eq!(pair.b.messages(), [(1, b"ok".to_vec())]);
    assert!(pair.a.core.is_over());

    let mut pair = Pair::open();
    let sender = pair.a.core.sender().clone();
    let draft = sender.reserve(1, 2).expect("room");
    pair.a.core.finish(Now(0));
    pair.run(usize::MAX);
    pair.tick(at(1));
    assert!(pair.a.closed && pair.a.core.is_over());
    drop(draft);
}

#[test]
fn a_peer_that_does_not_read_or_close_cannot_hold_up_the_end() {
    let mut pair = Pair::open();
    pair.b.stuck_recv = true;
    pair.b.ignores = true;
    pair.a
        .core
        .send_with(1, 100, |out| out.fill(1))
        .expect("room");
    pair.a.core.finish(Now(0));
    pair.run(usize::MAX);
    assert!(pair.a.write_ended && !pair.a.closed);
    assert_eq!(pair.a.core.next_tick(), Some(at(1)));
    pair.a.tick(at(1));
    assert!(pair.a.closed && pair.a.core.is_over());
    assert_eq!(pair.a.core.next_tick(), None);
}

#[test]
fn a_peer_that_floods_while_this_end_finishes_is_cut() {
    let mut config = config();
    config.discard_limit_bytes = 50_000;
    let mut end = accepted(&config);
    end.core.finish(Now(0));
    end.poll();
    end.transmit(usize::MAX, &mut std::collections::VecDeque::new());
    end.feed(&vec![9; 49_000], 4096);
    assert!(!end.closed);
    end.feed(&vec![9; 2_000], 4096);
    assert!(end.closed && end.core.is_over());
    assert_eq!(end.messages(), []);
}

#[test]
fn close_is_at_once_and_returns_what_is_out() {
    let mut pair = Pair::open();
    pair.b.stuck_send = true;
    pair.b
        .core
        .send_with(1, 100, |out| out.fill(1))
        .expect("room");
    pair.b.poll();
    assert!(pair.b.send.is_some() && pair.b.recv.is_some());
    pair.b
        .core
        .close(CloseReason::HandlerPanicked, "on purpose");
    assert!(!pair.b.core.is_over());
    pair.run(usize::MAX);
    assert!(pair.b.core.is_over());
    let closed = pair.b.end().expect("told");
    assert_eq!(closed.reason, CloseReason::HandlerPanicked);
    assert_eq!(pair.a.end().map(|c| c.by), Some(Side::Network));
}

#[test]
fn a_failed_send_does_not_hide_what_the_peer_said_last() {
    let mut pair = Pair::open();
    pair.b.core.refuse(7, "go away", Now(0));
    pair.b.poll();
    let (a, b) = (&mut pair.a, &mut pair.b);
    b.transmit(usize::MAX, &mut a.inbox);
    a.core.send_with(1, 10, |out| out.fill(1)).expect("room");
    a.poll();
    let buf = a.send.take().expect("a send");
    let broken = Err(io::Error::from(io::ErrorKind::BrokenPipe));
    a.core.sent(buf, &broken, Now(0));
    a.listen();
    assert_eq!(a.end(), None, "the receive that is out has the last word");
    a.receive(usize::MAX);
    assert_eq!(a.end().map(|c| (c.by, c.code)), Some((Side::Peer, 7)));

    // Without a word, the error itself is the reason, in time.
    let mut pair = Pair::open();
    let a = &mut pair.a;
    a.core.send_with(1, 10, |out| out.fill(1)).expect("room");
    a.poll();
    let buf = a.send.take().expect("a send");
    a.core.sent(buf, &broken, Now(0));
    a.tick(at(1));
    let reason = CloseReason::Io(io::ErrorKind::BrokenPipe);
    assert_eq!(a.end().map(|c| c.reason), Some(reason));
    assert!(a.core.is_over());
}

#[test]
fn strangers_and_unfinished_frames_have_their_time() {
    let mut config = config();
    config.hello_timeout = seconds(5);
    config.frame_timeout = seconds(3);
    let mut end = accepting(Plain, &config);
    end.feed(&hello()[..9], 1);
    assert_eq!(end.core.next_tick(), Some(at(5)));
    end.tick(Now(at(5).0 - 1));
    assert!(end.end().is_none());
    end.tick(at(5));
    assert_eq!(end.end().map(|c| c.reason), Some(CloseReason::HelloTimeout));

    let mut end = accepted(&config);
    assert_eq!(end.core.next_tick(), None);
    end.now = at(10);
    end.feed(&frame(1, 0, b"message")[..10], 1);
    assert_eq!(end.core.next_tick(), Some(at(13)));
    // Held, the time is not the peer's; the second before was.
    end.core.hold(true, at(11));
    assert_eq!(end.core.next_tick(), None);
    end.core.hold(false, at(20));
    end.now = at(20);
    assert_eq!(end.core.next_tick(), Some(at(22)));
    end.feed(&frame(1, 0, b"message")[10..], 1);
    assert_eq!((end.messages().len(), end.core.next_tick()), (1, None));
    // A body has its own time, which begins with the head.
    end.feed(&frame(2, 1, &[0; 50])[..13], 1);
    assert_eq!(end.core.next_tick(), Some(at(23)));
    end.tick(at(23));
    assert_eq!(end.end().map(|c| c.reason), Some(CloseReason::FrameTimeout));
}

#[test]
fn heartbeats_keep_a_quiet_session_alive_and_measure_it() {
    let mut config = config();
    config.keep_alive = seconds(100);
    config.idle_timeout = seconds(9);
    let mut pair = Pair::open_with(&config, &config);
    // The peer's idle timeout makes them come three times as often.
    for now in 1..100 {
        pair.tick(at(now));
        pair.run(usize::MAX);
        assert!(pair.a.core.is_open() && pair.b.core.is_open(), "at {now}");
    }
    let sent = pair.a.core.stats().bytes_out;
    assert!(
        (33 * 17..70 * 17).contains(&sent),
        "{sent} bytes of PING and PONG"
    );
    assert_eq!(pair.a.told, []);
    let rtt = pair.a.core.rtt().expect("answers came");
    assert_eq!((rtt.last, rtt.smoothed), (Duration::ZERO, Duration::ZERO));

    // An answer that takes two seconds.
    pair.a.core.ping();
    pair.a.poll();
    pair.a.transmit(usize::MAX, &mut pair.b.inbox);
    pair.b.now = at(100);
    pair.b.receive(usize::MAX);
    pair.b.transmit(usize::MAX, &mut pair.a.inbox);
    pair.a.now = at(101);
    pair.a.receive(usize::MAX);
    let rtt = pair.a.core.rtt().expect("answers came");
    assert_eq!((rtt.last, rtt.smoothed), (seconds(2), seconds(2) / 8));
}

#[test]
fn an_idle_end_is_heard_three_times_within_its_peers_timeout() {
    let mut config = config();
    config.keep_alive = seconds(100);
    config.idle_timeout = seconds(9);
    let mut pair = Pair::open_with(&config, &config);
    // The other end's own heartbeats would be answered, and hide how often these come.
    let mut heard = Vec::new();
    let mut sent = pair.a.core.stats().bytes_out;
    while heard.len() < 5 {
        let now = pair.a.core.next_tick().expect("a heartbeat");
        pair.a.tick(now);
        pair.b.now = now;
        pair.run(usize::MAX);
        let before = std::mem::replace(&mut sent, pair.a.core.stats().bytes_out);
        if sent > before {
            heard.push(now);
        }
    }
    assert_eq!(heard, [at(3), at(6), at(9), at(12), at(15)]);
}

#[test]
fn a_silent_peer_is_idle_and_a_held_link_does_not_accuse_it() {
    let mut config = config();
    config.idle_timeout = seconds(9);
    let mut end = accepted(&config);
    assert_eq!(end.core.next_tick(), Some(at(9)));
    end.core.hold(true, at(1));
    end.poll();
    // What is out already still counts as reading only when the core is not held.
    end.tick(at(100));
    assert!(end.core.is_open());
    end.core.hold(false, at(100));
    end.tick(at(100));
    assert_eq!(end.core.next_tick(), Some(at(109)));
    end.tick(at(109));
    let closed = end.end().expect("told");
    assert_eq!((closed.by, closed.reason), (Side::Local, CloseReason::Idle));
}

#[test]
fn a_held_reader_is_not_kicked_by_its_peer() {
    let mut config = config();
    config.keep_alive = seconds(2);
    config.idle_timeout = seconds(9);
    let mut pair = Pair::open_with(&config, &config);
    pair.b.core.hold(true, Now(0));
    for now in 1..60 {
        let _ = pair.a.core.send_with(1, 10, |out| out.fill(1));
        pair.tick(at(now));
        pair.run(usize::MAX);
    }
    assert!(pair.a.core.is_open() && pair.b.core.is_open());
    pair.b.core.hold(false, at(60));
    pair.run(usize::MAX);
    assert_eq!(pair.b.messages().len(), 59);
}

#[test]
fn a_peer_that_takes_nothing_of_a_body_and_lives_is_not_given_up() {
    let mut config = config();
    config.keep_alive = seconds(100);
    config.idle_timeout = seconds(9);
    let mut pair = Pair::open_with(&config, &config);
    pair.b.stuck_send = true;
    let body = frame(2, 1, &[0; 5000]);
    pair.b.core.send_body(body, Body::Empty);
    pair.a.core.hold(true, at(0));
    let hours = 2 * 60 * 60;
    for now in (3..hours).step_by(3) {
        pair.tick(at(now));
        pair.run(usize::MAX);
        assert!(pair.b.core.is_open(), "at {now}: {:?}", pair.b.end());
    }
    // One answer is enough for all that the peer said meanwhile.
    pair.b.stuck_send = false;
    pair.a.core.hold(false, at(hours));
    let before = pair.b.core.stats().bytes_out;
    pair.run(usize::MAX);
    assert!(matches!(pair.a.told[..], [Told::Body { .. }]));
    let behind = pair.b.core.stats().bytes_out - before - 5008;
    assert!((1..40).contains(&behind), "{behind} bytes behind the body");
}

#[test]
fn a_peer_that_never_reads_is_given_up_after_the_idle_timeout() {
    let mut config = config();
    config.idle_timeout = seconds(9);
    let mut pair = Pair::open_with(&config, &config);
    pair.b.stuck_send = true;
    while pair.b.core.send_with(1, 900, |out| out.fill(1)).is_ok() {}
    pair.run(usize::MAX);
    assert!(pair.b.core.waits_for_room().is_some());
    let deadline = pair.b.core.next_tick().expect("a deadline");
    assert_eq!(deadline, at(9));
    pair.b.tick(deadline);
    assert_eq!(pair.b.end().map(|c| c.reason), Some(CloseReason::Full));
    pair.b.tick(at(10));
    assert!(pair.b.core.is_over());
}

#[test]
fn a_reservation_held_too_long_ends_the_session_and_stays_valid() {
    let mut config = config();
    config.reservation_timeout = seconds(4);
    let mut pair = Pair::open_with(&config, &config);
    let sender = pair.a.core.sender().clone();
    let mut draft = sender.reserve(1, 100).expect("room");
    let mut now = 0;
    while pair.a.end().is_none() {
        let next = pair.a.core.next_tick().expect("it keeps looking");
        assert!(next.0 > now && next <= at(8), "{next:?}");
        now = next.0;
        draft.fill(7);
        pair.a.tick(next);
        pair.run(usize::MAX);
    }
    assert!(now >= at(4).0);
    assert_eq!(
        pair.a.end().map(|c| c.reason),
        Some(CloseReason::ReservationHeld)
    );
    let told = pair
        .b
        .end()
        .expect("the peer is told, past the reservation");
    assert_eq!(
        (told.by, told.reason),
        (Side::Peer, CloseReason::ReservationHeld)
    );
    draft.fill(9);
    assert!(draft.iter().all(|byte| *byte == 9));
    let _ = draft.commit();
    assert_eq!(pair.b.messages(), []);
}

#[test]
fn one_who_reserves_and_commits_all_the_time_holds_nothing() {
    let mut config = config();
    config.reservation_timeout = seconds(4);
    let mut pair = Pair::open_with(&config, &config);
    let sender = pair.a.core.sender().clone();
    let mut draft = sender.reserve(1, 0).expect("room");
    for now in 1..30 {
        let next = sender.reserve(1, 0).expect("room");
        let _ = std::mem::replace(&mut draft, next).commit();
        pair.tick(at(now));
        pair.run(usize::MAX);
    }
    assert!(pair.a.core.is_open());
    assert_eq!(pair.b.messages().len(), 29);
    drop(draft);
}

#[test]
fn a_linger_of_zero_cuts_at_once() {
    let mut config = config();
    config.linger = Duration::ZERO;
    let mut pair = Pair::open_with(&config, &config);
    pair.a.core.finish(Now(0));
    pair.a.listen();
    pair.a.poll();
    assert!(pair.a.closed && pair.a.core.is_over());
    assert_eq!(pair.a.end().map(|c| c.reason), Some(CloseReason::Finished));
}

#[test]
fn a_held_link_notices_that_its_connection_is_gone() {
    let broken = Err(io::Error::from(io::ErrorKind::BrokenPipe));
    // Nothing is being received when a send fails.
    let mut pair = Pair::open();
    let (a, b) = (&mut pair.a, &mut pair.b);
    a.ignores = true;
    for _ in 0..2 {
        b.core.send_with(1, 10, |out| out.fill(1)).expect("room");
        b.poll();
        b.transmit(usize::MAX, &mut a.inbox);
    }
    a.receive(usize::MAX);
    a.core.hold(true, Now(0));
    a.ignores = false;
    a.core.send_with(1, 10, |out| out.fill(1)).expect("room");
    a.poll();
    assert!(a.recv.is_none(), "nothing is received while held");
    let buf = a.send.take().expect("a send");
    a.core.sent(buf, &broken, Now(0));
    a.listen();
    a.poll();
    let reason = CloseReason::Io(io::ErrorKind::BrokenPipe);
    assert_eq!(a.end().map(|c| c.reason), Some(reason));
    assert!(a.closed && a.core.is_over());
    let late = a.core.send_with(1, 10, |out| out.fill(1));
    assert_eq!(late, Err(SendError::Closed));

    // A receive was out when it was held, and finds the end.
    let mut pair = Pair::open();
    let a = &mut pair.a;
    assert!(a.recv.is_some());
    a.core.hold(true, Now(0));
    a.inbox_ended = true;
    a.receive(usize::MAX);
    assert_eq!(a.end().map(|c| c.reason), Some(CloseReason::Disconnected));
}

#[test]
fn an_owner_that_leaves_waits_only_while_its_peer_takes_something() {
    let mut pair = Pair::open();
    let a = &mut pair.a;
    a.stuck_send = true;
    let mut head = frame(2, Plain::BODY, &[7; 1000]);
    let body = head.split_off(16);
    a.core.send_body(head, Body::Shared(Arc::new(body.into())));
    a.poll();
    a.core.leave(CloseReason::Finished, at(5));
    assert_eq!(a.core.next_tick(), Some(at(6)));
    // Something moves: another linger.
    let buf = a.send.take().expect("the body");
    a.core.sender().wrote(1);
    a.tick(at(6));
    assert_eq!(a.end(), None);
    assert_eq!(a.core.next_tick(), Some(at(7)));
    a.send = Some(buf);
    a.tick(at(7));
    assert_eq!(a.end().map(|c| c.reason), Some(CloseReason::Finished));
    assert!(a.closed && a.core.is_over());
}

#[test]
fn a_long_send_has_time_in_proportion_to_its_length() {
    let mut config = config();
    config.idle_timeout = seconds(2);
    config.max_body_bytes = 1 << 20;
    let mut pair = Pair::open_with(&config, &config);
    let b = &mut pair.b;
    b.stuck_send = true;
    // Ten seconds at the least rate.
    let bytes = 640 << 10;
    b.core
        .send_body(Vec::new(), Body::Shared(Arc::new(vec![0; bytes].into())));
    b.poll();
    while b.core.send_with(1, 900, |out| out.fill(1)).is_ok() {}
    b.listen();
    assert!(b.core.waits_for_room().is_some());
    assert_eq!(b.core.next_tick(), Some(at(10)));
    b.tick(at(9));
    assert!(b.core.is_open(), "it may be on its way");
    b.tick(at(10));
    assert_eq!(b.end().map(|c| c.reason), Some(CloseReason::Full));
}

/// A peer that takes a little now and then reads, however long the send takes that is out.
#[test]
fn a_peer_that_reads_slowly_is_not_given_up() {
    let mut config = config();
    config.idle_timeout = seconds(2);
    let mut pair = Pair::open_with(&config, &config);
    let b = &mut pair.b;
    while b.core.send_with(1, 900, |out| out.fill(1)).is_ok() {}
    b.poll();
    while b.core.send_with(1, 900, |out| out.fill(1)).is_ok() {}
    b.listen();
    assert!(b.core.waits_for_room().is_some());
    let mut wire = VecDeque::new();
    for second in 1..20 {
        assert!(b.transmit(1, &mut wire));
        b.tick(at(second));
        assert!(b.core.is_open(), "{:?}", b.core.closed());
    }
    b.tick(at(22));
    assert_eq!(b.end().map(|c| c.reason), Some(CloseReason::Full));
}

#[test]
fn reservations_that_are_dropped_one_after_the_other_hold_nothing() {
    let mut config = config();
    config.reservation_timeout = seconds(4);
    let mut pair = Pair::open_with(&config, &config);
    let sender = pair.a.core.sender().clone();
    for now in 1..30 {
        // Each is the newest when it is dropped, so the next might pass for the same.
        let draft = sender.reserve(1, 0).expect("room");
        pair.tick(at(now));
        drop(draft);
        pair.run(usize::MAX);
    }
    assert!(pair.a.core.is_open());
}

/// The owner takes its time for what it says last: that is not its peer's fault.
#[test]
fn a_peer_that_has_nothing_to_take_is_not_late() {
    let mut pair = Pair::open();
    let a = &mut pair.a;
    a.core.leave(CloseReason::Finished, at(5));
    for second in 6..20 {
        a.tick(at(second));
        assert_eq!(a.end(), None);
    }
    a.stuck_send = true;
    a.core.send_with(1, 10, |out| out.fill(1)).expect("room");
    // It is not late at the look that finds it there first.
    let due = a.core.next_tick().expect("a look");
    a.tick(due);
    assert_eq!(a.end(), None);
    // But it has no more time than others.
    assert_eq!(a.core.next_tick(), Some(Now(due.0 + at(1).0)));
    a.tick(Now(due.0 + at(1).0));
    assert_eq!(a.end().map(|c| c.reason), Some(CloseReason::Finished));
    assert!(a.closed && a.core.is_over());
}
