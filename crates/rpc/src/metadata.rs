//! What a call carries beside its request: few pairs of a key and a value.

use thiserror::Error;

use crate::limits::MAX_METADATA_BYTES;

/// Bytes before each pair: the lengths of its key (`u8`) and its value (`u16` LE).
const LENGTHS: usize = 3;

/// Pairs of a key and a value, such as a token or the id of a trace. At most [`MAX_METADATA_BYTES`].
/// A key may come several times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// As on the wire, and whole.
    bytes: Vec<u8>,
}

/// Why metadata was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// There would be too much.
    #[error("metadata is at most {MAX_METADATA_BYTES} bytes: send what is longer in the request")]
    Full,
    /// A key is empty, or longer than 255 bytes.
    #[error("a key of metadata has 1 to 255 bytes")]
    Key,
    /// The request may have left.
    #[error("the call was started: add metadata before that")]
    Started,
    /// Bytes from a peer that are no pairs.
    #[error("the metadata is cut or damaged: its peer has a bug")]
    Damaged,
}

impl Metadata {
    /// Without a pair.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pair.
    ///
    /// # Errors
    /// [`MetadataError`]; nothing is added then.
    pub fn add(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), MetadataError> {
        let value = value.as_ref();
        let key_bytes = u8::try_from(key.len()).map_err(|_| MetadataError::Key)?;
        if key_bytes == 0 {
            return Err(MetadataError::Key);
        }
        let value_bytes = u16::try_from(value.len()).map_err(|_| MetadataError::Full)?;
        if self.bytes.len() + LENGTHS + key.len() + value.len() > MAX_METADATA_BYTES {
            return Err(MetadataError::Full);
        }
        self.bytes.push(key_bytes);
        self.bytes.extend(value_bytes.to_le_bytes());
        self.bytes.extend(key.as_bytes());
        self.bytes.extend(value);
        Ok(())
    }

    /// The first value of this key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        let mut pairs = self.iter();
        pairs.find_map(|(other, value)| (other == key).then_some(value))
    }

    /// The first value of this key, if it is text.
    #[must_use]
    pub fn get_text(&self, key: &str) -> Option<&str> {
        std::str::from_utf8(self.get(key)?).ok()
    }

    /// All pairs, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (key, value, behind) = split(rest)?;
            rest = behind;
            Some((key, value))
        })
    }

    /// Whether there is no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes what a peer sent in place of what was here; keeps the memory.
    pub(crate) fn set(&mut self, bytes: &[u8]) -> Result<(), MetadataError> {
        self.bytes.clear();
        if bytes.len() > MAX_METADATA_BYTES {
            return Err(MetadataError::Full);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = split(rest).ok_or(MetadataError::Damaged)?.2;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

/// The first pair, and what is behind it. None at the end, and where the bytes are no pairs.
fn split(bytes: &[u8]) -> Option<(&str, &[u8], &[u8])> {
    let (lengths, rest) = bytes.split_first_chunk::<LENGTHS>()?;
    let [key, low, high] = *lengths;
    let (key, rest) = rest.split_at_checked(usize::from(key))?;
    let value = usize::from(u16::from_le_bytes([low, high]));
    let (value, rest) = rest.split_at_checked(value)?;
    let key = std::str::from_utf8(key)
        .ok()
        .filter(|key| !key.is_empty())?;
    Some((key, value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_come_back_in_their_order() {
        let mut metadata = Metadata::new();
        metadata.add("token", "first").unwrap();
        metadata.add("binary", [0xFF, 0]).unwrap();
        metadata.add("token", "second").unwrap();
        let mut seen = Metadata::new();
        seen.set(metadata.as_bytes()).unwrap();
        assert_eq!(seen, metadata);
        assert_eq!(seen.get_text("token"), Some("first"));
        assert_eq!(seen.get_text("binary"), None);
        assert_eq!(seen.get("none"), None);
        let keys: Vec<_> = seen.iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["token", "binary", "token"]);
    }

    #[test]
    fn it_is_bounded_and_whole() {
        let mut metadata = Metadata::new();
        assert_eq!(metadata.add("", "x"), Err(MetadataError::Key));
        assert_eq!(metadata.add(&"k".repeat(256), "x"), Err(MetadataError::Key));
        let rest = MAX_METADATA_BYTES - LENGTHS - 1;
        assert_eq!(
            metadata.add("k", vec![0; rest + 1]),
            Err(MetadataError::Full)
        );
        assert!(metadata.is_empty());
        metadata.add("k", vec![0; rest]).unwrap();
        assert_eq!(metadata.add("k", ""), Err(MetadataError::Full));
        let mut seen = Metadata::new();
        for cut in 1..metadata.as_bytes().len() {
            let cut = &metadata.as_bytes()[..cut];
            assert_eq!(seen.set(cut), Err(MetadataError::Damaged));
            assert!(seen.is_empty());
        }
    }
}
