//! How a new client finds out that it can work: a server answers it, or several tell their topology
//! and one of the primaries answers.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::Client;
use crate::command::{Class, Fixed, Route};
use crate::config::Mode;
use crate::engine::after;
use crate::error::Error;
use crate::prefix;
use crate::request::Request;

/// How long a primary may take until the client tries another one, too.
const NEXT_PRIMARY: Duration = Duration::from_millis(300);

type Ping<'c> = Request<'c, Fixed<()>, ()>;

impl Client {
    /// Waits until the client can work, at most for the configuration's `timeout`.
    pub(super) async fn first_contact(&self) -> Result<(), Error> {
        let deadline = after(self.config().timeout);
        let contact = async {
            self.first_credentials(deadline).await?;
            self.router.shared.schedule.request_refresh();
            match self.config().mode {
                Mode::Standalone => self.ping(Route::Any, Class::Read, deadline).await,
                Mode::Cluster | Mode::Replicated | Mode::Sentinel => {
                    self.first_topology(deadline).await?;
                    self.first_primary(deadline).await
                }
            }
        };
        let mut contact = pin!(contact);
        let contact = poll_fn(|cx| match contact.as_mut().poll(cx) {
            Poll::Pending => match self.router.lasting_failure() {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            },
            done => done,
        });
        match contact.await {
            // It waited for a connection, after an attempt to connect had failed.
            Err(Error::TimedOut) => Err(self.router.unreachable().unwrap_or(Error::TimedOut)),
            outcome => outcome,
        }
    }

    fn ping(&self, route: Route, class: Class, deadline: Instant) -> Ping<'_> {
        let ping = Fixed::new(prefix!(1, 4, "PING"), (), route, class);
        let left = deadline.saturating_duration_since(Instant::now());
        self.send(ping).timeout(left)
    }

    /// Waits for the provider of credentials, if there is one.
    async fn first_credentials(&self, deadline: Instant) -> Result<(), Error> {
        let shared = &self.router.shared;
        let Some(credentials) = &shared.credentials else {
            return Ok(());
        };
        let mut timer = None;
        poll_fn(|cx| {
            if credentials.poll_first(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            if Instant::now() >= deadline {
                let why = credentials.current().err().unwrap_or_default();
                return Poll::Ready(Err(Error::Unavailable { why }));
            }
            let schedule = &shared.schedule;
            schedule.wake_at(&mut timer, deadline, cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Waits until it is known which node serves which slot.
    async fn first_topology(&self, deadline: Instant) -> Result<(), Error> {
        let first = &self.router.first_topology;
        let mut timer = None;
        poll_fn(|cx| {
            if let Poll::Ready(outcome) = first.poll(cx) {
                return Poll::Ready(outcome);
            }
            if Instant::now() >= deadline {
                let why = first.why_not(self.config().mode);
                return Poll::Ready(Err(Error::Unavailable { why }));
            }
            let schedule = &self.router.shared.schedule;
            schedule.wake_at(&mut timer, deadline, cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Waits until a primary answers, whichever it is: others may be down, and then only their slots are.
    async fn first_primary(&self, deadline: Instant) -> Result<(), Error> {
        let mut slots = self.router.slots_by_distance().into_iter();
        let mut pings: Vec<Ping<'_>> = Vec::new();
        let mut first_error = None;
        let mut timer = None;
        let mut next_at = Instant::now();
        poll_fn(|cx| {
            loop {
                if let Some(outcome) = poll_any(&mut pings, cx) {
                    let Err(error) = outcome else {
                        return Poll::Ready(Ok(()));
                    };
                    first_error.get_or_insert(error);
                    continue;
                }
                let now = Instant::now();
                if now < next_at && !pings.is_empty() {
                    let schedule = &self.router.shared.schedule;
                    schedule.wake_at(&mut timer, next_at, cx.waker());
                    return Poll::Pending;
                }
                match slots.next() {
                    // As a write it goes to the primary.
                    Some(slot) => {
                        pings.push(self.ping(Route::Slot(slot), Class::Write, deadline));
                    }
                    None if pings.is_empty() => {
                        return Poll::Ready(Err(first_error.take().unwrap_or(Error::TimedOut)));
                    }
                    None => return Poll::Pending,
                }
                next_at = now + NEXT_PRIMARY;
            }
        })
        .await
    }
}

/// The outcome of a ping that is over, which it takes out.
fn poll_any(pings: &mut Vec<Ping<'_>>, cx: &mut Context<'_>) -> Option<Result<(), Error>> {
    for index in 0..pings.len() {
        if let Poll::Ready(outcome) = Pin::new(&mut pings[index]).poll(cx) {
            drop(pings.swap_remove(index));
            return Some(outcome);
        }
    }
    None
}
