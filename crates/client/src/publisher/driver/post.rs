//! Where a channel is driven: by its own thread, or by one that waits for what the channel brings. That one need not be woken
//! then, and the channel's own, which would have to be woken for that, sleeps on.
//!
//! Until somebody wants to drive, the channel's thread waits in the reactor. From then on it waits beside it, so that the
//! driver is free.
//!
//! How nothing is lost:
//! - Whoever drives holds the driver's lock. Nobody drives without having let the reactor rest before he gave the lock back, or
//!   having ended the wait of the channel's thread. At rest, whatever comes makes the reactor readable, and a wake does, too.
//! - While the reactor is hidden from the channel's thread, somebody drives. Shown again, it ends the wait if it became
//!   readable meanwhile.
//! - While publishing threads come by often, peers by shared memory are not asked to wake anybody: the channel's thread looks
//!   after `LOOK_EVERY` whether anything came, and from then on is woken again if nobody came by meanwhile. Only while nobody
//!   waits for what the channel brings: who begins to wait ends the channel's thread's wait.
//! - A thread that drives and wants to stop for another reason than an event of its channel (its batch went by another one, or
//!   the publisher ended) is woken as a task: that wakes the reactor in which it sleeps.
//! - Who panics while he drives leaves a driver that nobody uses again. The publisher ends, and so does the channel's thread.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{self, Context, Wake};
use std::time::{Duration, Instant};

use embar_transport::{Reactor as _, Waker, Watch};

use super::{ChannelDriver, ending_on_panic};
use crate::error::ClientError;
use crate::profile::publisher::CALLER_WAITS;
use crate::publisher::core::PublisherCore;
use crate::publisher::shared::{Drive, Shared, lock};

/// How often who drove tries to leave nothing to do. Others may keep the channel busy for as long as they like; then its own
/// thread goes on.
const SETTLES_MAX: u32 = 4;

/// After so long the channel's thread looks by itself for what publishing threads leave to each other.
const LOOK_EVERY: Duration = Duration::from_millis(1);

pub(super) struct Post {
    shared: Arc<Shared>,
    driver: Mutex<ChannelDriver>,
    watch: Watch,
    waker: Waker,
    /// Wakes who drives, and waits as a task.
    task: task::Waker,
    /// Another thread has wanted to drive, so the channel's own waits without the driver.
    wanted: AtomicBool,
    /// A thread panicked while it drove.
    broken: AtomicBool,
    /// How often other threads drove.
    visits: AtomicU64,
    /// The channel's thread looks by itself, without being woken. Written by who has the driver.
    looks: AtomicBool,
}

struct WakePost(Waker);

impl Wake for WakePost {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

impl Post {
    pub(super) fn new(driver: ChannelDriver) -> io::Result<Self> {
        let waker = driver.reactor.waker();
        Ok(Self {
            shared: driver.shared.clone(),
            watch: Watch::new(&driver.reactor)?,
            task: task::Waker::from(Arc::new(WakePost(waker.clone()))),
            waker,
            driver: Mutex::new(driver),
            wanted: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            visits: AtomicU64::new(0),
            looks: AtomicBool::new(false),
        })
    }

    /// What the channel's own thread does, to the end.
    pub(super) fn keep(&self) {
        let mut seen = 0;
        loop {
            let mut driver = lock(&self.driver);
            self.looks.store(false, Ordering::SeqCst);
            if self.broken.load(Ordering::SeqCst) || !driver.act() {
                return;
            }
            let limit = driver.limit();
            if !self.wanted.load(Ordering::SeqCst) {
                driver.turn(limit);
            } else if !driver.turn(Some(Duration::ZERO)) {
                let visits = self.visits.load(Ordering::SeqCst);
                let often = std::mem::replace(&mut seen, visits) != visits;
                let looks = often && self.may_look(&driver);
                let rests = match looks {
                    true => driver.reactor.rest_unasked(),
                    false => driver.reactor.rest(),
                };
                if rests {
                    drop(driver);
                    let limit = match looks {
                        true => Some(limit.map_or(LOOK_EVERY, |most| most.min(LOOK_EVERY))),
                        false => limit,
                    };
                    if let Err(error) = self.watch.wait(limit) {
                        self.shared
                            .stop(ClientError::system("waiting for sockets", error));
                    }
                    driver = lock(&self.driver);
                    driver.reactor.rouse();
                }
            }
            if driver.stopping() {
                driver.with_core(PublisherCore::tick);
            }
        }
    }
}

impl Drive for Post {
    fn drive(&self, deadline: Option<Instant>, is_over: &mut dyn FnMut(&mut Context<'_>) -> bool) {
        if let Some(mut shift) = self.shift() {
            ending_on_panic(&self.shared, || shift.run(deadline, is_over));
        }
    }

    fn pass(&self) {
        if let Some(mut shift) = self.shift() {
            ending_on_panic(&self.shared, || shift.pass());
        }
    }

    fn hurry(&self) {
        if self.looks.load(Ordering::SeqCst) {
            self.watch.end();
        }
    }
}

impl Post {
    /// The driver, for a thread that is not the channel's own, if that is possible now.
    fn shift(&self) -> Option<Shift<'_>> {
        if !self.wanted.load(Ordering::Relaxed) {
            self.wanted.store(true, Ordering::SeqCst);
            self.waker.wake();
            return None;
        }
        let driver = self.driver.try_lock().ok()?;
        if self.broken.load(Ordering::SeqCst) {
            return None;
        }
        Some(Shift {
            post: self,
            driver: Some(driver),
            hidden: false,
            ending: Ending::Broken,
        })
    }

