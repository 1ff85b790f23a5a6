//! Who may wait.

use embar_session::is_worker;

use crate::Status;

/// Refuses to block the thread that would have to end the wait.
pub(crate) fn may_block() -> Result<(), Status> {
    match is_worker() {
        true => Err(Status::failed_precondition(
            "a handler must not wait: do this in a task or on another thread",
        )),
        false => Ok(()),
    }
}
