//! A queue of jobs that several workers share, on one topic of the log.
//!
//! ```sh
//! cargo run --release -- up &                     # a cluster; it prints its address
//! cargo run -p embar-client --example worker_queue -- 127.0.0.1:9400 submit "resize 1" "resize 2" "resize 3"
//! cargo run -p embar-client --example worker_queue -- 127.0.0.1:9400 work anna    # and in another terminal:
//! cargo run -p embar-client --example worker_queue -- 127.0.0.1:9400 work ben
//! ```
//!
//! **What the log gives.** The topic has one order for all readers, over all brokers
//! ([`Order::TotalPerPublisher`]). Each message is in it once, although brokers die, for as long as its
//! publisher lives; and what was acknowledged survives the death of every process.
//!
//! **What the worker adds.** The log knows no jobs, and does not share them out. Workers write what they do
//! into the same topic, and read all of it:
//!
//! | key | value | means |
//! | --- | --- | --- |
//! | `job` | what is to be done | a new job; the position of this message is its number |
//! | `claim` | job, worker | the worker wants it; the first claim of a free job gets it |
//! | `done` | job | it is done |
//! | `release` | job, claim | the worker with that claim was silent for longer than the lease: the job is free again |
//!
//! All workers read the same order, so they agree on whose claim was first, and need neither locks nor a
//! leader. A worker that is started again reads from the oldest job that was not done when it stopped (the
//! file NAME.position says where that is), and finds in the topic what it had claimed.
//!
//! **What nobody gives.** A worker that dies between a job and its `done` does the job again, and two may do it
//! when a lease ends too early: each job is done at least once. To make that harmless, let a job's number be the
//! key of what it changes, or let what it changes refuse a lower [`Job::claim`] than the last. Jobs that the topic
//! evicts before they are done are lost: its retention must be longer than the queue ever gets.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a program")]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use embar_client::{
    Admin, AdminError, ClientError, ErrorCode, Message, NewMessage, OpenError, Order, Positions,
    PublishError, Publisher, ReadError, Start, Subscriber, TopicSpec,
};

/// Ends a worker, or a submission.
pub type Failed = Box<dyn Error + Send + Sync>;

/// The topic of the queue.
const TOPIC: &str = "jobs";

/// How long a claim may stand until other workers take its worker for dead: longer than any job takes.
const LEASE: Duration = Duration::from_secs(60);

/// How often something is tried that may succeed later. Each attempt waits for the cluster by itself.
const ATTEMPTS: usize = 5;

/// A worker wants one of this many of the oldest free jobs: another one than most other workers want.
const CHOICE: usize = 8;

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [bootstrap, "submit", jobs @ ..] => submit(bootstrap, jobs),
        [bootstrap, "work", name] => work(bootstrap, name),
        _ => Err("arguments: HOST:PORT submit JOB... | HOST:PORT work NAME".into()),
    }
}

/// Does jobs for ever. If it ends with an error, start it again: it goes on where it was.
fn work(bootstrap: &str, name: &str) -> Result<(), Failed> {
    let progress = PathBuf::from(format!("{name}.position"));
    let mut worker = Worker::open(bootstrap, name, &progress, LEASE)?;
    loop {
        let Some(job) = worker.next(Duration::from_secs(1))? else {
            continue;
        };
        // Here goes what a job is.
        println!("{name} does job {}: {}", job.number, job.text);
        worker.finish(&job)?;
    }
}

/// Adds jobs to the queue. Each is there once, or the error says which one may be and why.
pub fn submit(bootstrap: &str, jobs: &[&str]) -> Result<(), Failed> {
    let mut left = jobs.to_vec();
    for attempt in 1..=ATTEMPTS {
        let publisher = open_publisher(bootstrap)?;
        // All are on their way before the first is waited for.
        let tickets: Vec<_> = left
            .iter()
            .map(|job| publisher.publish_message(&record("job", job)))
            .collect();
        let mut again = Vec::new();
        for (job, ticket) in left.into_iter().zip(tickets) {
            match ticket.and_then(|ticket| publisher.acked(ticket).wait()) {
                // It is there once; in the second case nobody knows where.
                Ok(_) | Err(PublishError::PositionUnknown) => {}
                // It is not there, so it may be published again without getting there twice.
                Err(error)
                    if error.is_retryable() && !error.may_be_stored() && attempt < ATTEMPTS =>
                {
                    eprintln!("job {job:?} is submitted again: {error}");
                    again.push(job);
                }
                Err(error) if error.may_be_stored() => {
                    return Err(format!("job {job:?} may be in the queue: {error}").into());
                }
                Err(error) => {
                    return Err(format!("job {job:?} is not in the queue: {error}").into());
                }
            }
        }
        // Everything is resolved: this only ends the publisher's session.
        let _ = publisher.close();
        if again.is_empty() {
            break;
        }
        left = again;
    }
    Ok(())
}

