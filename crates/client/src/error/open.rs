//! Why a publisher or subscriber did not open.

use super::{AddressError, ClientError, ReadError, SettingError};

/// Why a publisher or subscriber did not open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A setting cannot be used.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A bootstrap address is not one.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The cluster, the topic or this process is at fault.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// What the subscriber is to read first cannot be had.
    #[error(transparent)]
    Read(ReadError),
}

impl OpenError {
    /// Whether opening with the same settings may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Setting(_) | Self::Address(_) => false,
            Self::Client(error) => error.is_retryable(),
            Self::Read(error) => error.is_retryable(),
        }
    }
}

impl From<ReadError> for OpenError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Client(error) => Self::Client(error),
            ReadError::Setting(error) => Self::Setting(error),
            other => Self::Read(other),
        }
    }
}
