//! Where the body of a frame is to go.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use embar_transport::{RecvBuf, Store};

use crate::Head;
use crate::runtime::handler::{BodyTarget, Handler};
use crate::runtime::session::Session;

/// Where a body goes: `Ok(None)` if it has to wait, `Err` with the text of a refusal or without one
/// after a panic.
pub(super) type AskedBody = Result<Option<(u16, (RecvBuf, Range<usize>))>, Option<String>>;

/// Asks the handler.
pub(super) fn ask_for_body(
    handler: &mut Option<Box<dyn Handler>>,
    session: &Session,
    head: &Head<'_>,
) -> AskedBody {
    let Some(handler) = handler else {
        return Err(Some(String::new()));
    };
    let (id, len) = (head.id(), head.body_len());
    let asked = catch_unwind(AssertUnwindSafe(|| {
        match handler.body(session, id, head.head(), len) {
            BodyTarget::Pause => Ok(None),
            BodyTarget::Refuse(text) => Err(Some(text)),
            BodyTarget::Into(store, range) => {
                assert_eq!(
                    range.len(),
                    len,
                    "the place of a body is as long as the body"
                );
                let mut buf = match store.0 {
                    Store::Heap(bytes) => RecvBuf::heap(bytes, range.clone()),
                    Store::Reserved(reservation) => RecvBuf::reserved(reservation, range.clone()),
                    Store::Ring(_) => unreachable!("no handler has a ring's space"),
                };
                buf.fill(head.early());
                Ok(Some((id, (buf, range))))
            }
        }
    }));
    asked.unwrap_or(Err(None))
}
