//! The driver as a task of a Tokio runtime.
//!
//! An epoll descriptor is itself readable when one of its sockets is ready, so the runtime's own
//! reactor watches ours.

use std::future::{Future, poll_fn};
use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::clock;
use crate::driver::Driver;
use crate::mailbox::DriverMailbox;
use crate::protocol::Protocol;

/// How long the driver waits at most for callers that it has woken. They run at once unless the runtime
/// has more to do than threads; then other callers should not wait for them.
const GATHER_NS: u64 = 50_000;

/// How long a task that does not yield can delay the driver while other threads are free.
const TAKE_OVER: Duration = Duration::from_millis(1);

/// Turns of the driver before other tasks run.
const TURNS: usize = 4;

/// As good as never.
const NEVER: Duration = Duration::from_secs(86_400 * 365);

pub(crate) fn spawn<P: Protocol>(
    driver: Driver<P>,
    mailbox: Arc<DriverMailbox<P>>,
    runtime: &Handle,
) -> io::Result<()> {
    let _here = runtime.enter();
    let readiness = driver.reactor().as_fd().try_clone_to_owned()?;
    #[expect(
        deprecated,
        reason = "its successor is unsafe because a type may lie about its descriptor; an owned descriptor does not"
    )]
    let readiness = AsyncFd::with_interest(readiness, Interest::READABLE)?;
    drop(runtime.spawn(run(driver, mailbox, readiness)));
    Ok(())
}

async fn run<P: Protocol>(
    driver: Driver<P>,
    mailbox: Arc<DriverMailbox<P>>,
    readiness: AsyncFd<std::os::fd::OwnedFd>,
) {
    let mut timer = pin!(sleep_until(Instant::now() + NEVER));
    let mut task = Task {
        driver,
        mailbox,
        readiness,
        single_threaded: Handle::current().metrics().num_workers() == 1,
        next: Next::Anything,
        armed: 0,
    };
    poll_fn(|cx| task.poll(timer.as_mut(), cx)).await;
}

/// What the task does when it is polled again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// A turn, or first let callers that are about to submit do so.
    Anything,
    /// A turn.
    Look,
    /// Send only what has gathered, once all awaited callers have run, or at that time.
    Write { at_latest: u64 },
}

struct Task<P: Protocol> {
    driver: Driver<P>,
    mailbox: Arc<DriverMailbox<P>>,
    readiness: AsyncFd<std::os::fd::OwnedFd>,
    /// The runtime has one thread.
    single_threaded: bool,
    next: Next,
    /// When the timer wakes the task; a time in the past when it does not.
    armed: u64,
}

impl<P: Protocol> Task<P> {
    fn poll(&mut self, mut timer: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<()> {
        self.mailbox.notifier().set_task(cx.waker());
        match mem::replace(&mut self.next, Next::Anything) {
            // Callers that are about to submit something do so first: then it leaves together.
            Next::Anything if self.mailbox.notifier().has_marks() => {
                return self.defer(Next::Look, timer, cx);
            }
            Next::Anything | Next::Look => {}
            Next::Write { at_latest } => {
                let complete = self.mailbox.notifier().gather.is_complete();
                if !complete && clock::now() < at_latest {
                    return self.defer(Next::Write { at_latest }, timer, cx);
                }
                // Replies that came meanwhile wait: the more gather, the better.
                if let Err(error) = self.driver.turn_known() {
                    return stopped(&error);
                }
                return self.defer(Next::Look, timer, cx);
            }
        }
        for _ in 0..TURNS {
            match self.turn(cx) {
                Ok(_) if self.driver.is_over() => return Poll::Ready(()),
                Ok(true) if self.mailbox.notifier().gather.is_on() => {
                    let at_latest = clock::now() + GATHER_NS;
                    return self.defer(Next::Write { at_latest }, timer, cx);
                }
                Ok(true) => {}
                Ok(false) => match self.driver.idle_for() {
                    Some(Duration::ZERO) => return self.defer(Next::Look, timer, cx),
                    None => return Poll::Pending,
                    Some(idle) => {
                        if self.arm(idle, timer.as_mut(), cx).is_pending() {
                            return Poll::Pending;
                        }
                        return self.defer(Next::Look, timer, cx);
                    }
                },
                Err(error) => return stopped(&error),
            }
        }
        self.defer(Next::Look, timer, cx)
    }

    /// A turn. False when nothing is left to do now; the next event wakes the task.
    fn turn(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        match self.readiness.poll_read_ready(cx) {
            Poll::Ready(guard) => {
                let mut guard = guard?;
                let busy = self.driver.turn(Some(Duration::ZERO))?;
                // A socket that became ready since then has made it ready anew.
                if !busy || self.driver.reactor().has_drained() {
                    guard.clear_ready();
                }
                Ok(true)
            }
            Poll::Pending => self.driver.turn_known(),
        }
    }

    /// Has the timer wake the task after `idle` at the latest. Ready if that is over already.
    fn arm(
        &mut self,
        idle: Duration,
        mut timer: Pin<&mut Sleep>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let now = clock::now();
        let due = now.saturating_add(idle.as_nanos() as u64);
        // A timer that fires too early costs less than setting it anew each time.
        if self.armed > due || self.armed <= now {
            self.armed = due;
            timer.as_mut().reset(Instant::now() + idle);
        }
        ready!(timer.poll(cx));
        self.armed = 0;
        Poll::Ready(())
    }

    /// Has the runtime poll the task again after the tasks that are ready now. Until then no caller
    /// needs to wake it.
    fn defer(&mut self, next: Next, timer: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<()> {
        self.next = next;
        self.mailbox.notifier().will_look();
        if self.single_threaded {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // This thread runs the task again. When another task keeps the thread for long, the timer has
        // another thread take over.
        if self.arm(TAKE_OVER, timer, cx).is_ready() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // A simple wake would have the runtime wake another thread, which takes the task away from the
        // thread on which its callers run.
        pin!(yield_now()).poll(cx)
    }
}

fn stopped(error: &io::Error) -> Poll<()> {
    tracing::error!("the driver of multiplexed connections stops: {error}");
    Poll::Ready(())
}
