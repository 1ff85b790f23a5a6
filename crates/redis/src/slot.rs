//! Hash slots: which part of a cluster a key belongs to.
//!
//! The rules are those of the cluster specification,
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#key-distribution-model>.

use memchr::memchr;

/// How many slots a cluster shares among its nodes.
pub const SLOTS: u16 = 16384;

/// The slot of a key, less than [`SLOTS`].
///
/// If the key has a `{` and a `}` somewhere after it, and at least a byte between the first `{` and
/// the first `}` after that, only what is between them counts (a hash tag): so keys can be kept
/// together.
#[inline]
#[must_use]
pub fn slot(key: &[u8]) -> u16 {
    crc16(tag(key)) % SLOTS
}

/// What of a key counts.
#[inline]
fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = memchr(b'{', key) else {
        return key;
    };
    let behind = &key[open + 1..];
    match memchr(b'}', behind) {
        None | Some(0) => key,
        Some(close) => &behind[..close],
    }
}

/// CRC-16/XMODEM: polynomial 0x1021, no reflection, begins with zero.
#[inline]
fn crc16(bytes: &[u8]) -> u16 {
    let mut crc = 0_u16;
    let (eights, rest) = bytes.as_chunks::<8>();
    for eight in eights {
        let [high, low] = crc.to_be_bytes();
        // Eight independent look-ups instead of a chain of eight.
        crc = TABLES[7][usize::from(eight[0] ^ high)]
            ^ TABLES[6][usize::from(eight[1] ^ low)]
            ^ TABLES[5][usize::from(eight[2])]
            ^ TABLES[4][usize::from(eight[3])]
            ^ TABLES[3][usize::from(eight[4])]
            ^ TABLES[2][usize::from(eight[5])]
            ^ TABLES[1][usize::from(eight[6])]
            ^ TABLES[0][usize::from(eight[7])];
    }
    for byte in rest {
        let [high, low] = crc.to_be_bytes();
        crc = u16::from_be_bytes([low, 0]) ^ TABLES[0][usize::from(high ^ byte)];
    }
    crc
}

/// `TABLES[n][b]` is the checksum of the byte `b` with `n` zero bytes behind it.
static TABLES: [[u16; 256]; 8] = tables();

const fn tables() -> [[u16; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut zeros = 0;
        while zeros < 8 {
            let mut bit = 0;
            while bit < 8 {
                let carry = crc & 0x8000 != 0;
                crc <<= 1;
                if carry {
                    crc ^= 0x1021;
                }
                bit += 1;
            }
            tables[zeros][byte] = crc;
            zeros += 1;
        }
        byte += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bit_by_bit(bytes: &[u8]) -> u16 {
        let mut crc = 0_u16;
        for byte in bytes {
            for bit in (0..8).rev() {
                let carry = (crc >> 15) ^ u16::from(byte >> bit & 1);
                crc = (crc << 1) ^ (carry * 0x1021);
            }
        }
        crc
    }

    #[test]
    fn the_checksum_is_that_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(crc16(b""), 0);
    }

    #[test]
    fn keys_have_the_slots_that_servers_give_them() {
        for (key, wanted) in [
            ("", 0),
            ("foo", 12182),
            ("bar", 5061),
            ("hello", 866),
            ("somekey", 11058),
            ("foo{hash_tag}", 2515),
            ("bar{hash_tag}", 2515),
        ] {
            assert_eq!(slot(key.as_bytes()), wanted, "{key}");
        }
    }

    #[test]
    fn hash_tags_are_as_the_specification_has_them() {
        let same = |a: &str, b: &str| slot(a.as_bytes()) == slot(b.as_bytes());
        assert!(same("{user1000}.following", "{user1000}.followers"));
        assert!(same("x{user1000}", "user1000"));
        assert_eq!(tag(b"foo{}{bar}"), b"foo{}{bar}");
        assert_eq!(tag(b"foo{{bar}}zap"), b"{bar");
        assert_eq!(tag(b"foo{bar}{zap}"), b"bar");
        assert_eq!(tag(b"foo{bar"), b"foo{bar");
        assert_eq!(tag(b"foo}bar{"), b"foo}bar{");
        assert_eq!(tag(b"}{a}"), b"a");
    }

    proptest! {
        #[test]
        fn tables_do_what_bits_do(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(crc16(&bytes), bit_by_bit(&bytes));
        }
    }
}
