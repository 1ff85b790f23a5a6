//! Names become addresses. The system's functions for that block, for many seconds when a name
//! server is silent, so they run on a thread that does nothing else and lasts as long as there are
//! names to look up.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::config::Endpoint;

/// What needs a name's address: to make one connection.
type Job = Box<dyn FnOnce() + Send>;

/// See the module. Each place for a connection has one job in it at most.
#[derive(Default)]
pub(super) struct Names {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// There is a thread.
    running: bool,
}

impl Names {
    /// Does the job, here if that cannot take long, or on the thread.
    pub fn look_up_for(self: &Arc<Self>, endpoint: &Endpoint, job: impl FnOnce() + Send + 'static) {
        if !is_name(endpoint) {
            return job();
        }
        let mut queue = self.queue();
        queue.jobs.push_back(Box::new(job));
        if queue.running {
            return;
        }
        let names = Arc::clone(self);
        let thread = thread::Builder::new().name("redis-names".into());
        match thread.spawn(move || names.run()) {
            Ok(_) => queue.running = true,
            Err(error) => {
                // Late is better than never.
                tracing::warn!("names are looked up on a thread that has other work: {error}");
                drop(queue);
                self.run();
            }
        }
    }

    fn run(&self) {
        while let Some(job) = self.next() {
            job();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.queue();
        let job = queue.jobs.pop_front();
        queue.running = job.is_some();
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
