//! The duty to end a call: whoever has it ends the call, also by dropping it.

use std::sync::Arc;
use std::thread;

use super::calls::Calls;
use crate::outgoing::{Nothing, Outgoing};
use crate::protocol::CallNumber;
use crate::{Code, Status};

/// Ends one call, once.
pub(super) struct Ticket {
    calls: Arc<Calls>,
    number: CallNumber,
    stream: bool,
    ended: bool,
}

impl Ticket {
    /// Of a call that was opened.
    pub(super) fn new(calls: &Arc<Calls>, number: CallNumber, stream: bool) -> Self {
        Self {
            calls: Arc::clone(calls),
            number,
            stream,
            ended: false,
        }
    }

    pub(super) fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    pub(super) fn number(&self) -> CallNumber {
        self.number
    }

    /// Ends the call.
    pub(super) fn end(mut self, end: Result<impl Outgoing, Status>) {
        self.finish(end);
    }

    /// Ends the call with an error.
    pub(super) fn fail(self, status: Status) {
        self.end(Err::<Nothing, _>(status));
    }

    fn finish(&mut self, end: Result<impl Outgoing, Status>) {
        self.ended = true;
        // Before the end is sent: its slot is free for the next call by then.
        let Some(mut call) = self.calls.close(self.number) else {
            return;
        };
        let end = match call.given_up {
            Some(why) => Err(given_up(why)),
            None => end,
        };
        let took = call.began.elapsed();
        // Its wakers are of tasks that are done, and their destructors anybody's code.
        drop((call.task.take(), call.credit_waker.take()));
        // A reply that cannot be sent becomes an error: only then is it known what the caller gets.
        let code = self.calls.send_end(self.number, self.stream, end);
        self.calls.counts.of(call.route).ended(code, took);
    }
}

/// What ends a call that was given up.
pub(super) fn given_up(why: Code) -> Status {
    match why {
        Code::DeadlineExceeded => Status::deadline_exceeded("the call's time is over"),
        _ => Status::cancelled("the caller gave the call up"),
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.ended {
            let text = match thread::panicking() {
                true => "the method panicked",
                false => "the server dropped the call without an answer",
            };
            self.finish(Err::<Nothing, _>(Status::internal(text)));
        }
    }
}
