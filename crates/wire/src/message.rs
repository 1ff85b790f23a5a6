//! Message records within a batch's payload.
//!
//! ```text
//! 0 u32 value_len   4 u16 key_len (0xFFFF = no key)   6 u16 headers_len
//! 8 headers block, key, value, zeros up to a multiple of 8
//! ```
//! A headers block is a sequence of `u8 name_len | name | u16 value_len | value`.

use thiserror::Error;

use crate::limits::{
    LINE_BYTES, MAX_HEADER_NAME_BYTES, MAX_HEADERS_BYTES, MAX_KEY_BYTES, MESSAGE_ALIGN_BYTES,
    MESSAGE_HEADER_BYTES,
};

/// Stands for "no key", which is not the same as an empty one.
const NO_KEY: u16 = 0xFFFF;

/// The lengths at the start of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths {
    pub value: u32,
    pub key: Option<u16>,
    pub headers: u16,
}

impl Lengths {
    #[inline]
    pub(crate) fn to_bytes(self) -> [u8; MESSAGE_HEADER_BYTES] {
        let key = self.key.unwrap_or(NO_KEY);
        let word = u64::from(self.value) | u64::from(key) << 32 | u64::from(self.headers) << 48;
        word.to_le_bytes()
    }

    #[inline]
    pub(crate) fn parse(bytes: &[u8; MESSAGE_HEADER_BYTES]) -> Self {
        let word = u64::from_le_bytes(*bytes);
        let key = (word >> 32) as u16;
        Self {
            value: word as u32,
            key: (key != NO_KEY).then_some(key),
            headers: (word >> 48) as u16,
        }
    }

    /// Bytes of the record with its padding; 64 bits, because the fields alone may exceed 32.
    #[inline]
    pub(crate) fn padded(self) -> u64 {
        let bytes = MESSAGE_HEADER_BYTES as u64 + self.content();
        bytes.next_multiple_of(MESSAGE_ALIGN_BYTES as u64)
    }

    /// Bytes of headers, key and value.
    #[inline]
    pub(crate) fn content(self) -> u64 {
        u64::from(self.headers) + u64::from(self.key.unwrap_or(0)) + u64::from(self.value)
    }
}

/// One name and value that travel with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// At most 255 bytes.
    pub name: &'a str,
    /// At most what the headers block of 65,535 bytes leaves.
    pub value: &'a [u8],
}

/// The headers of one message, in the order they were pushed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Headers<'a> {
    /// Headers still to come. Checked when the message was read.
    block: &'a [u8],
}

impl<'a> Headers<'a> {
    /// Checks a block; `None` if it is malformed.
    fn parse(block: &'a [u8]) -> Option<Self> {
        let mut rest = block;
        while !rest.is_empty() {
            (_, rest) = Self::split_first(rest)?;
        }
        Some(Self { block })
    }

    fn split_first(block: &'a [u8]) -> Option<(Header<'a>, &'a [u8])> {
        let (&name_len, rest) = block.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(name_len))?;
        let (value_len, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*value_len)))?;
        let name = std::str::from_utf8(name).ok()?;
        Some((Header { name, value }, rest))
    }

    /// Whether none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block.is_empty()
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        let (header, rest) = Self::split_first(self.block)?;
        self.block = rest;
        Some(header)
    }
}

/// Bytes of the block that `headers` make.
pub(crate) fn headers_len(headers: &[Header<'_>]) -> Result<u16, PushError> {
    let mut bytes = 0usize;
    for header in headers {
        if header.name.len() > MAX_HEADER_NAME_BYTES {
            let bytes = header.name.len();
            return Err(PushError::HeaderNameTooLong { bytes });
        }
        bytes = bytes.saturating_add(3 + header.name.len() + header.value.len());
    }
    match u16::try_from(bytes) {
        Ok(len) if bytes <= MAX_HEADERS_BYTES => Ok(len),
        _ => Err(PushError::HeadersTooLong { bytes }),
    }
}

/// Length of `key`, if it may be one.
pub(crate) fn key_len(key: Option<&[u8]>) -> Result<Option<u16>, PushError> {
    let Some(key) = key else { return Ok(None) };
    match u16::try_from(key.len()) {
        Ok(len) if key.len() <= MAX_KEY_BYTES => Ok(Some(len)),
        _ => Err(PushError::KeyTooLong { bytes: key.len() }),
    }
}

/// Writes the block of `headers`, whose length is that of `block`.
pub(crate) fn write_headers(mut block: &mut [u8], headers: &[Header<'_>]) {
    for header in headers {
        let (name, value) = (header.name.as_bytes(), header.value);
        let value_at = 1 + name.len();
        let (entry, rest) = block.split_at_mut(value_at + 2 + value.len());
        entry[0] = name.len() as u8;
        entry[1..value_at].copy_from_slice(name);
        entry[value_at..value_at + 2].copy_from_slice(&(value.len() as u16).to_le_bytes());
        entry[value_at + 2..].copy_from_slice(value);
        block = rest;
    }
}

/// One message over borrowed bytes.
#[derive(Clone, Copy, Debug)]
pub struct MessageView<'a> {
    /// Position in its batch, from 0.
    pub index: u32,
    /// The key; `None` if it was published without.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: &'a [u8],
    /// The headers.
    pub headers: Headers<'a>,
}

impl MessageView<'_> {
    /// What counts against a topic's limit: headers, key and value, in bytes.
    #[inline]
    #[must_use]
    pub fn content_len(&self) -> usize {
        self.headers.block.len() + self.key.map_or(0, <[u8]>::len) + self.value.len()
    }
}

