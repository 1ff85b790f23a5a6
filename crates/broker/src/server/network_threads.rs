//! Starts the network threads of a broker, asks them to drain or to cut their connections, and joins them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use embar_transport::Waker;

use super::network_thread::{self, ThreadSpec};
use super::start_error::StartError;
use super::stop::{Stop, StopSignal};

/// How often [`NetworkThreads::drain`] looks whether the threads have ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// All network threads of one broker.
pub(super) struct NetworkThreads {
    stop: Arc<StopSignal>,
    wakers: Vec<Waker>,
    /// Those that are not joined yet.
    running: Mutex<Vec<JoinHandle<()>>>,
}

impl NetworkThreads {
    /// Starts a thread for each spec. They stop by this signal.
    pub fn start(
        specs: impl Iterator<Item = ThreadSpec>,
        stop: &Arc<StopSignal>,
    ) -> Result<Self, StartError> {
        let started: Result<Vec<_>, _> = specs.map(network_thread::start).collect();
        let (wakers, running) = network_thread::introduce(started?);
        Ok(Self {
            stop: Arc::clone(stop),
            wakers,
            running: Mutex::new(running),
        })
    }

    /// Asks peers to go to other brokers, waits for them at most `grace`, and ends. True when all of them
    /// went by themselves.
    pub fn drain(&self, grace: Duration) -> bool {
        self.begin_to_drain();
        let end = Instant::now() + grace;
        while !self.have_ended() && Instant::now() < end {
            std::thread::sleep(LOOK_EVERY);
        }
        let drained = self.have_ended();
        self.cut();
        drained
    }

    /// Asks peers to go to other brokers.
    pub fn begin_to_drain(&self) {
        self.request(Stop::Drain);
    }

    /// Whether all peers went, and all threads with them.
    pub fn have_ended(&self) -> bool {
        self.running().iter().all(JoinHandle::is_finished)
    }

    /// Cuts what is left, and waits for the threads.
    pub fn cut(&self) {
        self.request(Stop::Cut);
        // Joined without the lock, as others ask meanwhile whether they have ended.
        let threads = std::mem::take(&mut *self.running());
        // A thread that panicked has said so on stderr.
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn request(&self, stop: Stop) {
        self.stop.request(stop);
        self.wakers.iter().for_each(Waker::wake);
    }

    fn running(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
