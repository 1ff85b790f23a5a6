//! Reads replies: a reply is a result, or says that the server did not execute the command.

use std::sync::Arc;

use crate::engine::NodeConnection;
use crate::error::Error;
use crate::resp::{FromReply, ServerError, View, WrongType, parse};

/// What a reply says.
#[derive(Debug)]
#[doc(hidden)]
pub enum Answer<R> {
    /// The server executed the command, or never will.
    Result(Result<R, Error>),
    /// The server did not execute the command, and another node or a later attempt may.
    NotExecuted(ServerError),
}

/// A result that is made of all frames of a reply. The frames may be one more than the command's own:
/// then they begin with the answer to ASKING.
#[doc(hidden)]
pub trait FromFrames: Sized {
    /// Reads the frames; it may take their memory.
    fn read(reply: &mut Vec<u8>, replies: u32) -> Answer<Self>;
}

/// Reads replies of a request, into the result or into memory of the caller's.
#[doc(hidden)]
pub trait ReadReply<R> {
    /// As [`FromFrames::read`].
    fn read(&mut self, reply: &mut Vec<u8>, replies: u32) -> Answer<R>;

    /// The command is about to be submitted to this node, perhaps once more, or waits until it can be.
    #[inline]
    #[expect(private_interfaces, reason = "nobody else calls or implements it")]
    fn submitting(&mut self, _to: &Arc<NodeConnection>) {}
}

/// Reads the frame that answers a command, as the server sent it, also when it comes from a cache.
#[doc(hidden)]
pub trait ReadFrame<R> {
    /// Most bytes of frames that it reads without running anybody else's code, and briefly.
    const BRIEF_BYTES: usize;

    /// The result that the frame says.
    ///
    /// # Errors
    /// The server's, or that it has another type.
    fn read_frame(&mut self, frame: &[u8]) -> Result<R, Error>;
}

impl<R: FromReply> ReadFrame<R> for ByType {
    const BRIEF_BYTES: usize = 0;

    fn read_frame(&mut self, frame: &[u8]) -> Result<R, Error> {
        read_one(frame, R::from_reply)
    }
}

impl ReadFrame<Option<usize>> for IntoBuffer<'_> {
    const BRIEF_BYTES: usize = 4096;

    #[inline]
    fn read_frame(&mut self, frame: &[u8]) -> Result<Option<usize>, Error> {
        read_one(frame, |view| self.copy(view))
    }
}

/// Takes the frame that answers a command as it is.
#[derive(Debug)]
pub(crate) struct WholeReply;

impl ReadReply<Vec<u8>> for WholeReply {
    fn read(&mut self, reply: &mut Vec<u8>, replies: u32) -> Answer<Vec<u8>> {
        let kept = |reply: &[u8]| {
            let (_, len) = parse(reply)?;
            // The answer to ASKING comes first.
            let begin = if len < reply.len() { len } else { 0 };
            Ok::<_, Error>(reply[begin..].to_vec())
        };
        match read_with(reply, replies, |_| Ok(())) {
            Ok(Answer::Result(result)) => Answer::Result(result.and_then(|()| kept(reply))),
            Ok(Answer::NotExecuted(error)) => Answer::NotExecuted(error),
            Err(error) => Answer::Result(Err(error)),
        }
    }
}

/// Reads a reply as the type of the result says.
#[derive(Debug)]
#[doc(hidden)]
pub struct ByType;

impl<R: FromFrames> ReadReply<R> for ByType {
    #[inline]
    fn read(&mut self, reply: &mut Vec<u8>, replies: u32) -> Answer<R> {
        R::read(reply, replies)
    }
}

/// Copies a string into a buffer of the caller's; the result is its length.
#[derive(Debug)]
pub struct IntoBuffer<'b>(pub(crate) &'b mut Vec<u8>);

impl ReadReply<Option<usize>> for IntoBuffer<'_> {
    fn read(&mut self, reply: &mut Vec<u8>, replies: u32) -> Answer<Option<usize>> {
        let copied = read_with(reply, replies, |view| self.copy(view));
        copied.unwrap_or_else(|error| Answer::Result(Err(error)))
    }
}

impl IntoBuffer<'_> {
    #[inline]
    fn copy(&mut self, view: View<'_>) -> Result<Option<usize>, WrongType> {
        let buffer = &mut *self.0;
        buffer.clear();
        match view {
            View::Null => Ok(None),
            View::Bulk(bytes) | View::Simple(bytes) | View::Verbatim { text: bytes, .. } => {
                buffer.extend_from_slice(bytes);
                Ok(Some(bytes.len()))
            }
            other => Err(WrongType::new("a string", other)),
        }
    }
}

/// Reads a frame that is the last word on its command.
#[inline]
fn read_one<R>(
    frame: &[u8],
    read: impl FnOnce(View<'_>) -> Result<R, WrongType>,
) -> Result<R, Error> {
    let (view, _) = parse(frame)?;
    match (view, read(view)) {
        (_, Ok(result)) => Ok(result),
        (View::Error(error), Err(_)) => Err(ServerError::from(error).into()),
        (_, Err(wrong)) => Err(wrong.into()),
    }
}

impl<R: FromReply> FromFrames for R {
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
        if error.kind.is_retryable() {
            return Ok(Answer::NotExecuted(error));
        }
        let result = read(view);
        return Ok(Answer::Result(result.map_err(|_| error.into())));
    }
    Ok(Answer::Result(read(view).map_err(Error::from)))
}

/// Whether there are as many frames behind the first one as the command's own reply has.
#[cold]
fn is_one_more(mut rest: &[u8], replies: u32) -> Result<bool, Error> {
    let mut count = 0;
    while !rest.is_empty() {
        rest = &rest[parse(rest)?.1..];
        count += 1;
    }
    Ok(count == replies)
}
