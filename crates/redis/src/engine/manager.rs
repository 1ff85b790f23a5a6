//! The manager's thread: it has connections made, reads the topology, and wakes tasks whose timers have
//! expired. A command that goes well does not involve it.
//!
//! The thread waits for nothing but its next job: names resolve on threads of their own (`resolver`),
//! and reading the topology is a future (`source`). So timers fire in time, whatever else is slow.

use std::io;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::thread;

use embar_mux::Connection;

use super::router::Router;
use super::schedule::Job;
use super::shared::Shared;
use super::source::Source;

/// Starts the thread of a client. It ends when [`Schedule::end`](super::schedule::Schedule::end) is
/// called. With sentinels, `sentinels` is what their connections share.
pub(crate) fn start(router: &Arc<Router>, sentinels: Option<Arc<Shared>>) -> io::Result<()> {
    let config = &router.shared.config;
    let source = Source::new(config.mode, &config.sentinel.master_name, sentinels);
    let manager = ConnectionManager {
        shared: Arc::clone(&router.shared),
        router: Arc::downgrade(router),
        waker: Waker::from(Arc::clone(&router.shared.schedule)),
        source,
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
    /// Wakes this thread for the reading of the topology.
    waker: Waker,
    source: Source,
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
                    self.source.end();
                    return self.shared.dialer.close();
                }
            }
        }
    }

    fn poll_refresh(&mut self) {
        let Some(router) = self.router.upgrade() else {
            return;
        };
        let cx = &mut Context::from_waker(&self.waker);
        let Poll::Ready(outcome) = self.source.poll(&router, cx) else {
            return;
        };
        self.shared.counters.refreshed(outcome.is_ok());
        let again = match &outcome {
            Ok(again) => *again,
            Err(_) => self.source.after_failure(&self.shared.config.retries),
        };
        self.shared.schedule.refresh_done(again);
        match outcome {
            Ok(_) => {
                router.first_topology.found();
                self.shared.settle();
            }
            Err(failures) => router.first_topology.failed(failures),
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
