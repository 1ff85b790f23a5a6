//! Any reply as a value that owns its content, for callers who do not know the reply's type.

use super::{ServerError, View};

/// Any reply, for a caller that does not know its type. Typed replies
/// ([`FromReply`](super::FromReply)) cost less.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// A short text such as `OK`, with replacement characters for bytes that are not UTF-8.
    Simple(String),
    /// An error of the server.
    Error(ServerError),
    /// A whole number.
    Integer(i64),
    /// A floating point number; may be infinite or NaN, and NaN is not equal to itself.
    Double(f64),
    /// True or false.
    Boolean(bool),
    /// A whole number of any size: decimal digits, perhaps with a sign before them.
    BigNumber(String),
    /// A string of bytes, in one piece or in chunks.
    Bulk(Vec<u8>),
    /// A text and what it is.
    Verbatim {
        /// `txt`, or `mkd` for Markdown.
        format: [u8; 3],
        /// The text.
        text: Vec<u8>,
    },
    /// Values in order.
    Array(Vec<Value>),
    /// Values in no order.
    Set(Vec<Value>),
    /// Keys and values in the order in which they came.
    Map(Vec<(Value, Value)>),
    /// A message that answers no command.
    Push(Vec<Value>),
}

impl From<View<'_>> for Value {
    fn from(view: View<'_>) -> Self {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        match view {
            View::Null => Self::Null,
            View::Simple(bytes) => Self::Simple(text(bytes)),
            View::Error(error) => Self::Error(error.into()),
            View::Integer(number) => Self::Integer(number),
            View::Double(number) => Self::Double(number),
            View::Boolean(truth) => Self::Boolean(truth),
            View::BigNumber(digits) => Self::BigNumber(text(digits)),
            View::Bulk(bytes) => Self::Bulk(bytes.to_vec()),
            View::Verbatim { format, text } => Self::Verbatim {
                format,
                text: text.to_vec(),
            },
            View::Chunks(chunks) => Self::Bulk(chunks.to_vec()),
            View::Array(items) => Self::Array(items.map(Self::from).collect()),
            View::Set(items) => Self::Set(items.map(Self::from).collect()),
            View::Map(pairs) => Self::Map(
                pairs
                    .map(|(key, value)| (Self::from(key), Self::from(value)))
                    .collect(),
            ),
            View::Push(items) => Self::Push(items.map(Self::from).collect()),
        }
    }
}
