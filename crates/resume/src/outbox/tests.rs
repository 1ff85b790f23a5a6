//! That a replay buffer keeps what is not acknowledged, in order and within its bounds.

use super::*;

fn outbox(max_messages: u32, max_bytes: usize) -> Outbox {
    Outbox::new(0, max_messages, max_bytes, None)
}

fn put(outbox: &mut Outbox, content: &[u8]) -> Result<(), OutboxError> {
    outbox.append(7, content.len(), |to| to.extend_from_slice(content))
}

fn write_all(outbox: &mut Outbox) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some((id, content)) = outbox.next_unwritten() {
        assert_eq!(id, 7);
        all.push(content.to_vec());
        outbox.wrote();
    }
    all
}

#[test]
fn what_was_not_acknowledged_is_written_again() {
    let mut outbox = outbox(100, 1 << 20);
    for number in 0..10u8 {
        put(&mut outbox, &[number]).unwrap();
    }
    assert_eq!(write_all(&mut outbox).len(), 10);
    assert_eq!(outbox.ack(4), Ok(4));
    outbox.resume(6).unwrap();
    let again: Vec<Vec<u8>> = (6..10).map(|number| vec![number]).collect();
    assert_eq!(write_all(&mut outbox), again);
    assert_eq!((outbox.len(), outbox.in_doubt()), (4, 4));
    assert_eq!(outbox.ack(10), Ok(4));
    assert!(outbox.is_empty());
    assert_eq!(outbox.bytes(), 0);
}

#[test]
fn messages_that_grow_leave_no_memory_behind() {
    const MOST: usize = 256 << 10;
    let mut outbox = outbox(100, MOST);
    put(&mut outbox, b"x").unwrap();
    // Each is longer than all memory that the ones before it left, and one is always unacknowledged.
    for len in 17_000..17_200 {
        put(&mut outbox, &vec![1; len]).unwrap();
        write_all(&mut outbox);
        outbox.ack(outbox.next - 1).unwrap();
        assert!(outbox.memory() <= 2 * MOST + SEGMENT_BYTES, "{len}");
    }
}

#[test]
fn messages_that_are_not_taken_leave_no_memory_behind() {
    const MOST: usize = 256 << 10;
    let bound = 2 * MOST + SEGMENT_BYTES;
    let mut outbox = outbox(100, MOST);
    put(&mut outbox, b"sent").unwrap();
    outbox.wrote();
    for len in 17_000..17_100 {
        outbox.reserve(len).unwrap();
        assert!(outbox.memory() <= bound, "{len}");
    }
    for len in 17_100..17_200 {
        put(&mut outbox, &vec![1; len]).unwrap();
        assert!(outbox.next_unwritten().is_some());
        outbox.take_back();
        assert!(outbox.memory() <= bound, "{len}");
    }
    put(&mut outbox, b"next").unwrap();
    assert_eq!(write_all(&mut outbox), [b"next".to_vec()]);
    outbox.ack(2).unwrap();
    assert_eq!(outbox.bytes(), 0);
}

#[test]
fn acknowledgements_beyond_what_was_sent_or_backwards_change_nothing() {
    let mut outbox = outbox(100, 1 << 20);
    for _ in 0..5 {
        put(&mut outbox, b"x").unwrap();
    }
    outbox.wrote();
    outbox.wrote();
    outbox.ack(1).unwrap();
    for told in [0, 3, 5, 6, u64::MAX, u64::MAX / 2] {
        let refused = outbox.ack(told).unwrap_err();
        assert_eq!((refused.acked, refused.written), (1, 2), "{told}");
        assert_eq!(outbox.resume(told), Err(refused));
        assert_eq!(outbox.len(), 4);
    }
    assert_eq!(outbox.ack(1), Ok(0), "the same again is fine");
    assert_eq!(outbox.ack(2), Ok(1));
}

#[test]
fn messages_and_bytes_are_bounded_and_acknowledgements_make_room() {
    let mut few = outbox(2, 1 << 20);
    put(&mut few, b"1").unwrap();
    put(&mut few, b"2").unwrap();
    assert_eq!(put(&mut few, b"3"), Err(OutboxError::Full));
    write_all(&mut few);
    few.ack(1).unwrap();
    put(&mut few, b"3").unwrap();
    let mut small = outbox(1000, 100);
    put(&mut small, &[0; 92]).unwrap();
    assert_eq!(put(&mut small, b""), Err(OutboxError::Full));
    assert_eq!(
        put(&mut small, &[0; 93]),
        Err(OutboxError::TooLong { max: 92 })
    );
    write_all(&mut small);
    small.ack(1).unwrap();
    put(&mut small, &[1; 92]).unwrap();
    assert_eq!(write_all(&mut small), [vec![1; 92]]);
}

