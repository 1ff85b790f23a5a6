//! Whatever numbers a peer announces in the handshake, it sets no rate and no amount of this end's
//! work.

mod common;

use std::collections::VecDeque;
use std::time::Duration;

use common::{End, Told, accepted, config, frame, rings, seconds};
use embar_frame::{Now, Protocol};
use embar_session::{
    MIN_IDLE_TIMEOUT, Plain, SESSION_VERSION, SendError, SessionConfig, SessionCore,
};

const HELLO: u16 = 0xFF00;
const PING: u16 = 0xFF02;

fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A HELLO with these limits: frame, body, idle timeout.
fn hello([max_frame, max_body, idle_ms]: [u32; 3]) -> Vec<u8> {
    let mut body = vec![1 << 3 | 5];
    body.extend(b"EMBS");
    for (field, number) in [
        (2, SESSION_VERSION),
        (4, Plain::VERSION),
        (5, max_frame),
        (6, max_body),
        (7, idle_ms),
    ] {
        varint(field << 3, &mut body);
        varint(number.into(), &mut body);
    }
    varint(3 << 3 | 2, &mut body);
    varint(Plain::NAME.len() as u64, &mut body);
    body.extend(Plain::NAME.as_bytes());
    frame(HELLO, 0, &body)
}

fn greeted(config: &SessionConfig, limits: [u32; 3]) -> End {
    let core = SessionCore::accepting(Plain, config, &rings(), Now(0)).expect("a core");
    let mut end = End::new(core);
    end.feed(&hello(limits), usize::MAX);
    assert!(
        matches!(end.told[..], [Told::Opened(_)]),
        "{limits:?}: {:?}",
        end.told
    );
    end.transmit(usize::MAX, &mut VecDeque::new());
    end
}

/// Frames of an id that an end sends in so much time, while it is told nothing.
fn sent_in(end: &mut End, time: Duration, id: u16) -> usize {
    let (until, mut sent) = (end.now.after(time), VecDeque::new());
    while let Some(due) = end.core.next_tick().filter(|due| *due <= until) {
        let due = due.max(end.now);
        end.tick(due);
        end.transmit(usize::MAX, &mut sent);
    }
    let bytes: Vec<u8> = sent.into();
    let (mut rest, mut count) = (&bytes[..], 0);
    while let Some((header, more)) = rest.split_first_chunk::<8>() {
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        count += usize::from(u16::from_le_bytes([header[4], header[5]]) == id);
        rest = &more[length as usize..];
    }
    count
}

#[test]
fn the_impatience_of_a_peer_draws_three_pings_in_a_second_at_most() {
    let config = config().with(|config| config.keep_alive = seconds(10));
    for (idle_ms, most) in [(0, 1), (1, 30), (2, 30), (999, 30), (1000, 30), (6000, 5)] {
        let mut end = greeted(&config, [1000, 1000, idle_ms]);
        let pings = sent_in(&mut end, seconds(10), PING);
        assert!((most - 1..=most).contains(&pings), "{idle_ms}: {pings}");
    }
}

#[test]
fn nobody_announces_less_patience_than_a_peer_believes() {
    let config = config().with(|config| config.idle_timeout = Duration::from_millis(1));
    let mut end = accepted(&config);
    let just_before = Now(0).after(MIN_IDLE_TIMEOUT - Duration::from_nanos(1));
    end.tick(just_before);
    assert!(end.core.is_open());
    end.tick(Now(0).after(MIN_IDLE_TIMEOUT));
    assert!(!end.core.is_open());
}

#[test]
fn limits_of_a_peer_only_lower_what_this_end_sends() {
    for max in [0, 1, 7, 8, 1 << 20, u32::MAX - 1, u32::MAX] {
        let mut end = greeted(&config(), [max, max, u32::MAX]);
        let limits = end.core.limits().expect("it is open");
        assert!(limits.max_frame_bytes <= max && limits.max_frame_bytes < 1 << 20);
        let longest = limits.max_frame_bytes as usize;
        let refused = end.core.send_with(1, longest + 1, |_| {});
        assert!(matches!(refused, Err(SendError::TooLong { .. })), "{max}");
        if longest < 1 << 12 {
            end.core
                .send_with(1, longest, |out| out.fill(1))
                .expect("it fits");
        }
        // What is of the session itself needs no leave.
        end.core.ping();
        end.core.goodbye("soon");
        end.poll();
        let mut sent = VecDeque::new();
        end.transmit(usize::MAX, &mut sent);
        assert!(sent.len() > 16, "{max}");
        end.feed(&frame(1, 0, b"still heard"), usize::MAX);
        assert_eq!(end.messages(), [(1, b"still heard".to_vec())]);
    }
}
