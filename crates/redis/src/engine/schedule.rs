//! The work of the manager's thread: what it does at which time.

use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

use embar_mux::Connection;

use super::timers::{TimerKey, TimerQueue, after};
use crate::config::{Config, Mode};

/// The least time between two readings of the topology, whatever happens.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(100);

/// When the topology is read again that is about to change.
const SOON: Duration = Duration::from_secs(1);

/// How often the thread looks whether connections of nodes that left are idle.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// When the topology is to be read again, if nothing happens before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// After the configured interval.
    Usual,
    /// In a second, as it is about to change.
    Soon,
    /// After this time, or as soon as it may be: nobody has told it.
    After(Duration),
}

/// Something that the manager's thread does for its owner. It must not block.
pub(crate) trait Task: Send + Sync {
    /// Does it.
    fn run(self: Arc<Self>);
}

/// What the thread does next.
pub(super) enum Job {
    /// Run a task.
    Run(Weak<dyn Task>),
    /// Begin to read the topology, or go on with it.
    Refresh,
    /// Close those of these connections that are idle.
    CloseIdle(Vec<Arc<Connection>>),
    /// Wake tasks whose timers have expired.
    Wake(Vec<Waker>),
    /// End: the client was closed.
    End,
}

/// The work that connections, subscriptions and requests give to the manager's thread.
pub(crate) struct Schedule {
    config: Arc<Config>,
    work: Mutex<Work>,
    changed: Condvar,
}

#[derive(Default)]
struct Work {
    /// Tasks, and when to run them; `None`: at once.
    tasks: Vec<(Option<Instant>, Weak<dyn Task>)>,
    timers: TimerQueue,
    /// When to read the topology; `None`: never, as there is only one server.
    refresh_at: Option<Instant>,
    last_refresh: Option<Instant>,
    /// A refresh is running.
    refreshing: bool,
    /// Something happened that the running refresh waits for.
    refresh_woken: bool,
    /// Tasks to run after each refresh.
    topology_followers: Vec<Weak<dyn Task>>,
    /// Connections to close as soon as no caller can submit to them and no command is in flight.
    leaving: Vec<Arc<Connection>>,
    over: bool,
}

impl Work {
    /// Each task has one entry: the earlier time counts. Whether it is to run sooner than before.
    fn run_at(&mut self, task: Weak<dyn Task>, at: Option<Instant>) -> bool {
        match self.tasks.iter_mut().find(|(_, known)| known.ptr_eq(&task)) {
            Some((known, _)) if *known <= at => return false,
            Some((known, _)) => *known = at,
            None => self.tasks.push((at, task)),
        }
        true
    }

    /// What to do now.
    fn due(&mut self, now: Instant) -> Option<Job> {
        if self.over {
            return Some(Job::End);
        }
        let wakers = self.timers.due(now);
        if !wakers.is_empty() {
            return Some(Job::Wake(wakers));
        }
        let due = |(at, _): &(Option<Instant>, _)| at.is_none_or(|at| at <= now);
        if let Some(index) = self.tasks.iter().position(due) {
            return Some(Job::Run(self.tasks.swap_remove(index).1));
        }
        if std::mem::take(&mut self.refresh_woken) && self.refreshing {
            return Some(Job::Refresh);
        }
        if self.next_refresh().is_some_and(|at| at <= now) {
            self.refresh_at = None;
            self.refreshing = true;
            return Some(Job::Refresh);
        }
        None
    }

    /// When there is something to do.
    fn next(&self) -> Option<Instant> {
        let tasks = self.tasks.iter().filter_map(|(at, _)| *at);
        tasks
            .chain(self.timers.next())
            .chain(self.next_refresh())
            .min()
    }

    /// When the next refresh begins: one at a time.
    fn next_refresh(&self) -> Option<Instant> {
        self.refresh_at.filter(|_| !self.refreshing)
    }
}

