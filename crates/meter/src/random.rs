//! A small seeded generator, so that an interval computed twice from the same trials is the same interval.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014; the constants are
/// those of Vigna's public-domain `splitmix64.c`). Not for secrets.
#[derive(Clone, Copy, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The generator's stream that belongs to `seed`; every seed is good, zero too.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; `bound` must not be zero.
    ///
    /// Multiply and shift (Lemire: "Fast random integer generation in an interval", 2019) without the rejection step:
    /// the bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below zero to draw");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

/// `bytes` bytes that compress badly, the same ones every time.
pub fn filler(bytes: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(bytes as u64);
    let mut filler: Vec<u8> = (0..bytes.div_ceil(8))
        .flat_map(|_| random.next_u64().to_le_bytes())
        .collect();
    filler.truncate(bytes);
    filler
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_stream() {
        // First outputs of splitmix64.c for the seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        let drawn: Vec<u64> = (0..5).map(|_| random.next_u64()).collect();
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }

    #[test]
    fn below_reaches_every_number_about_equally_often() {
        let mut random = SplitMix64::new(7);
        let mut seen = [0_u32; 7];
        for _ in 0..70_000 {
            seen[random.below(7) as usize] += 1;
        }
        assert!(
            seen.iter().all(|&n| (9_500..10_500).contains(&n)),
            "{seen:?}"
        );
    }
}
