//! Topics, brokers, status and profiles: everything that is not data.
//!
//! Not a data path, so it is kept simple: one worker thread with blocking sockets (`worker`), which answers requests in
//! their order. Requests are futures that can also be waited for.

mod blocking;
mod request_state;
mod worker;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::Duration;

#[cfg(feature = "profile")]
use embar_meter::Snapshot;
use embar_wire::control::{BrokerStatus, ClusterMetadata, Topic, TopicDescription};
use embar_wire::topic::Order;

use self::request_state::RequestState;
use self::worker::Worker;
use crate::bootstrap;
use crate::error::{AdminError, ClientError};
use crate::transport::Transport;
use crate::wait::WaitProbe;
use crate::wake::{WakeList, block_on};

/// What a new topic shall be.
///
/// ```
/// use embar_client::{Order, TopicSpec};
///
/// let spec = TopicSpec::new("orders").order(Order::Total).retention_bytes(1 << 30);
/// assert_eq!(spec.max_message_bytes, 0, "the cluster's default");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicSpec {
    /// 1 to 249 of the characters `A-Z a-z 0-9 . _ -`.
    pub name: String,
    /// The order that it promises its subscribers.
    pub order: Order,
    /// Bytes kept on each broker, the oldest go first; 0: as much as fits.
    pub retention_bytes: u64,
    /// How long its disks keep a batch, at least: then it goes with the segment of a disk that has it. In whole milliseconds; zero: for
    /// as long as there is room. Only for topics on disks.
    pub retention_age: Duration,
    /// Largest message in bytes; 0: the cluster's default.
    pub max_message_bytes: u32,
    /// In how many places its batches are: 1 in memory alone, 2 in memory and on one disk, up to 9 in memory and on eight
    /// disks. The cluster must have been started with as many disks.
    pub replication_factor: u8,
}

impl TopicSpec {
    /// A topic of [`Order::None`] in memory alone, with the cluster's defaults.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            order: Order::None,
            retention_bytes: 0,
            retention_age: Duration::ZERO,
            max_message_bytes: 0,
            replication_factor: 1,
        }
    }

    /// Sets [`order`](TopicSpec::order).
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets [`retention_bytes`](TopicSpec::retention_bytes).
    #[must_use]
    pub fn retention_bytes(mut self, bytes: u64) -> Self {
        self.retention_bytes = bytes;
        self
    }

    /// Sets [`retention_age`](TopicSpec::retention_age).
    #[must_use]
    pub fn retention_age(mut self, age: Duration) -> Self {
        self.retention_age = age;
        self
    }

    /// Sets [`max_message_bytes`](TopicSpec::max_message_bytes).
    #[must_use]
    pub fn max_message_bytes(mut self, bytes: u32) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Sets [`replication_factor`](TopicSpec::replication_factor).
    #[must_use]
    pub fn replication_factor(mut self, factor: u8) -> Self {
        self.replication_factor = factor;
        self
    }
}

type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// Asks a cluster. Cheap to keep: it connects when asked something, and keeps connections that work.
pub struct Admin {
    jobs: Option<Sender<Job>>,
    timeout: Duration,
    request_state: Arc<RequestState>,
    worker: Option<JoinHandle<()>>,
}

impl Admin {
    /// Prepares to ask the brokers at `bootstrap`: `HOST:PORT` or `unix:PATH`, or several separated by commas. Connects only when
    /// something is asked.
    ///
    /// # Errors
    /// [`AdminError::Address`], or [`ClientError::System`] if the system gives no thread.
    pub fn connect(bootstrap: &str) -> Result<Self, AdminError> {
        let request_state = Arc::new(RequestState::default());
        let mut worker = Worker::new(bootstrap::resolve(bootstrap)?, request_state.clone());
        let (jobs, queue) = channel::<Job>();
        let thread = thread::Builder::new()
            .name("embar-admin".into())
            .spawn(move || {
                for job in queue {
                    job(&mut worker);
                }
            })
            .map_err(|error| ClientError::system("a thread for an admin client", error))?;
        Ok(Self {
            jobs: Some(jobs),
            timeout: Duration::from_secs(5),
            request_state,
            worker: Some(thread),
        })
    }

