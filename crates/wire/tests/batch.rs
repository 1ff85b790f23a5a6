//! Batches: what goes into a builder comes out of the views, and damage is found.

use embar_frame::{Now, crc32c};
use embar_memory::Buffer;
use embar_wire::batch::BatchError;
use embar_wire::batch::{Batch, BatchFlags, BatchHeader, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::limits::{DEFAULT_BATCH_BYTES, MAX_BATCH_BYTES, MAX_HEADERS_BYTES, MAX_KEY_BYTES};
use embar_wire::message::{Header, Messages};
use embar_wire::message::{MessageError, PushError};
use embar_wire::time::WallNs;
use proptest::prelude::*;

#[derive(Clone, Debug, PartialEq)]
struct Message {
    key: Option<Vec<u8>>,
    headers: Vec<(String, Vec<u8>)>,
    value: Vec<u8>,
}

prop_compose! {
    fn message()(
        key in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40)),
        headers in proptest::collection::vec((".{0,8}", proptest::collection::vec(any::<u8>(), 0..20)), 0..3),
        value in proptest::collection::vec(any::<u8>(), 0..300),
    ) -> Message {
        Message { key, headers, value }
    }
}

fn push(builder: &mut BatchBuilder, message: &Message) -> Result<u32, PushError> {
    let headers: Vec<Header<'_>> = message
        .headers
        .iter()
        .map(|(name, value)| Header { name, value })
        .collect();
    builder.try_push(message.key.as_deref(), &headers, &message.value)
}

fn read(batch: &Batch<'_>) -> Vec<Message> {
    batch
        .messages()
        .enumerate()
        .map(|(index, message)| {
            let message = message.expect("a sealed batch reads back");
            assert_eq!(message.index as usize, index);
            Message {
                key: message.key.map(<[u8]>::to_vec),
                headers: message
                    .headers
                    .map(|header| (header.name.to_owned(), header.value.to_vec()))
                    .collect(),
                value: message.value.to_vec(),
            }
        })
        .collect()
}

fn one_message(value: &[u8]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Vec::new(), 1024);
    builder.try_push(None, &[], value).unwrap();
    builder.seal(SealFields::default()).into()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn messages_round_trip_over_reused_buffers(
        messages in proptest::collection::vec(message(), 1..60),
        capacity in 700usize..8000,
    ) {
        let mut log = Vec::new();
        let mut buffer = Buffer::from(vec![0xEE; 333]);
        let mut expected = messages.iter();
        let mut next = expected.next();
        let mut sequence = 0;
        while next.is_some() {
            let mut builder = BatchBuilder::new(buffer, capacity);
            while let Some(message) = next {
                match push(&mut builder, message) {
                    Ok(_) => next = expected.next(),
                    Err(error) => {
                        prop_assert_eq!(error, PushError::Full);
                        break;
                    }
                }
            }
            let len = builder.len();
            prop_assert!(len <= builder.capacity() && builder.capacity() <= capacity);
            buffer = builder.seal(SealFields { sequence, ..SealFields::default() });
            prop_assert_eq!(buffer.len(), len);
            prop_assert_eq!(len % 64, 0);
            sequence += 1;
            log.extend_from_slice(&buffer);
        }

        let mut found = Vec::new();
        let mut rest = &log[..];
        for expected in 0..sequence {
            let (batch, after) = Batch::split_first(rest, MAX_BATCH_BYTES).unwrap();
            prop_assert_eq!(batch.header().sequence(), expected);
            found.extend(read(&batch));
            rest = after;
        }
        prop_assert!(rest.is_empty());
        prop_assert_eq!(found, messages);
    }

    #[test]
    fn any_flipped_bit_is_found(at in 0usize..128, bit in 0u8..8) {
        let mut frame = one_message(b"0123456789");
        frame[at] ^= 1 << bit;
        prop_assert!(Batch::split_first(&frame, MAX_BATCH_BYTES).is_err());
    }
}

#[test]
fn a_full_batch_says_so_and_stays_as_it_was() {
    let mut builder = BatchBuilder::new(Vec::new(), 256);
    // 192 bytes of payload take eight records of 8 + 16.
    for index in 0..8 {
        assert_eq!(builder.try_push(None, &[], &[index; 16]), Ok(index.into()));
    }
    assert_eq!(builder.try_push(None, &[], &[9; 1]), Err(PushError::Full));
    assert_eq!(builder.reserve(1).unwrap_err(), PushError::Full);
    assert_eq!((builder.count(), builder.len()), (8, 256));
    let frame = builder.seal(SealFields::default());
    assert_eq!(frame.len(), 256);
    let (batch, _) = Batch::split_first(&frame, 256).unwrap();
    assert_eq!(batch.messages().filter(Result::is_ok).count(), 8);
}

