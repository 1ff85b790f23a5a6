//! Reads the first line of a RESP value: its type byte, and its length if it has one. The framer
//! and the parser both use this, so that they accept the same.

use memchr::memchr;

/// The longest first line of a type that has a length: type byte, 18 digits, CRLF.
pub(super) const MAX_HEAD: usize = 1 + MAX_DIGITS + 2;

/// No peer means a length of more digits, and 18 digits cannot overflow.
const MAX_DIGITS: usize = 18;

/// What a first line announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    /// Text up to the end of the line. The scan looked only at the type byte.
    Line,
    /// `$-1` or `*-1`, the null of RESP2.
    Null,
    /// So many bytes and CRLF.
    Blob(u64),
    /// `$?`: a string in chunks.
    StreamedBlob,
    /// `;n`: a chunk of such a string. A chunk of no bytes ends it.
    Chunk(u64),
    /// An aggregate of so many elements, or of unknown length, up to an [`Head::End`]. A pair of a map
    /// or of attributes counts as two.
    Many(Option<u64>),
    /// `.`: the end of an aggregate of unknown length.
    End,
}

enum Length {
    Known(u64),
    Null,
    Streamed,
}

/// Reads the first line of a type, and says how many bytes it is (one for [`Head::Line`]). `None`
/// when the line does not end in `bytes`.
#[inline]
pub(super) fn head(bytes: &[u8]) -> Result<Option<(Head, usize)>, &'static str> {
    let Some(&kind) = bytes.first() else {
        return Ok(None);
    };
    match kind {
        b'+' | b'-' | b':' | b',' | b'(' | b'#' | b'_' => return Ok(Some((Head::Line, 1))),
        b'$' | b'*' | b'%' | b'~' | b'>' | b'|' | b'=' | b'!' | b';' => {}
        b'.' => return Ok(line_end(bytes, 1)?.map(|end| (Head::End, end))),
        _ => return Err("a reply begins with a byte that is no type of RESP"),
    }
    let Some((length, end)) = length(bytes)? else {
        return Ok(None);
    };
    let head = match (kind, length) {
        (b'$' | b'!', Length::Known(bytes)) => Head::Blob(bytes),
        (b'=', Length::Known(bytes)) if bytes >= 4 => Head::Blob(bytes),
        (b';', Length::Known(bytes)) => Head::Chunk(bytes),
        (b'*' | b'~' | b'>', Length::Known(elements)) => Head::Many(Some(elements)),
        (b'%' | b'|', Length::Known(pairs)) => Head::Many(Some(2 * pairs)),
        (b'*' | b'~' | b'>' | b'%' | b'|', Length::Streamed) => Head::Many(None),
        (b'$', Length::Streamed) => Head::StreamedBlob,
        (b'$' | b'*', Length::Null) => Head::Null,
        _ => return Err("a type has a length that it cannot have"),
    };
    Ok(Some((head, end)))
}

/// Reads the length behind the type byte, and says where its line ends.
#[inline]
fn length(bytes: &[u8]) -> Result<Option<(Length, usize)>, &'static str> {
    match &bytes[1..] {
        [b'?', ..] => return Ok(line_end(bytes, 2)?.map(|end| (Length::Streamed, end))),
        [b'-', b'1', ..] => return Ok(line_end(bytes, 3)?.map(|end| (Length::Null, end))),
        [b'-'] => return Ok(None),
        _ => {}
    }
    let mut value = 0;
    for (at, &byte) in bytes.iter().enumerate().skip(1) {
        match byte {
            b'0'..=b'9' if at <= MAX_DIGITS => value = 10 * value + u64::from(byte - b'0'),
            b'\r' if at > 1 => {
                return Ok(line_end(bytes, at)?.map(|end| (Length::Known(value), end)));
            }
            _ => return Err("a length is no number, or too long a one"),
        }
    }
    Ok(None)
}

/// The line must end at `at`; says where the next one begins.
#[inline]
fn line_end(bytes: &[u8], at: usize) -> Result<Option<usize>, &'static str> {
    match &bytes[at..] {
        [b'\r', b'\n', ..] => Ok(Some(at + 2)),
        [] | [b'\r'] => Ok(None),
        _ => Err("a line does not end with CRLF where it must"),
    }
}

/// The text of a line and how many bytes it is with its CRLF. `None` when it does not end.
#[inline]
pub(super) fn line(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, &'static str> {
    let Some(feed) = memchr(b'\n', bytes) else {
        return Ok(None);
    };
    match bytes[..feed].split_last() {
        Some((b'\r', text)) => Ok(Some((text, feed + 1))),
        _ => Err(BARE_FEED),
    }
}

pub(super) const BARE_FEED: &str = "a line has an LF without a CR before it";
pub(super) const NO_CRLF: &str = "a string does not end with CRLF where it must";

/// A decimal number with or without a sign, and nothing else.
#[inline]
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    // Negative numbers reach one further, so the value is built as one.
    let mut value = 0_i64;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_sub(i64::from(digit))?;
    }
    if negative {
        Some(value)
    } else {
        value.checked_neg()
    }
}

/// Whether it is a decimal number of any size.
pub(super) fn is_big_number(text: &[u8]) -> bool {
    let digits = match text {
        [b'-' | b'+', digits @ ..] => digits,
        digits => digits,
    };
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// A floating point number, `inf`, `-inf` or `nan`.
pub(super) fn double(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