impl Schedule {
    pub fn new(config: Arc<Config>) -> Self {
        Self {
            config,
            work: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, f: impl FnOnce(&mut Work)) {
        f(&mut self.work());
        self.changed.notify_one();
    }

    /// Runs a task at that time; `None`: at once.
    pub fn run_at(&self, task: Weak<dyn Task>, at: Option<Instant>) {
        // Whoever set an earlier time has woken the thread for that.
        if self.work().run_at(task, at) {
            self.changed.notify_one();
        }
    }

    /// Runs a task after each refresh, as long as its owner lives.
    pub fn run_after_refreshes(&self, task: Weak<dyn Task>) {
        self.change(|work| {
            work.topology_followers
                .retain(|known| known.strong_count() > 0);
            work.topology_followers.push(task);
        });
    }

    /// Reads the topology soon, if there may be several nodes. Several requests at a time are one.
    pub fn request_refresh(&self) {
        if self.config.mode != Mode::Standalone {
            self.change(|work| {
                let soonest = work
                    .last_refresh
                    .map_or_else(Instant::now, |at| at + MIN_REFRESH_INTERVAL);
                let at = work.refresh_at.map_or(soonest, |at| at.min(soonest));
                work.refresh_at = Some(at);
            });
        }
    }

    /// A refresh is over: schedules the next one, and the tasks that follow the topology.
    pub(super) fn refresh_done(&self, again: Again) {
        let mut work = self.work();
        let now = Instant::now();
        work.last_refresh = Some(now);
        work.refreshing = false;
        for task in work.topology_followers.clone() {
            work.run_at(task, Some(now));
        }
        let usual = spread(self.config.refresh_interval);
        let pause = match again {
            Again::Usual => usual,
            Again::Soon => usual.min(spread(SOON)),
            Again::After(pause) => pause.max(MIN_REFRESH_INTERVAL),
        };
        // A request that came meanwhile gets a refresh of its own soon.
        let next = after(pause);
        work.refresh_at = Some(match work.refresh_at {
            Some(_) => next.min(now + MIN_REFRESH_INTERVAL),
            None => next,
        });
    }

    /// Closes a connection when no caller holds it and no command is in flight. No new caller may get
    /// hold of it.
    pub fn close_when_idle(&self, conn: Arc<Connection>) {
        self.change(|work| work.leaving.push(conn));
    }

    /// These connections are not idle: looks at them again later.
    pub(super) fn not_idle(&self, conns: Vec<Arc<Connection>>) {
        self.work().leaving.extend(conns);
    }

    /// Wakes a task at that time, or a little later, instead of what `timer` was set to before.
    pub fn wake_at(self: &Arc<Self>, timer: &mut Option<Timer>, at: Instant, waker: &Waker) {
        let mut work = self.work();
        // Old wakers are dropped without the lock: a waker's drop may run any code.
        let (first, _old) = match timer {
            Some(set) if set.key.0 == at => match work.timers.replace(set.key, waker.clone()) {
                Ok(old) => (false, Some(old)),
                Err(waker) => {
                    let first;
                    (set.key, first) = work.timers.insert(at, waker);
                    (first, None)
                }
            },
            Some(set) => {
                let old = work.timers.remove(set.key);
                let first;
                (set.key, first) = work.timers.insert(at, waker.clone());
                (first, old)
            }
            None => {
                let (key, first) = work.timers.insert(at, waker.clone());
                let schedule = Arc::clone(self);
                *timer = Some(Timer { schedule, key });
                (first, None)
            }
        };
        drop(work);
        if first {
            self.changed.notify_one();
        }
    }

    /// Whether the client was closed.
    pub fn is_over(&self) -> bool {
        self.work().over
    }

    /// Has the thread close all connections and end.
    pub fn end(&self) {
        self.change(|work| work.over = true);
    }

    /// Waits for the next thing to do.
    pub(super) fn next_job(&self) -> Job {
        let mut work = self.work();
        loop {
            let now = Instant::now();
            if let Some(job) = work.due(now) {
                return job;
            }
            let mut wait = work.next().map(|at| at.saturating_duration_since(now));
            if !work.leaving.is_empty() {
                wait = Some(wait.map_or(IDLE_CHECK_INTERVAL, |wait| wait.min(IDLE_CHECK_INTERVAL)));
            }
            work = match wait {
                None => self
                    .changed
                    .wait(work)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(wait) => {
                    let waited = self.changed.wait_timeout(work, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            if !work.leaving.is_empty() {
                return Job::CloseIdle(std::mem::take(&mut work.leaving));
            }
        }
    }

    /// How many timers are set.
    #[cfg(test)]
    pub fn timers(&self) -> usize {
        self.work().timers.len()
    }
}

/// A random time between three and five quarters of this one: so clients that began together do not
/// ask together for ever.
fn spread(interval: Duration) -> Duration {
    let half = (interval / 2).mul_f64(fastrand::f64());
    (interval - interval / 4).saturating_add(half)
}

/// Wakes the future that reads the topology.
impl Wake for Schedule {
    fn wake(self: Arc<Self>) {
        self.change(|work| work.refresh_woken = true);
    }
}

/// A timer of [`Schedule::wake_at`]. Dropping it cancels it.
pub(crate) struct Timer {
    schedule: Arc<Schedule>,
    key: TimerKey,
}

impl Drop for Timer {
    fn drop(&mut self) {
        let waker = self.schedule.work().timers.remove(self.key);
        drop(waker);
    }
}

/// Waits until that time.
pub(crate) async fn sleep_until(schedule: &Arc<Schedule>, at: Instant) {
    let mut timer = None;
    poll_fn(|cx| {
        if Instant::now() >= at {
            return Poll::Ready(());
        }
        schedule.wake_at(&mut timer, at, cx.waker());
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_refreshes_differ_around_the_interval() {
        let interval = Duration::from_secs(40);
        let pauses: Vec<_> = (0..1000).map(|_| spread(interval)).collect();
        let range = Duration::from_secs(30)..=Duration::from_secs(50);
        assert!(pauses.iter().all(|pause| range.contains(pause)));
        for middle in [Duration::from_secs(35), Duration::from_secs(45)] {
            assert!(pauses.iter().any(|pause| *pause < middle));
            assert!(pauses.iter().any(|pause| *pause > middle));
        }
        assert!(spread(Duration::MAX) >= Duration::MAX - Duration::MAX / 4);
    }
}
