//! The errors of publishers, subscribers and admin clients as one type, for checks that use all three.

use embar_client::{AdminError, ClientError, ErrorCode, OpenError, PublishError, ReadError};

/// An error of whichever client. What may end any of them is [`LogClientError::Client`], whatever reported it.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub enum LogClientError {
    /// The cluster, the topic or this process is at fault.
    Client(ClientError),
    /// A publisher or subscriber did not open.
    Open(OpenError),
    /// A message was not published or acknowledged.
    Publish(PublishError),
    /// There is no next message.
    Read(ReadError),
    /// A request was not answered.
    Admin(AdminError),
}

impl From<OpenError> for LogClientError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Client(error) => Self::Client(error),
            OpenError::Read(error) => Self::Read(error),
            other => Self::Open(other),
        }
    }
}

impl From<PublishError> for LogClientError {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Client(error) | PublishError::Ended(error) => Self::Client(error),
            other => Self::Publish(other),
        }
    }
}

impl From<ReadError> for LogClientError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Client(error) => Self::Client(error),
            other => Self::Read(other),
        }
    }
}

impl From<AdminError> for LogClientError {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Client(error) => Self::Client(error),
            other => Self::Admin(other),
        }
    }
}

impl LogClientError {
    /// Whether it passes: brokers that are being killed do not answer, or cannot do yet what they are asked.
    pub fn passes(&self) -> bool {
        use ErrorCode::{Backpressure, ClusterFull, Draining, NoSequencer, Timeout};
        match self {
            Self::Client(ClientError::Refused { code, .. }) => matches!(
                code,
                Backpressure | ClusterFull | Draining | NoSequencer | Timeout
            ),
            Self::Client(error) => matches!(
                error,
                ClientError::Unreachable { .. } | ClientError::NoDataBrokers
            ),
            Self::Publish(error) => matches!(
                error,
                PublishError::NoBuffer { .. }
                    | PublishError::Expired { .. }
                    | PublishError::Pending { .. }
            ),
            Self::Read(error) => matches!(
                error,
                ReadError::TimedOut { .. }
                    | ReadError::BrokerLost { .. }
                    | ReadError::AllBrokersLost { .. }
            ),
            Self::Admin(error) => matches!(
                error,
                AdminError::TimedOut { .. } | AdminError::StillLeaving { .. }
            ),
            Self::Open(_) => false,
        }
    }
}
