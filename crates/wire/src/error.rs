//! Anything that can be wrong with what a peer sent, and the code to answer it with.

use embar_frame::FrameError;
use thiserror::Error;

use crate::ack::AckError;
use crate::batch::BatchError;
use crate::control::{ControlError, ErrorCode};
use crate::message::MessageError;

/// Anything that can be wrong with a stream of frames.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// In a frame header.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// In a batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// In a message of a batch.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// In an ack.
    #[error(transparent)]
    Ack(#[from] AckError),
    /// In a control message.
    #[error(transparent)]
    Control(#[from] ControlError),
}

impl DecodeError {
    /// The code to answer the peer with.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Frame(FrameError::TooLarge { .. }) => ErrorCode::TooLarge,
            Self::Batch(BatchError::HeaderChecksum { .. } | BatchError::PayloadChecksum { .. }) => {
                ErrorCode::ChecksumMismatch
            }
            Self::Control(ControlError::Field { .. }) => ErrorCode::InvalidArgument,
            _ => ErrorCode::BadFrame,
        }
    }
}