    /// Whether it is enough to look now and then for what the channel brings. True only while `looks` is already, so that
    /// who begins to wait after this look [hurries](Drive::hurry) the channel's thread.
    fn may_look(&self, driver: &ChannelDriver) -> bool {
        self.looks.store(true, Ordering::SeqCst);
        let may = driver.is_shm() && self.shared.is_left_to_callers(driver.channel);
        if !may {
            self.looks.store(false, Ordering::SeqCst);
        }
        may
    }
}

/// How a thread leaves what it drove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The reactor rests: its next event ends the wait of the channel's own thread.
    Rested,
    /// There is more to do.
    Busy,
    /// It panicked.
    Broken,
}

/// The time in which a thread drives that is not the channel's own.
struct Shift<'a> {
    post: &'a Post,
    /// There until the end.
    driver: Option<MutexGuard<'a, ChannelDriver>>,
    /// The channel's own thread does not see the reactor.
    hidden: bool,
    ending: Ending,
}

impl Shift<'_> {
    fn run(
        &mut self,
        deadline: Option<Instant>,
        is_over: &mut dyn FnMut(&mut Context<'_>) -> bool,
    ) {
        let Some(driver) = &mut self.driver else {
            return;
        };
        let mut context = Context::from_waker(&self.post.task);
        driver.reactor.rouse();
        loop {
            driver.act();
            // What ends takes time that only the channel's own thread keeps.
            if is_over(&mut context) || driver.stopping() {
                break;
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            // What comes by shared memory while this thread is awake makes nothing readable.
            if !self.hidden && !driver.is_shm() {
                self.post.watch.show(false);
                self.hidden = true;
            }
            if driver.turn_awake(left) {
                continue;
            }
            if !self.hidden {
                self.post.watch.show(false);
                self.hidden = true;
            }
            driver.sleep(left);
        }
        driver.recorder.count(CALLER_WAITS, 1);
        self.end();
    }

    /// Takes what is there, and gives what can go.
    fn pass(&mut self) {
        let Some(driver) = &mut self.driver else {
            return;
        };
        driver.reactor.rouse();
        driver.act();
        // Not for as long as the broker likes.
        for _ in 0..SETTLES_MAX {
            if !driver.settle() {
                break;
            }
            driver.act();
        }
        self.end();
    }

    /// Leaves the channel in order, as far as that is possible without waiting.
    fn end(&mut self) {
        let Some(driver) = &mut self.driver else {
            return;
        };
        self.ending = Ending::Busy;
        self.post.visits.fetch_add(1, Ordering::SeqCst);
        let looked = self.post.looks.load(Ordering::SeqCst);
        let looks = self.post.may_look(driver);
        if looks && !looked {
            // The channel's thread waits without a limit, and is to find out that it may look instead.
            return;
        }
        for _ in 0..SETTLES_MAX {
            let rests = match looks {
                true => driver.reactor.rest_unasked(),
                false => driver.reactor.rest(),
            };
            if rests {
                // Who stops the publisher after this look wakes the reactor.
                if !driver.stopping() {
                    self.ending = Ending::Rested;
                }
                break;
            }
            driver.settle();
            driver.act();
        }
    }
}

impl Drop for Shift<'_> {
    fn drop(&mut self) {
        if self.ending == Ending::Broken {
            self.post.broken.store(true, Ordering::SeqCst);
        }
        self.driver = None;
        if self.hidden {
            self.post.watch.show(true);
        }
        if self.ending != Ending::Rested {
            self.post.watch.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::sync::mpsc;
    use std::thread;

    use embar_transport::Epoll;

    use super::*;
    use crate::connection::ChannelId;
    use crate::error::PublishError;
    use crate::publisher::driver::tests::{LONG, shared};
    use crate::publisher::receipt::{Outcome, Receipt, Ticket};

    /// A post without a connection, at which one thread has wanted to drive.
    fn post(shared: &Arc<Shared>) -> Post {
        let reactor = Epoll::new().expect("a reactor");
        let driver = ChannelDriver::new(shared.clone(), ChannelId::CONTROL, reactor);
        let post = Post::new(driver).expect("descriptors");
        shared.set_waker(ChannelId::CONTROL, post.waker.clone());
        post.drive(None, &mut |_| true);
        post
    }

    /// Drives until this thread gets to, as it may be the other one's turn.
    fn drive(
        post: &Post,
        deadline: Option<Instant>,
        is_over: &mut dyn FnMut(&mut Context<'_>) -> bool,
    ) {
        let began = Instant::now();
        let mut drove = false;
        while !drove {
            post.drive(deadline, &mut |context| {
                drove = true;
                is_over(context)
            });
            assert!(began.elapsed() < LONG, "the post is never free");
            thread::yield_now();
        }
    }

    fn stop(shared: &Shared) {
        shared.stop(ClientError::Closed);
    }

    #[test]
    fn a_post_is_kept_on_when_a_thread_has_driven() {
        let shared = Arc::new(shared());
        let post = post(&shared);
        thread::scope(|scope| {
            let keeper = scope.spawn(|| post.keep());
            for _ in 0..100 {
                drive(&post, None, &mut |_| true);
            }
            assert!(!keeper.is_finished());
            // At rest or not, the keeper hears of it.
            stop(&shared);
            keeper.join().expect("no panic");
        });
    }

    #[test]
    fn who_drives_stops_when_its_batch_was_stored_by_another_way() {
        let shared = Arc::new(shared());
        let post = post(&shared);
        thread::scope(|scope| {
            let keeper = scope.spawn(|| post.keep());
            for number in 0..50 {
                let batch = shared.receipts.open_batch();
                let (tell, waits) = mpsc::channel();
                let resolver = scope.spawn({
                    let shared = &shared;
                    move || {
                        waits.recv().expect("somebody drives");
                        shared.receipts.resolve(batch, 1, Outcome::StoredSomewhere);
                    }
                });
                let ticket = Ticket { batch, index: 0 };
                let mut receipt = std::pin::pin!(Receipt::new(shared.receipts.clone(), ticket));
                // It wakes the driver as it would a task. With no wake this blocks until the limit, and fails there.
                let deadline = Instant::now() + LONG;
                drive(&post, Some(deadline), &mut |context| {
                    let over = receipt.as_mut().poll(context).is_ready();
                    let _told_once = tell.send(());
                    over
                });
                assert!(Instant::now() < deadline, "{number}");
                resolver.join().expect("no panic");
            }
            stop(&shared);
            keeper.join().expect("no panic");
        });
    }

    #[test]
    fn the_end_of_the_publisher_ends_who_drives_and_then_the_keeper() {
        for _ in 0..20 {
            let shared = Arc::new(shared());
            let post = post(&shared);
            let (tell, drives) = mpsc::channel();
            thread::scope(|scope| {
                let keeper = scope.spawn(|| post.keep());
                let driver = scope.spawn(|| {
                    drive(&post, None, &mut |_| {
                        let _told_once = tell.send(());
                        false
                    });
                });
                drives.recv().expect("it drives");
                stop(&shared);
                driver.join().expect("no panic");
                keeper.join().expect("no panic");
            });
        }
    }

    #[test]
    fn a_panic_of_who_drives_ends_the_publisher_and_the_keeper() {
        let shared = Arc::new(shared());
        let post = post(&shared);
        let batch = shared.receipts.open_batch();
        thread::scope(|scope| {
            let keeper = scope.spawn(|| post.keep());
            drive(&post, None, &mut |_| panic!("a bug"));
            let receipt = Receipt::new(shared.receipts.clone(), Ticket { batch, index: 0 });
            let ended = receipt.wait_timeout(LONG).expect_err("nothing is stored");
            assert!(
                matches!(ended, PublishError::Client(ClientError::Panicked { .. })),
                "{ended:?}"
            );
            keeper.join().expect("no panic");
        });
        let mut asked = false;
        post.drive(None, &mut |_| {
            asked = true;
            true
        });
        assert!(!asked, "nobody uses the driver again");
    }
}
