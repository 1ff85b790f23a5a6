//! Frames about bodies in lanes, as a peer that is no core writes them.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub const BODY_BEGIN: u16 = 0xFF08;
pub const BODY_CHUNK: u16 = 0xFF09;
pub const BODY_TAKEN: u16 = 0xFF0A;
pub const BODY_REFUSED: u16 = 0xFF0B;
pub const BODY_CANCELLED: u16 = 0xFF0C;

fn frame(id: u16, content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u32).to_le_bytes();
    [&length, &id.to_le_bytes()[..], &[0, 0], content].concat()
}

fn varint(out: &mut Vec<u8>, field: u8, mut value: u64) {
    out.push(field << 3);
    while value > 0x7F {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A body of a message with id 5, with the flag for bodies, that begins.
pub fn begin(lane: u32, number: u64, length: u64, head: &[u8]) -> Vec<u8> {
    begin_with(lane, number, (5, 1), length, head)
}

pub fn begin_with(
    lane: u32,
    number: u64,
    (id, flags): (u32, u32),
    length: u64,
    head: &[u8],
) -> Vec<u8> {
    let mut content = Vec::new();
    let fields = [lane.into(), number, id.into(), flags.into(), length];
    for (field, value) in (1..).zip(fields) {
        varint(&mut content, field, value);
    }
    assert!(head.len() < 128, "its length is one byte");
    content.extend_from_slice(&[6 << 3 | 2, head.len() as u8]);
    content.extend_from_slice(head);
    frame(BODY_BEGIN, &content)
}

pub fn chunk(lane: u32, bytes: &[u8]) -> Vec<u8> {
    frame(BODY_CHUNK, &[&lane.to_le_bytes()[..], bytes].concat())
}

pub fn taken(number: u64) -> Vec<u8> {
    let mut content = Vec::new();
    varint(&mut content, 1, number);
    frame(BODY_TAKEN, &content)
}

pub fn refused(number: u64) -> Vec<u8> {
    let mut content = Vec::new();
    varint(&mut content, 1, number);
    frame(BODY_REFUSED, &content)
}

pub fn cancelled(lane: u32) -> Vec<u8> {
    let mut content = Vec::new();
    varint(&mut content, 1, lane.into());
    frame(BODY_CANCELLED, &content)
}
