//! The handler of one session: finds the method of each request, and calls it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use embar_session::{Closed, Flow, Handler, Message, Session};

use super::call::Call;
use super::calls::Calls;
use super::request::Request;
use super::routes::Routes;
use super::ticket::Ticket;
use crate::outgoing::Nothing;
use crate::protocol::{CallNumber, CreditFrame, Greeting, RequestFrame, frame};
use crate::{Metadata, Method, Status};

/// The handler.
pub(super) struct Requests {
    routes: Arc<Routes>,
    /// The call at hand, whose memory each request uses again. None before the peer has greeted.
    call: Option<Call>,
}

impl Requests {
    pub(super) fn new(routes: &Arc<Routes>) -> Self {
        Self {
            routes: Arc::clone(routes),
            call: None,
        }
    }
}

impl Handler for Requests {
    fn greeted(&mut self, session: &Session, _: &[u8]) -> Result<Vec<u8>, String> {
        self.call = Some(Call {
            calls: Calls::new(session, self.routes.settings(), self.routes.counts()),
            number: CallNumber {
                slot: 0,
                generation: 0,
            },
            method: Method::new("", false),
            deadline: None,
            metadata: Metadata::new(),
        });
        let greeting = Greeting {
            max_in_flight: self.routes.settings().in_flight(),
        };
        Ok(greeting.to_bytes())
    }

    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let (Some(call), content) = (&mut self.call, message.payload()) else {
            return Flow::Continue;
        };
        if !call.calls.send_waiting() {
            // It comes again when there is room for a reply; until then the peer's time to read runs.
            session.resume();
            return Flow::Pause;
        }
        match message.id() {
            frame::CANCEL => {
                if let Some(number) = CallNumber::of(content) {
                    call.calls.cancel(number);
                }
            }
            frame::CREDIT => {
                if let Some(grant) = CreditFrame::parse(content) {
                    call.calls.credit(&grant);
                }
            }
            id => request(&self.routes, call, id, content),
        }
        Flow::Continue
    }

    fn woken(&mut self, _: &Session) {
        if let Some(call) = &self.call {
            call.calls.woken();
        }
    }

    fn may_end(&mut self, _: &Session) -> bool {
        let call = self.call.as_ref();
        call.is_none_or(|call| call.calls.has_sent_all())
    }

    fn closed(&mut self, _: &Session, _: &Closed) {
        if let Some(call) = &self.call {
            call.calls.end();
        }
    }
}

/// Calls the method of a request. What is wrong with it ends this call, and nothing else.
fn request(routes: &Routes, call: &mut Call, id: u16, content: &[u8]) {
    let stream = id == frame::STREAM_REQUEST;
    let refuse = |call: &Call, number: CallNumber, status: Status| {
        call.calls
            .send_end(number, stream, Err::<Nothing, _>(status));
    };
    let Some(request) = RequestFrame::parse(id, content) else {
        let status = Status::invalid_argument("the metadata is longer than its frame");
        return CallNumber::of(content).map_or((), |number| refuse(call, number, status));
    };
    let calls = Arc::clone(&call.calls);
    let counts = routes.counts();
    let Some(route) = routes.find(request.method) else {
        counts.unknown.fetch_add(1, Ordering::Relaxed);
        let number = request.method;
        let status = Status::unimplemented(format!("no method has the number {number:#010x}"));
        return refuse(call, request.call, status);
    };
    let method = counts.method(route);
    if method.streams() != stream {
        let kind = if stream { "one message" } else { "a stream" };
        let status = Status::unimplemented(format!("{} answers with {kind}", method.path()));
        return refuse(call, request.call, status);
    }
    let deadline = match calls.open(&request, route) {
        Ok(deadline) => deadline,
        Err(status) => return refuse(call, request.call, status),
    };
    counts.of(route).began();
    let ticket = Ticket::new(&calls, request.call, stream);
    call.number = request.call;
    call.method = method;
    call.deadline = deadline;
    if let Err(error) = call.metadata.set(request.metadata) {
        return ticket.fail(Status::invalid_argument(error.to_string()));
    }
    let (call, message) = (&*call, request.message);
    let ran = catch_unwind(AssertUnwindSafe(|| {
        // The ticket ends the call if this panics.
        let ticket = ticket;
        if let Err(status) = routes.intercept(call) {
            return ticket.fail(status);
        }
        let (service, method) = routes.service(route);
        service.call(method, Request::new(call, message, ticket));
    }));
    if ran.is_err() {
        tracing::error!(method = method.path(), peer = %call.peer(), "a method panicked: its call ends");
    }
}