    /// Gives each request this much time from when it is taken up. Default 5 s.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Connects to brokers by this transport. Default [`Transport::Auto`].
    #[must_use]
    pub fn transport(self, transport: Transport) -> Self {
        if let Some(jobs) = &self.jobs {
            // A thread that is gone answers requests with that.
            let _ = jobs.send(Box::new(move |worker| worker.set_transport(transport)));
        }
        self
    }

    /// Tells what the request that is being answered waits for.
    pub fn wait_probe(&self) -> WaitProbe {
        let (wait_probe, request_state) = (WaitProbe::new(), Arc::downgrade(&self.request_state));
        wait_probe.ask_by(move || request_state.upgrade()?.waiting_for());
        wait_probe
    }

    /// Who is in the cluster.
    pub fn metadata(&self) -> Request<ClusterMetadata> {
        self.ask(Worker::metadata)
    }

    /// Creates a topic. Fails with [`ClientError::Refused`] if it exists, or needs more disks than the cluster has.
    pub fn create_topic(&self, spec: TopicSpec) -> Request<Topic> {
        self.ask(move |worker| worker.create_topic(spec))
    }

    /// Deletes a topic and what it retains.
    pub fn delete_topic(&self, name: impl Into<String>) -> Request<()> {
        let name = name.into();
        self.ask(move |worker| worker.delete_topic(name))
    }

    /// All topics.
    pub fn list_topics(&self) -> Request<Vec<Topic>> {
        self.ask(Worker::list_topics)
    }

    /// One topic, with what each data broker retains of it.
    pub fn describe_topic(&self, name: impl Into<String>) -> Request<TopicDescription> {
        let name = name.into();
        self.ask(move |worker| worker.describe_topic(&name))
    }

    /// One topic, with what this broker retains of it: whoever wants to hear of it although another broker does not answer asks each
    /// on its own. Fails with [`ClientError::UnknownTopic`] if this broker has nothing of it.
    pub fn describe_topic_on(
        &self,
        broker: u32,
        name: impl Into<String>,
    ) -> Request<TopicDescription> {
        let name = name.into();
        self.ask(move |worker| worker.describe_topic_on(broker, name))
    }

    /// Counters of one broker.
    pub fn status(&self, broker: u32) -> Request<BrokerStatus> {
        self.ask(move |worker| worker.status(broker))
    }

    /// Where the time of one broker's pipeline went. Behind the feature `profile`.
    #[cfg(feature = "profile")]
    pub fn profile(&self, broker: u32) -> Request<Snapshot> {
        self.ask(move |worker| worker.profile(broker))
    }

    /// Where the time of one broker's way to and from its disks went, which the process that sequences writes; nothing where the
    /// log has no disks. Behind the feature `profile`.
    #[cfg(feature = "profile")]
    pub fn disk_profile(&self, broker: u32) -> Request<Option<Snapshot>> {
        self.ask(move |worker| worker.disk_profile(broker))
    }

    /// Switches the stage timers of one broker on or off.
    pub fn set_metering(&self, broker: u32, on: bool) -> Request<()> {
        self.ask(move |worker| worker.set_metering(broker, on))
    }

