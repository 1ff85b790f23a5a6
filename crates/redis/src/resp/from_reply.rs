//! Converts replies to the types that a caller wants.

use thiserror::Error;

use super::{Arg, Items, ServerError, Value, View, scan};

/// A reply has another type than the caller asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("wanted {wanted}, the server sent {got}")]
pub struct WrongType {
    /// The type that the caller asked for, in a few words.
    pub wanted: &'static str,
    /// The reply: its type, and the beginning of its content.
    pub got: String,
}

impl WrongType {
    /// Describes the reply.
    #[cold]
    #[must_use]
    pub fn new(wanted: &'static str, view: View<'_>) -> Self {
        let got = match view {
            View::Simple(text) | View::Bulk(text) | View::Verbatim { text, .. } => {
                format!("{} '{}'", view.name(), short(text))
            }
            View::Error(error) => format!("an error '{}'", short(error.bytes())),
            View::BigNumber(digits) => format!("the number {}", short(digits)),
            View::Integer(number) => format!("the integer {number}"),
            View::Double(number) => format!("the double {number}"),
            View::Boolean(truth) => format!("the boolean {truth}"),
            View::Array(items) | View::Set(items) | View::Push(items) => {
                format!("{} of {}", view.name(), items.len())
            }
            View::Map(pairs) => format!("a map of {}", pairs.len()),
            View::Null | View::Chunks(_) => view.name().to_owned(),
        };
        Self { wanted, got }
    }
}

/// The beginning of a text, at most 40 bytes, for messages.
fn short(text: &[u8]) -> String {
    const MOST: usize = 40;
    match text.get(..MOST) {
        Some(start) if text.len() > MOST => format!("{}...", start.escape_ascii()),
        _ => text.escape_ascii().to_string(),
    }
}

/// The elements of an aggregate.
#[inline]
pub(super) fn elements(view: View<'_>) -> Option<Items<'_>> {
    match view {
        View::Array(items) | View::Set(items) | View::Push(items) => Some(items),
        View::Map(pairs) => Some(pairs.flat()),
        _ => None,
    }
}

/// Converts all elements one by one. An aggregate has as many elements as it says, so it may reserve
/// room for all.
pub(super) fn list<T: FromReply>(
    view: View<'_>,
    wanted: &'static str,
) -> Result<Vec<T>, WrongType> {
    let items = elements(view).ok_or_else(|| WrongType::new(wanted, view))?;
    let mut list = Vec::with_capacity(items.len());
    for item in items {
        list.push(T::from_reply(item)?);
    }
    Ok(list)
}

/// A type to which a reply can be converted.
///
/// The same type works with RESP2 and RESP3, which send maps, doubles and booleans in different
/// forms: numbers also come as strings, and maps as flat arrays.
///
/// | type | takes |
/// | --- | --- |
/// | `()` | all but errors |
/// | `bool` | booleans, the integers 0 and 1, `OK` |
/// | integers, floats | numbers that they can hold, also as text |
/// | `String`, `Vec<u8>`, ... | strings of all kinds, numbers |
/// | `Option<T>` | null, or what `T` takes |
/// | `Vec<T>`, `[T; N]`, sets | arrays, sets, pushes; maps as alternating keys and values |
/// | tuples | arrays and pushes of that length |
/// | maps | maps, arrays of alternating keys and values, arrays of pairs |
/// | `Vec` of tuples | as maps, with tuples of any length |
/// | `Result<T, ServerError>` | errors, or what `T` takes |
/// | [`Value`] | everything |
///
/// For maps and for `Vec`s of tuples, an array that begins with an array consists of rows.
pub trait FromReply: Sized {
    /// Converts a reply.
    ///
    /// # Errors
    /// When the reply has another type.
    fn from_reply(view: View<'_>) -> Result<Self, WrongType>;

    /// Converts a reply to a `Vec<Self>`. Only types whose vectors are not simply their elements in a
    /// row implement it: bytes and tuples.
    ///
    /// # Errors
    /// When the reply has another type.
    fn many_from_reply(view: View<'_>) -> Result<Vec<Self>, WrongType> {
        list(view, "an array")
    }
}

impl FromReply for Value {
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        Ok(view.into())
    }
}

impl FromReply for () {
    #[inline]
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        match view {
            View::Error(_) => Err(WrongType::new("anything but an error", view)),
            _ => Ok(()),
        }
    }
}

impl FromReply for bool {
    #[inline]
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        match view {
            View::Boolean(truth) => Ok(truth),
            View::Integer(0) | View::Bulk(b"0") => Ok(false),
            View::Integer(1) | View::Bulk(b"1") | View::Simple(b"OK") => Ok(true),
            _ => Err(WrongType::new("a boolean, 0, 1 or OK", view)),
        }
    }
}