/// A job that this worker has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The position of the job in the topic: no other job ever has it.
    pub number: u64,
    /// The position of the claim. Each worker that gets the same job has a higher one than those before it.
    pub claim: u64,
    /// What is to be done.
    pub text: String,
}

/// A job that is not done.
struct OpenJob {
    text: String,
    claim: Option<Claim>,
}

struct Claim {
    position: u64,
    worker: String,
    /// When this worker read it, by its own clock.
    read_at: Instant,
}

/// One of those who share the jobs.
pub struct Worker {
    bootstrap: String,
    name: String,
    progress: PathBuf,
    lease: Duration,
    publisher: Publisher,
    subscriber: Subscriber,
    /// What the topic says, as far as this worker has read it. Others who have read as far have the same.
    open: BTreeMap<u64, OpenJob>,
}

impl Worker {
    /// Opens the queue. `name` is this worker's alone. It goes on at the position in the file `progress`, if that
    /// exists, and takes jobs from workers that were silent for `lease`.
    pub fn open(
        bootstrap: &str,
        name: &str,
        progress: &Path,
        lease: Duration,
    ) -> Result<Self, Failed> {
        let publisher = open_publisher(bootstrap)?;
        let start = match std::fs::read_to_string(progress) {
            Ok(text) => Start::Positions(text.parse()?),
            Err(_) => Start::Earliest,
        };
        // What is in the topic by now is read first: a job there may be claimed or done further on.
        let mut open = BTreeMap::new();
        let history = Subscriber::builder(bootstrap).topic(TOPIC).from(start);
        let mut history = history.until_end(true).open()?;
        while let Some(message) = history.next()? {
            apply(&mut open, &message);
        }
        let next = Start::Positions(history.position());
        Ok(Self {
            bootstrap: bootstrap.to_owned(),
            name: name.to_owned(),
            progress: progress.to_owned(),
            lease,
            publisher,
            subscriber: open_subscriber(bootstrap, next)?,
            open,
        })
    }

    /// The next job for this worker, or the one that it had when it stopped. `None` if there was none for `limit`.
    pub fn next(&mut self, limit: Duration) -> Result<Option<Job>, Failed> {
        loop {
            // What has come already may say more of the jobs.
            while self.read(Duration::ZERO)? {}
            if let Some(job) = self.claimed() {
                return Ok(Some(job));
            }
            self.release_overdue()?;
            if let Some(number) = self.favourite() {
                self.publish("claim", &format!("{number} {}", self.name))?;
                // It is not free once this claim is read, or another that was before it.
                while self.is_free(number) {
                    self.read(limit)?;
                }
            } else if !self.read(limit)? {
                return Ok(None);
            }
        }
    }

    /// Says that a job is done, and keeps how far this worker is.
    pub fn finish(&mut self, job: &Job) -> Result<(), Failed> {
        self.publish("done", &job.number.to_string())?;
        while self.open.contains_key(&job.number) {
            self.read(Duration::from_secs(1))?;
        }
        let next = self.subscriber.position().position().unwrap_or_default();
        let oldest = self.open.keys().next().copied().unwrap_or(next);
        // A file is replaced as a whole, so that a crash leaves the old one or the new one.
        let new = self.progress.with_extension("new");
        std::fs::write(&new, Positions::at(oldest).to_string())?;
        Ok(std::fs::rename(new, &self.progress)?)
    }

    fn claimed(&self) -> Option<Job> {
        self.open.iter().find_map(|(number, job)| {
            let claim = job.claim.as_ref()?;
            (claim.worker == self.name).then(|| Job {
                number: *number,
                claim: claim.position,
                text: job.text.clone(),
            })
        })
    }

    fn is_free(&self, number: u64) -> bool {
        let job = self.open.get(&number);
        job.is_some_and(|job| job.claim.is_none())
    }

    /// One of the oldest free jobs. Each worker has an order of its own among them, so that few claim in vain.
    fn favourite(&self) -> Option<u64> {
        let free = self.open.iter().filter(|(_, job)| job.claim.is_none());
        let oldest = free.map(|(number, _)| *number).take(CHOICE);
        oldest.min_by_key(|number| {
            let mut hasher = DefaultHasher::new();
            (&self.name, number).hash(&mut hasher);
            hasher.finish()
        })
    }

