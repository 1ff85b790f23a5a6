//! A request on its way to its method. Generated code is what uses this.

use std::future::Future;
use std::sync::Arc;

use buffa::{HasMessageView, Message};

use super::call::Call;
use super::reply::Reply;
use super::sink::Sink;
use super::tasks::{Spawn, unless_given_up};
use super::ticket::Ticket;
use crate::client::decode_options;
use crate::outgoing::Owned;
use crate::{Method, Status};

/// A service: its methods, and how they are called. Generated code implements it.
pub trait Service: Send + Sync + 'static {
    /// Its methods.
    fn methods(&self) -> &'static [Method];

    /// Calls the method at this place of [`Service::methods`]. It runs on the session's worker.
    fn call(&self, method: usize, request: Request<'_>);
}

/// A request, before it is decoded. Dropped, it fails the call.
pub struct Request<'a> {
    call: &'a Call,
    message: &'a [u8],
    ticket: Ticket,
}

impl<'a> Request<'a> {
    pub(super) fn new(call: &'a Call, message: &'a [u8], ticket: Ticket) -> Self {
        Self {
            call,
            message,
            ticket,
        }
    }

    /// Calls a method with one reply.
    pub fn unary<Q: HasMessageView, R>(self, method: impl FnOnce(&Call, Q::View<'_>, Reply<R>)) {
        match decode_options().decode_view::<Q::View<'_>>(self.message) {
            Ok(view) => method(self.call, view, Reply::new(self.ticket)),
            Err(error) => self.ticket.fail(undecodable(&error)),
        }
    }

    /// Calls a method whose reply is a stream.
    pub fn stream<Q: HasMessageView, R>(self, method: impl FnOnce(&Call, Q::View<'_>, Sink<R>)) {
        match decode_options().decode_view::<Q::View<'_>>(self.message) {
            Ok(view) => method(self.call, view, Sink::new(self.ticket)),
            Err(error) => self.ticket.fail(undecodable(&error)),
        }
    }

    /// Spawns a method with one reply.
    pub fn spawn_unary<Q, R, F>(self, spawn: &Spawn, method: impl FnOnce(Call, Q) -> F)
    where
        Q: Message,
        R: Message,
        F: Future<Output = Result<R, Status>> + Send + 'static,
    {
        let ticket = self.ticket;
        let message = match decode_options().decode_from_slice::<Q>(self.message) {
            Ok(message) => message,
            Err(error) => return ticket.fail(undecodable(&error)),
        };
        let (calls, number) = (Arc::clone(ticket.calls()), ticket.number());
        let running = unless_given_up(calls, number, method(self.call.clone(), message));
        spawn.spawn(Box::pin(async move {
            match running.await {
                Ok(Some(Ok(reply))) => ticket.end(Ok(Owned(&reply))),
                Ok(Some(Err(status))) => ticket.fail(status),
                // The ticket knows why.
                Ok(None) => drop(ticket),
                Err(panicked) => ticket.fail(panicked),
            }
        }));
    }

    /// Spawns a method whose reply is a stream. Its future gives the sink back.
    pub fn spawn_stream<Q, R, F>(self, spawn: &Spawn, method: impl FnOnce(Call, Q, Sink<R>) -> F)
    where
        Q: Message,
        R: Message,
        F: Future<Output = (Sink<R>, Result<(), Status>)> + Send + 'static,
    {
        let message = match decode_options().decode_from_slice::<Q>(self.message) {
            Ok(message) => message,
            Err(error) => return self.ticket.fail(undecodable(&error)),
        };
        let (calls, number) = (Arc::clone(self.ticket.calls()), self.ticket.number());
        let sink = Sink::new(self.ticket);
        let running = unless_given_up(calls, number, method(self.call.clone(), message, sink));
        spawn.spawn(Box::pin(async move {
            // Otherwise its sink was dropped with it, and has ended the stream.
            if let Ok(Some((sink, outcome))) = running.await {
                sink.finish(outcome);
            }
        }));
    }
}

fn undecodable(error: &buffa::DecodeError) -> Status {
    Status::invalid_argument(format!(
        "the request is not the message of this method: {error}"
    ))
}
