//! CRC-32C, the checksum of everything in the control file.

use crc_fast::{CrcAlgorithm, checksum};

use embar_memory::LINE_BYTES;

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    u32::try_from(checksum(CrcAlgorithm::Crc32Iscsi, bytes)).expect("a CRC of 32 bits")
}

/// As [`crc32c`], of one cache line: eight instructions where the processor has one for it. Every
/// record is checked when it is written and whenever it is read.
#[inline]
pub(crate) fn of_line(line: &[u8; LINE_BYTES as usize]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instruction, as was asked just now.
        return unsafe { by_instruction(line) };
    }
    crc32c(line)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn by_instruction(line: &[u8; LINE_BYTES as usize]) -> u32 {
    let mut crc = u64::from(u32::MAX);
    for word in line.as_chunks::<8>().0 {
        crc = std::arch::x86_64::_mm_crc32_u64(crc, u64::from_le_bytes(*word));
    }
    !(crc as u32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    #[test]
    fn is_the_polynomial_of_castagnoli() {
        // Check value of CRC-32/ISCSI in the catalogue of parametrised CRC algorithms.
        assert_eq!(super::crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn a_line_has_the_same_sum_either_way() {
        for seed in 0..=255_u8 {
            let line = std::array::from_fn(|i| seed.wrapping_mul(i as u8 | 1));
            assert_eq!(super::of_line(&line), super::crc32c(&line));
        }
    }
}
