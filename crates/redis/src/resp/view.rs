//! Parses a complete reply into values that borrow from its bytes.

use std::{fmt, iter::FusedIterator};

use thiserror::Error;

use super::{
    ErrorView,
    scan::{self, Head},
};

/// The deepest nesting of aggregates, so that no reply can overflow a stack.
pub const MAX_DEPTH: usize = 128;

/// One value of a reply, borrowed from the bytes that were received. Iterating over an aggregate reads
/// its elements. A view skips attributes; [`View::with_attributes`] has them.
#[derive(Debug, Clone, Copy)]
pub enum View<'a> {
    /// Nothing: `_`, and in RESP2 `$-1` and `*-1`.
    Null,
    /// A short text such as `OK`.
    Simple(&'a [u8]),
    /// An error of the server.
    Error(ErrorView<'a>),
    /// A whole number.
    Integer(i64),
    /// A floating point number; may be infinite or NaN.
    Double(f64),
    /// True or false.
    Boolean(bool),
    /// A whole number of any size: decimal digits, perhaps with a sign before them.
    BigNumber(&'a [u8]),
    /// A string of bytes.
    Bulk(&'a [u8]),
    /// A text and what it is.
    Verbatim {
        /// `txt`, or `mkd` for Markdown.
        format: [u8; 3],
        /// The text.
        text: &'a [u8],
    },
    /// A string of bytes in chunks.
    Chunks(Chunks<'a>),
    /// Values in order.
    Array(Items<'a>),
    /// Values in no order. The server says that no two are equal.
    Set(Items<'a>),
    /// Keys and values.
    Map(Pairs<'a>),
    /// A message that answers no command: its kind and its content. Only as a whole frame.
    Push(Items<'a>),
}

/// Bytes that are no complete value of RESP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the server's reply is not RESP: {what}")]
pub struct Malformed {
    /// What is wrong, in a few words.
    pub what: &'static str,
}

const CUT: Malformed = bad("it ends too early");

const fn bad(what: &'static str) -> Malformed {
    Malformed { what }
}

/// Reads the first value in `bytes`, which a [`Framer`](super::Framer) found complete, and returns its
/// length in bytes. It checks everything within the value.
///
/// # Errors
/// When the bytes are no complete value of RESP. No bytes make it panic.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<(View<'_>, usize), Malformed> {
    element(bytes, 0).map(|element| (element.view, element.len))
}

impl<'a> View<'a> {
    /// As [`parse`], with the attributes before the value; of several, the last ones.
    ///
    /// # Errors
    /// As [`parse`].
    pub fn with_attributes(
        bytes: &'a [u8],
    ) -> Result<(Option<Pairs<'a>>, View<'a>, usize), Malformed> {
        element(bytes, 0).map(|element| (element.attributes, element.view, element.len))
    }

    /// Names its type in a few words, for messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Simple(_) => "a simple string",
            Self::Error(_) => "an error",
            Self::Integer(_) => "an integer",
            Self::Double(_) => "a double",
            Self::Boolean(_) => "a boolean",
            Self::BigNumber(_) => "a big number",
            Self::Bulk(_) | Self::Chunks(_) => "a string",
            Self::Verbatim { .. } => "a verbatim string",
            Self::Array(_) => "an array",
            Self::Set(_) => "a set",
            Self::Map(_) => "a map",
            Self::Push(_) => "a push",
        }
    }
}

struct Element<'a> {
    attributes: Option<Pairs<'a>>,
    view: View<'a>,
    /// Bytes, those of attributes included.
    len: usize,
}

/// Reads the value, or attributes and the value, that `bytes` begin with.
#[inline]
fn element(bytes: &[u8], depth: usize) -> Result<Element<'_>, Malformed> {
    let mut attributes = None;
    let mut at = 0;
    while bytes.get(at) == Some(&b'|') {
        let (pairs, len) = aggregate(&bytes[at..], depth)?;
        attributes = Some(Pairs(pairs));
        at += len;
    }
    let rest = &bytes[at..];
    if rest.first() == Some(&b'>') && (depth > 0 || at > 0) {
        return Err(bad("a push is within a reply"));
    }
    let (view, len) = one(rest, depth)?;
    Ok(Element {
        attributes,
        view,
        len: at + len,
    })
}

#[inline]
fn one(bytes: &[u8], depth: usize) -> Result<(View<'_>, usize), Malformed> {
    let (head, len) = scan::head(bytes).map_err(bad)?.ok_or(CUT)?;
    match head {
        Head::Line => line(bytes),
        Head::Null => Ok((View::Null, len)),
        Head::Blob(size) => {
            let (content, len) = blob(bytes, len, size)?;
            Ok((string(bytes[0], content)?, len))
        }
        Head::StreamedBlob => {
            let (chunks, len) = chunks(bytes, len, depth)?;
            Ok((View::Chunks(chunks), len))
        }
        Head::Many(_) => {
            let (items, len) = aggregate(bytes, depth)?;
            let view = match bytes[0] {
                b'*' => View::Array(items),
                b'~' => View::Set(items),
                b'%' => View::Map(Pairs(items)),
                _ => View::Push(items),
            };
            Ok((view, len))
        }
        Head::Chunk(_) => Err(bad("a chunk is outside of a string in chunks")),
        Head::End => Err(bad(
            "an end is where no aggregate of unknown length is open",
        )),
    }
}

fn line(bytes: &[u8]) -> Result<(View<'_>, usize), Malformed> {
    let (text, len) = scan::line(&bytes[1..]).map_err(bad)?.ok_or(CUT)?;
    let view = match (bytes[0], text) {
        (b'+', text) => View::Simple(text),
        (b'-', text) => View::Error(ErrorView(text)),
        (b':', text) => View::Integer(scan::integer(text).ok_or(bad("a bad integer"))?),
        (b',', text) => View::Double(scan::double(text).ok_or(bad("a bad double"))?),
        (b'(', text) if scan::is_big_number(text) => View::BigNumber(text),
        (b'(', _) => return Err(bad("a bad big number")),
        (b'#', b"t") => View::Boolean(true),
        (b'#', b"f") => View::Boolean(false),
        (b'#', _) => return Err(bad("a boolean that is neither t nor f")),
        (_, b"") => View::Null,
        _ => return Err(bad("a null with something in it")),
    };
    Ok((view, 1 + len))
}

fn string(kind: u8, content: &[u8]) -> Result<View<'_>, Malformed> {
    match (kind, content) {
        (b'$', _) => Ok(View::Bulk(content)),
        (b'!', _) => Ok(View::Error(ErrorView(content))),
        (_, &[a, b, c, b':', ref text @ ..]) => Ok(View::Verbatim {
            format: [a, b, c],
            text,
        }),
        _ => Err(bad("a verbatim string without a format of three letters")),
    }
}

/// The content that begins at `at`, and where the CRLF behind it ends.
#[inline]
fn blob(bytes: &[u8], at: usize, size: u64) -> Result<(&[u8], usize), Malformed> {
    let size = usize::try_from(size).map_err(|_| CUT)?;
    let (content, rest) = bytes[at..].split_at_checked(size).ok_or(CUT)?;
    match rest {
        [b'\r', b'\n', ..] => Ok((content, at + size + 2)),
        [] | [b'\r'] => Err(CUT),
        _ => Err(bad(scan::NO_CRLF)),
    }
}

fn chunks(bytes: &[u8], start: usize, depth: usize) -> Result<(Chunks<'_>, usize), Malformed> {
    check_depth(depth)?;
    let mut at = start;
    let mut total = 0;
    loop {
        let rest = &bytes[at..];
        match scan::head(rest).map_err(bad)?.ok_or(CUT)? {
            (Head::Chunk(0), len) => {
                let bytes = &bytes[start..at];
                return Ok((Chunks { bytes, left: total }, at + len));
            }
            (Head::Chunk(size), len) => {
                let (content, len) = blob(rest, len, size)?;
                total += content.len();
                at += len;
            }
            _ => return Err(bad("a string in chunks has something else in it")),
        }
    }
}

/// Checks an aggregate with everything in it, and says how many bytes it is.
fn aggregate(bytes: &[u8], depth: usize) -> Result<(Items<'_>, usize), Malformed> {
    let (head, start) = scan::head(bytes).map_err(bad)?.ok_or(CUT)?;
    let Head::Many(wanted) = head else {
        return Err(bad("attributes without a length"));
    };
    if wanted != Some(0) {
        check_depth(depth)?;
    }
    let mut at = start;
    let mut count = 0;
    while wanted != Some(count) {
        if wanted.is_none() && bytes.get(at) == Some(&b'.') {
            break;
        }
        at += element(&bytes[at..], depth + 1)?.len;
        count += 1;
    }
    let items = Items {
        bytes: &bytes[start..at],
        left: usize::try_from(count).map_err(|_| CUT)?,
    };
    if wanted.is_some() {
        return Ok((items, at));
    }
    if matches!(bytes[0], b'%' | b'|') && count % 2 == 1 {
        return Err(bad("a map ends between a key and its value"));
    }
    let (_, end) = scan::head(&bytes[at..]).map_err(bad)?.ok_or(CUT)?;
    Ok((items, at + end))
}

fn check_depth(depth: usize) -> Result<(), Malformed> {
    match depth < MAX_DEPTH {
        true => Ok(()),
        false => Err(bad("aggregates are nested too deep")),
    }
}

const CHECKED: &str = "elements were checked when the whole was parsed";

/// The elements of an aggregate, in order. The server's order means something in arrays only.
#[derive(Clone, Copy)]
pub struct Items<'a> {
    /// Of all elements that are left.
    bytes: &'a [u8],
    left: usize,
}

impl Items<'_> {
    /// Whether none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = View<'a>;

    #[inline]
    fn next(&mut self) -> Option<View<'a>> {
        self.left = self.left.checked_sub(1)?;
        // The depth was checked from the outside in, so it only gets less here. It is not zero:
        // a push within would have been refused.
        let element = element(self.bytes, 0).expect(CHECKED);
        self.bytes = &self.bytes[element.len..];
        Some(element.view)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Items<'_> {}
impl FusedIterator for Items<'_> {}

impl fmt::Debug for Items<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

/// The pairs of a map. The server may send a key twice.
#[derive(Clone, Copy)]
pub struct Pairs<'a>(Items<'a>);

