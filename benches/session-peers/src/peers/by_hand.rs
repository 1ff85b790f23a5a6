//! Messages for libraries that have no encoding.

use super::PAYLOAD;
use crate::arguments::PAYLOAD_BYTES;
use anyhow::{Context as _, bail};

/// A ping that comes back.
pub const ECHO: u8 = 1;
/// A ping that does not.
pub const ONE_WAY: u8 = 2;
/// Asks for a count, and brings it.
pub const COUNT: u8 = 3;

/// Of a message: what it is, its number, its payload.
pub const MESSAGE_BYTES: usize = 9 + PAYLOAD_BYTES;

pub fn message(kind: u8, number: u64) -> [u8; MESSAGE_BYTES] {
    let mut message = [kind; MESSAGE_BYTES];
    message[1..9].copy_from_slice(&number.to_le_bytes());
    message[9..].copy_from_slice(&PAYLOAD);
    message
}

/// What it is, its number, its payload.
pub fn parts(message: &[u8]) -> anyhow::Result<(u8, u64, &[u8])> {
    let Some((&kind, rest)) = message.split_first() else {
        bail!("an empty message");
    };
    let (number, payload) = rest
        .split_first_chunk()
        .context("a message without a number")?;
    Ok((kind, u64::from_le_bytes(*number), payload))
}
