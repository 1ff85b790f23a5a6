//! Resolves host names. The system's functions for that block, for many seconds when a name server is
//! silent, so they run on threads that do nothing else and end when there is nothing to resolve.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::endpoint::Endpoint;

#[cfg(test)]
pub(crate) mod slow_names;

/// Resolves a name and opens a connection there.
type Job = Box<dyn FnOnce() + Send>;

/// So many names may resolve slowly at the same time before they delay others.
const MAX_THREADS: usize = 8;

/// Runs jobs that resolve names. Each node connection, and each connection of a subscriber, has at
/// most one job here.
#[derive(Default)]
pub(super) struct Resolver {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// How many threads are running.
    threads: usize,
}

impl Resolver {
    /// Runs a job that resolves this endpoint: here if that cannot take long, or on a thread.
    pub fn run(self: &Arc<Self>, endpoint: &Endpoint, job: impl FnOnce() + Send + 'static) {
        if !is_name(endpoint) {
            return job();
        }
        let mut queue = self.queue();
        queue.jobs.push_back(Box::new(job));
        if queue.threads == MAX_THREADS {
            return;
        }
        let resolver = Arc::clone(self);
        let thread = thread::Builder::new().name("redis-names".into());
        match thread.spawn(move || resolver.work()) {
            Ok(_) => queue.threads += 1,
            Err(error) => {
                // Late is better than never.
                tracing::warn!("names are looked up on a thread that has other work: {error}");
                queue.threads += 1;
                drop(queue);
                self.work();
            }
        }
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            // A job that panics, by a waker that does, must not take the others with it.
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
pub(super) fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    #[cfg(test)]
    if host == slow_names::TWO_ADDRESSES {
        let hosts = [[127, 0, 0, 1], [127, 0, 0, 2]];
        return Ok(hosts.map(|host| (host, port).into()).to_vec());
    }
    #[cfg(test)]
    let host = slow_names::resolve(host).unwrap_or(host);
    Ok((host, port).to_socket_addrs()?.collect())
}
