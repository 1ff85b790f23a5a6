//! The Redis protocol on one connection: the greeting, and what to do with frames that answer no
//! command.

use std::sync::Arc;

use embar_mux::{
    BadReply, CloseReason, FrameKind, Framing, Greeting, Meters, Part, Protocol, TlsError,
};

use super::greeting::{Purpose, Step, encoded, greetings};
use super::open_transaction::OpenTransaction;
use crate::config::Config;
use crate::credentials::Credentials;
use crate::resp::{ErrorKind, ErrorView, Framer, ReplyLimits, View, parse};
use crate::tls::explain;

/// Whom a connection reports to. The driver calls it, so it must not block.
pub(crate) trait ConnectionOwner: Send + 'static {
    /// The server has accepted the greeting.
    fn opened(&self) {}

    /// The server was asked to report changes of what is read. It does, or it refused for this reason. Comes before
    /// [`ConnectionOwner::opened`].
    fn tracks(&self, _refused: Option<&str>) {}

    /// Where to count what happens on the connection.
    fn meters(&self) -> Arc<Meters> {
        Arc::default()
    }

    /// The server owes replies and says nothing: it is busy, or gone.
    fn silent(&self) {}

    /// A frame came that answers no command.
    fn push(&self, _frame: &[u8]) {}

    /// The connection is over; `was_open` says whether the server had accepted the greeting.
    fn closed(&self, reason: &CloseReason, was_open: bool);
}

/// The Redis protocol on one connection.
pub(crate) struct RedisProtocol {
    framer: Framer,
    /// The commands of the greeting that are to be sent.
    greeting: Vec<Step>,
    /// The greeting for a server that does not know RESP3.
    fallback: Option<Vec<Step>>,
    /// Whether the server reports changes, for which the last command of the greeting asks it, or why not; `None`: nobody needs that.
    tracking: Option<Result<(), String>>,
    purpose: Purpose,
    owner: Box<dyn ConnectionOwner>,
    /// Every frame is a push from now on.
    only_pushes: bool,
    encrypted: bool,
    /// The server has accepted the greeting.
    was_open: bool,
    open_transaction: OpenTransaction,
}

impl RedisProtocol {
    pub fn new(
        config: &Config,
        credentials: Option<&Arc<Credentials>>,
        purpose: Purpose,
        owner: Box<dyn ConnectionOwner>,
    ) -> Self {
        let (mut greeting, fallback) = greetings(config, credentials, purpose);
        let tracks = matches!(purpose, Purpose::Commands { tracks: true, .. });
        let cache = config.cache.as_ref().filter(|_| tracks);
        greeting.extend(cache.map(|cache| Step::tracking(&cache.tracking)));
        let limits = ReplyLimits {
            max_reply_bytes: config.max_reply_bytes,
            ..ReplyLimits::default()
        };
        Self {
            framer: Framer::new(limits),
            greeting,
            fallback,
            tracking: cache.map(|_| Ok(())),
            purpose,
            owner,
            only_pushes: false,
            encrypted: config.tls.is_some(),
            was_open: false,
            open_transaction: OpenTransaction::default(),
        }
    }

    fn next_step(&mut self) -> Greeting {
        if self.greeting.is_empty() {
            self.only_pushes = self.purpose == Purpose::Subscriptions;
            return Greeting::Done;
        }
        Greeting::Send {
            bytes: encoded(&self.greeting),
            replies: self.greeting.len() as u32,
        }
    }

    /// Whether the server answered that it does not know RESP3, and there is a greeting in RESP2.
    fn needs_fallback(&self, answer: &View<'_>) -> bool {
        let View::Error(error) = answer else {
            return false;
        };
        let unknown = matches!(error.kind(), ErrorKind::UnknownCommand | ErrorKind::NoProto);
        unknown && self.fallback.is_some()
    }
}

/// A server's answer to the greeting, without the words of the greeting: a server that does not know
/// AUTH repeats the password.
fn without_arguments(error: &ErrorView<'_>) -> String {
    let text = error.text();
    match error.kind() {
        ErrorKind::UnknownCommand => {
            let known = text
                .split_once(", with args")
                .map_or(&*text, |(before, _)| before);
            known.to_owned()
        }
        _ => text.into_owned(),
    }
}

impl Framing for RedisProtocol {
    #[inline]
    fn advance(&mut self, bytes: &[u8]) -> Result<Part, BadReply> {
        let mut part = self.framer.advance(bytes)?;
        if self.only_pushes {
            // In RESP2 messages look like replies, and in both versions errors do.
            part.kind = FrameKind::Push;
        }
        Ok(part)
    }
}

impl Protocol for RedisProtocol {
    fn greet(&mut self, reply: Option<&[u8]>) -> Result<Greeting, String> {
        let Some(mut reply) = reply else {
            return Ok(self.next_step());
        };
        let mut steps = self.greeting.iter();
        while !reply.is_empty() {
            let (answer, len) = parse(reply).map_err(|malformed| malformed.to_string())?;
            let rest = &reply[len..];
            let is_optional = steps.next().is_some_and(|step| step.is_optional);
            if !is_optional && self.needs_fallback(&answer) {
                self.greeting = self.fallback.take().unwrap_or_default();
                if let Some(tracking) = &mut self.tracking {
                    *tracking = Err("the server does not know RESP3".to_owned());
                }
                return Ok(self.next_step());
            }
            if let View::Error(error) = answer {
                if rest.is_empty() && matches!(self.tracking, Some(Ok(()))) {
                    self.tracking = Some(Err(without_arguments(&error)));
                } else if !is_optional {
                    return Err(without_arguments(&error));
                }
            }
            reply = rest;
        }
        self.greeting.clear();
        Ok(self.next_step())
    }

    fn opened(&mut self) {
        self.was_open = true;
        if let Some(tracking) = &self.tracking {
            self.owner
                .tracks(tracking.as_ref().err().map(String::as_str));
        }
        self.owner.opened();
    }

    fn meters(&self) -> Arc<Meters> {
        self.owner.meters()
    }

    fn explain(&self, error: &TlsError) -> String {
        explain(error, self.encrypted)
    }

    #[inline]
    fn part_of_several(
        &mut self,
        part: &[u8],
        complete: bool,
        is_last: bool,
    ) -> Result<(), &'static str> {
        match self.open_transaction.is_left_by(part, complete, is_last) {
            true => Err("it would not leave a transaction, as the server refused EXEC"),
            false => Ok(()),
        }
    }

    fn silent(&mut self) {
        self.owner.silent();
    }

    fn push(&mut self, frame: &[u8]) {
        self.owner.push(frame);
    }

    fn closed(&mut self, reason: &CloseReason) {
        self.owner.closed(reason, self.was_open);
    }
}