/// The text of a reply that may be a number.
#[inline]
fn number_text(view: View<'_>) -> Option<&[u8]> {
    match view {
        View::Bulk(text)
        | View::Simple(text)
        | View::Verbatim { text, .. }
        | View::BigNumber(text) => Some(text),
        _ => None,
    }
}

macro_rules! integers {
    ($($type:ty, $wanted:literal;)*) => {$(
        impl FromReply for $type {
            #[inline]
            fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
                let number = match view {
                    View::Integer(number) => Self::try_from(number).ok(),
                    _ => number_text(view).and_then(|text| match scan::integer(text) {
                        Some(number) => Self::try_from(number).ok(),
                        // It exceeds a signed 64-bit number, or is none.
                        None => std::str::from_utf8(text).ok()?.parse().ok(),
                    }),
                };
                number.ok_or_else(|| WrongType::new($wanted, view))
            }
        }
    )*};
}

integers! {
    i8, "an integer of 8 bits";
    i16, "an integer of 16 bits";
    i32, "an integer of 32 bits";
    i64, "an integer of 64 bits";
    i128, "an integer of 128 bits";
    isize, "an integer of the size of a pointer";
    u16, "a positive integer of 16 bits";
    u32, "a positive integer of 32 bits";
    u64, "a positive integer of 64 bits";
    u128, "a positive integer of 128 bits";
    usize, "a positive integer of the size of a pointer";
}

impl FromReply for u8 {
    #[inline]
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        u16::from_reply(view)
            .ok()
            .and_then(|number| Self::try_from(number).ok())
            .ok_or_else(|| WrongType::new("a positive integer of 8 bits", view))
    }

    /// The bytes of a string, or small numbers one by one.
    fn many_from_reply(view: View<'_>) -> Result<Vec<Self>, WrongType> {
        match bytes(view) {
            Some(bytes) => Ok(bytes),
            None => list(view, "a string"),
        }
    }
}

/// The bytes of a reply that is one text: strings and numbers.
fn bytes(view: View<'_>) -> Option<Vec<u8>> {
    match view {
        View::Simple(bytes)
        | View::Bulk(bytes)
        | View::BigNumber(bytes)
        | View::Verbatim { text: bytes, .. } => Some(bytes.to_vec()),
        View::Chunks(chunks) => Some(chunks.to_vec()),
        View::Integer(number) => Some(written(&number)),
        View::Double(number) => Some(written(&number)),
        _ => None,
    }
}

fn written(number: &impl Arg) -> Vec<u8> {
    let mut text = vec![0; number.len()];
    number.write(&mut text);
    text
}

impl FromReply for f64 {
    #[inline]
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        match view {
            View::Double(number) => Some(number),
            View::Integer(number) => Some(number as f64),
            _ => number_text(view).and_then(scan::double),
        }
        .ok_or_else(|| WrongType::new("a floating point number", view))
    }
}

/// The nearest `f32`: the server's number may have more digits.
impl FromReply for f32 {
    #[inline]
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        f64::from_reply(view).map(|number| number as f32)
    }
}

impl FromReply for String {
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        bytes(view)
            .and_then(|bytes| Self::from_utf8(bytes).ok())
            .ok_or_else(|| WrongType::new("a text of UTF-8", view))
    }
}

impl FromReply for Box<str> {
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        String::from_reply(view).map(Self::from)
    }
}

impl<T: FromReply> FromReply for Option<T> {
    #[inline]
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        match view {
            View::Null => Ok(None),
            _ => T::from_reply(view).map(Some),
        }
    }
}

