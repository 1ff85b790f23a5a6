//! What runs at one point: publishers that publish for a while, and what that costs.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use embar_client::{Publisher, PublisherHandle, TopicSpec};
use embar_console::connect::Connector;
use embar_meter::random::filler;
use embar_supervise::work::Abort;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::plan::Load;
use crate::usage::{Costs, Meters, Rate};

/// Open files of a publisher beside those of its connections: what its control thread waits with.
const FILES_PER_PUBLISHER: u64 = 2;
/// Open files of a connection on the side of its publisher: the socket, and what its thread waits with.
const FILES_PER_CONNECTION: u64 = 3;
/// Open files beside those of connections.
const OTHER_FILES: u64 = 256;
/// A trial lasts until each publisher had so many turns, however short it is to be. What the first turns and the last
/// acknowledgements of thousands of connections cost would be most of what it measures otherwise.
const LEAST_TURNS: usize = 8;
/// Batches go when they are full: a publisher whose turn comes seldom shall not send parts of them.
const LINGER: Duration = Duration::from_secs(1);
/// Publishers that are closed at once.
const CLOSED_AT_ONCE: usize = 16;
/// How long a publisher may take to open.
const OPENS_WITHIN: Duration = Duration::from_secs(20);
/// How long the head may take to create a topic.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// What one trial gave.
#[derive(Clone, Copy, Debug)]
pub struct ScaleTrial {
    /// From the first publish to the last acknowledgement.
    pub rate: Rate,
    /// Bytes of values.
    pub bytes: u64,
    /// What it cost.
    pub costs: Costs,
}

/// Trials of one point on a cluster of its own.
pub struct LoadJob {
    /// What to run.
    pub load: Load,
    /// Order level of all topics.
    pub order: u32,
    /// How long each trial publishes.
    pub duration: Duration,
    /// Trials.
    pub trials: usize,
    /// Trials before, thrown away.
    pub warmup: usize,
    /// How clients reach the cluster.
    pub connector: Connector,
    /// Processes of the brokers.
    pub pids: Vec<u32>,
}

/// Lets this process, and those it starts, open as many files as the load takes.
///
/// # Errors
/// The system allows fewer.
pub fn allow_files(load: &Load) -> Result<()> {
    let needed = u64::from(load.publishers) * FILES_PER_PUBLISHER
        + load.connections() * FILES_PER_CONNECTION
        + OTHER_FILES;
    let limits = getrlimit(Resource::Nofile);
    if limits.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    // Beyond the hard limit only who may raise that one, too.
    let most = limits.maximum;
    let raised = Rlimit {
        current: Some(needed),
        maximum: most.map(|most| most.max(needed)),
    };
    if setrlimit(Resource::Nofile, raised).is_err() {
        bail!(
            "it takes about {needed} open files, and a process may have {} (ulimit -Hn)",
            most.unwrap_or_default()
        );
    }
    Ok(())
}

impl LoadJob {
    /// Creates the topics, opens the publishers, and runs all trials.
    pub fn run(&self, abort: &Abort) -> Result<Vec<ScaleTrial>> {
        self.create_topics(abort)?;
        let mut publishers = Vec::new();
        for number in 0..self.load.publishers {
            abort.check()?;
            publishers.push(self.open(number)?);
        }
        let mut trials = Vec::new();
        for trial in 0..self.warmup + self.trials {
            abort.check()?;
            let measured = self.trial(&publishers, abort)?;
            if trial >= self.warmup {
                trials.push(measured);
            }
        }
        close(publishers)?;
        Ok(trials)
    }

    fn create_topics(&self, abort: &Abort) -> Result<()> {
        let admin = self.connector.admin_within(ANSWERS_WITHIN)?;
        for number in 0..self.load.topics {
            abort.check()?;
            let topic = self.load.topic(number);
            let spec = TopicSpec::new(&topic).order(self.order.try_into()?);
            let created = admin.create_topic(spec).wait();
            created.with_context(|| format!("cannot create the topic {topic}"))?;
        }
        Ok(())
    }

