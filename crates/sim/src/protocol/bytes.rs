//! Makes the bytes of a batch from its identity, so that whoever reads them can tell whose they are.

use embar_fabric::{GoiRecord, PbrRecord};

/// The bytes of a batch: what it is, and then what follows from that.
pub fn batch(record: &PbrRecord) -> Vec<u8> {
    let words = 8 * (1 + record.sequence % 3);
    let session = (record.session, record.session_epoch);
    contents(record.chain, record.producer, session, record.sequence)
        .take(words as usize)
        .flat_map(u64::to_le_bytes)
        .collect()
}

fn contents(
    chain: u32,
    producer: u64,
    session: (u32, u32),
    sequence: u64,
) -> impl Iterator<Item = u64> {
    let name = [
        chain.into(),
        producer,
        session.0.into(),
        session.1.into(),
        sequence,
    ];
    let mixed = name.iter().fold(0u64, |sum, word| {
        (sum.rotate_left(17) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    });
    name.into_iter()
        .chain((1..).map(move |i: u64| mixed.wrapping_mul(2 * i + 1)))
}

/// Whether these bytes are the batch that a record of the order speaks of.
pub fn is_batch(chain: u32, record: &GoiRecord, bytes: &[u8]) -> bool {
    let session = (record.session, record.session_epoch);
    let words = contents(chain, record.producer, session, record.sequence);
    bytes
        .chunks(8)
        .zip(words)
        .all(|(bytes, word)| bytes == word.to_le_bytes())
}

/// A checksum.
pub fn checksum(bytes: &[u8]) -> u32 {
    bytes.chunks(8).fold(7u32, |sum, word| {
        let word = word
            .iter()
            .fold(0u32, |all, byte| all.rotate_left(5) ^ u32::from(*byte));
        (sum.rotate_left(3) ^ word).wrapping_mul(0x9E37_79B1)
    })
}