impl<T: FromReply> FromReply for Result<T, ServerError> {
    #[inline]
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        match view {
            View::Error(error) => Ok(Err(error.into())),
            _ => T::from_reply(view).map(Ok),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::parse;

    fn read<T: FromReply>(bytes: &str) -> Result<T, WrongType> {
        T::from_reply(parse(bytes.as_bytes()).expect(bytes).0)
    }

    fn wrong<T: FromReply + std::fmt::Debug>(bytes: &str) -> String {
        read::<T>(bytes).expect_err(bytes).to_string()
    }

    #[test]
    fn integers_are_read_where_they_fit() {
        for bytes in [":-128\r\n", "$4\r\n-128\r\n", "+-128\r\n", "(-128\r\n"] {
            assert_eq!(read(bytes), Ok(-128_i8), "{bytes}");
            assert_eq!(read(bytes), Ok(-128_i128), "{bytes}");
            let error = wrong::<u64>(bytes);
            assert!(
                error.contains("64 bits") && error.contains("-128"),
                "{error}"
            );
        }
        assert_eq!(read(":255\r\n"), Ok(255_u8));
        assert!(wrong::<u8>(":256\r\n").ends_with("the integer 256"));
        assert_eq!(read("(18446744073709551615\r\n"), Ok(u64::MAX));
        let big = wrong::<i64>("(18446744073709551615\r\n");
        assert!(big.ends_with("the number 18446744073709551615"), "{big}");
        assert_eq!(read("$20\r\n-9223372036854775808\r\n"), Ok(i64::MIN));
        for (bytes, got) in [
            ("$0\r\n\r\n", "a string ''"),
            ("$2\r\n 1\r\n", "a string ' 1'"),
            ("$1\r\n-\r\n", "a string '-'"),
            (",1\r\n", "the double 1"),
            ("_\r\n", "null"),
        ] {
            let error = wrong::<i64>(bytes);
            assert!(
                error.ends_with(&format!("the server sent {got}")),
                "{error}"
            );
        }
    }

    #[test]
    fn floats_are_read_from_all_numbers() {
        for bytes in [",1.5\r\n", "$3\r\n1.5\r\n", "+15e-1\r\n"] {
            assert_eq!(read(bytes), Ok(1.5), "{bytes}");
            assert_eq!(read(bytes), Ok(1.5_f32), "{bytes}");
        }
        assert_eq!(read(":-3\r\n"), Ok(-3.0));
        assert_eq!(read("$4\r\n-inf\r\n"), Ok(f64::NEG_INFINITY));
        assert_eq!(read(",inf\r\n"), Ok(f64::INFINITY));
        assert!(read::<f64>(",nan\r\n").expect("a float").is_nan());
        assert!(wrong::<f64>("+x\r\n").ends_with("a simple string 'x'"));
    }

    #[test]
    fn booleans_are_what_servers_say_for_them() {
        for bytes in ["#t\r\n", ":1\r\n", "+OK\r\n", "$1\r\n1\r\n"] {
            assert_eq!(read(bytes), Ok(true), "{bytes}");
        }
        for bytes in ["#f\r\n", ":0\r\n"] {
            assert_eq!(read(bytes), Ok(false), "{bytes}");
        }
        for (bytes, got) in [
            (":2\r\n", "the integer 2"),
            ("_\r\n", "null"),
            ("+QUEUED\r\n", "a simple string 'QUEUED'"),
        ] {
            let error = wrong::<bool>(bytes);
            assert!(
                error.ends_with(&format!("the server sent {got}")),
                "{error}"
            );
        }
        assert_eq!(read("$-1\r\n"), Ok(None::<bool>));
    }

    #[test]
    fn texts_are_read_from_strings_and_numbers() {
        for (bytes, wanted) in [
            ("+ab\r\n", "ab"),
            ("$2\r\nab\r\n", "ab"),
            ("=6\r\ntxt:ab\r\n", "ab"),
            ("$?\r\n;1\r\na\r\n;1\r\nb\r\n;0\r\n", "ab"),
            (":-7\r\n", "-7"),
            (",2.5\r\n", "2.5"),
            ("(123\r\n", "123"),
        ] {
            assert_eq!(read(bytes), Ok(wanted.to_owned()), "{bytes}");
            assert_eq!(read(bytes), Ok(wanted.as_bytes().to_vec()), "{bytes}");
            assert_eq!(read(bytes), Ok(Box::<str>::from(wanted)), "{bytes}");
        }
        assert_eq!(read("_\r\n"), Ok(None::<String>));
        let invalid = View::Bulk(b"\xFF");
        let error = String::from_reply(invalid).expect_err("it is not UTF-8");
        assert_eq!(error.got, r"a string '\xff'");
        assert_eq!(Vec::from_reply(invalid), Ok(b"\xFF".to_vec()));
    }

    #[test]
    fn unit_takes_all_but_errors() {
        for bytes in ["+OK\r\n", "_\r\n", "*1\r\n:1\r\n"] {
            assert_eq!(read(bytes), Ok(()), "{bytes}");
        }
        assert!(wrong::<()>("-ERR x\r\n").contains("'ERR x'"));
        assert_eq!(read::<Option<()>>("*-1\r\n"), Ok(None));
    }

    #[test]
    fn messages_name_what_was_wanted_and_what_came() {
        let message = wrong::<u32>("$3\r\na\tb\r\n");
        let wanted = r"wanted a positive integer of 32 bits, the server sent a string 'a\tb'";
        assert_eq!(message, wanted);
        let long = format!("$100\r\n{}\r\n", "x".repeat(100));
        let message = wrong::<i64>(&long);
        assert!(
            message.ends_with(&format!("'{}...'", "x".repeat(40))),
            "{message}"
        );
        assert!(wrong::<String>("*2\r\n:1\r\n:2\r\n").ends_with("an array of 2"));
    }
}
