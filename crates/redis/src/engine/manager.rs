//! The manager's thread: it has connections made, reads the topology, and wakes tasks whose timers have
//! expired. A command that goes well does not involve it.
//!
//! The thread waits for nothing but its next job: names resolve on threads of their own (`resolver`),
//! and reading the topology is a future (`refresh`). So timers fire in time, whatever else is slow.

use std::io;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::thread;

use embar_mux::Connection;

use super::refresh::{Outcome, Refresh};
use super::router::Router;
use super::schedule::Job;
use super::shared::Shared;

/// Starts the thread of a client. It ends when [`Schedule::end`](super::schedule::Schedule::end) is
/// called.
pub(crate) fn start(router: &Arc<Router>) -> io::Result<()> {
    let manager = ConnectionManager {
        shared: Arc::clone(&router.shared),
        router: Arc::downgrade(router),
        waker: Waker::from(Arc::clone(&router.shared.schedule)),
        refresh: None,
        epoch: None,
    };
    thread::Builder::new()
        .name("redis-manager".into())
        .spawn(move || manager.run())?;
    Ok(())
}

/// Runs the jobs of a client's schedule.
struct ConnectionManager {
    shared: Arc<Shared>,
    router: Weak<Router>,
    /// Wakes this thread for the refresh.
    waker: Waker,
    /// The refresh that is running.
    refresh: Option<Refresh>,
    /// The epoch of the topology that the client has, if a node told it.
    epoch: Option<u64>,
}

impl ConnectionManager {
    fn run(mut self) {
        let schedule = Arc::clone(&self.shared.schedule);
        loop {
            match schedule.next_job() {
                Job::Run(task) => {
                    if let Some(task) = task.upgrade() {
                        task.run();
                    }
                }
                Job::Refresh => self.poll_refresh(),
                Job::Wake(wakers) => wakers.into_iter().for_each(Waker::wake),
                Job::CloseIdle(conns) => {
                    let busy = conns.into_iter().filter_map(close_if_idle).collect();
                    schedule.not_idle(busy);
                }
                Job::End => {
                    // It holds nodes, whose connections it waits for.
                    self.refresh = None;
                    return self.shared.dialer.close();
                }
            }
        }
    }

    fn poll_refresh(&mut self) {
        let Some(router) = self.router.upgrade() else {
            return;
        };
        let epoch = self.epoch;
        let new = || Refresh::new(&router, epoch);
        let refresh = self.refresh.get_or_insert_with(new);
        let cx = &mut Context::from_waker(&self.waker);
        let Poll::Ready(outcome) = refresh.poll(&router, cx) else {
            return;
        };
        self.refresh = None;
        let succeeded = matches!(outcome, Outcome::Adopted(_));
        self.shared.counters.refreshed(succeeded);
        self.shared.schedule.refresh_done(succeeded);
        match outcome {
            Outcome::Adopted(epoch) => {
                self.epoch = epoch.or(self.epoch);
                router.first_topology.found();
                self.shared.settle();
            }
            Outcome::Failed(failures) => router.first_topology.failed(failures),
        }
    }
}

/// Closes a connection that no caller holds and on which no command is in flight, and one on which
/// nothing comes: its node was replaced, so it answers nobody any more, and what it was asked for others
/// can tell. Gives back others. A
/// caller that may yet submit a command holds the connection, so none is submitted between the look and
/// the close.
fn close_if_idle(conn: Arc<Connection>) -> Option<Arc<Connection>> {
    if conn.is_silent() {
        conn.close();
        return None;
    }
    match Arc::try_unwrap(conn) {
        Ok(conn) if conn.in_flight() == 0 => {
            conn.close();
            None
        }
        Ok(busy) => Some(Arc::new(busy)),
        Err(held) => Some(held),
    }
}
