//! Why a connection cannot be encrypted.

use std::fmt;

use thiserror::Error;

/// Why a connection cannot be encrypted, or not any longer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct TlsError {
    /// What kind of failure it is.
    pub fault: TlsFault,
    /// The same in words.
    pub text: String,
}

impl TlsError {
    /// A failure in words.
    pub fn new(fault: TlsFault, text: impl fmt::Display) -> Self {
        let text = text.to_string();
        Self { fault, text }
    }
}

/// The kinds of failures, as far as something different is to be done about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TlsFault {
    /// No authority that is trusted signed the peer's certificate.
    UnknownIssuer,
    /// The peer's certificate is for other names.
    WrongName,
    /// The peer's certificate is not valid yet, or not any more.
    OutOfDate,
    /// The peer's certificate is no good for another reason, or it showed none.
    BadCertificate,
    /// The peer does not accept the certificate of this end, or wants one.
    Refused,
    /// The peer does not want to encrypt on the terms of this end, certificates among them.
    NoAgreement,
    /// The peer has another complaint.
    PeerAlert,
    /// What the peer sent is no TLS.
    NotTls,
    /// The peer did not answer in time.
    Unanswered,
    /// The peer ended the connection before it said anything.
    Cut,
    /// Something else.
    Other,
}

/// A text is neither a host name nor an IP address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} cannot name a server: use a host name as in its certificate, or an IP address")]
pub struct ServerNameError(pub(super) String);