impl<'a> Pairs<'a> {
    /// Keys and values in turn, as RESP2 sends maps.
    #[must_use]
    pub fn flat(self) -> Items<'a> {
        self.0
    }

    /// Whether none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> Iterator for Pairs<'a> {
    type Item = (View<'a>, View<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let key = self.0.next()?;
        Some((key, self.0.next().expect("elements of a map are even")))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let pairs = self.0.left / 2;
        (pairs, Some(pairs))
    }
}

impl ExactSizeIterator for Pairs<'_> {}
impl FusedIterator for Pairs<'_> {}

impl fmt::Debug for Pairs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(*self).finish()
    }
}

/// The parts of a string that was sent in chunks, none of them empty.
#[derive(Clone, Copy)]
pub struct Chunks<'a> {
    bytes: &'a [u8],
    /// Bytes of content that are left.
    left: usize,
}

impl Chunks<'_> {
    /// Bytes of all parts that are left.
    #[must_use]
    pub fn total_bytes(&self) -> usize {
        self.left
    }

    /// The parts that are left as one.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.left);
        self.for_each(|part| whole.extend_from_slice(part));
        whole
    }
}

impl<'a> Iterator for Chunks<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.bytes.is_empty() {
            return None;
        }
        let (Head::Chunk(size), len) = scan::head(self.bytes).ok().flatten().expect(CHECKED) else {
            unreachable!("only chunks are kept as such");
        };
        let (part, len) = blob(self.bytes, len, size).expect(CHECKED);
        self.bytes = &self.bytes[len..];
        self.left -= part.len();
        Some(part)
    }
}

impl FusedIterator for Chunks<'_> {}

impl fmt::Debug for Chunks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

#[cfg(test)]
mod tests;
