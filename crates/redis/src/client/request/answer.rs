//! What a reply comes to: a result, or that the command was not executed here and now.

use crate::error::Error;
use crate::resp::{ErrorKind, FromReply, ServerError, View, WrongType, parse};

/// What a reply comes to.
#[derive(Debug)]
#[doc(hidden)]
pub enum Answer<R> {
    /// The command was executed, or never will be.
    Result(Result<R, Error>),
    /// The command was not executed, and another node, or another time, may do.
    Elsewhere(ServerError),
}

/// What can be made of all frames of a reply, which may be one more than the command's own when
/// they begin with the answer to ASKING.
#[doc(hidden)]
pub trait Outcome: Sized {
    /// Takes what it wants of them.
    fn read(reply: &mut Vec<u8>, replies: u32) -> Answer<Self>;
}

/// Reads a reply, perhaps to somewhere.
#[doc(hidden)]
pub trait Reader<R> {
    /// As [`Outcome::read`].
    fn read(&mut self, reply: &mut Vec<u8>, replies: u32) -> Answer<R>;
}

/// Reads a reply as the type of the result.
#[derive(Debug)]
#[doc(hidden)]
pub struct ByType;

impl<R: Outcome> Reader<R> for ByType {
    #[inline]
    fn read(&mut self, reply: &mut Vec<u8>, replies: u32) -> Answer<R> {
        R::read(reply, replies)
    }
}

/// Copies a string to a buffer of the caller's; the result is its length.
#[derive(Debug)]
pub struct IntoBuffer<'b>(pub(crate) &'b mut Vec<u8>);

impl Reader<Option<usize>> for IntoBuffer<'_> {
    fn read(&mut self, reply: &mut Vec<u8>, replies: u32) -> Answer<Option<usize>> {
        let buffer = &mut *self.0;
        buffer.clear();
        let copied = read_with(reply, replies, |view| match view {
            View::Null => Ok(None),
            View::Bulk(bytes) | View::Simple(bytes) | View::Verbatim { text: bytes, .. } => {
                buffer.extend_from_slice(bytes);
                Ok(Some(bytes.len()))
            }
            other => Err(WrongType::new("a string", other)),
        });
        copied.unwrap_or_else(|error| Answer::Result(Err(error)))
    }
}

impl<R: FromReply> Outcome for R {
    #[inline]
    fn read(reply: &mut Vec<u8>, replies: u32) -> Answer<Self> {
        read_with(reply, replies, R::from_reply).unwrap_or_else(|error| Answer::Result(Err(error)))
    }
}

#[inline]
fn read_with<R>(
    reply: &[u8],
    replies: u32,
    read: impl FnOnce(View<'_>) -> Result<R, WrongType>,
) -> Result<Answer<R>, Error> {
    let (mut view, len) = parse(reply)?;
    if len < reply.len() && is_one_more(&reply[len..], replies)? {
        // The answer to ASKING comes first.
        if let View::Error(error) = view {
            return Err(ServerError::from(error).into());
        }
        view = parse(&reply[len..])?.0;
    }
    if let View::Error(error) = view {
        let error = ServerError::from(error);
        if is_elsewhere(&error.kind) {
            return Ok(Answer::Elsewhere(error));
        }
        let result = read(view);
        return Ok(Answer::Result(result.map_err(|_| error.into())));
    }
    Ok(Answer::Result(read(view).map_err(Error::from)))
}

/// Whether behind a first frame there are as many as the command alone is answered by.
#[cold]
fn is_one_more(mut rest: &[u8], replies: u32) -> Result<bool, Error> {
    let mut count = 0;
    while !rest.is_empty() {
        rest = &rest[parse(rest)?.1..];
        count += 1;
    }
    Ok(count == replies)
}

/// Errors after which a command is sent again, as it was certainly not executed.
pub(crate) fn is_elsewhere(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Moved { .. }
            | ErrorKind::Ask { .. }
            | ErrorKind::TryAgain
            | ErrorKind::ClusterDown
            | ErrorKind::Loading
            | ErrorKind::MasterDown
            | ErrorKind::ReadOnly
    )
}
