//! The I/O threads of a subscriber: they share its core, and each has the connections to some of the brokers.
//!
//! Invariants:
//! - A channel belongs to one thread for good, from the moment there is something to do on it. Only that thread has its
//!   socket.
//! - What the core has for the consumer goes into the queue before the core is given back, so it comes in the core's order
//!   whichever thread brings it.
//! - Nobody holds the core while it receives, checks a payload, or wakes the consumer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use embar_frame::Now;
use embar_meter::Profile;
use embar_transport::{Epoll, Reactor as _};

use super::core::SubscriberCore;
use super::queue::Queue;
use crate::clock::Clock;
use crate::connection::ChannelId;
use crate::error::ClientError;
use crate::socket;

/// More receive no faster than one application thread reads.
const MOST_BY_DEFAULT: usize = 4;

/// How many threads receive, at most, if the application does not say: one, where a second would only take the
/// application's place.
pub(super) fn default_limit() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if cores == 1 { 1 } else { MOST_BY_DEFAULT }
}

/// What the application grants the threads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// So many there are at most.
    pub(super) threads: usize,
    /// Each looks for so long before it sleeps.
    pub(super) spin: Duration,
}

/// What one thread does until the subscriber ends; it gets its number.
pub(super) type Run = fn(usize, Arc<IoThreads>, Epoll);

/// What the threads share.
pub(super) struct IoThreads {
    state: Mutex<State>,
    pub(super) queue: Arc<Queue>,
    pub(super) profile: Arc<Profile>,
    pub(super) clock: Clock,
    limits: Limits,
    run: Run,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

/// What one of them has at a time.
pub(super) struct State {
    pub(super) core: SubscriberCore,
    /// By channel, the number of the thread that has it.
    owners: Vec<Option<usize>>,
    /// Threads there are.
    threads: usize,
    /// Channels to brokers that have a thread.
    assigned: usize,
    /// When the last batch was delivered, or the subscription stood.
    pub(super) delivered_at: Now,
    pub(super) stopping: bool,
}

impl IoThreads {
    /// Starts the first thread, which starts others when it needs them, up to its limit in all.
    pub(super) fn start(
        core: SubscriberCore,
        queue: &Arc<Queue>,
        profile: &Arc<Profile>,
        limits: Limits,
        run: Run,
    ) -> Result<Arc<Self>, ClientError> {
        let threads = Arc::new(Self {
            state: Mutex::new(State {
                core,
                owners: Vec::new(),
                threads: 0,
                assigned: 0,
                delivered_at: Now(0),
                stopping: false,
            }),
            queue: queue.clone(),
            profile: profile.clone(),
            clock: Clock::new(),
            limits,
            run,
            handles: Mutex::default(),
        });
        if let Some(mut state) = threads.state() {
            state.core.start(threads.clock.now());
            threads.add_thread(&mut state)?;
        }
        Ok(threads)
    }

    /// Waits until all threads have ended, which the queue has asked for.
    pub(super) fn join(&self) {
        // Whoever starts a thread lists it before he ends himself.
        while let Some(handle) = self.take_handle() {
            // A thread that panicked has told the queue, and there is nothing more to end.
            let _ = handle.join();
        }
    }

    /// Without keeping the list, into which a thread may write before it ends.
    fn take_handle(&self) -> Option<JoinHandle<()>> {
        self.handles().pop()
    }

    /// The core, for one thread at a time. `None` when a panic of another one has left it halfway through a change.
    pub(super) fn state(&self) -> Option<MutexGuard<'_, State>> {
        self.state.lock().ok()
    }

    /// Gives each channel on which there is something to do a thread.
    pub(super) fn assign(self: &Arc<Self>, state: &mut State) {
        let channels = state.core.channel_count() as usize;
        state.owners.resize(channels, None);
        for index in 0..channels {
            let channel = ChannelId(index as u32);
            if state.owners[index].is_none() && state.core.has_action(channel) {
                let owner = self.next_owner(channel, state);
                state.owners[index] = Some(owner);
                self.queue.assign(channel, owner);
            }
        }
    }

