//! How a message gets into a session and out of it. All but the zero-copy way exist for comparison only.

use std::sync::Arc;

use buffa::Message as _;
use embar_session::{Message, SendError, Session};

use super::plan::{ReceiveMode, SendMode};
use super::proto::{Echo, EchoView};

/// Id of a message that the server answers with the same: the client begins when the answer comes.
pub const START: u16 = 1;
/// Id of an [`Echo`].
pub const ECHO: u16 = 2;
/// Id of a [`Count`](super::proto::Count).
pub const COUNT: u16 = 3;

/// What servers commonly make of a message before they send it, and after they received it.
pub struct Packet {
    /// Its id.
    pub id: u16,
    /// The encoded message.
    pub bytes: Vec<u8>,
}

impl Packet {
    fn encode(id: u16, echo: &Echo) -> Self {
        Self {
            id,
            bytes: echo.encode_to_vec(),
        }
    }

    /// Copied out of the session.
    pub fn copy_of(message: &Message<'_>) -> Self {
        Self {
            id: message.id(),
            bytes: message.payload().to_vec(),
        }
    }
}

/// A message that arrived, in the way it was asked for.
pub enum Arrived<'a> {
    /// A message that lies in the ring.
    View(EchoView<'a>),
    /// A message in memory of its own.
    Owned(Echo),
}

impl<'a> Arrived<'a> {
    /// Decodes a message in the ring.
    #[inline]
    pub fn from_ring(mode: ReceiveMode, message: &Message<'a>) -> Result<Self, buffa::DecodeError> {
        match mode {
            ReceiveMode::ZeroCopy => Ok(Self::View(message.decode()?)),
            ReceiveMode::Copy => Self::from_packet(&Packet::copy_of(message)),
        }
    }

    /// Decodes a packet object.
    pub fn from_packet(packet: &Packet) -> Result<Self, buffa::DecodeError> {
        Ok(Self::Owned(Echo::decode_from_slice(&packet.bytes)?))
    }

    /// Its number and payload.
    #[inline]
    pub fn parts(&self) -> (u64, &[u8]) {
        match self {
            Self::View(view) => (view.sequence, view.payload),
            Self::Owned(echo) => (echo.sequence, &echo.payload),
        }
    }

    /// Sends it back.
    #[inline]
    pub fn send(&self, mode: SendMode, session: &Session) -> Result<(), SendError> {
        match self {
            Self::View(view) => send(mode, session, view),
            Self::Owned(echo) => match mode {
                SendMode::ZeroCopy => session.send(ECHO, echo),
                SendMode::Copy | SendMode::Gather => send_packet(mode, session, echo),
            },
        }
    }
}

/// Sends a message that lies in borrowed memory.
#[inline]
pub fn send(mode: SendMode, session: &Session, echo: &EchoView<'_>) -> Result<(), SendError> {
    match mode {
        SendMode::ZeroCopy => session.send_view(ECHO, echo),
        SendMode::Copy | SendMode::Gather => {
            let owned = Echo {
                sequence: echo.sequence,
                payload: echo.payload.to_vec(),
            };
            send_packet(mode, session, &owned)
        }
    }
}

fn send_packet(mode: SendMode, session: &Session, echo: &Echo) -> Result<(), SendError> {
    let packet = Packet::encode(ECHO, echo);
    if mode == SendMode::Gather {
        return session.send_body(packet.id, &[], Arc::new(packet.bytes.into()));
    }
    session.send_with(packet.id, packet.bytes.len(), |place| {
        place.copy_from_slice(&packet.bytes);
    })
}
