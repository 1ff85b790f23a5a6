//! How long a body may take: as long as it comes at the least rate, and not much longer.

mod common;

use common::{End, Told, accepted, at, config, frame, seconds};
use embar_frame::Now;
use embar_session::{CloseReason, SessionConfig};

const RATE: u32 = 1000;
const BODY: usize = 50_000;

fn patient(min_body_rate: u32) -> SessionConfig {
    config().with(|config| {
        config.frame_timeout = seconds(3);
        config.min_body_rate = min_body_rate;
    })
}

/// An end of which all of a body is due.
fn announced(config: &SessionConfig) -> (End, Vec<u8>) {
    let mut end = accepted(config);
    let bytes = frame(2, 1, &[&[0; 4][..], &vec![5; BODY]].concat());
    let (head, body) = bytes.split_at(bytes.len() - BODY);
    end.feed(head, usize::MAX);
    assert_eq!(end.core.body_due(), BODY);
    assert_eq!(end.core.next_tick(), Some(at(3)));
    (end, body.to_vec())
}

/// When it ended, and why, if `bytes` of the body come each second.
fn ended(end: &mut End, body: &[u8], bytes: usize) -> Option<(Now, CloseReason)> {
    let mut parts = body.chunks(bytes);
    for second in 1..200 {
        while let Some(due) = end.core.next_tick().filter(|due| *due <= at(second)) {
            end.tick(due);
            if let Some(closed) = end.end() {
                return Some((due, closed.reason));
            }
        }
        end.now = at(second);
        end.feed(parts.next().unwrap_or_default(), usize::MAX);
    }
    None
}

#[test]
fn a_slow_body_has_the_time_that_it_takes() {
    for bytes in [RATE as usize, 5000, BODY] {
        let (mut end, body) = announced(&patient(RATE));
        assert_eq!(ended(&mut end, &body, bytes), None);
        let told = |told: &Told| matches!(told, Told::Body { body, .. } if body.len() == BODY);
        assert!(end.told.iter().any(told), "{bytes} bytes a second");
    }
}

#[test]
fn who_sends_a_byte_now_and_then_gains_no_time() {
    let (mut end, body) = announced(&patient(RATE));
    let (when, reason) = ended(&mut end, &body, 1).expect("an end");
    assert_eq!(reason, CloseReason::FrameTimeout);
    assert!(when > at(3) && when < at(4), "{when:?}");
    // At half of the least rate, the first timeout lasts twice as long.
    let (mut end, body) = announced(&patient(RATE));
    let (when, _) = ended(&mut end, &body, RATE as usize / 2).expect("an end");
    assert!(when >= at(5) && when < at(7), "{when:?}");
}

#[test]
fn what_came_fast_is_no_credit_for_silence() {
    let (mut end, body) = announced(&patient(RATE));
    end.now = at(1);
    end.feed(&body[..BODY - 1], usize::MAX);
    assert_eq!(end.core.next_tick(), Some(at(4)));
    end.tick(at(4));
    let reason = end.end().map(|closed| closed.reason);
    assert_eq!(reason, Some(CloseReason::FrameTimeout));
}

#[test]
fn without_a_rate_all_of_a_body_has_one_timeout() {
    let (mut end, body) = announced(&patient(0));
    let ended = ended(&mut end, &body, 10_000);
    assert_eq!(ended, Some((at(3), CloseReason::FrameTimeout)));
}

/// A body that nobody wants comes as fast as others.
#[test]
fn a_body_that_is_skipped_has_its_time_too() {
    let (mut end, body) = announced(&patient(RATE));
    // The receive of the body is given up.
    end.recv = None;
    end.abandon_body();
    end.core.discard_body(Now(0));
    end.poll();
    assert_eq!(ended(&mut end, &body, RATE as usize), None);
    end.feed(&frame(1, 0, b"behind"), usize::MAX);
    assert_eq!(end.messages(), [(1, b"behind".to_vec())]);
}