#[test]
fn what_no_batch_takes_is_told_apart_from_full() {
    let mut builder = BatchBuilder::new(Vec::new(), 256);
    let largest = [0; 184];
    assert_eq!(
        builder.try_push(None, &[], &[0; 185]),
        Err(PushError::TooLarge {
            bytes: 193,
            limit: 192
        })
    );
    assert!(builder.reserve(usize::MAX).is_err());
    let key = vec![0; MAX_KEY_BYTES + 1];
    assert_eq!(
        builder.try_push(Some(&key), &[], b""),
        Err(PushError::KeyTooLong { bytes: 65535 })
    );
    let name = "n".repeat(256);
    let header = Header {
        name: &name,
        value: b"",
    };
    assert_eq!(
        builder.try_push(None, &[header], b""),
        Err(PushError::HeaderNameTooLong { bytes: 256 })
    );
    let value = vec![0; MAX_HEADERS_BYTES];
    let header = Header {
        name: "",
        value: &value,
    };
    assert_eq!(
        builder.try_push(None, &[header], b""),
        Err(PushError::HeadersTooLong {
            bytes: MAX_HEADERS_BYTES + 3
        })
    );
    assert!(builder.is_empty());
    assert_eq!(builder.try_push(None, &[], &largest), Ok(0));
}

#[test]
fn longest_key_and_headers_fit() {
    let mut builder = BatchBuilder::new(Vec::new(), DEFAULT_BATCH_BYTES as usize);
    let (key, value) = (vec![1; MAX_KEY_BYTES], vec![2; MAX_HEADERS_BYTES - 3 - 255]);
    let name = "n".repeat(255);
    let header = Header {
        name: &name,
        value: &value,
    };
    builder.try_push(Some(&key), &[header], b"v").unwrap();
    let frame = builder.seal(SealFields::default());
    let (batch, _) = Batch::split_first(&frame, MAX_BATCH_BYTES).unwrap();
    let message = batch.messages().next().unwrap().unwrap();
    assert_eq!(message.key, Some(&key[..]));
    assert_eq!(message.headers.collect::<Vec<_>>(), [header]);
    assert_eq!(message.value, b"v");
}

#[test]
fn a_dropped_reservation_adds_nothing() {
    let mut builder = BatchBuilder::new(vec![0xEE; 1024], 1024);
    builder.reserve(100).unwrap().fill(0xCC);
    assert!(builder.is_empty());

    let headers = [Header {
        name: "a",
        value: b"b",
    }];
    let mut reserved = builder.reserve_with(Some(b"k"), &headers, 100).unwrap();
    reserved[..5].copy_from_slice(b"hello");
    reserved.shrink(5);
    assert_eq!(&*reserved, b"hello");
    assert_eq!(reserved.commit(), 0);
    builder.try_push(None, &[], b"next").unwrap();

    let frame = builder.seal(SealFields::default());
    let (batch, _) = Batch::split_first(&frame, 1024).unwrap();
    let messages = read(&batch);
    assert_eq!(messages[0].value, b"hello");
    assert_eq!(messages[0].key.as_deref(), Some(&b"k"[..]));
    assert_eq!(messages[1].value, b"next");
    // Nothing of what was there before is sent.
    assert!(!frame[64..].iter().any(|&byte| byte == 0xCC || byte == 0xEE));
}

#[test]
fn a_buffer_is_never_reallocated() {
    let mut buffer = Buffer::from(Vec::with_capacity(4096));
    let address = buffer.as_ptr();
    for round in 0..3 {
        let mut builder = BatchBuilder::new(buffer, 4096);
        while builder.try_push(None, &[], &[round; 40]).is_ok() {}
        buffer = builder.seal(SealFields::default());
        assert_eq!(buffer.as_ptr(), address);
    }
}

#[test]
fn first_at_is_when_the_first_message_came() {
    let mut builder = BatchBuilder::new(Vec::new(), 1024);
    assert_eq!(builder.first_at(), None);
    builder.mark_first(Now(5));
    builder.mark_first(Now(9));
    assert_eq!(builder.first_at(), Some(Now(5)));
}

/// A header with a valid checksum whose bytes were changed by `change`.
fn forged(change: impl FnOnce(&mut [u8])) -> Result<BatchHeader, BatchError> {
    let mut frame = one_message(b"x");
    change(&mut frame);
    frame[8..12].fill(0);
    let crc = crc32c(&frame[..64]);
    frame[8..12].copy_from_slice(&crc.to_le_bytes());
    BatchHeader::parse(&frame, 1 << 20)
}

