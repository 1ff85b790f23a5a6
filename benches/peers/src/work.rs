//! The work: which keys, which values, reads or writes. Two programs that follow this page do the same work.
//!
//! - A key is a number below `keyspace` in decimal, with zeros before it up to `key_size` bytes.
//! - A value is its key, then the letter `x` up to `value_size` bytes; the beginning of the key if that is longer.
//! - Each lane (a caller has as many as it has operations in flight) draws from a [`SplitMix64`] of its own, seeded with
//!   its number, first lane 0: first what to do, if the work is mixed (`below(reads + writes)`, a read if that is below
//!   `reads`), then the number of the key (`below(keyspace)`).

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014; the constants are
/// those of Vigna's public-domain `splitmix64.c`).
#[derive(Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`: multiply and shift, which is biased by less than `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Sizes and proportions.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
    /// How many different keys.
    pub keyspace: u64,
    /// Parts of the operations that read.
    pub reads: u64,
    /// Parts that write.
    pub writes: u64,
}

impl Shape {
    /// Why there is no such work.
    pub fn check(&self) -> Result<(), String> {
        if self.keyspace == 0 || self.reads + self.writes == 0 {
            return Err("there must be at least one key, and something to do with it".into());
        }
        let digits = (self.keyspace - 1).to_string().len();
        if self.key_size < digits {
            return Err(format!(
                "keys need {digits} bytes: make --key-size larger or --keyspace smaller"
            ));
        }
        Ok(())
    }
}

/// The buffers of one operation at a time, which are made once.
pub struct Lane {
    shape: Shape,
    random: SplitMix64,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Lane {
    /// The lane with this number.
    pub fn new(shape: &Shape, number: u64) -> Self {
        Self {
            shape: shape.clone(),
            random: SplitMix64::new(number),
            key: vec![b'0'; shape.key_size],
            value: vec![b'x'; shape.value_size],
        }
    }

    /// Goes to the next operation; whether it reads.
    pub fn draw(&mut self) -> bool {
        let Shape {
            reads,
            writes,
            keyspace,
            ..
        } = self.shape;
        let is_read = match (reads, writes) {
            (_, 0) => true,
            (0, _) => false,
            _ => self.random.below(reads + writes) < reads,
        };
        let number = self.random.below(keyspace);
        self.take(number);
        is_read
    }

    /// Goes to the key with this number.
    pub fn take(&mut self, mut number: u64) {
        for digit in self.key.iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
        let shared = self.key.len().min(self.value.len());
        self.value[..shared].copy_from_slice(&self.key[..shared]);
    }

    /// Its key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value that belongs to it.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Whether a value that was read belongs to the key.
    pub fn is_right(&self, value: &[u8]) -> bool {
        let shared = self.key.len().min(self.value.len());
        value.len() == self.value.len() && value[..shared] == self.key[..shared]
    }
}

#[cfg(test)]
mod tests {
    use super::{Lane, Shape, SplitMix64};

    fn shape(reads: u64, writes: u64) -> Shape {
        Shape {
            key_size: 6,
            value_size: 8,
            keyspace: 1000,
            reads,
            writes,
        }
    }

    #[test]
    fn the_stream_is_the_published_one() {
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn keys_are_padded_and_values_begin_with_them() {
        let mut lane = Lane::new(&shape(1, 0), 0);
        lane.take(42);
        assert_eq!(lane.key(), b"000042");
        assert_eq!(lane.value(), b"000042xx");
        assert!(lane.is_right(b"000042yy"));
        assert!(!lane.is_right(b"000042") && !lane.is_right(b"000043xx"));
        let mut short = Lane::new(
            &Shape {
                value_size: 3,
                ..shape(1, 0)
            },
            0,
        );
        short.take(42);
        assert_eq!(short.value(), b"000");
    }

    #[test]
    fn a_mix_has_its_proportions() {
        let mut lane = Lane::new(&shape(80, 20), 7);
        let reads = (0..10_000).filter(|_| lane.draw()).count();
        assert!((7_800..8_200).contains(&reads), "{reads}");
        assert!(Lane::new(&shape(1, 0), 7).draw() && !Lane::new(&shape(0, 1), 7).draw());
    }

    #[test]
    fn a_key_that_does_not_fit_is_refused() {
        assert!(shape(1, 0).check().is_ok());
        assert!(
            Shape {
                key_size: 2,
                ..shape(1, 0)
            }
            .check()
            .is_err()
        );
        assert!(
            Shape {
                keyspace: 0,
                ..shape(1, 0)
            }
            .check()
            .is_err()
        );
    }
}