    fn next_owner(self: &Arc<Self>, channel: ChannelId, state: &mut State) -> usize {
        if channel == ChannelId::CONTROL {
            return 0;
        }
        let turn = state.assigned % self.limits.threads;
        state.assigned += 1;
        if turn < state.threads {
            return turn;
        }
        match self.add_thread(state) {
            Ok(()) => state.threads - 1,
            Err(error) => {
                tracing::warn!(%error, "a subscriber goes on with fewer threads than it may have");
                0
            }
        }
    }

    fn add_thread(self: &Arc<Self>, state: &mut State) -> Result<(), ClientError> {
        let reactor = socket::borrowing_reactor(self.limits.spin)
            .map_err(|error| ClientError::system("a reactor for a subscriber", error))?;
        let number = self.queue.add_lane(reactor.waker());
        let name = match number {
            0 => "embar-sub".to_string(),
            number => format!("embar-sub-{number}"),
        };
        let threads = self.clone();
        let spawned = thread::Builder::new().name(name).spawn(move || {
            let queue = threads.queue.clone();
            ending_on_panic(&queue, || (threads.run)(number, threads.clone(), reactor));
        });
        match spawned {
            Ok(handle) => {
                self.handles().push(handle);
                state.threads += 1;
                Ok(())
            }
            Err(error) => {
                self.queue.remove_lane();
                Err(ClientError::system("a thread for a subscriber", error))
            }
        }
    }

    fn handles(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether this thread has `channel`.
    pub(super) fn is_of(&self, channel: ChannelId, thread: usize) -> bool {
        self.owners.get(channel.index()) == Some(&Some(thread))
    }

    /// Whether there is something to do for this thread.
    pub(super) fn has_action(&mut self, thread: usize) -> bool {
        self.wanted().any(|owner| owner == thread)
    }

    /// True if some channel of this thread reads nothing before a buffer is returned.
    pub(super) fn is_starved(&self, thread: usize) -> bool {
        let mut channels = (0..self.owners.len()).map(|index| ChannelId(index as u32));
        channels.any(|it| self.is_of(it, thread) && self.core.is_channel_starved(it))
    }

    /// The threads for which there is something to do.
    pub(super) fn wanted(&mut self) -> impl Iterator<Item = usize> {
        let Self { core, owners, .. } = self;
        let owners = owners.iter().enumerate();
        owners.filter_map(|(index, owner)| {
            let wanted = owner.is_some() && core.has_action(ChannelId(index as u32));
            owner.filter(|_| wanted)
        })
    }
}

/// Without its threads a subscriber would wait for ever, so a panic of one ends it, behind what was delivered.
fn ending_on_panic(queue: &Queue, run: impl FnOnce()) {
    // The queue's lock is taken over from a holder that panicked, and nothing of what `run` owns is used again. A core
    // that was left in the middle of a change is not either: its lock says so.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
        let error = ClientError::panicked("subscriber", &*payload);
        tracing::error!(%error, "a subscriber ends");
        queue.end(Err(error.into()));
        queue.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Instant;

    use super::*;
    use crate::error::ReadError;
    use crate::subscriber::queue::Taken;
    use crate::wake::block_on;

    #[test]
    fn a_panic_of_an_io_thread_ends_the_wait_for_the_next_message() {
        let queue = Queue::default();
        thread::scope(|scope| {
            let queue = &queue;
            let deadline = Instant::now() + Duration::from_secs(60);
            let next =
                move || block_on(poll_fn(|context| queue.poll_next(context)), Some(deadline));
            let consumer = scope.spawn(next);
            ending_on_panic(queue, || panic!("a bug"));
            let taken = consumer.join().expect("no panic");
            let Some(Taken::Failed(ReadError::Client(ClientError::Panicked { message, .. }))) =
                taken
            else {
                panic!("{taken:?}");
            };
            assert_eq!(message, "a bug");
            assert!(queue.is_stopping(), "the other threads end, too");
        });
    }
}
