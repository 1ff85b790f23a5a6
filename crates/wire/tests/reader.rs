//! The frame reader: any cut of the stream gives the same frames, limits come before memory.

use embar_wire::ack::encode_ack;
use embar_wire::batch::{Batch, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::{Control, Goodbye, encode};
use embar_wire::decode::{Event, FrameReader};
use embar_wire::error::{DecodeError, FrameError};
use embar_wire::frame::{FrameHeader, FrameId};
use embar_wire::limits::{Limits, MAX_ACK_BYTES, MAX_BATCH_BYTES, MAX_CONTROL_BYTES};
use proptest::prelude::*;

fn batch(values: usize, sequence: u64) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Vec::new(), 8192);
    for value in 0..values {
        builder.try_push(None, &[], &[value as u8; 50]).unwrap();
    }
    builder.seal(SealFields {
        sequence,
        ..SealFields::default()
    })
}

/// A stream with all kinds of frames, and its frames.
fn stream() -> (Vec<u8>, Vec<String>) {
    let mut bytes = Vec::new();
    let reason = "x".repeat(3000);
    encode(&Control::Ping, &mut bytes).unwrap();
    bytes.extend(batch(1, 10));
    bytes.extend(batch(40, 11));
    encode_ack(5, None, &[1, 2, 3], &mut bytes);
    encode(&Control::Goodbye(Goodbye { reason }), &mut bytes).unwrap();
    bytes.extend(batch(3, 12));
    encode(&Control::Pong, &mut bytes).unwrap();
    let frames = [
        "Ping",
        "batch 10 of 1",
        "batch 11 of 40",
        "ack 5 [1, 2, 3]",
        "Goodbye 3000",
        "batch 12 of 3",
        "Pong",
    ];
    (bytes, frames.map(String::from).to_vec())
}

