//! Credentials that change while the client runs: tokens that expire, passwords that are rotated.
//!
//! ```
//! use std::time::Duration;
//!
//! use embar_redis::Config;
//! use embar_redis::credentials::{Credentials, CredentialsProvider};
//!
//! # async fn token() -> Result<String, std::io::Error> { Ok(String::new()) }
//! let mut config = Config::default();
//! config.credentials = Some(CredentialsProvider::new(|| async {
//!     let credentials = Credentials::new(Some("app"), token().await?);
//!     Ok::<_, std::io::Error>(credentials.renew_after(Duration::from_secs(45 * 60)))
//! }));
//! ```
//!
//! The client asks the provider before it connects for the first time, when
//! [`renew_after`](Credentials::renew_after) is over, when a server refuses the credentials of a new connection, and when the
//! program wants it ([`Client::renew_credentials`](crate::Client::renew_credentials)). It asks one at a time, on a thread of its own
//! that enters the Tokio runtime on which the client was made, if there was one.
//!
//! New credentials go to all connections, the living ones included (`AUTH`): those that callers share, dedicated ones, and those of
//! subscribers. Callers notice nothing of it. What a server does not take in the midst of something comes later: a dedicated
//! connection gets them behind a blocking command and after a transaction. One on which the program itself has said `AUTH`,
//! `HELLO` or `RESET` is left alone. A subscriber with RESP2 connects anew, and reports
//! [`Event::Interrupted`](crate::pubsub::Event::Interrupted), because servers take no `AUTH` from it.
//!
//! What goes wrong:
//! - The provider fails, panics, or takes longer than [`connect_timeout`](crate::Config::connect_timeout): the client goes on with
//!   the credentials that it has, and asks again after a pause, from 100 ms to 10 s. While it has none, commands wait, and
//!   fail when their time is over; the error says what the provider said.
//! - A server refuses new credentials: living connections stay as they are, with the old ones. The client asks the provider
//!   again after such a pause, and tries what it gets, also if that is the same.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::secret::Secret;

/// A user and a password, or a token.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credentials {
    /// The user to authenticate as; `None`: the server's default user.
    pub username: Option<String>,
    /// The password.
    pub password: Secret,
    /// How long after it gave them the client asks the provider again; `None`: not by itself. Less than 100 ms counts as
    /// 100 ms. Servers that end the connections of an expired token need a margin.
    pub renew_after: Option<Duration>,
}

impl Credentials {
    /// Without a time to renew them.
    pub fn new(username: Option<impl Into<String>>, password: impl Into<String>) -> Self {
        Self {
            username: username.map(Into::into),
            password: Secret::new(password),
            renew_after: None,
        }
    }

    /// The same, to be renewed after this time.
    #[must_use]
    pub fn renew_after(mut self, time: Duration) -> Self {
        self.renew_after = Some(time);
        self
    }

    /// Whether a server would see no difference.
    pub(crate) fn are(&self, other: &Self) -> bool {
        (&self.username, &self.password) == (&other.username, &other.password)
    }
}

type Provided = Pin<Box<dyn Future<Output = Result<Credentials, String>> + Send>>;

/// Gives a client its credentials. Two are equal if they are clones of each other.
#[derive(Clone)]
pub struct CredentialsProvider(Arc<dyn Fn() -> Provided + Send + Sync>);

impl CredentialsProvider {
    /// Calls this whenever the client needs credentials. An error's text goes to logs and errors of the client.
    pub fn new<F, E>(provide: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        Self(Arc::new(move || {
            let provided = provide();
            Box::pin(async move { provided.await.map_err(|error| error.into().to_string()) })
        }))
    }

    /// Asks it. A panic is a failure.
    pub(crate) fn ask(&self) -> Asked {
        Asked(catch_unwind(AssertUnwindSafe(|| (self.0)())).ok())
    }
}

impl PartialEq for CredentialsProvider {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for CredentialsProvider {}

impl fmt::Debug for CredentialsProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialsProvider(..)")
    }
}

/// What the provider will answer; `None`: it panicked.
pub(crate) struct Asked(Option<Provided>);

impl Future for Asked {
    type Output = Result<Credentials, String>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.0.as_mut().and_then(|provided| {
            catch_unwind(AssertUnwindSafe(|| provided.as_mut().poll(cx))).ok()
        });
        polled.unwrap_or_else(|| Poll::Ready(Err("it panicked".to_owned())))
    }
}
