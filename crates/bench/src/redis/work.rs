//! Says which keys and values the callers use, and which operations are reads. A program that follows these rules does
//! the same work: `benches/peers` does, with other Redis clients.
//!
//! - A key is a number below the keyspace in decimal, with zeros before it up to its size.
//! - A value is its key, then the letter `x` up to its size; the beginning of the key if that is longer.
//! - Each stream (a caller has as many as it has operations in flight) draws from a [`SplitMix64`] of its own, seeded
//!   with its number, first stream 0: first what to do, if the work is mixed (`below(reads + writes)`, a read if that
//!   is below `reads`), then the number of the key (`below(keyspace)`).
//! - Only for a diagnosis, a part of the operations may be about few keys ([`Hot`]).

use std::fmt;
use std::str::FromStr;

use embar_console::setting::BadSetting;
use embar_meter::random::SplitMix64;
use embar_redis::resp::{FromReply, View, WrongType};
use embar_redis::slot::{SLOTS, slot};
use serde::{Serialize, Serializer};

/// Parts of the operations that read and that write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Parts that read.
    pub reads: u64,
    /// Parts that write.
    pub writes: u64,
}

impl Mix {
    /// Nothing but reads.
    pub const READS: Self = Self {
        reads: 1,
        writes: 0,
    };
    /// Nothing but writes.
    pub const WRITES: Self = Self {
        reads: 0,
        writes: 1,
    };
}

impl FromStr for Mix {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let part = |text: &str| text.parse::<u32>().ok().map(u64::from);
        let parts = text
            .split_once(':')
            .and_then(|(reads, writes)| part(reads).zip(part(writes)));
        match parts {
            Some((reads, writes)) if reads + writes > 0 => Ok(Self { reads, writes }),
            _ => Err("write it as GET:SET, like 80:20; one of them at least 1"),
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.reads, self.writes)
    }
}

impl Serialize for Mix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How many keys, and sizes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Shape {
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
    /// How many different keys.
    pub keyspace: u64,
}

impl Shape {
    /// Refuses a shape that cannot exist.
    pub fn check(&self) -> Result<(), BadSetting> {
        let Some(last) = self.keyspace.checked_sub(1) else {
            return Err(BadSetting::new(
                &["keyspace"],
                "there must be at least one key",
            ));
        };
        let digits = last.to_string().len();
        if self.key_size < digits {
            return Err(BadSetting::new(
                &["key_size", "keyspace"],
                format!("{} different keys need {digits} bytes each", self.keyspace),
            ));
        }
        Ok(())
    }
}

/// What more of the operations are about than chance would have, so that a diagnosis has something to find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hot {
    /// Nothing.
    #[default]
    Nothing,
    /// So many percent are about key 0.
    Key(u64),
    /// So many percent are about keys of the first third of the slots.
    Slots(u64),
}

/// The slots of [`Hot::Slots`]: those of the first of three nodes.
const HOT_SLOTS: u16 = SLOTS / 3;
/// How often a key of these is looked for. One of three has such a slot.
const HOT_TRIES: usize = 32;

/// What identifies a value in a reply, without a copy of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueDigest {
    /// Bytes of the value.
    len: usize,
    /// How many digits it begins with, which is all of its key.
    digits: usize,
    /// The number that these digits are; the largest one if they are more than it can hold.
    number: u64,
}

impl ValueDigest {
    fn of(value: &[u8]) -> Self {
        let digits = value.iter().take_while(|byte| byte.is_ascii_digit());
        let (mut count, mut number) = (0, 0_u64);
        for digit in digits {
            count += 1;
            number = number
                .saturating_mul(10)
                .saturating_add(u64::from(digit - b'0'));
        }
        Self {
            len: value.len(),
            digits: count,
            number,
        }
    }
}

impl FromReply for ValueDigest {
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        match view {
            View::Bulk(value) | View::Simple(value) => Ok(Self::of(value)),
            other => Err(WrongType::new("a string", other)),
        }
    }
}

/// A form in which callers take values.
pub trait Value: FromReply + Send {
    /// The digest of the value.
    fn digest(&self) -> ValueDigest;
}

impl Value for ValueDigest {
    fn digest(&self) -> ValueDigest {
        *self
    }
}

impl Value for Vec<u8> {
    fn digest(&self) -> ValueDigest {
        ValueDigest::of(self)
    }
}

