//! How the other end learns why a session is over, and this end from it.

use embar_session::{CloseReason, Closed, Session, Side};

use crate::state::End;
use crate::wire::code;

/// Ends a connection of a session that is over like this, or about to be: its peer hears the reason.
pub(crate) fn part(session: &Session, end: &End) {
    match end {
        End::Refused { code, text, .. } => session.refuse(*code, text),
        End::BadPeer { text } => session.refuse(code::BAD_PEER, text),
        End::TakenOver => session.refuse(code::TAKEN_OVER, &end.to_string()),
        End::Full => session.refuse(code::FULL, &end.to_string()),
        End::Panicked => session.refuse(code::PANICKED, &end.to_string()),
        _ => session.close(),
    }
}

/// Whether a session is over because its connection ended like this.
pub(crate) fn end_of(why: &Closed) -> Option<End> {
    match why.reason {
        CloseReason::Finished => Some(End::Finished { by: why.by }),
        CloseReason::HandlerPanicked if why.by == Side::Local => Some(End::Panicked),
        CloseReason::Refused if why.by == Side::Peer && why.code == code::TAKEN_OVER => {
            Some(End::TakenOver)
        }
        CloseReason::Refused => Some(End::Refused {
            by: why.by,
            code: why.code,
            text: why.text.clone(),
        }),
        CloseReason::HandlerPanicked
        | CloseReason::NotSession
        | CloseReason::SessionVersion
        | CloseReason::Protocol
        | CloseReason::UnknownFrame
        | CloseReason::TooLarge
        | CloseReason::BadFrame
        | CloseReason::BadMessage
        | CloseReason::Certificate => Some(End::Connection(why.clone())),
        _ => None,
    }
}
