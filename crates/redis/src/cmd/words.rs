//! The words of a command: its name and its arguments.

use memchr::memchr;

/// The words of a command.
pub(super) struct Words<'a> {
    count: usize,
    bulks: &'a [u8],
}

impl<'a> Words<'a> {
    /// `bulks` are `count` bulk strings, one behind the other.
    pub fn new(count: usize, bulks: &'a [u8]) -> Self {
        Self { count, bulks }
    }

    /// How many words there are, the name included.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The words from this index on; the name has index 0.
    pub fn from(&self, index: usize) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        Bulks(self.bulks).skip(index)
    }
}

/// Iterates over the contents of bulk strings.
#[derive(Clone)]
struct Bulks<'a>(&'a [u8]);

impl<'a> Iterator for Bulks<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let line = memchr(b'\r', self.0)?;
        let digit = |len: usize, digit: &u8| len * 10 + usize::from(digit - b'0');
        let len = self.0[1..line].iter().fold(0, digit);
        let content = &self.0[line + 2..];
        self.0 = &content[len + 2..];
        Some(&content[..len])
    }
}

/// Whether a word is this option, in upper or lower case.
pub(super) fn is(word: &[u8], option: &str) -> bool {
    word.eq_ignore_ascii_case(option.as_bytes())
}
