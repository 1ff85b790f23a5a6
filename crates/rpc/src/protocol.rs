//! What goes over the wire: the ids of frames, and what each has before its message.
//!
//! All numbers are little-endian. A frame of an id that its receiver does not expect, with flags, or
//! shorter than its fixed part ends the session, which says why; everything else that is wrong
//! concerns one call.

use embar_session::{FrameError, FrameHeader, Protocol, Shape};

use crate::Status;
use crate::status::Code;

/// The ids of frames.
pub mod frame {
    /// A request whose reply is one message. From clients.
    pub const REQUEST: u16 = 1;
    /// A request whose reply is a stream. From clients.
    pub const STREAM_REQUEST: u16 = 2;
    /// The caller gives a call up. From clients.
    pub const CANCEL: u16 = 3;
    /// The caller takes more items of a stream. From clients.
    pub const CREDIT: u16 = 4;
    /// The end of a call without a stream: its reply, or why there is none. From servers.
    pub const REPLY: u16 = 5;
    /// A message of a stream. From servers.
    pub const ITEM: u16 = 6;
    /// The end of a stream. From servers.
    pub const END: u16 = 7;
}

/// Bytes of a call's number.
const CALL_BYTES: usize = 8;
/// Bytes of a request before its metadata.
const REQUEST_BYTES: usize = CALL_BYTES + 16;
/// Bytes of a request for a stream before its metadata.
const STREAM_REQUEST_BYTES: usize = REQUEST_BYTES + 8;
/// Bytes of a grant of credit.
const CREDIT_BYTES: usize = CALL_BYTES + 8;
/// Bytes of an end before its text.
const END_BYTES: usize = CALL_BYTES + 4;

/// Which end of a session this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It calls.
    Client,
    /// It is called.
    Server,
}

/// The protocol of calls, for [`Client`](embar_session::Client) and [`Server`](embar_session::Server)
/// of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rpc {
    role: Role,
}

impl Rpc {
    /// The protocol as this end speaks it.
    #[must_use]
    pub const fn new(role: Role) -> Self {
        Self { role }
    }
}

impl Protocol for Rpc {
    const NAME: &'static str = "embar-rpc";
    const VERSION: u32 = 1;

    #[inline]
    fn shape(&self, header: FrameHeader) -> Result<Shape, FrameError> {
        let id = header.id;
        let least = match (self.role, id) {
            (Role::Server, frame::REQUEST) => REQUEST_BYTES,
            (Role::Server, frame::STREAM_REQUEST) => STREAM_REQUEST_BYTES,
            (Role::Server, frame::CANCEL) => CALL_BYTES,
            (Role::Server, frame::CREDIT) => CREDIT_BYTES,
            (Role::Client, frame::REPLY | frame::END) => END_BYTES,
            (Role::Client, frame::ITEM) => CALL_BYTES,
            _ => return Err(FrameError::UnknownId { id }),
        };
        if header.flags != 0 {
            let flags = header.flags;
            return Err(FrameError::UnknownFlags { id, flags });
        }
        let bytes = header.length as usize;
        match bytes < least {
            true => Err(FrameError::TooShort { id, bytes }),
            false => Ok(Shape::Whole),
        }
    }
}

/// Names a call in both directions: a slot of the client, and how often that was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallNumber {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl CallNumber {
    pub(crate) fn to_bytes(self) -> [u8; CALL_BYTES] {
        let mut bytes = [0; CALL_BYTES];
        bytes[..4].copy_from_slice(&self.slot.to_le_bytes());
        bytes[4..].copy_from_slice(&self.generation.to_le_bytes());
        bytes
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            slot: reader.u32()?,
            generation: reader.u32()?,
        })
    }

    /// Of any frame.
    pub(crate) fn of(content: &[u8]) -> Option<Self> {
        Self::read(&mut Reader(content))
    }
}

/// What the receiver of a stream takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Credit {
    pub(crate) items: u32,
    pub(crate) bytes: u32,
}

/// A request, or a request for a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestFrame<'a> {
    pub(crate) call: CallNumber,
    pub(crate) method: u32,
    /// 0: it has no limit.
    pub(crate) time_left_us: u64,
    /// Of a stream.
    pub(crate) credit: Option<Credit>,
    pub(crate) metadata: &'a [u8],
    pub(crate) message: &'a [u8],
}