#[test]
fn memory_counts_in_the_budget_and_its_limit_is_one() {
    let budget = MemoryBudget::new(2 * SEGMENT_BYTES);
    let mut outbox = Outbox::new(0, 1000, 1 << 20, Some(budget.clone()));
    let large = [0; SEGMENT_BYTES - MESSAGE_HEADER_BYTES];
    assert_eq!(budget.used(), 0);
    put(&mut outbox, &large).unwrap();
    put(&mut outbox, &large).unwrap();
    assert_eq!(budget.used(), 2 * SEGMENT_BYTES);
    assert_eq!(outbox.memory(), 2 * SEGMENT_BYTES);
    assert_eq!(put(&mut outbox, b"x"), Err(OutboxError::Full));
    write_all(&mut outbox);
    outbox.ack(2).unwrap();
    put(&mut outbox, b"x").unwrap();
    write_all(&mut outbox);
    outbox.ack(3).unwrap();
    assert_eq!(budget.used(), SEGMENT_BYTES, "a burst's memory goes back");
    outbox.clear();
    assert_eq!(budget.used(), 0);
}

#[test]
fn messages_longer_than_a_segment_have_one_of_their_own() {
    let mut outbox = outbox(100, 1 << 20);
    let sizes = [1, SEGMENT_BYTES, 3, 5 * SEGMENT_BYTES, 0, 2];
    for _ in 0..3 {
        for (index, size) in sizes.iter().enumerate() {
            put(&mut outbox, &vec![index as u8; *size]).unwrap();
        }
        for (index, content) in write_all(&mut outbox).iter().enumerate() {
            assert_eq!(content, &vec![index as u8; sizes[index]]);
        }
        let all = outbox.written;
        outbox.ack(all).unwrap();
    }
}

#[test]
fn an_encoder_that_lies_or_panics_leaves_nothing() {
    let mut outbox = outbox(100, 1 << 20);
    put(&mut outbox, b"before").unwrap();
    for lie in [0, 1, 3, 100_000] {
        let filled = outbox.append(7, 2, |to| to.resize(to.len() + lie, 9));
        assert_eq!(filled, Err(OutboxError::Encoding));
    }
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = outbox.append(7, 2, |_| panic!("an encoder"));
    }));
    assert!(panicked.is_err());
    put(&mut outbox, b"behind").unwrap();
    assert_eq!(
        write_all(&mut outbox),
        [b"before".to_vec(), b"behind".to_vec()]
    );
}

#[test]
fn what_no_connection_has_can_be_taken_back() {
    let mut outbox = outbox(100, 1 << 20);
    put(&mut outbox, b"sent").unwrap();
    outbox.wrote();
    put(&mut outbox, b"not").unwrap();
    outbox.take_back();
    assert_eq!((outbox.len(), outbox.unwritten()), (1, 0));
    put(&mut outbox, b"next").unwrap();
    assert_eq!(write_all(&mut outbox), [b"next".to_vec()]);
    outbox.ack(2).unwrap();
    assert_eq!(outbox.bytes(), 0);
}

#[test]
fn after_a_restart_numbers_begin_at_0_with_or_without_what_is_in_doubt() {
    for (send_again, left) in [(true, [1u8, 2, 3].as_slice()), (false, &[3])] {
        let mut outbox = outbox(100, 1 << 20);
        for number in 0..4u8 {
            put(&mut outbox, &[number]).unwrap();
        }
        (0..3).for_each(|_| outbox.wrote());
        outbox.ack(1).unwrap();
        assert_eq!(outbox.restart(send_again), 2);
        let expected: Vec<Vec<u8>> = left.iter().map(|&number| vec![number]).collect();
        assert_eq!(write_all(&mut outbox), expected);
        assert_eq!(outbox.ack(left.len() as u64), Ok(left.len() as u64));
        assert!(outbox.is_empty());
    }
}

#[test]
fn numbers_wrap() {
    let mut outbox = Outbox::new(u64::MAX - 1, 100, 1 << 20, None);
    for number in 0..4u8 {
        put(&mut outbox, &[number]).unwrap();
    }
    outbox.wrote();
    outbox.wrote();
    assert_eq!((outbox.first_unwritten(), outbox.next_number()), (0, 2));
    let written = [u64::MAX - 1, u64::MAX, 0, 1, 2].map(|number| outbox.has_written(number));
    assert_eq!(written, [true, true, true, false, false]);
    write_all(&mut outbox);
    assert!(outbox.has_written(2));
    assert!(outbox.ack(u64::MAX - 2).is_err());
    assert!(outbox.ack(3).is_err());
    assert_eq!(outbox.ack(u64::MAX), Ok(1));
    outbox.resume(0).unwrap();
    assert_eq!(write_all(&mut outbox), [[2], [3]]);
    assert_eq!(outbox.ack(2), Ok(2));
}
