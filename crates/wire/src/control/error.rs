//! What can be wrong with a control message.

use thiserror::Error;

use crate::frame::FrameId;

/// A control message that cannot be accepted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ControlError {
    /// The id is not that of a control message.
    #[error("{id:?} is not a control message")]
    NotControl {
        /// The id found.
        id: FrameId,
    },
    /// The body is not valid Protobuf of that message.
    #[error("malformed {id:?}: {reason}")]
    Malformed {
        /// The kind of message.
        id: FrameId,
        /// What the Protobuf decoder says.
        reason: buffa::DecodeError,
    },
    /// What came with the session's handshake is not valid Protobuf.
    #[error("malformed greeting: {reason}")]
    Greeting {
        /// What the Protobuf decoder says.
        reason: buffa::DecodeError,
    },
    /// A field that must be there is missing or has a value that this version does not know.
    #[error("field `{field}` is missing or has an unknown value: the peer may be newer")]
    Field {
        /// Its name in the schema.
        field: &'static str,
    },
}

/// A control message that is too large to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a {id:?} message of {bytes} bytes exceeds the limit of {limit}")]
pub struct EncodeError {
    /// The kind of message.
    pub id: FrameId,
    /// Bytes of its body.
    pub bytes: usize,
    /// Most bytes that fit a control frame.
    pub limit: u32,
}
