#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod backoff;
mod connector;
mod dialed_connection;
mod dialing;
mod farewell;
mod handler;
mod inbox;
mod keeper;
mod keeping;
mod kept;
mod kept_connection;
mod link;
mod outbox;
mod plan;
mod proto;
mod resumable;
mod schedule;
mod settings;
mod state;
mod suspended_bytes;
mod table;
mod target;
mod token;
mod waiting;
mod wire;

pub use connector::Connector;
pub use handler::Handler;
pub use keeper::Keeper;
pub use kept_connection::KeptConnection;
pub use resumable::Resumable;
pub use settings::{ConnectorSettings, InDoubt, KeeperSettings, Replay};
pub use state::{End, Ended, Restart, State, WhyFresh};
pub use target::Target;
pub use wire::{MAX_PROGRAM_GREETING_BYTES, RESERVED_ID, program_greeting};

/// The parts without I/O: what was sent and not acknowledged, what was handled, and who may resume.
pub mod core {
    pub use crate::backoff::pause;
    pub use crate::inbox::{AckDue, Inbox};
    pub use crate::outbox::{MESSAGE_HEADER_BYTES, OutOfRange, Outbox, OutboxError, SEGMENT_BYTES};
    pub use crate::token::{Name, Secret, TOKEN_BYTES, Token, Tokens};
}
