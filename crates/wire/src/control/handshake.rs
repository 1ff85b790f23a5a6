//! What both ends of a connection say of themselves when its session opens, and the codes and the message by which a
//! broker refuses a request.

use std::fmt;

use buffa::ViewEncode;

use super::error::ControlError;
use super::field::{Body, Field, choice, message};
use super::options;
use crate::proto::{ErrorView, HelloView};

choice! {
    /// What the side that connected is.
    Role as Role {
        /// A publisher, subscriber or administrator.
        Client = 1,
        /// Another broker of the cluster.
        Broker = 2,
    }
}

/// What the side that connected says of itself in the session's handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What the sender is.
    pub role: Role,
    /// The sender's name for logs, free text.
    pub name: String,
}

impl Body for Hello {
    type View<'a> = HelloView<'a>;

    fn to_view(&self) -> HelloView<'_> {
        HelloView {
            role: self.role.to_wire(),
            name: &self.name,
        }
    }

    fn from_view(view: HelloView<'_>) -> Result<Self, ControlError> {
        Ok(Self {
            role: Role::from_wire(view.role, "role")?,
            name: view.name.to_owned(),
        })
    }
}

message! {
    /// The broker's answer to [`Hello`], in its part of the session's handshake.
    Welcome as WelcomeView {
        /// Row of the broker that answers.
        broker_id: u32,
        /// Its incarnation.
        incarnation: u32,
        /// Largest body of a control frame it accepts, in bytes.
        max_control_bytes: u32,
        /// Largest batch frame it accepts, in bytes.
        max_batch_bytes: u32,
        /// Name and version of its software.
        server: String,
        /// Nonce of its cluster's region; 0 if it does not say it.
        region: u64,
    }
}

macro_rules! greetings {
    ($($name:ident,)*) => {$(
        impl $name {
            /// Its bytes, for the session's handshake.
            #[must_use]
            pub fn to_greeting(&self) -> Vec<u8> {
                self.to_view().encode_to_vec()
            }

            /// Reads the bytes that came with the session's handshake.
            ///
            /// # Errors
            /// [`ControlError`] if they are not valid Protobuf of this message, or a field
            /// is missing or unknown.
            pub fn from_greeting(greeting: &[u8]) -> Result<Self, ControlError> {
                let view = options().decode_view(greeting);
                let view = view.map_err(|reason| ControlError::Greeting { reason })?;
                Self::from_view(view)
            }
        }
    )*};
}

greetings! { Hello, Welcome, }

choice! {
    /// Why a request was refused.
    ErrorCode as ErrorCode {
        /// The versions of the protocol do not match.
        UnsupportedVersion = 1,
        /// Bytes that are no valid frame; the connection is closed.
        BadFrame = 2,
        /// A batch, message or control frame exceeds its limit.
        TooLarge = 3,
        /// No such topic.
        UnknownTopic = 4,
        /// A topic of that name exists.
        TopicExists = 5,
        /// The topic name is not allowed.
        InvalidName = 6,
        /// Another argument is not allowed.
        InvalidArgument = 7,
        /// Only the head answers this.
        NotHead = 8,
        /// This broker takes no data.
        NotData = 9,
        /// Bytes were damaged on their way.
        ChecksumMismatch = 10,
        /// No room for too long: slow down and try again.
        Backpressure = 11,
        /// The offset is not retained.
        OffsetOutOfRange = 12,
        /// The broker is about to stop: go to another.
        Draining = 13,
        /// No row, topic record or memory is left.
        ClusterFull = 14,
        /// The broker is at fault.
        Internal = 15,
        /// It took too long.
        Timeout = 16,
        /// The epoch of the session is over: open the next one. In an ack each offset is the number
        /// of the batch that is expected next.
        Fenced = 17,
        /// There is no such session, or no such epoch of it.
        UnknownSession = 18,
        /// The number is too far ahead of the lowest one that is open: try again later.
        BeyondWindow = 19,
        /// There is no room to wait for the batches before it: try again later.
        HeldFull = 20,
        /// Another instance opened this producer.
        SessionTaken = 21,
        /// No candidate sequences at the moment: try again later.
        NoSequencer = 22,
        /// The broker has what no other one has: it leaves only if it is forced to.
        RetainsData = 23,
        /// The topic that is meant was deleted, and another one has its name.
        TopicReplaced = 24,
        /// What is asked for cannot be had at this broker at the moment: ask another.
        OutOfReach = 25,
        /// The session had no connection, and others needed its place: it is not known any more which of
        /// its batches are stored.
        SessionGivenUp = 26,
        /// The producer's session was opened with another secret.
        WrongSecret = 27,
        /// Shared memory that this needs is damaged: neither waiting nor asking again helps.
        Damaged = 28,
        /// The connection came by a Unix socket from a process of another user, who is not root either.
        WrongUser = 29,
        /// A disk of the topic has failed, or is full: what needs it waits until it is replaced, or there is room.
        DiskUnavailable = 30,
    }
}

impl ErrorCode {
    /// Its number on the wire.
    #[must_use]
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The code of a number; one that only a newer version knows is [`ErrorCode::Internal`].
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        let known = Self::ALL.iter().find(|code| code.number() == number);
        known.copied().unwrap_or(Self::Internal)
    }
}

impl ErrorCode {
    /// Whether what was refused with this code may succeed later, at this broker or another.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Backpressure
                | Self::BeyondWindow
                | Self::ChecksumMismatch
                | Self::ClusterFull
                | Self::DiskUnavailable
                | Self::Draining
                | Self::HeldFull
                | Self::NoSequencer
                | Self::Timeout
        )
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A request was refused, or the connection is about to be closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorReply {
    /// What kind of refusal. A code that only a newer version knows becomes
    /// [`ErrorCode::Internal`].
    pub code: ErrorCode,
    /// What went wrong and what to do.
    pub message: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// The topic in question.
    pub topic: Option<String>,
    /// The first offset retained, with [`ErrorCode::OffsetOutOfRange`].
    pub first_available: Option<u64>,
}

impl ErrorReply {
    /// A refusal that names neither a topic nor an offset.
    #[must_use]
    pub fn new(code: ErrorCode, message: String) -> Self {
        Self {
            code,
            message,
            retryable: code.is_retryable(),
            topic: None,
            first_available: None,
        }
    }
}

impl Body for ErrorReply {
    type View<'a> = ErrorView<'a>;

    fn to_view(&self) -> ErrorView<'_> {
        ErrorView {
            code: self.code.to_wire(),
            message: &self.message,
            retryable: self.retryable,
            topic: self.topic.to_wire(),
            first_available: self.first_available,
        }
    }

    fn from_view(view: ErrorView<'_>) -> Result<Self, ControlError> {
        Ok(Self {
            // A refusal must be understood even if its reason is too new.
            code: ErrorCode::from_wire(view.code, "code").unwrap_or(ErrorCode::Internal),
            message: view.message.to_owned(),
            retryable: view.retryable,
            topic: view.topic.map(str::to_owned),
            first_available: view.first_available,
        })
    }
}
