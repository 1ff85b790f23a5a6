//! Names become addresses. The system's functions for that block, for many seconds when a name
//! server is silent, so they run on threads that do nothing else and last as long as there are names
//! to look up.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::config::Endpoint;

/// What needs a name's address: to make one connection.
type Job = Box<dyn FnOnce() + Send>;

/// So many names may be slow at the same time before they hold up others.
const MOST_THREADS: usize = 8;

/// See the module. Each place for a connection, and each subscriber's line, has one job in it at most.
#[derive(Default)]
pub(super) struct Names {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Threads that there are.
    threads: usize,
}

impl Names {
    /// Does the job, here if that cannot take long, or on a thread.
    pub fn look_up_for(self: &Arc<Self>, endpoint: &Endpoint, job: impl FnOnce() + Send + 'static) {
        if !is_name(endpoint) {
            return job();
        }
        let mut queue = self.queue();
        queue.jobs.push_back(Box::new(job));
        if queue.threads == MOST_THREADS {
            return;
        }
        let names = Arc::clone(self);
        let thread = thread::Builder::new().name("redis-names".into());
        match thread.spawn(move || names.run()) {
            Ok(_) => queue.threads += 1,
            Err(error) => {
                // Late is better than never.
                tracing::warn!("names are looked up on a thread that has other work: {error}");
                queue.threads += 1;
                drop(queue);
                self.run();
            }
        }
    }

    fn run(&self) {
        while let Some(job) = self.next() {
            // One that panics, by a waker that does, takes nothing from the others.
            let _panicked = catch_unwind(AssertUnwindSafe(job));
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.queue();
        let job = queue.jobs.pop_front();
        queue.threads -= usize::from(job.is_none());
        job
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_name(endpoint: &Endpoint) -> bool {
    match endpoint {
        Endpoint::Tcp { host, .. } => host.parse::<IpAddr>().is_err(),
        Endpoint::Unix(_) => false,
    }
}

/// All addresses of a host. Blocks.
pub(super) fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    #[cfg(test)]
    let host = super::tests::look_up(host).unwrap_or(host);
    Ok((host, port).to_socket_addrs()?.collect())
}
