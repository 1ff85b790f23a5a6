//! Consumers of groups of streams: <https://redis.io/docs/latest/develop/data-types/streams/#consumer-groups>.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use embar_mux::block_on;
use futures_core::Stream;

use crate::client::Client;
use crate::command::Key;
use crate::engine::{Timer, after};
use crate::error::Error;
use crate::resp::Arg;
use acknowledger::Acknowledger;
pub use delivery::{Delivery, Fields};
pub use entry_id::{EntryId, NoEntryId};
pub use options::{ConsumerOptions, DeadLetters};
use plan::{Plan, Step};
use steps::{Done, Reader};
use trouble::is_passing;

mod acknowledger;
mod acks;
mod delivery;
mod entry_id;
mod options;
mod plan;
mod steps;
mod trouble;

/// Reads a stream as one consumer of a group, from [`Client::consumer`].
///
/// **At least once.** The program gets each entry, and acknowledges it when it is done
/// ([`Delivery::acknowledge`]). What is not acknowledged comes again: to the next consumer of this name when that begins, or to
/// any that [claims](ConsumerOptions::claim_idle) what was idle for long. What is acknowledged never comes again, unless the
/// server loses that in a failover or a crash. Within one consumer, an entry that the program holds does not come twice.
///
/// **Order.** First come the entries that this name was given before and has not acknowledged, then new ones in their order;
/// claimed ones in between.
///
/// **Failures.** When the server is away the consumer connects again after growing pauses, for as long as it takes, and
/// follows failovers and slots that move. After an answer that was lost it looks for entries that it was given. It logs that
/// with `tracing`. [`Consumer::next`] fails only for what does not pass by itself, as `NOGROUP` is; the call after that tries
/// again, after a pause.
///
/// **Connections.** Reading takes one of the client's [`max_blocking`](crate::Config::max_blocking) connections while it
/// waits; all else goes over the shared ones.
///
/// A name must have one consumer at a time. Dropping a consumer stops it without waiting for acknowledgements.
///
/// ```no_run
/// # async fn example(client: &embar_redis::Client) -> Result<(), embar_redis::Error> {
/// use std::time::Duration;
///
/// use embar_redis::consumer::ConsumerOptions;
///
/// let options = ConsumerOptions::new()
///     .create_from("0")
///     .claim_idle(Duration::from_secs(60));
/// let mut consumer = client.consumer("orders", "billing", "worker-1", options).await?;
/// let stopper = consumer.stopper(); // for another task, which calls `stopper.stop()`
/// while let Some(order) = consumer.next().await? {
///     println!("{}: {:?}", order.id(), order.get("customer"));
///     order.acknowledge();
/// }
/// # Ok(())
/// # }
/// ```
pub struct Consumer {
    reader: Arc<Reader>,
    acknowledger: Arc<Acknowledger>,
    plan: Plan,
    /// Read, and not delivered.
    read: VecDeque<Delivery>,
    /// The step that is being taken.
    taking: Option<Taking>,
    /// How many steps failed one after the other.
    failures: u32,
    /// When to take the next step.
    not_before: Option<Instant>,
    end: End,
    /// Keeps the client alive.
    _client: Client,
}

struct Taking {
    step: Step,
    outcome: Pin<Box<dyn Future<Output = Result<Done, Error>> + Send>>,
}

/// How far it is with its end.
enum End {
    NotYet,
    /// It waits so long for the last acknowledgements.
    Settling {
        until: Instant,
        timer: Option<Timer>,
    },
    Over,
}

impl Client {
    /// Begins to read a stream as this consumer of the group. See [`Consumer`].
    ///
    /// # Errors
    /// When the group is to be made ([`ConsumerOptions::create_from`]), and the server does not answer or refuses it.
    pub async fn consumer(
        &self,
        stream: impl Key,
        group: impl Arg + AsRef<[u8]>,
        name: impl Arg + AsRef<[u8]>,
        options: ConsumerOptions,
    ) -> Result<Consumer, Error> {
        let (key, group) = (stream.as_ref().to_vec(), group.as_ref().to_vec());
        let acknowledger = Acknowledger::new(&self.router, &key, &group);
        let plan = Plan::new(options.block, options.claim_idle, Instant::now());
        let reader = Arc::new(Reader {
            router: Arc::clone(&self.router),
            name: name.as_ref().to_vec(),
            acknowledger: Arc::clone(&acknowledger),
            key,
            group,
            options,
        });
        reader.create_group().await?;
        Ok(Consumer {
            reader,
            acknowledger,
            plan,
            read: VecDeque::new(),
            taking: None,
            failures: 0,
            not_before: None,
            end: End::NotYet,
            _client: self.clone(),
        })
    }

    /// As [`Client::consumer`], for code without an executor.
    ///
    /// # Errors
    /// As [`Client::consumer`].
    pub fn consumer_blocking(
        &self,
        stream: impl Key,
        group: impl Arg + AsRef<[u8]>,
        name: impl Arg + AsRef<[u8]>,
        options: ConsumerOptions,
    ) -> Result<Consumer, Error> {
        let mut begin = pin!(self.consumer(stream, group, name, options));
        block_on(|cx| begin.as_mut().poll(cx))
    }
}

