//! CRC-32C, the checksum of everything in the control file that spans more than one line.

use crc_fast::{CrcAlgorithm, checksum};

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    u32::try_from(checksum(CrcAlgorithm::Crc32Iscsi, bytes)).expect("a CRC of 32 bits")
}

#[cfg(all(test, not(loom)))]
mod tests {
    #[test]
    fn is_the_polynomial_of_castagnoli() {
        // Check value of CRC-32/ISCSI in the catalogue of parametrised CRC algorithms.
        assert_eq!(super::crc32c(b"123456789"), 0xE306_9283);
    }
}
