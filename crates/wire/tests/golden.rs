//! The bytes themselves: a change here is a change of the protocol.

use embar_frame::{FrameHeader, Protocol, crc32c};
use embar_wire::ack::{Ack, ack_len, encode_ack, write_ack};
use embar_wire::batch::{BatchFlags, BatchHeader, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::{Control, DeleteTopic, ErrorCode, Hello, Role, Welcome, encode};
use embar_wire::frame::{FrameId, LogProtocol};
use embar_wire::message::Header;
use embar_wire::time::WallNs;

#[test]
fn frame_header() {
    let header = FrameHeader::new(FrameId::Subscribe, 0x0102_0304);
    assert_eq!(header.to_bytes(), [4, 3, 2, 1, 34, 0, 0, 0]);
    assert_eq!(FrameHeader::parse(&header.to_bytes()), header);
}

fn sealed() -> Vec<u8> {
    let mut builder = BatchBuilder::new(vec![0xEE; 500], 1000);
    builder.try_push(None, &[], b"abc").unwrap();
    let headers = [Header {
        name: "h",
        value: b"v1",
    }];
    builder
        .try_push(Some(b"key"), &headers, b"0123456789")
        .unwrap();
    builder.try_push(Some(b""), &[], b"").unwrap();
    builder
        .seal(SealFields {
            producer: 0x1112_1314_1516_1718,
            sequence: 0x2122_2324_2526_2728,
            topic: 0x5152_5354,
            epoch: 0x6162_6364,
            append_time: WallNs(0x4142_4344_4546_4748),
            flags: BatchFlags::POSSIBLE_DUPLICATE,
        })
        .into()
}

#[test]
fn batch() {
    let frame = sealed();
    assert_eq!(frame.len(), 128);
    assert_eq!(frame[0..8], [120, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(frame[12..16], crc32c(&frame[64..]).to_le_bytes());
    assert_eq!(frame[16..24], 0x1112_1314_1516_1718u64.to_le_bytes());
    assert_eq!(frame[24..32], 0x2122_2324_2526_2728u64.to_le_bytes());
    assert_eq!(frame[32..40], [0; 8]);
    assert_eq!(frame[40..48], 0x4142_4344_4546_4748u64.to_le_bytes());
    assert_eq!(frame[48..52], 0x5152_5354u32.to_le_bytes());
    assert_eq!(frame[52..56], [3, 0, 0, 0]);
    assert_eq!(frame[56..60], [0, 1, 0, 0]);
    assert_eq!(frame[60..64], 0x6162_6364u32.to_le_bytes());

    let mut blank = frame[..64].to_vec();
    blank[8..12].fill(0);
    assert_eq!(frame[8..12], crc32c(&blank).to_le_bytes());
}

#[test]
fn message_records() {
    let payload = sealed().split_off(64);
    let records: &[u8] = &[
        &[3, 0, 0, 0, 0xFF, 0xFF, 0, 0][..],
        b"abc\0\0\0\0\0",
        &[10, 0, 0, 0, 3, 0, 6, 0],
        b"\x01h\x02\0v1",
        b"key",
        b"0123456789",
        b"\0\0\0\0\0",
        &[0, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    assert_eq!(payload[..records.len()], *records);
    assert!(payload[records.len()..].iter().all(|&byte| byte == 0));
}

#[test]
fn stamped_header_keeps_all_else() {
    let frame = sealed();
    let mut header = BatchHeader::parse(&frame, 1 << 20).unwrap();
    header.stamp(0x3132_3334_3536_3738, WallNs(0x4a));
    let stamped = header.as_bytes();
    assert_eq!(stamped[32..40], 0x3132_3334_3536_3738u64.to_le_bytes());
    assert_eq!(stamped[40..48], 0x4au64.to_le_bytes());
    assert_eq!(stamped[..8], frame[..8]);
    assert_eq!(stamped[12..32], frame[12..32]);
    assert_eq!(stamped[48..], frame[48..64]);
    assert_eq!(BatchHeader::parse(stamped, 1 << 20), Ok(header));
}

#[test]
fn renumbered_header_keeps_all_else() {
    let frame = sealed();
    let mut header = BatchHeader::parse(&frame, 1 << 20).unwrap();
    header.renumber(0x2a, 0x6b);
    let numbered = header.as_bytes();
    assert_eq!(numbered[24..32], 0x2au64.to_le_bytes());
    assert_eq!(numbered[60..64], 0x6bu32.to_le_bytes());
    assert_eq!(numbered[..8], frame[..8]);
    assert_eq!(numbered[12..24], frame[12..24]);
    assert_eq!(numbered[32..60], frame[32..60]);
    assert_eq!(BatchHeader::parse(numbered, 1 << 20), Ok(header));
}

#[test]
fn ack() {
    let mut out = vec![0xAA];
    encode_ack(7, None, &[1, 0x0203], &mut out);
    let expected: &[u8] = &[
        &[0xAA, 36, 0, 0, 0, 2, 0, 0, 0x80][..],
        &[7, 0, 0, 0, 0, 0, 0, 0],
        &[2, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[3, 2, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    let (frame, checksum) = out.split_at(expected.len());
    assert_eq!(frame, expected);
    assert_eq!(checksum, crc32c(&frame[1..]).to_le_bytes());

    let mut body = vec![0xAA; ack_len(2)];
    write_ack(7, None, &[1, 0x0203], &mut body);
    assert_eq!(body, expected[9..]);

    out.clear();
    encode_ack(8, Some(ErrorCode::Backpressure), &[0], &mut out);
    assert_eq!(out[20..24], [11, 0, 0, 0]);
    let ack = Ack::parse(&out[8..out.len() - 4]).unwrap();
    assert_eq!(ack.refused(), Some(ErrorCode::Backpressure));
}

#[test]
fn greetings() {
    let hello = Hello {
        role: Role::Client,
        name: "me".into(),
    };
    assert_eq!(hello.to_greeting(), b"\x18\x01\x22\x02me");
    let welcome = Welcome {
        broker_id: 1,
        incarnation: 2,
        max_control_bytes: 3,
        max_batch_bytes: 300,
        server: "x".into(),
        region: 7,
    };
    let expected = b"\x10\x01\x18\x02\x20\x03\x28\xac\x02\x32\x01x\x38\x07";
    assert_eq!(welcome.to_greeting(), expected);
}

#[test]
fn control() {
    let mut out = Vec::new();
    let name = "me".into();
    encode(&Control::DeleteTopic(DeleteTopic { name }), &mut out).unwrap();
    let expected: &[u8] = &[&[8, 0, 0, 0, 50, 0, 0, 0x80][..], b"\x0a\x02me"].concat();
    let (frame, checksum) = out.split_at(expected.len());
    assert_eq!(frame, expected);
    assert_eq!(checksum, crc32c(frame).to_le_bytes());
}

#[test]
fn the_protocol_has_a_name_and_a_version() {
    assert_eq!(LogProtocol::NAME, "embar-log");
    assert_eq!(LogProtocol::VERSION, 5);
    const { assert!(LogProtocol::CHECKED) };
}

#[test]
fn ids_are_what_they_were() {
    let ids: Vec<u16> = FrameId::ALL.iter().map(|&id| id as u16).collect();
    let expected = [
        1, 2, 18, 32, 33, 34, 35, 36, 37, 38, 39, 48, 49, 50, 51, 52, 53, 54, 55, 64, 65, 66, 67,
        68, 69, 70, 71, 72, 80, 81,
    ];
    assert_eq!(ids, expected);
    for id in FrameId::ALL {
        assert_eq!(FrameId::try_from(*id as u16), Ok(*id));
    }
}