impl<'a> RequestFrame<'a> {
    /// None: its metadata is longer than the frame.
    pub(crate) fn parse(id: u16, content: &'a [u8]) -> Option<Self> {
        let reader = &mut Reader(content);
        let call = CallNumber::read(reader)?;
        let method = reader.u32()?;
        let metadata = usize::from(reader.u16()?);
        let _reserved = reader.u16()?;
        let time_left_us = reader.u64()?;
        let credit = match id {
            frame::STREAM_REQUEST => Some(Credit {
                items: reader.u32()?,
                bytes: reader.u32()?,
            }),
            _ => None,
        };
        let (metadata, message) = reader.0.split_at_checked(metadata)?;
        Some(Self {
            call,
            method,
            time_left_us,
            credit,
            metadata,
            message,
        })
    }

    /// Its id, and the bytes before its metadata.
    pub(crate) fn prefix(&self) -> (u16, Prefix<STREAM_REQUEST_BYTES>) {
        let mut prefix = Prefix::default();
        prefix.put(&self.call.to_bytes());
        prefix.put(&self.method.to_le_bytes());
        let metadata = u16::try_from(self.metadata.len()).unwrap_or(u16::MAX);
        prefix.put(&metadata.to_le_bytes());
        prefix.put(&[0; 2]);
        prefix.put(&self.time_left_us.to_le_bytes());
        let Some(credit) = self.credit else {
            return (frame::REQUEST, prefix);
        };
        prefix.put(&credit.items.to_le_bytes());
        prefix.put(&credit.bytes.to_le_bytes());
        (frame::STREAM_REQUEST, prefix)
    }
}

/// A grant of credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CreditFrame {
    pub(crate) call: CallNumber,
    pub(crate) credit: Credit,
}

impl CreditFrame {
    pub(crate) fn parse(content: &[u8]) -> Option<Self> {
        let reader = &mut Reader(content);
        Some(Self {
            call: CallNumber::read(reader)?,
            credit: Credit {
                items: reader.u32()?,
                bytes: reader.u32()?,
            },
        })
    }

    pub(crate) fn to_bytes(self) -> [u8; CREDIT_BYTES] {
        let mut bytes = [0; CREDIT_BYTES];
        bytes[..8].copy_from_slice(&self.call.to_bytes());
        bytes[8..12].copy_from_slice(&self.credit.items.to_le_bytes());
        bytes[12..].copy_from_slice(&self.credit.bytes.to_le_bytes());
        bytes
    }
}

/// The end of a call, or of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EndFrame<'a> {
    pub(crate) call: CallNumber,
    pub(crate) code: u16,
    text: &'a [u8],
    /// Where `rest` begins in the frame.
    pub(crate) start: usize,
    /// The reply, or the details of an error.
    pub(crate) rest: &'a [u8],
}

impl<'a> EndFrame<'a> {
    /// None: its text is longer than the frame.
    pub(crate) fn parse(content: &'a [u8]) -> Option<Self> {
        let reader = &mut Reader(content);
        let call = CallNumber::read(reader)?;
        let code = reader.u16()?;
        let text = usize::from(reader.u16()?);
        let (text, rest) = reader.0.split_at_checked(text)?;
        Some(Self {
            call,
            code,
            text,
            start: content.len() - rest.len(),
            rest,
        })
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.code == Code::Ok.number()
    }

    /// Of one that is not ok.
    pub(crate) fn status(&self) -> Status {
        let text = String::from_utf8_lossy(self.text);
        Status::new(Code::from_number(self.code), text).with_details(self.rest)
    }

    /// The bytes before the text.
    pub(crate) fn prefix(call: CallNumber, code: Code, text: &str) -> [u8; END_BYTES] {
        let mut bytes = [0; END_BYTES];
        bytes[..8].copy_from_slice(&call.to_bytes());
        bytes[8..10].copy_from_slice(&code.number().to_le_bytes());
        let text = u16::try_from(text.len()).unwrap_or(u16::MAX);
        bytes[10..].copy_from_slice(&text.to_le_bytes());
        bytes
    }
}