    fn open(&self, number: u32) -> Result<Publisher> {
        let load = &self.load;
        let builder = Publisher::builder(self.connector.bootstrap())
            .transport(self.connector.transport())
            .topic(load.topic(number))
            .batch_bytes(load.batch_bytes as usize)
            .threads_per_broker(load.connections_per_broker)
            .auto_create(false)
            .linger(LINGER)
            .open_timeout(OPENS_WITHIN);
        let builder = match load.buffers() {
            Some(buffers) => builder.buffers(buffers),
            None => builder,
        };
        let opened = builder.open();
        opened.with_context(|| {
            format!(
                "cannot open publisher {} of {}",
                number + 1,
                load.publishers
            )
        })
    }

    fn trial(&self, publishers: &[Publisher], abort: &Abort) -> Result<ScaleTrial> {
        let meters = Meters::start(&self.pids)?;
        let started = Instant::now();
        let messages = thread::scope(|scope| -> Result<u64> {
            let parts: Vec<_> = (0..self.load.threads)
                .map(|_| {
                    let handles = publishers.iter().map(Publisher::handle).collect();
                    scope.spawn(move || self.publish(handles, started, abort))
                })
                .collect();
            let mut messages = 0;
            for part in parts {
                messages += part
                    .join()
                    .map_err(|_| anyhow!("a publishing thread panicked"))??;
            }
            Ok(messages)
        })?;
        publishers.iter().try_for_each(Publisher::flush)?;
        let elapsed = started.elapsed();
        let bytes = messages * u64::from(self.load.message_bytes);
        Ok(ScaleTrial {
            rate: Rate::new(bytes, messages, elapsed),
            bytes,
            costs: meters.stop(bytes)?,
        })
    }

    /// One application thread: about a batch for each of a handle's connections to one broker, then for those of the next
    /// one, until the time is over and each had its turns. Returns how many messages that were.
    fn publish(
        &self,
        handles: Vec<PublisherHandle>,
        started: Instant,
        abort: &Abort,
    ) -> Result<u64> {
        let message = filler(self.load.message_bytes as usize);
        let batch = (self.load.batch_bytes / self.load.message_bytes).max(1);
        let at_once = batch * self.load.connections_per_broker;
        let least = handles.len() * LEAST_TURNS;
        let mut messages = 0;
        for (turn, handle) in handles.iter().cycle().enumerate() {
            for _ in 0..at_once {
                handle.publish(&message)?;
            }
            messages += u64::from(at_once);
            if turn + 1 >= least && started.elapsed() >= self.duration {
                break;
            }
            abort.check()?;
        }
        Ok(messages)
    }
}

/// Closes all of them, some at a time: each waits for its threads.
fn close(publishers: Vec<Publisher>) -> Result<()> {
    thread::scope(|scope| {
        let closing: Vec<_> = chunks(publishers, CLOSED_AT_ONCE)
            .into_iter()
            .map(|part| scope.spawn(move || part.into_iter().try_for_each(Publisher::close)))
            .collect();
        for part in closing {
            part.join()
                .map_err(|_| anyhow!("a closing thread panicked"))??;
        }
        Ok(())
    })
}

/// At most `count` parts of about the same size.
fn chunks<T>(all: Vec<T>, count: usize) -> Vec<Vec<T>> {
    let mut parts: Vec<Vec<T>> = Vec::new();
    parts.resize_with(count.min(all.len()), Vec::new);
    let len = parts.len();
    for (index, one) in all.into_iter().enumerate() {
        parts[index % len].push(one);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::plan::Curve;

    #[test]
    fn parts_have_everything_once() {
        assert_eq!(chunks(vec![1, 2, 3], 2), [vec![1, 3], vec![2]]);
        assert_eq!(chunks(vec![1], 4), [[1]]);
        assert!(chunks(Vec::<u8>::new(), 4).is_empty());
    }

    #[test]
    fn a_load_that_takes_too_many_files_is_refused_with_the_limit() {
        // More than any kernel lets a process open.
        let load = Load {
            publishers: u32::MAX,
            ..Load::at(Curve::Connections, 1)
        };
        assert!(allow_files(&Load::at(Curve::Connections, 1)).is_ok());
        let error = allow_files(&load).expect_err("too many");
        assert!(error.to_string().contains("ulimit -Hn"), "{error}");
    }
}
