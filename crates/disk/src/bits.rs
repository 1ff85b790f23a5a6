//! Finds the one bit that flipped, by what it did to a checksum.

use embar_frame::crc32c;

/// Polynomial of CRC-32C, its lowest bit first.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Which bit of `bytes` has to flip so that they get the checksum `crc`; `None` if it takes more than one.
pub(crate) fn flipped_bit(bytes: &[u8], crc: u32) -> Option<usize> {
    let change = crc32c(bytes) ^ crc;
    // What each bit of the last byte does to the checksum; then of the one before it, and so on.
    let mut changes: [u32; 8] = std::array::from_fn(|bit| step(1 << bit));
    for place in (0..bytes.len()).rev() {
        if let Some(bit) = changes.iter().position(|it| *it == change) {
            return Some(8 * place + bit);
        }
        changes = changes.map(step);
    }
    None
}

/// What becomes of a difference when one byte more comes behind it.
fn step(difference: u32) -> u32 {
    (0..8).fold(difference, |it, _| match it & 1 {
        1 => it >> 1 ^ POLYNOMIAL,
        _ => it >> 1,
    })
}

/// Flips a bit.
pub(crate) fn flip(bytes: &mut [u8], bit: usize) {
    bytes[bit / 8] ^= 1 << (bit % 8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_that_flipped_is_found_and_two_are_not() {
        let whole: Vec<u8> = (0..100).map(|it: u8| it.wrapping_mul(7)).collect();
        let crc = crc32c(&whole);
        assert_eq!(flipped_bit(&whole, crc), None);
        for bit in 0..8 * whole.len() {
            let mut bytes = whole.clone();
            flip(&mut bytes, bit);
            assert_eq!(flipped_bit(&bytes, crc), Some(bit));
            flip(&mut bytes, (bit + 9) % 800);
            assert_eq!(flipped_bit(&bytes, crc), None);
        }
        assert_eq!(flipped_bit(&[], 1), None);
    }
}
