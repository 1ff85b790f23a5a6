//! Runs work that uses a cluster, a trial of a bench for instance. If a broker dies meanwhile, the work fails at once,
//! instead of waiting for the broker to come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use embar_console::interrupt::Interrupted;

use super::cluster::{Cluster, ClusterEvent, Waker};

/// How long work may take to notice that it was given up.
const WIND_UP: Duration = Duration::from_millis(500);

/// Set when the work in progress was given up. Clones see the same.
#[derive(Clone, Default)]
pub struct Abort(Arc<AtomicBool>);

impl Abort {
    /// Whether to give up.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error once it is set; [`Cluster::run`] replaces it by the cause.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.is_set() {
            Err(Interrupted)
        } else {
            Ok(())
        }
    }

    /// Gives up.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct WakeOnDrop(Waker);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake();
    }
}

impl Cluster {
    /// Runs `work` on a thread of its own and returns its result. A broker that dies meanwhile, or a signal, ends it: its
    /// [`Abort`] is set, and the thread is left behind if it does not stop.
    pub fn run<T: Send + 'static>(
        &mut self,
        name: &str,
        work: impl FnOnce(&Abort) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (abort, waker) = (Abort::default(), self.waker());
        let (send, receive) = channel();
        let seen = abort.clone();
        thread::Builder::new().name(name.into()).spawn(move || {
            // Declared first, so dropped last: after the result, and also when the work panics.
            let _waker = WakeOnDrop(waker);
            let send = send;
            // No one receives the result of work that was left behind.
            let _delivered = send.send(work(&seen));
        })?;
        let why = loop {
            match self.wait(None) {
                ClusterEvent::Interrupted => break Interrupted.into(),
                ClusterEvent::Died { id, how } => break anyhow!("broker {id} {how}"),
                ClusterEvent::Woken
                | ClusterEvent::Serves(_)
                | ClusterEvent::Left { .. }
                | ClusterEvent::TimedOut => match receive.try_recv() {
                    Ok(result) => return result,
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                        break anyhow!("the work panicked");
                    }
                    Err(std::sync::mpsc::TryRecvError::Empty) => {}
                },
            }
        };
        abort.set();
        // The brokers go first: work that waits for them sees its sockets close.
        for slot in &mut self.slots {
            slot.child = None;
        }
        let _late = receive.recv_timeout(WIND_UP);
        Err(why)
    }
}