    /// Frees the jobs of workers that seem to be dead.
    fn release_overdue(&mut self) -> Result<(), Failed> {
        let overdue: Vec<String> = self
            .open
            .iter()
            .filter_map(|(number, job)| {
                let claim = job.claim.as_ref()?;
                let is_overdue = claim.read_at.elapsed() >= self.lease;
                is_overdue.then(|| format!("{number} {}", claim.position))
            })
            .collect();
        for release in overdue {
            self.publish("release", &release)?;
        }
        Ok(())
    }

    /// Publishes a record. All but jobs may be in the topic twice: the second one changes nothing. So it is published
    /// again even if it may be stored.
    fn publish(&mut self, kind: &str, text: &str) -> Result<(), Failed> {
        for attempt in 1.. {
            let sent = self.publisher.publish_message(&record(kind, text));
            match sent.and_then(|ticket| self.publisher.acked(ticket).wait()) {
                Ok(_) | Err(PublishError::PositionUnknown) => break,
                Err(error) if error.is_retryable() && attempt < ATTEMPTS => {
                    eprintln!("{kind} {text} is published again: {error}");
                    self.publisher = open_publisher(&self.bootstrap)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads one record; false if none came for `limit`.
    fn read(&mut self, limit: Duration) -> Result<bool, Failed> {
        let error = match self.subscriber.next_timeout(limit) {
            Ok(Some(message)) => {
                apply(&mut self.open, &message);
                return Ok(true);
            }
            // Only a subscriber that was opened with `until_end` has an end.
            Ok(None) | Err(ReadError::TimedOut { .. }) => return Ok(false),
            Err(error) => error,
        };
        if !error.is_retryable() {
            return Err(error.into());
        }
        eprintln!("{} reads again: {error}", self.name);
        let start = Start::Positions(self.subscriber.position());
        self.subscriber = open_subscriber(&self.bootstrap, start)?;
        Ok(false)
    }
}

/// What a record does to the jobs that are not done. It depends on nothing but the records before it, so all workers
/// come to the same. What speaks of a job that is done, or of a claim that is over, changes nothing.
fn apply(open: &mut BTreeMap<u64, OpenJob>, message: &Message<'_>) {
    let text = String::from_utf8_lossy(message.value);
    if message.key == Some(b"job") {
        let (text, claim) = (text.into_owned(), None);
        open.insert(message.offset, OpenJob { text, claim });
        return;
    }
    let (number, rest) = text.split_once(' ').unwrap_or((&text, ""));
    let Ok(Entry::Occupied(mut job)) = number.parse().map(|number| open.entry(number)) else {
        return;
    };
    let claim = &mut job.get_mut().claim;
    match message.key {
        Some(b"claim") => {
            claim.get_or_insert_with(|| Claim {
                position: message.offset,
                worker: rest.to_owned(),
                read_at: Instant::now(),
            });
        }
        Some(b"release") => {
            claim.take_if(|claim| rest.parse() == Ok(claim.position));
        }
        Some(b"done") => {
            job.remove();
        }
        _ => {}
    }
}

fn record<'a>(kind: &'a str, text: &'a str) -> NewMessage<'a> {
    NewMessage {
        key: Some(kind.as_bytes()),
        value: text.as_bytes(),
        ..NewMessage::default()
    }
}

/// Opens a publisher, and creates the topic before if there is none. Each message is sent at once: whoever
/// claims a job waits for it.
fn open_publisher(bootstrap: &str) -> Result<Publisher, Failed> {
    let builder = || Publisher::builder(bootstrap).topic(TOPIC);
    let open = || builder().auto_create(false).linger(Duration::ZERO).open();
    match open() {
        Err(OpenError::Client(ClientError::UnknownTopic { .. })) => {
            create_topic(bootstrap)?;
            Ok(open()?)
        }
        opened => Ok(opened?),
    }
}

fn open_subscriber(bootstrap: &str, start: Start) -> Result<Subscriber, Failed> {
    let builder = Subscriber::builder(bootstrap).topic(TOPIC);
    Ok(builder.from(start).open()?)
}

/// Creates the topic. (A publisher can do so too, but gives it no order.)
fn create_topic(bootstrap: &str) -> Result<(), Failed> {
    let spec = TopicSpec::new(TOPIC).order(Order::TotalPerPublisher);
    match Admin::connect(bootstrap)?.create_topic(spec).wait() {
        Ok(_)
        // Somebody else was faster.
        | Err(AdminError::Client(ClientError::Refused {
            code: ErrorCode::TopicExists,
            ..
        })) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