/// Feeds `bytes` in pieces of at most the sizes given, in turn, and tells what came.
fn read(bytes: &[u8], read_ahead: usize, pieces: &[usize], lend: bool) -> Vec<String> {
    let mut reader = FrameReader::new(Limits::default(), read_ahead);
    let mut rest = bytes;
    let mut found = Vec::new();
    let mut payload = None;
    let mut pieces = pieces.iter().cycle();
    loop {
        match reader.next().expect("a valid stream") {
            Some(Event::Control(Control::Goodbye(body))) => {
                found.push(format!("Goodbye {}", body.reason.len()));
            }
            Some(Event::Control(message)) => found.push(format!("{message:?}")),
            Some(Event::Ack(ack)) => {
                let offsets: Vec<u64> = ack.base_offsets().collect();
                found.push(format!("ack {} {offsets:?}", ack.first()));
            }
            Some(Event::Batch { header, early }) => {
                assert!(read_ahead > 64 || early.is_empty());
                payload = Some((header, early.to_vec()));
            }
            None => {
                if rest.is_empty() {
                    assert_eq!((reader.buffered(), reader.payload_due()), (0, 0));
                    return found;
                }
                let piece = *pieces.next().unwrap();
                if reader.payload_due() > 0 {
                    let bytes = piece.min(reader.payload_due());
                    let (now, after) = rest.split_at(bytes);
                    payload.as_mut().unwrap().1.extend_from_slice(now);
                    rest = after;
                    reader.payload_received(bytes);
                } else if lend {
                    let (mut buffer, space) = reader.lend();
                    let bytes = piece.min(space.len()).min(rest.len());
                    let (now, after) = rest.split_at(bytes);
                    buffer[space][..bytes].copy_from_slice(now);
                    rest = after;
                    reader.give_back(buffer, bytes);
                } else {
                    let space = reader.space();
                    assert!(!space.is_empty());
                    let bytes = piece.min(space.len()).min(rest.len());
                    let (now, after) = rest.split_at(bytes);
                    space[..bytes].copy_from_slice(now);
                    rest = after;
                    reader.received(bytes);
                }
            }
        }
        if reader.payload_due() == 0
            && let Some((header, payload)) = payload.take()
        {
            let batch = Batch::new(header, &payload).expect("the payload is whole");
            let messages = batch.messages().filter(Result::is_ok).count();
            found.push(format!("batch {} of {messages}", header.sequence()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn any_cut_gives_the_same_frames(
        read_ahead in 0usize..5000,
        pieces in proptest::collection::vec(1usize..3000, 1..20),
        lend in any::<bool>(),
    ) {
        let (bytes, frames) = stream();
        prop_assert_eq!(read(&bytes, read_ahead, &pieces, lend), frames);
    }
}

#[test]
fn byte_by_byte_and_all_at_once() {
    let (bytes, frames) = stream();
    assert_eq!(read(&bytes, 64, &[1], false), frames);
    assert_eq!(read(&bytes, 1 << 20, &[usize::MAX], true), frames);
}

fn first_error(header: FrameHeader, limits: Limits) -> Option<DecodeError> {
    let mut reader = FrameReader::new(limits, 64);
    reader.space()[..8].copy_from_slice(&header.to_bytes());
    reader.received(8);
    reader.next().err()
}

#[test]
fn limits_are_checked_on_the_header_alone() {
    let limits = Limits::new(1000, 2048);
    for (id, body) in [
        (FrameId::Hello, 1000),
        (FrameId::Batch, 2040),
        (FrameId::Ack, MAX_ACK_BYTES),
    ] {
        assert_eq!(first_error(FrameHeader::new(id, body), limits), None);
        let error = first_error(FrameHeader::new(id, body + 1), limits);
        assert!(
            matches!(error, Some(DecodeError::Frame(FrameError::TooLarge { .. }))),
            "{id:?} {error:?}"
        );
        assert!(first_error(FrameHeader::new(id, u32::MAX), limits).is_some());
    }
    let short = FrameHeader::new(FrameId::Batch, 55);
    assert!(matches!(
        first_error(short, limits),
        Some(DecodeError::Frame(FrameError::TooShort { .. }))
    ));
    let unknown = FrameHeader {
        length: 0,
        id: 999,
        flags: 0,
    };
    assert!(first_error(unknown, limits).is_some());
    let flagged = FrameHeader {
        flags: 1,
        ..FrameHeader::new(FrameId::Ping, 0)
    };
    assert!(first_error(flagged, limits).is_some());
    let wild = Limits {
        max_control_bytes: u32::MAX,
        max_batch_bytes: u32::MAX,
    };
    assert!(
        first_error(
            FrameHeader::new(FrameId::Hello, MAX_CONTROL_BYTES + 1),
            wild
        )
        .is_some()
    );
    assert!(first_error(FrameHeader::new(FrameId::Batch, MAX_BATCH_BYTES), wild).is_some());
}

#[test]
fn memory_follows_the_bytes_and_not_the_length_field() {
    let mut reader = FrameReader::new(Limits::default(), 64);
    let header = FrameHeader::new(FrameId::Goodbye, MAX_CONTROL_BYTES);
    reader.space()[..8].copy_from_slice(&header.to_bytes());
    reader.received(8);
    let mut arrived = 8;
    while arrived < 4000 {
        assert!(reader.next().unwrap().is_none());
        let (buffer, space) = reader.lend();
        assert!(
            buffer.len() <= 64.max(2 * arrived),
            "{} for {arrived}",
            buffer.len()
        );
        let bytes = space.len().min(100);
        reader.give_back(buffer, bytes);
        arrived += bytes;
    }
}

#[test]
fn memory_of_a_large_frame_is_given_back() {
    let mut reader = FrameReader::new(Limits::default(), 64);
    let mut bytes = Vec::new();
    let reason = "x".repeat(100_000);
    encode(&Control::Goodbye(Goodbye { reason }), &mut bytes).unwrap();
    let mut rest = &bytes[..];
    while reader.next().unwrap().is_none() {
        let space = reader.space();
        let (now, after) = rest.split_at(space.len().min(rest.len()));
        space[..now.len()].copy_from_slice(now);
        rest = after;
        reader.received(now.len());
    }
    assert!(rest.is_empty());
    assert_eq!(reader.lend().0.capacity(), 64);
}
