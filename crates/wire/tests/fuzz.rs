//! Hostile bytes for every decoder: whatever comes, it returns, and what it accepts is consistent.
//!
//! Under plain `cargo test` each target runs a second or less; `cargo xtask fuzz` runs them on.

use embar_frame::{FrameHeader, Protocol, Shape, crc32c};
use embar_wire::ack::{Ack, encode_ack};
use embar_wire::batch::{Batch, BatchHeader};
use embar_wire::control::{Hello, Welcome, decode, encode};
use embar_wire::frame::{FrameId, LogProtocol};
use embar_wire::limits::{Limits, MAX_ACK_BYTES, MAX_BATCH_BYTES};
use embar_wire::message::Messages;
use embar_wire::topic::check_topic_name;

#[test]
fn messages() {
    bolero::check!()
        .with_type::<(u32, Vec<u8>)>()
        .for_each(|(count, payload)| read_all(payload, *count));
}

fn read_all(payload: &[u8], count: u32) {
    let mut bytes = 0;
    let mut errors = 0;
    for (index, message) in Messages::new(payload, count).enumerate() {
        assert_eq!(errors, 0, "nothing comes after an error");
        match message {
            Ok(message) => {
                assert_eq!(message.index as usize, index);
                bytes += 8 + message.value.len() + message.key.map_or(0, <[u8]>::len);
                for header in message.headers {
                    bytes += 3 + header.name.len() + header.value.len();
                }
            }
            Err(_) => errors += 1,
        }
    }
    assert!(bytes <= payload.len());
}

#[test]
fn batch_as_it_comes() {
    bolero::check!().for_each(|input: &[u8]| {
        let _ = Batch::split_first(input, MAX_BATCH_BYTES);
    });
}

#[test]
fn batch_with_valid_checksums() {
    bolero::check!().for_each(|input: &[u8]| {
        let mut frame = input.to_vec();
        if frame.len() < 64 {
            return;
        }
        let (header, payload) = frame.split_at_mut(64);
        let length = 56 + payload.len() as u32;
        header[..8].copy_from_slice(&FrameHeader::new(FrameId::Batch, length).to_bytes());
        header[12..16].copy_from_slice(&crc32c(payload).to_le_bytes());
        header[53..60].fill(0);
        header[8..12].fill(0);
        let crc = crc32c(header);
        header[8..12].copy_from_slice(&crc.to_le_bytes());
        if let Ok((batch, rest)) = Batch::split_first(&frame, MAX_BATCH_BYTES) {
            assert!(rest.is_empty());
            read_all(batch.payload(), batch.header().message_count());
            let again = BatchHeader::parse(batch.header().as_bytes(), MAX_BATCH_BYTES);
            assert_eq!(again.as_ref(), Ok(batch.header()));
        }
    });
}

#[test]
fn ack() {
    bolero::check!().for_each(|input: &[u8]| {
        if let Ok(ack) = Ack::parse(input) {
            let offsets: Vec<u64> = ack.base_offsets().collect();
            assert_eq!(offsets.len(), ack.count() as usize);
            let mut out = Vec::new();
            encode_ack(ack.first(), ack.refused(), &offsets, &mut out);
            assert_eq!(out.len(), 8 + input.len() + 4);
        }
    });
}

#[test]
fn control() {
    bolero::check!()
        .with_type::<(u8, Vec<u8>)>()
        .for_each(|(id, body)| {
            let id = FrameId::ALL[usize::from(*id) % FrameId::ALL.len()];
            if let Ok(message) = decode(id, body) {
                let mut out = Vec::new();
                encode(&message, &mut out).expect("what came in can go out");
                assert_eq!(decode(id, &out[8..out.len() - 4]), Ok(message));
            }
        });
}

#[test]
fn greetings() {
    bolero::check!().for_each(|input: &[u8]| {
        if let Ok(hello) = Hello::from_greeting(input) {
            assert_eq!(Hello::from_greeting(&hello.to_greeting()), Ok(hello));
        }
        if let Ok(welcome) = Welcome::from_greeting(input) {
            assert_eq!(Welcome::from_greeting(&welcome.to_greeting()), Ok(welcome));
        }
    });
}

/// The session layer asks for a frame's shape before anything of it but the header is there.
#[test]
fn shapes() {
    bolero::check!()
        .with_type::<(u32, u16, u16, u32)>()
        .for_each(|(length, id, flags, max_batch_bytes)| {
            let limits = Limits::new(512, *max_batch_bytes);
            let header = FrameHeader {
                length: *length,
                id: *id,
                flags: *flags,
            };
            match (LogProtocol { limits }).shape(header) {
                Ok(Shape::Whole) => assert!(*length <= MAX_ACK_BYTES.max(512)),
                Ok(Shape::Body { head }) => {
                    assert!(head <= *length && header.frame_bytes() <= *max_batch_bytes as usize);
                }
                Ok(Shape::HeadThenBody) => panic!("no frame of the log has this shape"),
                Err(_) => {}
            }
        });
}

#[test]
fn topic_names() {
    bolero::check!()
        .with_type::<String>()
        .for_each(|name: &String| {
            if check_topic_name(name).is_ok() {
                assert!(!name.is_empty() && name.len() <= 249 && !name.contains('/'));
            }
        });
}
