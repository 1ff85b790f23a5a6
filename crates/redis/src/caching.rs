//! Reads through a cache in this process, which servers keep true ("client-side caching"):
//! <https://redis.io/docs/latest/develop/reference/client-side-caching/>.
//!
//! A client whose configuration has a [cache](crate::Config::cache) keeps replies, and its servers report which keys
//! have changed. [`Client::cached`](crate::Client::cached) reads through it:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use embar_redis::config::CacheConfig;
//! use embar_redis::{Client, Config, prelude::*};
//!
//! # async fn example() -> Result<(), embar_redis::Error> {
//! let mut config = Config::from_url("redis://127.0.0.1").expect("it is a URL");
//! config.cache = Some(CacheConfig::new(64 << 20));
//! let client = Client::with(config).await?;
//! let cache = client.cached(Duration::from_secs(60));
//! let name: Option<String> = cache.hget("user:1", "name").await?; // asks the server
//! let name: Option<String> = cache.hget("user:1", "name").await?; // does not
//! # Ok(())
//! # }
//! ```
//!
//! # What is kept
//! The replies to all commands that only read, and of one key, which is their first argument: `GET`, `HGET`,
//! `HGETALL`, `LRANGE`, `EXISTS` and so on, for each command with its arguments; also that there is no such key. Not kept
//! are errors, and replies that depend on more than a key, as those to `TTL`, `SRANDMEMBER` and `HSCAN` do. A
//! [`Cached`] refuses commands that are no such reads with [`Error::NotCacheable`]; [`Cached::mget`] reads several keys.
//!
//! # How long
//! Until the first of these:
//! - The server reports that the key has changed, expired or gone, or that all have. It reports to each connection what
//!   was read there, on the same connection.
//! - The caller wants nothing that old: the `max_age` of [`Client::cached`](crate::Client::cached).
//! - The key expires. The client asks for that with each read, because servers report it only when they remove the
//!   key, which may be later.
//! - The connection over which it was read is over or given up, or another node serves the slot.
//! - Its memory is needed for something newer ([`CacheConfig::max_bytes`](crate::config::CacheConfig::max_bytes)).
//!
//! # How true
//! - **A write of this client** that was acknowledged is seen by every read that begins after that: whoever acknowledges it
//!   removes its keys from the cache before. That goes for single commands, pipelines, transactions, commands that block, and
//!   dedicated connections. It goes for scripts as far as the keys that they name, and only with
//!   [`ReadFrom::Primary`](crate::config::ReadFrom::Primary): replicas lag behind, with a cache or without.
//! - **A write of another client** is seen as soon as the server's report has come. Of a key, nobody reads something
//!   older through the cache than what was read through it before. A read past the cache may be ahead of it for a moment.
//! - Nobody reports `SWAPDB` of another client. A field of a hash that expires by itself (`HEXPIRE`) is reported when the
//!   server removes it, which may be later.
//! - When a slot is given to another node without moving its keys by `MIGRATE`, or after a failover, and the connection
//!   to the node before goes on, the client learns of it with the next topology: at the latest after
//!   [`refresh_interval`](crate::Config::refresh_interval). `MIGRATE` removes each key, which the server reports.
//!
//! # Many callers, one request
//! Callers that want the same at the same time share one request. It goes on until the last of them has dropped his
//! future. If it fails, all of them get its error.
//!
//! # Where it does not work
//! A server before Redis 6, one that speaks RESP2, or a user who may not `CLIENT TRACKING` and `PTTL` (and, with
//! [`Tracking::OptIn`](crate::config::Tracking::OptIn), `CLIENT CACHING`): reads go to the server then, as without a
//! cache. The client logs a warning for each connection, and
//! [`CacheMetrics::bypassed`](crate::metrics::CacheMetrics::bypassed) counts these reads. What is allowed later on counts
//! from the next connection. Without [a cache in the configuration](crate::Config::cache) a [`Cached`] reads from the
//! server, too.

use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use embar_mux::block_on;

use crate::cmd::{first_argument, why_not_cacheable};
use crate::command::{Class, Command, Fixed, Key, Route};
use crate::commands::Commands;
use crate::commands::strings::StringCommands;
use crate::engine::{Cache, Cacheable, Looked, Outcome, Router, Waiter};
use crate::error::Error;
use crate::prefix;
use crate::request::{ByType, IntoBuffer, ReadFrame, ReadReply, Request};
use crate::resp::FromReply;
use crate::scratch::with_encoded;

mod fetch;

/// Reads through a client's cache. It has the methods of all [`commands`](crate::commands).
#[derive(Clone, Copy)]
pub struct Cached<'c> {
    router: &'c Arc<Router>,
    max_age: Duration,
}

