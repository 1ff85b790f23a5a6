//! Small batches come together: several by one receive, and in one buffer.

use super::*;

/// Batches of one message of so many bytes each, from offset 0 on.
fn batches(count: u64, bytes: usize) -> Vec<u8> {
    let batches = (0..count).map(|base| batch(base, TOPIC, &[&vec![base as u8; bytes]]));
    batches.collect::<Vec<_>>().concat()
}

fn open() -> Script {
    let mut script = Script::open(config(), 1);
    script.subscribe(A, StartAt::Earliest, 0, 0);
    script
}

/// Bytes that the receive which is out may bring.
fn asked(script: &mut Script) -> usize {
    let receive = script.sockets.channel(A).receiving.as_ref();
    receive.expect("a receive is out").remaining()
}

#[test]
fn what_one_receive_brings_is_delivered_in_one_buffer() {
    let mut script = open();
    // The first one tells that they are small.
    assert!(script.feed(A, &batches(1, 100)).is_empty());
    assert_eq!(script.taken(), [(0, 1, 0)]);
    let bytes = batches(50, 100);
    let first = bytes.len() / 50;
    assert!(script.feed(A, &bytes[first..]).is_empty());
    assert_eq!(script.delivered.len(), 1);
    let expected: Vec<_> = (1..50).map(|base| (base, 1, 0)).collect();
    assert_eq!(script.taken(), expected);
}

#[test]
fn a_full_buffer_ends_a_run_and_full_buffers_hold_the_broker_back() {
    const COUNT: u64 = 80;
    let mut script = open();
    let bytes = batches(COUNT, 20_000);
    let mut rest = &bytes[..];
    let mut seen = Vec::new();
    let mut held_back = 0;
    for _ in 0..COUNT {
        rest = script.feed(A, rest);
        held_back += u32::from(!rest.is_empty());
        assert!(script.core.is_starved() || rest.is_empty());
        assert!(script.delivered.len() <= 2);
        let held = |it: &Delivered| it.payload.len();
        assert!(script.delivered.iter().map(held).sum::<usize>() <= 2 * (512 << 10));
        seen.extend(script.taken());
    }
    assert!(held_back > 0 && rest.is_empty());
    let expected: Vec<_> = (0..COUNT).map(|base| (base, 1, 0)).collect();
    assert_eq!(seen, expected);
}

#[test]
fn what_comes_behind_a_begun_batch_stays_where_it_was_received() {
    let mut script = open();
    let bytes = batches(40, 1000);
    let each = bytes.len() / 40;
    // The receive for the rest of this one is into a buffer for many.
    script.feed(A, &bytes[..each + 500]);
    assert_eq!(script.taken(), [(0, 1, 0)]);
    assert!(asked(&mut script) > 250_000 - 500);
    let news = frame(&cluster(1));
    let parts = [
        &bytes[each + 500..20 * each],
        &news,
        &bytes[20 * each..30 * each + 9],
    ];
    assert!(script.feed(A, &parts.concat()).is_empty());
    // Behind the news they came by the ring, and have room behind the others.
    assert_eq!(script.delivered.len(), 1);
    let expected: Vec<_> = (1..30).map(|base| (base, 1, 0)).collect();
    for (base, (header, payload)) in (1..).zip(script.delivered[0].batches()) {
        assert_eq!(header.base_offset(), base);
        assert!(header.check_payload(payload).is_ok());
    }
    assert_eq!(script.taken(), expected);
    assert!(script.feed(A, &bytes[30 * each + 9..]).is_empty());
    let expected: Vec<_> = (30..40).map(|base| (base, 1, 0)).collect();
    assert_eq!(script.taken(), expected);
}

#[test]
fn only_behind_small_batches_is_much_asked_for() {
    let mut script = open();
    assert_eq!(asked(&mut script), BATCH_HEADER_BYTES, "unknown yet");
    script.feed(A, &batch(0, TOPIC, &[&[1; 1000]]));
    assert!(asked(&mut script) > 100_000);
    assert_eq!(script.taken(), [(0, 1, 0)]);
    script.feed(A, &batch(1, TOPIC, &[&[1; 100_000]]));
    assert_eq!(asked(&mut script), BATCH_HEADER_BYTES);
    assert_eq!(script.taken(), [(1, 1, 0)]);
}

#[test]
fn damage_in_the_middle_of_a_run_is_asked_for_again_and_what_came_before_is_delivered() {
    // Whether the damaged one comes by the ring, or behind one that has begun.
    for first in [0, BATCH_HEADER_BYTES + 10] {
        damage_in_the_middle_of_a_run(first);
    }
}

fn damage_in_the_middle_of_a_run(first: usize) {
    let mut script = open();
    let mut bytes = batches(5, 100);
    let each = bytes.len() / 5;
    // The last byte of the value of the third.
    bytes[2 * each + BATCH_HEADER_BYTES + 50] ^= 1;
    script.feed(A, &bytes[..first]);
    script.feed(A, &bytes[first..]);
    assert_eq!(script.taken(), [(0, 1, 0), (1, 1, 0)]);
    assert!(script.failure().is_none());
    assert!(script.sockets.channel(A).closing);
    script.lose(A);
    script.tick_at(SECOND);
    script.subscribe(A, StartAt::Offset(2), 2, 5);
    script.feed(A, &batches(5, 100)[2 * each..]);
    assert_eq!(script.taken(), [(2, 1, 0), (3, 1, 0), (4, 1, 0)]);
}

#[test]
fn batches_of_all_sizes_come_in_whatever_pieces() {
    let sizes = [10, 70_000, 300, 20_000, 20_000, 1, 300_000, 60_000, 5];
    let mut bytes = Vec::new();
    for (base, size) in sizes.into_iter().enumerate() {
        bytes.extend(batch(base as u64, TOPIC, &[&vec![base as u8; size]]));
    }
    for piece in [1000, 4096, 100_000, 1 << 20] {
        let mut script = open();
        let mut seen = Vec::new();
        for part in bytes.chunks(piece) {
            let mut rest = part;
            // Each time all buffers come back.
            for _ in 0..=sizes.len() {
                rest = script.feed(A, rest);
                for delivered in &script.delivered {
                    for (header, payload) in delivered.batches() {
                        assert!(header.check_payload(payload).is_ok());
                    }
                }
                seen.extend(script.taken());
            }
            assert!(rest.is_empty());
        }
        let expected: Vec<_> = (0..sizes.len() as u64).map(|base| (base, 1, 0)).collect();
        assert_eq!(seen, expected, "pieces of {piece}");
    }
}
