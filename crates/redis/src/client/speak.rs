//! What is said to a server before commands go out, and what is done with what it says unasked.

use std::sync::{Arc, Weak};

use embar_mux::{BadReply, CloseReason, FrameKind, Framing, Greeting, Meters, Part, Protocol};
use embar_transport::tls::TlsError;

use super::feed::Feed;
use super::node::Link;
use crate::config::{Config, ProtocolVersion};
use crate::resp::{ErrorKind, Framer, Out, ReplyLimits, View, bulk_len, header_len, parse};
use crate::tls::explain;

/// The Redis protocol on one connection.
pub(crate) struct Speaker {
    framer: Framer,
    greeting: Vec<Vec<Vec<u8>>>,
    /// To be said if the server does not know version 3.
    fallback: Option<Vec<Vec<Vec<u8>>>>,
    link: Weak<Link>,
    /// Who hears all that comes after the greeting.
    feed: Option<(Weak<Feed>, u64)>,
    hears: bool,
    encrypted: bool,
    /// The server has accepted the greeting.
    stood: bool,
}

/// A command of the greeting.
fn line(words: &[&[u8]]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.to_vec()).collect()
}

impl Speaker {
    pub fn new(config: &Config, replica_reads: bool, link: Weak<Link>) -> Self {
        let password = config
            .password
            .as_ref()
            .map(|secret| secret.reveal().as_bytes());
        let user = config.username.as_deref().map(str::as_bytes);
        let name = config.client_name.as_deref().map(str::as_bytes);
        let mut then = Vec::new();
        if config.database != 0 {
            then.push(line(&[b"SELECT", config.database.to_string().as_bytes()]));
        }
        if replica_reads {
            then.push(line(&[b"READONLY"]));
        }
        let mut second = Vec::new();
        match (user, password) {
            (Some(user), Some(password)) => second.push(line(&[b"AUTH", user, password])),
            (None, Some(password)) => second.push(line(&[b"AUTH", password])),
            _ => {}
        }
        if let Some(name) = name {
            second.push(line(&[b"CLIENT", b"SETNAME", name]));
        }
        second.extend(then.iter().cloned());
        let mut hello: Vec<&[u8]> = vec![b"HELLO", b"3"];
        if let Some(password) = password {
            hello.extend([b"AUTH".as_slice(), user.unwrap_or(b"default"), password]);
        }
        if let Some(name) = name {
            hello.extend([b"SETNAME".as_slice(), name]);
        }
        let mut third = vec![line(&hello)];
        third.append(&mut then);
        let (greeting, fallback) = match config.protocol {
            ProtocolVersion::Resp2 => (second, None),
            ProtocolVersion::Resp3 => (third, Some(second)),
        };
        let limits = ReplyLimits {
            max_reply_bytes: config.max_reply_bytes,
            ..ReplyLimits::default()
        };
        Self {
            framer: Framer::new(limits),
            greeting,
            fallback,
            link,
            feed: None,
            hears: false,
            encrypted: config.tls.is_some(),
            stood: false,
        }
    }

    /// For a connection with this number, on which only subscriptions are asked for.
    pub fn of_feed(config: &Config, feed: Weak<Feed>, number: u64) -> Self {
        Self {
            feed: Some((feed, number)),
            ..Self::new(config, false, Weak::new())
        }
    }

    fn say(&mut self) -> Greeting {
        if self.greeting.is_empty() {
            self.hears = self.feed.is_some();
            return Greeting::Done;
        }
        let mut bytes = Vec::new();
        for command in &self.greeting {
            let words = command.iter().map(|word| bulk_len(word.len()));
            let at = bytes.len();
            bytes.resize(at + header_len(command.len()) + words.sum::<usize>(), 0);
            let mut out = Out::new(&mut bytes[at..]);
            out.header(command.len());
            for word in command {
                out.bulk(word);
            }
            out.finish();
        }
        Greeting::Send {
            bytes,
            replies: self.greeting.len() as u32,
        }
    }

    /// Whether the server does not know how to greet in version 3.
    fn is_old(&self, answer: &View<'_>) -> bool {
        let View::Error(error) = answer else {
            return false;
        };
        let unknown = matches!(error.kind(), ErrorKind::UnknownCommand | ErrorKind::NoProto);
        unknown && self.fallback.is_some()
    }
}

/// What a server says about the greeting, without what was said to it: one that does not know AUTH
/// repeats the password.
fn without_words(error: &crate::resp::ErrorView<'_>) -> String {
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

impl Framing for Speaker {
    #[inline]
    fn advance(&mut self, bytes: &[u8]) -> Result<Part, BadReply> {
        let mut part = self.framer.advance(bytes)?;
        if self.hears {
            // In version 2 messages look like replies, and in both errors do.
            part.kind = FrameKind::Push;
        }
        Ok(part)
    }
}

impl Protocol for Speaker {
    fn greet(&mut self, reply: Option<&[u8]>) -> Result<Greeting, String> {
        let Some(mut reply) = reply else {
            return Ok(self.say());
        };
        while !reply.is_empty() {
            let (answer, len) = parse(reply).map_err(|malformed| malformed.to_string())?;
            if self.is_old(&answer) {
                self.greeting = self.fallback.take().unwrap_or_default();
                return Ok(self.say());
            }
            if let View::Error(error) = answer {
                return Err(without_words(&error));
            }
            reply = &reply[len..];
        }
        self.greeting.clear();
        Ok(self.say())
    }

    fn opened(&mut self) {
        self.stood = true;
        if let Some(link) = self.link.upgrade() {
            link.came_up();
        }
    }

    fn meters(&self) -> Arc<Meters> {
        let link = self.link.upgrade();
        link.map_or_else(Arc::default, |link| link.journal.meters())
    }

    fn explain(&self, error: &TlsError) -> String {
        explain(error, self.encrypted)
    }

    fn push(&mut self, frame: &[u8]) {
        if let Some((feed, number)) = &self.feed
            && let Some(feed) = feed.upgrade()
        {
            feed.heard(*number, frame);
        }
    }

    fn closed(&mut self, reason: &CloseReason) {
        if let Some(link) = self.link.upgrade() {
            link.went_down(reason, self.stood);
        }
        if let Some((feed, number)) = &self.feed
            && let Some(feed) = feed.upgrade()
        {
            feed.went_down(*number, reason);
        }
    }
}
