//! How the end of a QUIC connection reads as the end of a session.
//!
//! A connection that is closed without a word of the session carries the number of a [`CloseReason`] as its code, so the peer
//! learns as much as from a CLOSE frame. 0: there is nothing to say.

use std::io;

use embar_session::rustls::{CertificateError, Error as TlsError};
use embar_session::{CloseReason, Closed, Refusal, Side};
use quinn::{ConnectionError, VarInt};

/// TLS alerts arrive as codes from here on (RFC 9001, 4.8).
const CRYPTO: u64 = 0x100;
/// The server wants no connection (RFC 9000, 20.1).
const CONNECTION_REFUSED: u64 = 0x02;

/// The code that tells the peer of `reason`.
pub(crate) fn code_of(reason: CloseReason) -> VarInt {
    VarInt::from_u32(reason.number().unsigned_abs())
}

pub(crate) fn closed(by: Side, reason: CloseReason, text: impl Into<String>) -> Closed {
    Closed {
        by,
        reason,
        code: 0,
        text: text.into(),
    }
}

/// The end of a session whose connection ended like this.
pub(crate) fn end_of(error: &ConnectionError) -> Closed {
    let (by, reason) = match error {
        ConnectionError::VersionMismatch => (Side::Local, CloseReason::Protocol),
        ConnectionError::TransportError(error) => {
            let reason = match is_bad_signature(&error.reason) {
                true => CloseReason::Certificate,
                false => of_transport(u64::from(error.code)),
            };
            (Side::Local, reason)
        }
        ConnectionError::ConnectionClosed(close) => {
            (Side::Peer, of_transport(u64::from(close.error_code)))
        }
        ConnectionError::ApplicationClosed(close) => {
            let text = String::from_utf8_lossy(&close.reason);
            return match i32::try_from(close.error_code.into_inner()) {
                Ok(0) => closed(Side::Network, CloseReason::Disconnected, text),
                Ok(number) => closed(Side::Peer, CloseReason::from_number(number), text),
                Err(_) => closed(Side::Peer, CloseReason::Refused, text),
            };
        }
        ConnectionError::Reset => {
            let reason = CloseReason::Io(io::ErrorKind::ConnectionReset);
            return closed(Side::Network, reason, "the peer has started anew");
        }
        // As the session would say it.
        ConnectionError::TimedOut => return closed(Side::Local, CloseReason::Idle, ""),
        ConnectionError::LocallyClosed => return closed(Side::Local, CloseReason::Shutdown, ""),
        ConnectionError::CidsExhausted => {
            (Side::Local, CloseReason::Io(io::ErrorKind::OutOfMemory))
        }
    };
    closed(by, reason, error.to_string())
}

fn of_transport(code: u64) -> CloseReason {
    match code.checked_sub(CRYPTO) {
        // RFC 8446, 6.2: bad, unsupported, revoked, expired and unknown certificates, unknown authorities, denied access,
        // and certificates that are missing.
        Some(42..=46 | 48 | 49 | 113 | 116) => CloseReason::Certificate,
        Some(0..=0xFF) => CloseReason::Tls,
        _ if code == CONNECTION_REFUSED => CloseReason::Refused,
        _ => CloseReason::BadFrame,
    }
}

/// Whether this is what rustls says of a certificate whose signature is wrong: its alert says no more than that something
/// could not be verified.
fn is_bad_signature(text: &str) -> bool {
    text == TlsError::InvalidCertificate(CertificateError::BadSignature).to_string()
}

/// As what a handshake counts that ended like this; `None`: the peer left.
pub(crate) fn refusal_of(error: &ConnectionError) -> Option<Refusal> {
    match end_of(error).reason {
        CloseReason::Certificate => Some(Refusal::Certificate),
        CloseReason::Tls => Some(Refusal::Tls),
        CloseReason::Idle => Some(Refusal::HelloTimeout),
        CloseReason::Shutdown => Some(Refusal::Shutdown),
        CloseReason::BadFrame | CloseReason::Protocol => Some(Refusal::Protocol),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_about_certificates_are_told_from_others() {
        assert_eq!(of_transport(0x100 + 48), CloseReason::Certificate);
        assert_eq!(of_transport(0x100 + 120), CloseReason::Tls);
        assert_eq!(of_transport(2), CloseReason::Refused);
        assert_eq!(of_transport(0x0A), CloseReason::BadFrame);
    }

    #[test]
    fn a_reason_survives_the_way_as_a_code() {
        let close = quinn::ApplicationClose {
            error_code: code_of(CloseReason::Shutdown),
            reason: bytes::Bytes::from_static(b"later"),
        };
        let end = end_of(&ConnectionError::ApplicationClosed(close));
        assert_eq!(end, closed(Side::Peer, CloseReason::Shutdown, "later"));
    }
}