impl<'c> Cached<'c> {
    pub(crate) fn new(router: &'c Arc<Router>, max_age: Duration) -> Self {
        Self { router, max_age }
    }

    /// A read with this command.
    pub fn send<C: Command, R: FromReply>(&self, command: C) -> CachedRequest<'c, C, R> {
        CachedRequest::new(*self, command, ByType)
    }

    /// `GET key` into a buffer of the caller's, which it empties first: the length of the value, if there is one.
    /// If the cache has it and the buffer is large enough, this allocates nothing.
    pub fn get_into<'b, K: Key>(
        &self,
        key: K,
        buffer: &'b mut Vec<u8>,
    ) -> CachedRequest<'c, Fixed<(K,)>, Option<usize>, IntoBuffer<'b>> {
        let route = Route::of(&key);
        let get = Fixed::new(prefix!(2, 3, "GET"), (key,), route, Class::Read);
        CachedRequest::new(*self, get, IntoBuffer(buffer))
    }

    /// The values of keys of any slots, in their order: those that the cache has from there, and a `GET` for each
    /// other one, sent together. Unlike those of `MGET` they are not of one instant.
    ///
    /// # Errors
    /// The first one of any of them.
    pub async fn mget<R: FromReply, K: Key + Unpin>(
        self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<R>, Error> {
        let mut reads: Vec<GetOf<'c, K, R>> = keys.into_iter().map(|key| self.get(key)).collect();
        let mut values: Vec<Option<R>> = reads.iter().map(|_| None).collect();
        poll_fn(|cx| {
            let mut waits = false;
            let both = reads.iter_mut().zip(&mut values);
            for (read, value) in both.filter(|(_, value)| value.is_none()) {
                match Pin::new(read).poll(cx) {
                    Poll::Ready(Ok(result)) => *value = Some(result),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => waits = true,
                }
            }
            match waits {
                true => Poll::Pending,
                false => Poll::Ready(Ok(())),
            }
        })
        .await?;
        Ok(values.into_iter().flatten().collect())
    }
}

impl<'c> Commands for Cached<'c> {
    type Output<C: Command, R: FromReply> = CachedRequest<'c, C, R>;

    fn execute<C: Command, R: FromReply>(self, command: C) -> Self::Output<C, R> {
        self.send(command)
    }
}

impl fmt::Debug for Cached<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cached({:?})", self.max_age)
    }
}

type GetOf<'c, K, R> = CachedRequest<'c, Fixed<(K,)>, R>;

/// A read through the cache: a future, and without an executor [`CachedRequest::wait`]. The first poll looks into the
/// cache.
#[must_use = "a command is sent when it is awaited"]
pub struct CachedRequest<'c, C, R, W = ByType> {
    cached: Cached<'c>,
    state: State<'c, C, R, W>,
    result: PhantomData<fn() -> R>,
}

enum State<'c, C, R, W> {
    /// To be looked up.
    Ready(C, W),
    /// A request is on its way, of this caller or another one.
    Waiting(Waiter, W),
    /// It goes past the cache.
    Plain(Request<'c, C, R, W>),
    Over,
}

/// What becomes of a read.
enum Way<R> {
    Over(Result<R, Error>),
    Waiting(Waiter),
    Plain,
}

impl<'c, C: Command, R, W: ReadFrame<R>> CachedRequest<'c, C, R, W> {
    fn new(cached: Cached<'c>, command: C, reader: W) -> Self {
        Self {
            cached,
            state: State::Ready(command, reader),
            result: PhantomData,
        }
    }
}

impl<'c> Cached<'c> {
    #[inline]
    fn begin<R, W: ReadFrame<R>>(&self, command: &impl Command, reader: &mut W) -> Way<R> {
        with_encoded(command, |encoded| {
            let Some(key) = first_argument(encoded) else {
                return self.refuse(command, encoded);
            };
            let it = Cacheable {
                command: encoded,
                key,
            };
            let Some(cache) = &self.router.shared.cache else {
                let slot = slot_if_cacheable(command, encoded);
                return slot.map_or_else(|| self.refuse(command, encoded), |_| Way::Plain);
            };
            match cache.look(it, self.max_age, |frame| take(frame, reader)) {
                Looked::Hit(taken) => Way::Over(taken.read(reader)),
                Looked::Asked(waiter) => Way::Waiting(waiter),
                Looked::Missing => self.ask(cache, it, command, reader),
            }
        })
    }