/// Where the message of an item begins.
pub(crate) const ITEM_START: usize = CALL_BYTES;

/// What a server says of itself in the handshake. Bytes behind it are for later versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// Calls that a session may have in flight.
    pub(crate) max_in_flight: u32,
}

impl Greeting {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        self.max_in_flight.to_le_bytes().to_vec()
    }

    /// One that is cut allows one call at a time.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let max_in_flight = Reader(bytes).u32().unwrap_or(1).max(1);
        Self { max_in_flight }
    }
}

/// Bytes that are put together on the stack.
pub(crate) struct Prefix<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Default for Prefix<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
        }
    }
}

impl<const N: usize> Prefix<N> {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Takes numbers from the front of bytes.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: CallNumber = CallNumber {
        slot: 7,
        generation: u32::MAX,
    };

    fn header(id: u16, bytes: usize) -> FrameHeader {
        FrameHeader::new(id, u32::try_from(bytes).unwrap())
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        let unary = RequestFrame {
            call: CALL,
            method: 0x0102_0304,
            time_left_us: 1 << 40,
            credit: None,
            metadata: b"meta",
            message: b"message",
        };
        let items = Credit {
            items: 3,
            bytes: u32::MAX,
        };
        for credit in [None, Some(items)] {
            let request = RequestFrame { credit, ..unary };
            let (id, prefix) = request.prefix();
            let content = [prefix.as_bytes(), b"meta", b"message"].concat();
            assert_eq!(RequestFrame::parse(id, &content), Some(request));
            let shape = Rpc::new(Role::Server).shape(header(id, prefix.as_bytes().len()));
            assert_eq!(shape, Ok(Shape::Whole));
            let bytes = prefix.as_bytes().len() - 1;
            let shape = Rpc::new(Role::Server).shape(header(id, bytes));
            assert_eq!(shape, Err(FrameError::TooShort { id, bytes }));
            let cut = &content[..prefix.as_bytes().len() + 3];
            assert_eq!(RequestFrame::parse(id, cut), None, "the metadata is cut");
        }
    }

    #[test]
    fn ends_are_read_as_they_were_written() {
        let prefix = EndFrame::prefix(CALL, Code::NotFound, "no such user");
        let content = [&prefix[..], b"no such user", b"details"].concat();
        let end = EndFrame::parse(&content).unwrap();
        assert_eq!((end.call, end.start), (CALL, 24));
        let status = Status::not_found("no such user").with_details("details");
        assert_eq!(end.status(), status);
        assert_eq!(EndFrame::parse(&content[..23]), None, "the text is cut");
    }

    #[test]
    fn each_end_takes_its_own_frames_only() {
        let refused = |role, id| {
            let shape = Rpc::new(role).shape(header(id, 64));
            shape == Err(FrameError::UnknownId { id })
        };
        for id in [
            frame::REQUEST,
            frame::STREAM_REQUEST,
            frame::CANCEL,
            frame::CREDIT,
        ] {
            assert!(refused(Role::Client, id) && !refused(Role::Server, id));
        }
        for id in [frame::REPLY, frame::ITEM, frame::END] {
            assert!(refused(Role::Server, id) && !refused(Role::Client, id));
        }
        assert!(refused(Role::Server, 0) && refused(Role::Client, 8));
        let flagged = FrameHeader {
            flags: 1,
            ..header(frame::REPLY, 64)
        };
        Rpc::new(Role::Client).shape(flagged).unwrap_err();
    }

    #[test]
    fn any_bytes_are_read_without_harm() {
        bolero::check!()
            .with_type::<Vec<u8>>()
            .for_each(|bytes: &Vec<u8>| {
                for id in [frame::REQUEST, frame::STREAM_REQUEST] {
                    if let Some(request) = RequestFrame::parse(id, bytes) {
                        let parts = request.metadata.len() + request.message.len();
                        assert!(parts < bytes.len());
                    }
                }
                if let Some(end) = EndFrame::parse(bytes) {
                    assert_eq!(&bytes[end.start..], end.rest);
                    let _ = end.status();
                }
                let _ = CreditFrame::parse(bytes);
                assert!(Greeting::parse(bytes).max_in_flight > 0);
            });
    }
}