/// A stream of operations, one at a time, in buffers that are made once.
pub struct OperationStream {
    shape: Shape,
    mix: Mix,
    random: SplitMix64,
    hot: Hot,
    number: u64,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl OperationStream {
    /// The stream with this number.
    pub fn new(shape: &Shape, mix: Mix, number: u64) -> Self {
        Self {
            shape: *shape,
            mix,
            random: SplitMix64::new(number),
            hot: Hot::Nothing,
            number: 0,
            key: vec![b'0'; shape.key_size],
            value: vec![b'x'; shape.value_size],
        }
    }

    /// The same, with more operations about this.
    pub fn with_hot(self, hot: Hot) -> Self {
        Self { hot, ..self }
    }

    /// The number of the key of the operation.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Goes to the next operation; whether it reads.
    pub fn draw(&mut self) -> bool {
        let is_read = match self.mix {
            Mix { writes: 0, .. } => true,
            Mix { reads: 0, .. } => false,
            Mix { reads, writes } => self.random.below(reads + writes) < reads,
        };
        let (Hot::Key(percent) | Hot::Slots(percent)) = self.hot else {
            self.take_any();
            return is_read;
        };
        match self.hot {
            _ if self.random.below(100) >= percent => self.take_any(),
            Hot::Slots(_) => {
                for _ in 0..HOT_TRIES {
                    self.take_any();
                    if slot(&self.key) < HOT_SLOTS {
                        break;
                    }
                }
            }
            _ => self.take(0),
        }
        is_read
    }

    fn take_any(&mut self) {
        let number = self.random.below(self.shape.keyspace);
        self.take(number);
    }

    /// Goes to the key with this number.
    pub fn take(&mut self, number: u64) {
        self.number = number;
        let mut rest = number;
        for digit in self.key.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let shared = self.shared();
        self.value[..shared].copy_from_slice(&self.key[..shared]);
    }

    /// The key of the operation.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value that belongs to the key.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Whether a value that was read belongs to the key.
    pub fn is_right(&self, digest: ValueDigest) -> bool {
        let digits = self.shared();
        let cut = u32::try_from(self.key.len() - digits).unwrap_or(u32::MAX);
        let cut = 10_u64.checked_pow(cut);
        let expected = ValueDigest {
            len: self.value.len(),
            digits,
            number: cut.map_or(0, |cut| self.number / cut),
        };
        digest == expected
    }

    /// Bytes of the key with which the value begins.
    fn shared(&self) -> usize {
        self.key.len().min(self.value.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(key_size: usize, value_size: usize) -> Shape {
        Shape {
            key_size,
            value_size,
            keyspace: 1000,
        }
    }

    fn stream(value_size: usize) -> OperationStream {
        let mut stream = OperationStream::new(&shape(6, value_size), Mix::READS, 0);
        stream.take(42);
        stream
    }

    #[test]
    fn keys_are_padded_and_values_begin_with_them() {
        assert_eq!(stream(8).key(), b"000042");
        assert_eq!(stream(8).value(), b"000042xx");
        assert_eq!(stream(3).value(), b"000");
        assert_eq!(stream(0).value(), b"");
    }

    #[test]
    fn only_the_value_of_the_key_is_right() {
        let is_right = |size, value: &[u8]| stream(size).is_right(ValueDigest::of(value));
        for (size, right) in [
            (8, &b"000042xx"[..]),
            (6, b"000042"),
            (5, b"00004"),
            (0, b""),
        ] {
            assert!(is_right(size, right), "{size}");
        }
        for wrong in [
            &b"000043xx"[..],
            b"000042x",
            b"000042xxx",
            b"0000421x",
            b"00042xxx",
            b"",
        ] {
            assert!(!is_right(8, wrong), "{}", wrong.escape_ascii());
        }
        assert!(!is_right(5, b"00005"));
    }

    #[test]
    fn numbers_of_any_length_are_no_reason_to_panic() {
        let mut stream = OperationStream::new(&shape(60, 60), Mix::READS, 0);
        stream.take(999);
        let value = stream.value().to_vec();
        assert!(stream.is_right(ValueDigest::of(&value)));
        assert!(!stream.is_right(ValueDigest::of(&[b'9'; 60])));
    }

    #[test]
    fn a_mix_has_its_proportions() {
        let mix = "80:20".parse().expect("a mix");
        let mut mixed = OperationStream::new(&shape(6, 8), mix, 7);
        let reads = (0..10_000).filter(|_| mixed.draw()).count();
        assert!((7_800..8_200).contains(&reads), "{reads}");
        assert!(OperationStream::new(&shape(6, 8), Mix::READS, 7).draw());
        assert!(!OperationStream::new(&shape(6, 8), Mix::WRITES, 7).draw());
    }

    #[test]
    fn what_is_hot_gets_its_part() {
        let drawn = |hot, is_it: fn(&OperationStream) -> bool| {
            let stream = OperationStream::new(&shape(6, 8), Mix::READS, 7);
            let mut stream = stream.with_hot(hot);
            let count = (0..10_000).filter(|_| {
                stream.draw();
                is_it(&stream)
            });
            count.count()
        };
        let is_first = |it: &OperationStream| it.number() == 0;
        assert!((8_800..9_200).contains(&drawn(Hot::Key(90), is_first)));
        assert!(drawn(Hot::Nothing, is_first) < 50);
        let is_low = |it: &OperationStream| slot(it.key()) < HOT_SLOTS;
        assert!((9_000..9_700).contains(&drawn(Hot::Slots(90), is_low)));
        assert!((2_800..3_900).contains(&drawn(Hot::Nothing, is_low)));
    }

    #[test]
    fn a_mix_is_two_numbers() {
        for wrong in ["", "80", "0:0", "80:20:1", "a:b", "-1:2"] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong}");
        }
        assert_eq!("0:1".parse::<Mix>(), Ok(Mix::WRITES));
    }

    #[test]
    fn keys_that_do_not_fit_are_refused() {
        assert!(shape(3, 0).check().is_ok());
        let short = shape(2, 8).check().expect_err("too short");
        assert!(short.to_string().contains("need 3 bytes"), "{short}");
        let none = Shape {
            keyspace: 0,
            ..shape(6, 8)
        };
        assert!(none.check().is_err());
    }
}
