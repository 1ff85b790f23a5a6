//! The network threads of a broker from outside: how they end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use embar_transport::Waker;

use super::{StopWord, stop};

/// How often threads that drain are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// See the module.
pub(super) struct Threads {
    stop: Arc<StopWord>,
    wakers: Vec<Waker>,
    /// Those that nobody has joined.
    running: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    pub fn new(stop: Arc<StopWord>, wakers: Vec<Waker>, running: Vec<JoinHandle<()>>) -> Self {
        Self {
            stop,
            wakers,
            running: Mutex::new(running),
        }
    }

    /// Tells peers to go elsewhere, waits for them at most `grace`, and ends. True when all of them
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

    /// Tells peers to go elsewhere.
    pub fn begin_to_drain(&self) {
        self.say(stop::DRAIN);
    }

    /// Whether all peers went, and all threads with them.
    pub fn have_ended(&self) -> bool {
        self.running().iter().all(JoinHandle::is_finished)
    }

    /// Cuts what is left, and waits for the threads.
    pub fn cut(&self) {
        self.say(stop::CUT);
        // Not waited for under the lock: others look whether they have ended.
        let threads = std::mem::take(&mut *self.running());
        // A thread that panicked has said so on stderr.
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn say(&self, word: u8) {
        self.stop.say(word);
        self.wakers.iter().for_each(Waker::wake);
    }

    fn running(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