#[test]
fn rules_hold_even_with_a_valid_checksum() {
    assert!(forged(|_| ()).is_ok());
    assert_eq!(forged(|b| b[4] = 2), Err(BatchError::NotABatch { id: 2 }));
    assert_eq!(forged(|b| b[6] = 1), Err(BatchError::Reserved));
    for flags in [1u16, 8, 64, 0x400] {
        assert_eq!(
            forged(|b| b[56..58].copy_from_slice(&flags.to_le_bytes())),
            Err(BatchError::UnknownFlags { flags })
        );
    }
    for (length, bytes) in [
        (0u32, 0),
        (56, 0),
        (57, 1),
        (121, 65),
        (1 << 20, (1 << 20) - 56),
    ] {
        assert_eq!(
            forged(|b| b[..4].copy_from_slice(&length.to_le_bytes())),
            Err(BatchError::PayloadLength { bytes })
        );
    }
    assert!(forged(|b| b[..4].fill(0xFF)).is_err());
    for count in [0u32, 9, u32::MAX] {
        assert_eq!(
            forged(|b| b[52..56].copy_from_slice(&count.to_le_bytes())),
            Err(BatchError::MessageCount {
                count,
                payload_bytes: 64
            })
        );
    }
    assert!(forged(|b| b[52] = 8).is_ok());
}

#[test]
fn a_batch_cut_short_is_not_taken() {
    let frame = one_message(b"x");
    for len in 0..frame.len() {
        let error = Batch::split_first(&frame[..len], 1 << 20).unwrap_err();
        assert!(matches!(error, BatchError::Truncated { have, .. } if have == len));
    }
    let header = BatchHeader::parse(&frame, 1 << 20).unwrap();
    assert!(Batch::new(header, &frame[64..100]).is_err());
    assert!(BatchHeader::parse(&frame, 127).is_err());
}

#[test]
fn marking_a_resend_keeps_the_header_valid() {
    let frame = one_message(b"x");
    let mut header = BatchHeader::parse(&frame, 1 << 20).unwrap();
    header.add_flags(BatchFlags::POSSIBLE_DUPLICATE);
    header.stamp(41, WallNs(42));
    let again = BatchHeader::parse(header.as_bytes(), 1 << 20).unwrap();
    assert!(again.flags().contains(BatchFlags::POSSIBLE_DUPLICATE));
    assert_eq!((again.base_offset(), again.append_time()), (41, WallNs(42)));
    assert_eq!(again.check_payload(&frame[64..]), Ok(()));
}

#[test]
fn records_that_lie_end_the_messages() {
    let record = |value: u32, key: u16, headers: u16| {
        let mut bytes = vec![0; 64];
        bytes[..4].copy_from_slice(&value.to_le_bytes());
        bytes[4..6].copy_from_slice(&key.to_le_bytes());
        bytes[6..8].copy_from_slice(&headers.to_le_bytes());
        bytes
    };
    for (value, key, headers) in [(57, 0xFFFF, 0), (u32::MAX, 0xFFFE, 0xFFFF), (0, 57, 0)] {
        let bytes = record(value, key, headers);
        let mut messages = Messages::new(&bytes, 3);
        assert!(matches!(
            messages.next(),
            Some(Err(MessageError::Truncated { index: 0, .. }))
        ));
        assert!(messages.next().is_none());
        assert_eq!(messages.remaining(), 0);
    }
    let mut bytes = record(0, 0, 5);
    bytes[8..13].copy_from_slice(&[9, b'a', 0, 0, 0]);
    let mut messages = Messages::new(&bytes, 1);
    assert_eq!(
        messages.next().map(|m| m.map(|_| ())),
        Some(Err(MessageError::Headers { index: 0 }))
    );
    assert!(messages.next().is_none());
}

#[test]
fn more_messages_than_counted_are_found() {
    let mut builder = BatchBuilder::new(Vec::new(), 1024);
    builder.try_push(None, &[], b"one").unwrap();
    builder.try_push(None, &[], b"two").unwrap();
    let frame = builder.seal(SealFields::default());
    let mut messages = Messages::new(&frame[64..], 1);
    assert!(messages.next().unwrap().is_ok());
    assert!(matches!(
        messages.next(),
        Some(Err(MessageError::Trailing { bytes: 48 }))
    ));
    assert!(messages.next().is_none());
}

#[test]
#[should_panic(expected = "empty batch")]
fn an_empty_batch_is_not_sealed() {
    let _ = BatchBuilder::new(Vec::new(), 1024).seal(SealFields::default());
}