impl Consumer {
    /// Waits for the next entry; `None` when it was stopped. Dropping the future loses nothing.
    ///
    /// # Errors
    /// What does not pass by itself. [`Error::Unavailable`] in the end, if the last acknowledgements did not arrive within the
    /// configuration's `timeout`; these entries may come again.
    pub async fn next(&mut self) -> Result<Option<Delivery>, Error> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Consumer::next`], for code without an executor: blocks the thread.
    ///
    /// # Errors
    /// As [`Consumer::next`].
    pub fn next_blocking(&mut self) -> Result<Option<Delivery>, Error> {
        block_on(|cx| self.poll_next(cx))
    }

    /// As [`Consumer::next`], for code that polls.
    ///
    /// # Errors
    /// As [`Consumer::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Delivery>, Error>> {
        // Before looking at what others change.
        self.acknowledger.watch(cx.waker());
        loop {
            if let Some(error) = self.acknowledger.take_error() {
                return Poll::Ready(Err(error));
            }
            if let Some(delivery) = self.read.pop_front() {
                return Poll::Ready(Ok(Some(delivery)));
            }
            if self.acknowledger.is_stopped() {
                return self.poll_end(cx);
            }
            let Some(taking) = self.taking.as_mut() else {
                if !self.begin_step() {
                    return Poll::Pending;
                }
                continue;
            };
            let Poll::Ready(outcome) = taking.outcome.as_mut().poll(cx) else {
                return Poll::Pending;
            };
            let step = taking.step;
            self.taking = None;
            if let Err(error) = self.took(step, outcome) {
                return Poll::Ready(Err(error));
            }
        }
    }

    /// Begins the next step, unless the program holds so much that it has to wait.
    fn begin_step(&mut self) -> bool {
        let options = &self.reader.options;
        let room = options.max_held.saturating_sub(self.acknowledger.held());
        if room == 0 {
            return false;
        }
        let step = self.plan.next(Instant::now());
        let reader = Arc::clone(&self.reader);
        let most = options.count.min(room);
        let outcome = Box::pin(reader.take(step, most, self.not_before.take()));
        self.taking = Some(Taking { step, outcome });
        true
    }

    /// A step was taken.
    fn took(&mut self, step: Step, outcome: Result<Done, Error>) -> Result<(), Error> {
        match outcome {
            Ok(done) => {
                self.read.extend(done.deliveries);
                if let Some(error) = done.trouble {
                    return self.failed(error);
                }
                self.failures = 0;
                if let Step::Sweep(whose, _) = step {
                    let (now, spread) = (Instant::now(), fastrand::f64());
                    self.plan.swept(whose, done.last, now, spread);
                }
                Ok(())
            }
            Err(error) => self.failed(error),
        }
    }

    /// A step failed, at least in part: looks again after a pause.
    ///
    /// # Errors
    /// That one, if it does not pass by itself.
    fn failed(&mut self, error: Error) -> Result<(), Error> {
        self.plan.look_again();
        let retries = &self.reader.router.shared.config.retries;
        self.not_before = Some(after(retries.backoff(self.failures)));
        self.failures = self.failures.saturating_add(1);
        if !is_passing(&error) {
            return Err(error);
        }
        let stream = String::from_utf8_lossy(&self.reader.key);
        tracing::warn!(%stream, %error, "a consumer goes on after a pause");
        Ok(())
    }

    /// It was stopped: waits until the acknowledgements have arrived.
    fn poll_end(&mut self, cx: &Context<'_>) -> Poll<Result<Option<Delivery>, Error>> {
        // What the server gives it just now stays pending.
        self.taking = None;
        let shared = &self.reader.router.shared;
        if matches!(self.end, End::NotYet) {
            let until = after(shared.config.timeout);
            self.end = End::Settling { until, timer: None };
        }
        let End::Settling { until, timer } = &mut self.end else {
            return Poll::Ready(Ok(None));
        };
        if self.acknowledger.is_settled() {
            self.end = End::Over;
            return Poll::Ready(Ok(None));
        }
        if Instant::now() >= *until {
            self.end = End::Over;
            let why =
                "the last acknowledgements did not arrive in time; these entries may come again";
            let why = why.to_owned();
            return Poll::Ready(Err(Error::Unavailable { why }));
        }
        shared.schedule.wake_at(timer, *until, cx.waker());
        Poll::Pending
    }

    /// Stops it, from any thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.acknowledger))
    }
}

/// As [`Consumer::next`], until it is stopped.
impl Stream for Consumer {
    type Item = Result<Delivery, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Self::poll_next(self.get_mut(), cx).map(Result::transpose)
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = String::from_utf8_lossy(&self.reader.name);
        write!(f, "Consumer({name}, {:?})", self.acknowledger)
    }
}

/// Stops a [`Consumer`], from any thread.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<Acknowledger>);

impl Stopper {
    /// The consumer reads no more: the reading that waits ends at once, and what the server gave it just then stays pending.
    /// [`Consumer::next`] gives what was read before, and then `None`, when the acknowledgements of until then have arrived.
    pub fn stop(&self) {
        self.0.stop();
    }
}
