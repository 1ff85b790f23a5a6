//! Bodies of pieces that go in steps: whole frames to the peer, and the owner's to stop.

mod common;

use std::io;

use common::foreign::{HEAD_BYTES, Logs, piece};
use common::{Pair, Told, at};
use embar_frame::Now;
use embar_session::{CloseReason, SendError};
use embar_transport::{Body, Payload};

const LENS: [usize; 4] = [64, 5, 3000, 1];

fn payload(number: usize) -> Vec<u8> {
    (0..LENS[number])
        .map(|at| (number + at * 31) as u8)
        .collect()
}

/// Gives `a` a body: the second and third pieces are another broker's.
fn send(pair: &mut Pair, logs: &Logs) -> usize {
    let mut pieces = pair.a.core.pieces();
    for (number, len) in LENS.into_iter().enumerate() {
        let payload = match number {
            1 | 2 => Payload::Foreign(logs.foreign(&payload(number))),
            _ => Payload::Own(logs.own(&payload(number))),
        };
        pieces.push(piece(len), payload);
    }
    let len = pieces.len();
    pair.a.core.send_body(Vec::new(), Body::Pieces(pieces));
    len
}

fn told(number: usize) -> Told {
    Told::Body {
        id: 9,
        head: vec![3; HEAD_BYTES],
        body: payload(number),
    }
}

fn message(pair: &Pair, id: u16) {
    let sender = pair.a.core.sender();
    let _ = sender.send_with(id, 30, |out| out.fill(1)).expect("room");
}

#[test]
fn steps_of_any_length_make_whole_frames_between_others() {
    let logs = Logs::new();
    for step in [1, 2, 63, 64, 65, 1000, usize::MAX] {
        for corked in [false, true] {
            let mut pair = Pair::open();
            let before = pair.a.core.stats().bytes_out;
            message(&pair, 1);
            let len = send(&mut pair, &logs);
            if corked {
                assert!(pair.a.core.cork());
            }
            message(&pair, 2);
            pair.a.poll();
            // Behind what was committed before, and nothing gets into it.
            message(&pair, 3);
            while pair.a.core.is_sending_body() {
                assert!(!pair.a.core.may_send_body() && !pair.a.core.is_merely_corked());
                pair.step(step);
            }
            assert!(pair.a.core.may_send_body());
            message(&pair, 4);
            pair.run(step);

            let ids: Vec<u16> = pair.b.messages().iter().map(|(id, _)| *id).collect();
            assert_eq!(ids, [1, 2, 3, 4], "steps of {step}");
            let bodies = pair.b.told.iter();
            let bodies: Vec<&Told> = bodies
                .filter(|told| matches!(told, Told::Body { .. }))
                .collect();
            let expected: Vec<Told> = (0..LENS.len()).map(told).collect();
            assert!(bodies.into_iter().eq(&expected), "steps of {step}");
            let sent = pair.a.core.stats().bytes_out - before;
            assert_eq!(sent, (len + 4 * 38) as u64, "each byte is counted once");
            assert_eq!(logs.pins(), 0, "what is sent is held no longer");
        }
    }
}

#[test]
fn an_owner_that_closes_between_steps_sends_no_more() {
    let logs = Logs::new();
    let mut pair = Pair::open();
    send(&mut pair, &logs);
    pair.a.poll();
    let mut buf = pair.a.send.take().expect("the body");
    buf.advance(100);
    pair.a.core.sent(buf, &Ok(()), Now(0));
    assert!(pair.a.core.is_sending_body());
    pair.a.core.close(CloseReason::Full, "it was evicted");
    assert!(!pair.a.core.is_sending_body());
    assert_eq!(logs.pins(), 0);
    pair.a.listen();
    pair.a.poll();
    assert!(pair.a.send.is_none() && pair.a.closed && pair.a.core.is_over());

    // Closed while a step is out: it comes back, and no more of it goes.
    let mut pair = Pair::open();
    send(&mut pair, &logs);
    pair.a.poll();
    let mut buf = pair.a.send.take().expect("the body");
    buf.advance(100);
    pair.a.core.close(CloseReason::Full, "it was evicted");
    assert!(pair.a.core.is_sending_body(), "a step is out");
    pair.a.core.sent(buf, &Ok(()), Now(0));
    assert!(!pair.a.core.is_sending_body());
    assert_eq!(logs.pins(), 0);
    pair.a.listen();
    pair.a.poll();
    assert!(pair.a.send.is_none() && pair.a.closed && pair.a.core.is_over());
}

#[test]
fn a_session_that_finishes_sends_its_body_to_the_end() {
    let logs = Logs::new();
    let mut pair = Pair::open();
    send(&mut pair, &logs);
    pair.step(10);
    pair.a.core.finish(at(0));
    assert!(!pair.a.core.may_send_body());
    assert!(pair.a.core.is_sending_body(), "the rest goes on");
    pair.run(100);
    assert!(!pair.a.core.is_sending_body());
    let bodies = pair.b.told.iter();
    let bodies = bodies.filter(|told| matches!(told, Told::Body { .. }));
    assert_eq!(bodies.count(), LENS.len());
    assert_eq!(
        pair.b.end().map(|closed| closed.reason),
        Some(CloseReason::Finished)
    );
    assert!(pair.a.core.is_over() && pair.b.core.is_over());
}

#[test]
fn a_step_that_fails_is_the_last() {
    let logs = Logs::new();
    let mut pair = Pair::open();
    send(&mut pair, &logs);
    pair.a.poll();
    let mut buf = pair.a.send.take().expect("the body");
    buf.advance(100);
    pair.a.core.sent(buf, &Ok(()), Now(0));
    pair.a.poll();
    let buf = pair.a.send.take().expect("the rest");
    assert_eq!(buf.sent(), 100);
    let broken = Err(io::ErrorKind::BrokenPipe.into());
    pair.a.core.sent(buf, &broken, Now(0));
    assert!(!pair.a.core.is_sending_body() && !pair.a.core.may_send_body());
    assert_eq!(logs.pins(), 0);
    pair.a.inbox_ended = true;
    pair.run(usize::MAX);
    assert!(pair.a.core.is_over());
    let late = pair.a.core.send_with(1, 1, |_| ());
    assert_eq!(late, Err(SendError::Closed));
}

#[test]
fn nothing_goes_between_two_steps() {
    let logs = Logs::new();
    let mut pair = Pair::open();
    assert!(pair.a.core.cork());
    send(&mut pair, &logs);
    pair.a.poll();
    let mut buf = pair.a.send.take().expect("the body");
    buf.with_unsent(|_, body| pair.b.inbox.extend(&body[..100]));
    buf.advance(100);
    pair.a.core.sent(buf, &Ok(()), Now(0));
    message(&pair, 1);
    assert!(!pair.a.core.is_merely_corked(), "others may not write");
    pair.a.poll();
    let rest = pair.a.send.as_ref().expect("the rest");
    assert_eq!(rest.sent(), 100);
    pair.run(usize::MAX);
    assert!(matches!(pair.b.told.last(), Some(Told::Message(1, _))));
    assert_eq!(pair.b.told.len(), LENS.len() + 1);
}
