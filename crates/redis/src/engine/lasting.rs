//! Which failures to connect will not go away by themselves.

use embar_mux::CloseReason;

use crate::error::Error;
use crate::resp::{ServerError, is_lasting_refusal, is_refusal_of_credentials};
use crate::tls::is_lasting;

/// Why connecting failed, if the reason lasts: TLS, or a refused greeting.
///
/// With a provider of credentials no refused ones last: it may have others.
pub(super) fn lasting(reason: CloseReason, has_provider: bool) -> Option<Error> {
    match reason {
        CloseReason::Tls(error) if is_lasting(&error) => {
            let why = CloseReason::Tls(error).to_string();
            Some(Error::Unavailable { why })
        }
        CloseReason::Refused(words) if has_provider && is_refusal_of_credentials(&words) => None,
        CloseReason::Refused(words) if is_lasting_refusal(&words) => {
            Some(ServerError::new(words).answering(false).into())
        }
        _ => None,
    }
}