/// The messages of a payload, in order. Trusts nothing: after an error it ends.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
    index: u32,
    count: u32,
}

impl<'a> Messages<'a> {
    /// The `count` messages that `payload` is said to hold.
    #[must_use]
    pub fn new(payload: &'a [u8], count: u32) -> Self {
        Self {
            rest: payload,
            index: 0,
            count,
        }
    }

    /// Messages still to come, unless an error ends them.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.count - self.index
    }

    #[cold]
    fn fail(&mut self, error: MessageError) -> Option<Result<MessageView<'a>, MessageError>> {
        self.rest = &[];
        self.index = self.count;
        Some(Err(error))
    }

    #[cold]
    fn truncated(&mut self, need: u64) -> Option<Result<MessageView<'a>, MessageError>> {
        self.fail(MessageError::Truncated {
            index: self.index,
            need,
            have: self.rest.len(),
        })
    }

    /// After the last message only zeros up to the line's end may follow.
    fn finish(&mut self) -> Option<Result<MessageView<'a>, MessageError>> {
        let bytes = self.rest.len();
        if bytes >= LINE_BYTES || self.rest.iter().any(|&byte| byte != 0) {
            return self.fail(MessageError::Trailing { bytes });
        }
        self.rest = &[];
        None
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<MessageView<'a>, MessageError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.index == self.count {
            return self.finish();
        }
        let Some(lengths) = self.rest.first_chunk() else {
            return self.truncated(MESSAGE_HEADER_BYTES as u64);
        };
        let lengths = Lengths::parse(lengths);
        let need = lengths.padded();
        if need > self.rest.len() as u64 {
            return self.truncated(need);
        }
        let (record, rest) = self.rest.split_at(need as usize);
        let (block, record) = record[MESSAGE_HEADER_BYTES..].split_at(lengths.headers.into());
        let (key, record) = record.split_at(lengths.key.unwrap_or(0).into());
        let value = &record[..lengths.value as usize];
        let index = self.index;
        let Some(headers) = Headers::parse(block) else {
            return self.fail(MessageError::Headers { index });
        };
        self.rest = rest;
        self.index += 1;
        Some(Ok(MessageView {
            index,
            key: lengths.key.map(|_| key),
            value,
            headers,
        }))
    }
}

/// The lengths of a message with nothing but a value. Most messages of a batch have those of the one before.
///
/// Where a message begins follows from the lengths before it, so a processor waits for one load after the other. Where lengths
/// are only compared with known ones, it goes on before it has them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alike {
    lengths: u64,
    value: usize,
    /// 0 if there was no such message.
    padded: usize,
}

impl Alike {
    /// The lengths of the message at the start of `rest`; none are like those of one with a key or headers.
    #[must_use]
    pub fn of(rest: &[u8]) -> Self {
        let Some(bytes) = rest.first_chunk() else {
            return Self::default();
        };
        let lengths = Lengths::parse(bytes);
        if lengths.key.is_some() || lengths.headers > 0 {
            return Self::default();
        }
        Self {
            lengths: u64::from_le_bytes(*bytes),
            value: lengths.value as usize,
            padded: lengths.padded() as usize,
        }
    }

    /// Bytes of the value, and of the whole record, of the message at the start of `rest`, if that is alike, and whole. The value
    /// lies behind [`MESSAGE_HEADER_BYTES`].
    #[inline]
    #[must_use]
    pub fn first(&self, rest: &[u8]) -> Option<(usize, usize)> {
        let record = rest.get(..self.padded)?;
        let lengths = record.first_chunk()?;
        (u64::from_le_bytes(*lengths) == self.lengths).then_some((self.value, self.padded))
    }
}

/// A message record that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// The record says it is longer than the payload.
    #[error("message {index} needs {need} bytes, {have} are left in its batch")]
    Truncated {
        /// Position of the message in its batch, from 0.
        index: u32,
        /// Bytes the record claims, padding included.
        need: u64,
        /// Bytes left.
        have: usize,
    },
    /// The headers block is malformed.
    #[error("message {index} has malformed headers")]
    Headers {
        /// Position of the message in its batch, from 0.
        index: u32,
    },
    /// More than padding follows the last message.
    #[error("{bytes} bytes after the last message are not padding")]
    Trailing {
        /// Bytes after the last message.
        bytes: usize,
    },
}

/// A message that a batch does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PushError {
    /// Not enough room left: seal this batch and push to the next.
    #[error("the batch is full: seal it and push to the next")]
    Full,
    /// It would not fit an empty batch either.
    #[error(
        "a message of {bytes} bytes does not fit a batch of {limit}: raise the batch size or split the message"
    )]
    TooLarge {
        /// Bytes of the record with header and padding.
        bytes: usize,
        /// Bytes that an empty batch has for records.
        limit: usize,
    },
    /// The key is too long.
    #[error("a key of {bytes} bytes exceeds {max}", max = MAX_KEY_BYTES)]
    KeyTooLong {
        /// Bytes of the key.
        bytes: usize,
    },
    /// A header name is too long.
    #[error("a header name of {bytes} bytes exceeds {max}", max = MAX_HEADER_NAME_BYTES)]
    HeaderNameTooLong {
        /// Bytes of the name.
        bytes: usize,
    },
    /// The headers together are too long.
    #[error("headers of {bytes} bytes exceed {max}", max = MAX_HEADERS_BYTES)]
    HeadersTooLong {
        /// Bytes of all headers with their length fields.
        bytes: usize,
    },
}
