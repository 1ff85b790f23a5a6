//! The driver as a task of a Tokio runtime.
//!
//! An epoll descriptor is itself readable when one of its sockets has something, so the runtime's
//! own reactor watches ours.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use crate::driver::Driver;
use crate::hub::Hub;
use crate::protocol::Protocol;

/// Turns before other tasks have theirs.
const TURNS: usize = 4;

/// Far enough for "never".
const NEVER: Duration = Duration::from_secs(86_400 * 365);

pub(crate) fn spawn<P: Protocol>(
    driver: Driver<P>,
    hub: Arc<Hub<P>>,
    runtime: &Handle,
) -> io::Result<()> {
    let _here = runtime.enter();
    let readiness = driver.reactor().as_fd().try_clone_to_owned()?;
    #[expect(
        deprecated,
        reason = "its successor is unsafe because a type may lie about its descriptor; an owned descriptor does not"
    )]
    let readiness = AsyncFd::with_interest(readiness, Interest::READABLE)?;
    drop(runtime.spawn(run(driver, hub, readiness)));
    Ok(())
}

async fn run<P: Protocol>(
    mut driver: Driver<P>,
    hub: Arc<Hub<P>>,
    readiness: AsyncFd<std::os::fd::OwnedFd>,
) {
    let mut timer = pin!(sleep_until(Instant::now() + NEVER));
    let mut armed = None;
    let mut yielded = false;
    poll_fn(|cx| {
        hub.set_task(cx.waker());
        // Those who are about to submit something do so first: then it leaves together.
        if hub.has_marks() && !yielded {
            yielded = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        yielded = false;
        for _ in 0..TURNS {
            match one(&mut driver, &readiness, cx) {
                Ok(true) if !driver.is_over() => {}
                Ok(_) if driver.is_over() => return Poll::Ready(()),
                Ok(_) => {
                    // Armed last, so that nothing that happened meanwhile is slept over.
                    let idle = driver.idle_for();
                    let Some(idle) = idle else {
                        return Poll::Pending;
                    };
                    if idle.is_zero() {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    let due = Instant::now() + idle;
                    if armed.is_none_or(|at| at > due || at <= Instant::now()) {
                        armed = Some(due);
                        timer.as_mut().reset(due);
                    }
                    if timer.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    armed = None;
                }
                Err(error) => {
                    tracing::error!("the driver of multiplexed connections stops: {error}");
                    return Poll::Ready(());
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A turn. False: nothing is left to do now, and the task is woken when there is.
fn one<P: Protocol>(
    driver: &mut Driver<P>,
    readiness: &AsyncFd<std::os::fd::OwnedFd>,
    cx: &mut Context<'_>,
) -> io::Result<bool> {
    match readiness.poll_read_ready(cx) {
        Poll::Ready(guard) => {
            let mut guard = guard?;
            let busy = driver.turn(Some(Duration::ZERO))?;
            // What became ready since then has made it ready anew.
            if !busy || driver.reactor().has_drained() {
                guard.clear_ready();
            }
            Ok(true)
        }
        Poll::Pending => Ok(driver.turn_known()),
    }
}