    /// Asks for what the cache does not have.
    #[cold]
    fn ask<R, W: ReadFrame<R>>(
        &self,
        cache: &Arc<Cache>,
        it: Cacheable<'_>,
        command: &impl Command,
        reader: &mut W,
    ) -> Way<R> {
        let Some(slot) = slot_if_cacheable(command, it.command) else {
            return self.refuse(command, it.command);
        };
        let connection = self.router.connection(Route::Slot(slot), Class::Read);
        let untracked = connection.is_some_and(|connection| connection.tracker.is_refused());
        if untracked || !cache.tracking.covers(it.key()) {
            cache.bypass();
            return Way::Plain;
        }
        let read = |frame: &Arc<[u8]>| take(frame, reader);
        let fetch = |asked| fetch::fetch(self.router, asked, slot);
        match cache.look_or_ask(it, self.max_age, slot, read, fetch) {
            Looked::Hit(taken) => Way::Over(taken.read(reader)),
            Looked::Asked(waiter) => Way::Waiting(waiter),
            Looked::Missing => Way::Plain,
        }
    }

    #[cold]
    fn refuse<R>(&self, command: &impl Command, encoded: &[u8]) -> Way<R> {
        let why = match command.class() {
            Class::Write => "it may change something",
            Class::Read => {
                why_not_cacheable(encoded).unwrap_or("its first argument is not its key")
            }
        };
        let refused = command.refused();
        Way::Over(Err(refused.unwrap_or(Error::NotCacheable { why })))
    }
}

/// The slot of a read whose reply a cache may keep.
fn slot_if_cacheable(command: &impl Command, encoded: &[u8]) -> Option<u16> {
    match (command.route(), command.class(), command.replies()) {
        (Route::Slot(slot), Class::Read, 1) if why_not_cacheable(encoded).is_none() => Some(slot),
        _ => None,
    }
}

/// What was taken from the cache while it was locked.
enum Taken<R> {
    Result(Result<R, Error>),
    Frame(Arc<[u8]>),
}

impl<R> Taken<R> {
    fn read(self, reader: &mut impl ReadFrame<R>) -> Result<R, Error> {
        match self {
            Self::Result(result) => result,
            Self::Frame(frame) => reader.read_frame(&frame),
        }
    }
}

#[inline]
fn take<R, W: ReadFrame<R>>(frame: &Arc<[u8]>, reader: &mut W) -> Taken<R> {
    match frame.len() <= W::BRIEF_BYTES {
        true => Taken::Result(reader.read_frame(frame)),
        false => Taken::Frame(Arc::clone(frame)),
    }
}

impl<C, R, W> CachedRequest<'_, C, R, W>
where
    C: Command + Unpin,
    W: ReadFrame<R> + ReadReply<R> + Unpin,
{
    /// Blocks the thread until there is a result. See [`Request::wait`].
    ///
    /// # Errors
    /// [`Error`].
    pub fn wait(mut self) -> Result<R, Error> {
        block_on(|cx| Pin::new(&mut self).poll(cx))
    }
}

impl<C: Command, R, W> CachedRequest<'_, C, R, W> {
    /// It is not in the cache: it waits for this, or goes past the cache.
    #[cold]
    fn go_on(&mut self, waiter: Option<Waiter>) {
        let State::Ready(command, reader) = std::mem::replace(&mut self.state, State::Over) else {
            unreachable!("it was just looked up");
        };
        self.state = match waiter {
            Some(waiter) => State::Waiting(waiter, reader),
            None => State::Plain(Request::read_by(self.cached.router, command, reader)),
        };
    }
}

impl<C, R, W> Future for CachedRequest<'_, C, R, W>
where
    C: Command + Unpin,
    W: ReadFrame<R> + ReadReply<R> + Unpin,
{
    type Output = Result<R, Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            match &mut this.state {
                State::Ready(command, reader) => match this.cached.begin(command, reader) {
                    Way::Over(result) => {
                        this.state = State::Over;
                        return Poll::Ready(result);
                    }
                    Way::Waiting(waiter) => this.go_on(Some(waiter)),
                    Way::Plain => this.go_on(None),
                },
                State::Waiting(waiter, reader) => {
                    let Poll::Ready(outcome) = waiter.poll(cx) else {
                        return Poll::Pending;
                    };
                    let outcome: Outcome = outcome;
                    let result = outcome.and_then(|frame| reader.read_frame(&frame));
                    this.state = State::Over;
                    return Poll::Ready(result);
                }
                State::Plain(request) => return Pin::new(request).poll(cx),
                State::Over => panic!("a request gives its result once"),
            }
        }
    }
}

impl<C, R, W> fmt::Debug for CachedRequest<'_, C, R, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Ready(..) => "ready",
            State::Waiting(..) => "waiting",
            State::Plain(_) => "past the cache",
            State::Over => "over",
        };
        write!(f, "CachedRequest({state})")
    }
}
