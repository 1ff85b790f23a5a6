//! The messages that are sent: all alike, or a big one now and then, or each with many small fields.

use embar_session::{Message, SendError, Session};

use crate::session::copying::ECHO;
use crate::session::payloads::{Payload, Payloads};
use crate::session::proto::{EchoView, Field, Record, RecordView};

/// Id of a [`Record`]; those below are of `embar bench session`.
const RECORD: u16 = 4;
/// Messages of more bytes are large.
pub(super) const LARGE: usize = 16 << 10;

/// One message of so many is a big one. Not a power of two: clocks look at each 32nd message, and are to meet big ones as often as others.
const BIG_EACH: u64 = 61;

/// What messages are like.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Bytes of the usual payload.
    pub(super) payload: u32,
    /// Those of a big one, if there are any.
    pub(super) big: Option<u32>,
    /// Small fields of each message besides.
    pub(super) fields: u32,
}

impl Shape {
    /// Bytes on the wire of the longest message, at most.
    pub(super) fn frame_bytes(self) -> usize {
        let payload = self.payload.max(self.big.unwrap_or(0));
        let echo = Payloads::new(Payload {
            min: payload,
            max: payload,
        });
        echo.frame_bytes() + self.fields as usize * FIELD_BYTES
    }
}

/// What is sent. Messages without fields go as [`EchoView`].
pub(super) struct Messages {
    usual: Record,
    big: Option<Record>,
}

/// A message that arrived.
pub(super) enum Arrived<'a> {
    Echo(EchoView<'a>),
    Record(RecordView<'a>),
}

impl Messages {
    pub(super) fn of(shape: Shape) -> Self {
        let record = |bytes: u32| Record {
            sequence: 1,
            payload: embar_meter::random::filler(bytes as usize),
            fields: (1..=shape.fields).map(field).collect(),
        };
        Self {
            usual: record(shape.payload),
            big: shape.big.map(record),
        }
    }

    /// Sends the one with this number.
    pub(super) fn send(&self, session: &Session, number: u64) -> Result<(), SendError> {
        let record = match &self.big {
            // The first one is none: it may be the only one that is on its way.
            Some(big) if number % BIG_EACH == BIG_EACH - 1 => big,
            _ => &self.usual,
        };
        if !record.fields.is_empty() {
            return session.send(RECORD, record);
        }
        let echo = EchoView {
            sequence: record.sequence,
            payload: &record.payload,
        };
        session.send_view(ECHO, &echo)
    }

    /// Bytes of the payloads of so many in a row, about.
    pub(super) fn bytes_of(&self, messages: u64) -> u64 {
        let bytes = |of: &Record| of.payload.len() as u64;
        let big = match &self.big {
            Some(big) => messages * (bytes(big) - bytes(&self.usual)) / BIG_EACH,
            None => 0,
        };
        messages * bytes(&self.usual) + big
    }

    /// Whether a payload is as long as one that is sent.
    pub(super) fn has(&self, payload: &[u8]) -> bool {
        let sent = [Some(&self.usual), self.big.as_ref()];
        let mut sent = sent.into_iter().flatten();
        sent.any(|it| it.payload.len() == payload.len())
    }
}

/// A field on the wire: tag and length, and two varints with theirs, at most.
const FIELD_BYTES: usize = 2 + 1 + 5 + 1 + 10;

fn field(number: u32) -> Field {
    Field {
        number,
        value: u64::from(number) << 20,
    }
}

impl<'a> Arrived<'a> {
    /// Decodes a message where it lies; `None` if it is not one of ours.
    pub(super) fn decode(message: &Message<'a>) -> Option<Self> {
        match message.id() {
            RECORD => message.decode().ok().map(Self::Record),
            _ => message.decode().ok().map(Self::Echo),
        }
    }

    pub(super) fn payload(&self) -> &'a [u8] {
        match self {
            Self::Echo(it) => it.payload,
            Self::Record(it) => it.payload,
        }
    }

    /// Sends it back.
    pub(super) fn answer(&self, session: &Session) -> Result<(), SendError> {
        match self {
            Self::Echo(it) => session.send_view(ECHO, it),
            Self::Record(it) => session.send_view(RECORD, it),
        }
    }
}