    /// Lets one broker that takes data leave the cluster for good, and resolves when it has left: it takes nothing new,
    /// its clients go elsewhere, and what it was given is settled. Other brokers can send what it has of orders 2 and 5.
    /// What it has of orders 0 and 1 they cannot, so it leaves with that only if `force` is set; it can be read again
    /// once a broker takes its place. So does the last one that takes data. Fails with [`ClientError::Refused`] otherwise, and
    /// says what would be missing.
    pub fn remove_broker(&self, broker: u32, force: bool) -> Request<()> {
        self.ask(move |worker| worker.remove_broker(broker, force))
    }

    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Worker) -> Result<T, AdminError> + Send + 'static,
    ) -> Request<T> {
        let slot = Arc::new(Slot::default());
        // Dropped unanswered, for instance by a panic, it tells the asker that nobody is there any more.
        let answer = Answer(slot.clone());
        let timeout = self.timeout;
        let job: Job = Box::new(move |worker| {
            worker.begin(timeout);
            let answered = question(worker);
            worker.end();
            answer.0.fill(answered);
        });
        if let Some(jobs) = &self.jobs {
            // If the worker is gone the job is dropped here, and the answer with it.
            let _ = jobs.send(job);
        }
        Request { slot }
    }
}

impl Drop for Admin {
    /// Waits for the request that is being answered; the others are answered with [`ClientError::Closed`].
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(worker) = self.worker.take() {
            // A thread that panicked has reported itself on stderr, and there is nothing more to end.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

struct State<T> {
    answer: Option<Result<T, AdminError>>,
    answered: bool,
    waiting: WakeList,
}

struct Slot<T>(Mutex<State<T>>);

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(Mutex::new(State {
            answer: None,
            answered: false,
            waiting: WakeList::default(),
        }))
    }
}

impl<T> Slot<T> {
    /// The first answer counts.
    fn fill(&self, answer: Result<T, AdminError>) {
        let waiting = {
            let mut state = self.state();
            if std::mem::replace(&mut state.answered, true) {
                return;
            }
            state.answer = Some(answer);
            state.waiting.take()
        };
        waiting.wake_all();
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // Every step leaves the slot valid, so a panic of another holder spoils nothing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Answer<T>(Arc<Slot<T>>);

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        self.0.fill(Err(ClientError::Closed.into()));
    }
}

/// The answer to come: await it, or block with [`Request::wait`]. The request is carried out even if this is dropped.
#[must_use = "without waiting nobody knows whether it worked"]
pub struct Request<T> {
    slot: Arc<Slot<T>>,
}

impl<T> Request<T> {
    /// Blocks until the answer is there. The time limit is [`Admin::timeout`].
    ///
    /// # Errors
    /// [`AdminError::TimedOut`], [`AdminError::UnknownBroker`], [`AdminError::StillLeaving`], or [`AdminError::Client`]: for
    /// instance [`ClientError::Unreachable`], [`ClientError::Refused`] and [`ClientError::UnknownTopic`].
    pub fn wait(self) -> Result<T, AdminError> {
        block_on(self, None).unwrap_or(Err(ClientError::Closed.into()))
    }
}

impl<T> Future for Request<T> {
    type Output = Result<T, AdminError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.state();
        if let Some(answer) = state.answer.take() {
            return Poll::Ready(answer);
        }
        if state.answered {
            // Polled again after it was ready.
            return Poll::Ready(Err(ClientError::Closed.into()));
        }
        state.waiting.register(context);
        Poll::Pending
    }
}

impl<T> fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_there_is_an_error_that_says_what_to_do() {
        // A port that was free a moment ago refuses connections.
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a free port")
            .port();
        let address = format!("127.0.0.1:{port}");
        let admin = Admin::connect(&address).expect("a thread");
        let error = admin.metadata().wait().expect_err("nobody listens");
        let text = error.to_string();
        assert!(
            text.contains(&format!("no broker answers at {address}")),
            "{text}"
        );
        assert!(
            text.contains("start one") && text.contains("bootstrap"),
            "{text}"
        );
    }

    #[test]
    fn an_answer_that_never_comes_is_an_error() {
        let slot = Arc::new(Slot::<()>::default());
        drop(Answer(slot.clone()));
        assert_eq!(Request { slot }.wait(), Err(ClientError::Closed.into()));
    }
}
