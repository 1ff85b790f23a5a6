//! Sends acknowledgements, from the thread that acknowledges and from the manager's.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use super::acks::Acks;
use super::entry_id::EntryId;
use super::trouble::is_passing;
use crate::cmd::Cmd;
use crate::engine::{Router, Task, after};
use crate::error::Error;
use crate::request::Request;

type Sending = Pin<Box<dyn Future<Output = Result<u64, Error>> + Send>>;

/// The deliveries of a consumer, and their acknowledgements on the way to the server.
pub(super) struct Acknowledger {
    router: Arc<Router>,
    key: Vec<u8>,
    group: Vec<u8>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    acks: Acks,
    /// What was sent and waits for its reply, unless a thread polls it just now.
    sending: Option<Sending>,
    /// A thread polls it.
    polling: bool,
    /// It was woken while a thread polled it.
    woken: bool,
    /// How often sending failed since it last succeeded, and when to send again.
    failures: u32,
    not_before: Option<Instant>,
    /// The consumer's task, which waits for room, and in the end for the last acknowledgements.
    watcher: Option<Waker>,
    stopped: bool,
    /// Why the server will not take an acknowledgement.
    error: Option<Error>,
}

impl Acknowledger {
    pub fn new(router: &Arc<Router>, key: &[u8], group: &[u8]) -> Arc<Self> {
        Arc::new(Self {
            router: Arc::clone(router),
            key: key.to_vec(),
            group: group.to_vec(),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Acks::deliver`].
    pub fn deliver(&self, id: EntryId) -> bool {
        self.state().acks.deliver(id)
    }

    /// As [`Acks::held`].
    pub fn held(&self) -> usize {
        self.state().acks.held()
    }

    /// As [`Acks::holds`].
    pub fn holds(&self, id: EntryId) -> bool {
        self.state().acks.holds(id)
    }

    /// As [`Acks::release`].
    pub fn release(&self, id: EntryId) {
        let mut state = self.state();
        state.acks.release(id);
        wake(state);
    }

    /// Acknowledges an entry: at once if no command is on its way, or else with the next one.
    pub fn acknowledge(self: &Arc<Self>, id: EntryId) {
        self.state().acks.acknowledge(id);
        self.drive();
    }

    /// Wakes this task when something has changed.
    pub fn watch(&self, waker: &Waker) {
        let old = self.state().watcher.replace(waker.clone());
        drop(old);
    }

    /// Has the consumer end.
    pub fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        wake(state);
    }

    pub fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// As [`Acks::is_settled`].
    pub fn is_settled(&self) -> bool {
        self.state().acks.is_settled()
    }

    /// Why the server refused acknowledgements, once.
    pub fn take_error(&self) -> Option<Error> {
        self.state().error.take()
    }

    /// Sends what is to be sent, and reads what has come.
    fn drive(self: &Arc<Self>) {
        let waker = Waker::from(Arc::clone(self));
        let cx = &mut Context::from_waker(&waker);
        while let Some(mut sending) = self.begin() {
            // Without the lock, as it wakes other tasks.
            let polled = sending.as_mut().poll(cx);
            let mut state = self.state();
            state.polling = false;
            match polled {
                Poll::Ready(outcome) => {
                    self.settle(&mut state, outcome);
                    wake(state);
                }
                Poll::Pending => {
                    state.sending = Some(sending);
                    if !std::mem::take(&mut state.woken) {
                        return;
                    }
                }
            }
        }
    }

    /// What to poll; `None`: nothing, for now.
    fn begin(self: &Arc<Self>) -> Option<Sending> {
        let mut state = self.state();
        if state.polling {
            state.woken = true;
            return None;
        }
        if state.sending.is_none() {
            if let Some(at) = state.not_before.filter(|at| *at > Instant::now()) {
                drop(state);
                self.run_at(Some(at));
                return None;
            }
            state.sending = Some(self.xack(state.acks.send()?));
        }
        state.polling = true;
        state.sending.take()
    }

    fn xack(&self, ids: &[EntryId]) -> Sending {
        let router = Arc::clone(&self.router);
        let cmd = Cmd::write("XACK").key(&self.key).arg(&self.group);
        let cmd = cmd.args(ids.iter().map(EntryId::to_string));
        // An entry can be acknowledged twice.
        Box::pin(async move { Request::new(&router, cmd).repeatable().await })
    }

    fn settle(&self, state: &mut State, outcome: Result<u64, Error>) {
        match outcome {
            Ok(_) => {
                state.acks.arrived();
                (state.failures, state.not_before) = (0, None);
            }
            Err(error) if is_passing(&error) => {
                tracing::warn!(%error, "acknowledgements are sent again");
                state.acks.send_again();
                let pause = self.router.shared.config.retries.backoff(state.failures);
                state.not_before = Some(after(pause));
                state.failures += 1;
            }
            Err(error) => {
                // These entries stay pending, and come again.
                state.acks.arrived();
                state.error = Some(error);
            }
        }
    }

    fn run_at(self: &Arc<Self>, at: Option<Instant>) {
        let task: Arc<dyn Task> = Arc::clone(self) as Arc<dyn Task>;
        self.router
            .shared
            .schedule
            .run_at(Arc::downgrade(&task), at);
    }
}

/// Wakes the consumer's task, without the lock.
fn wake(mut state: MutexGuard<'_, State>) {
    let watcher = state.watcher.take();
    drop(state);
    if let Some(waker) = watcher {
        waker.wake();
    }
}

impl Task for Acknowledger {
    fn run(self: Arc<Self>) {
        self.drive();
    }
}

/// A reply has come, or a pause is over: the manager's thread goes on.
impl Wake for Acknowledger {
    fn wake(self: Arc<Self>) {
        self.run_at(None);
    }
}

impl fmt::Debug for Acknowledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state().acks.fmt(f)
    }
}
