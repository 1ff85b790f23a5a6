//! The publishing processes, as their parent sees them.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::books::Books;
use super::ledger::Run;
use super::plan::{TOPIC, VerifyPlan};
use super::record::{RECORD_BYTES, Record};
use super::stamp::Origin;
use super::trail::Place;
use super::violation::Kind;
use crate::supervise::child::tail;

/// What every publisher is started with.
pub struct Setting {
    /// This program.
    pub exe: PathBuf,
    /// What is run.
    pub plan: VerifyPlan,
    /// Addresses of all brokers.
    pub bootstrap: String,
    /// Marks this run's messages.
    pub run: u32,
    /// Where their logs go.
    pub logs: PathBuf,
}

/// All publishers. Dropped, those that still run are killed.
pub struct Crowd {
    setting: Setting,
    books: Arc<Books>,
    seats: Vec<Seat>,
    /// Messages published by processes that are gone.
    published: u64,
}

/// The place of one publisher.
struct Seat {
    instance: u32,
    process: Option<Process>,
}

struct Process {
    child: Child,
    leash: ChildStdin,
    listener: JoinHandle<Heard>,
}

/// What a listener heard in all.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    /// Messages published, as far as it was told.
    published: u64,
    /// Whether the publisher ended in good order.
    ended: bool,
}

impl Crowd {
    /// Starts all of them.
    pub fn start(setting: Setting, books: &Arc<Books>) -> Result<Self> {
        let publishers = setting.plan.publishers;
        let mut crowd = Self {
            setting,
            books: books.clone(),
            seats: Vec::new(),
            published: 0,
        };
        for publisher in 0..publishers {
            let process = Some(crowd.spawn(publisher, 0)?);
            crowd.seats.push(Seat {
                instance: 0,
                process,
            });
        }
        Ok(crowd)
    }

    fn spawn(&self, publisher: u32, instance: u32) -> Result<Process> {
        let setting = &self.setting;
        let plan = &setting.plan;
        let log = OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.log(publisher))
            .context("cannot open a publisher's log")?;
        let producer = u64::from(setting.run) << 32 | u64::from(publisher);
        let rate = f64::from(plan.rate) / f64::from(plan.publishers);
        let mut child = Command::new(&setting.exe)
            .arg("verify-publisher")
            .arg(format!("--bootstrap={}", setting.bootstrap))
            .arg(format!("--topic={TOPIC}"))
            .arg(format!("--run={}", setting.run))
            .arg(format!("--publisher={publisher}"))
            .arg(format!("--instance={instance}"))
            .arg(format!("--producer={producer}"))
            .arg(format!("--acks={}", plan.acks))
            .arg(format!("--message-size={}", plan.message_bytes))
            .arg(format!("--batch-size={}", plan.batch_bytes))
            .arg(format!("--rate={rate}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", setting.exe.display()))?;
        let leash = child.stdin.take().context("standard input is a pipe")?;
        let output = child.stdout.take().context("standard output is a pipe")?;
        let listener = Listener {
            origin: Origin {
                publisher,
                instance,
            },
            books: self.books.clone(),
            began: HashMap::new(),
            early: HashMap::new(),
            heard: Heard::default(),
        };
        let listener = std::thread::Builder::new()
            .name("publisher-output".into())
            .spawn(move || listener.listen(output))?;
        Ok(Process {
            child,
            leash,
            listener,
        })
    }

    fn log(&self, publisher: u32) -> PathBuf {
        let name = format!("publisher-{publisher}.log");
        self.setting.logs.join(name)
    }

    /// Kills one that runs, the `choice`th of them, and starts its successor; false if none runs.
    pub fn kill(&mut self, choice: u64) -> Result<bool> {
        let running: Vec<usize> = (0..self.seats.len())
            .filter(|seat| self.seats[*seat].process.is_some())
            .collect();
        let Some(count) = std::num::NonZeroU64::new(running.len() as u64) else {
            return Ok(false);
        };
        let publisher = running[(choice % count) as usize];
        if let Some(process) = self.seats[publisher].process.take() {
            self.published += process.kill().published;
        }
        let instance = self.seats[publisher].instance + 1;
        let process = self.spawn(publisher as u32, instance)?;
        self.seats[publisher] = Seat {
            instance,
            process: Some(process),
        };
        Ok(true)
    }

    /// Tells all of them to end in good order.
    pub fn stop(&mut self) {
        for process in self.seats.iter_mut().flat_map(|seat| &mut seat.process) {
            // One that has ended is found by `running`.
            let _told = process.leash.write_all(b"s");
        }
    }

    /// Looks who ended; how many still run. One that ended by itself is a violation.
    pub fn running(&mut self) -> usize {
        let mut running = 0;
        for (publisher, seat) in (0..).zip(&mut self.seats) {
            let Some(process) = &mut seat.process else {
                continue;
            };
            // An error means that it was waited for, which nobody else does.
            let Ok(Some(status)) = process.child.try_wait() else {
                running += 1;
                continue;
            };
            let heard = seat
                .process
                .take()
                .map_or_else(Heard::default, Process::hear_out);
            self.published += heard.published;
            self.books.gaps().ended(publisher);
            if !heard.ended {
                let log = self.setting.logs.join(format!("publisher-{publisher}.log"));
                self.books.checker().fail(
                    Kind::Failure,
                    format_args!(
                        "publisher {publisher}.{} ended by itself ({status}):{}",
                        seat.instance,
                        tail(&log)
                    ),
                );
            }
        }
        running
    }

    /// Kills those that still run.
    pub fn end(&mut self) {
        for seat in &mut self.seats {
            if let Some(process) = seat.process.take() {
                self.published += process.kill().published;
            }
        }
    }

    /// Messages published by processes that are gone; of those that were killed, as far as they told.
    pub fn published(&self) -> u64 {
        self.published
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.end();
    }
}

impl Process {
    fn kill(mut self) -> Heard {
        // It may have ended, which is what the signal is for.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
        self.hear_out()
    }

    /// What it said until its end.
    fn hear_out(self) -> Heard {
        self.listener.join().unwrap_or_default()
    }
}

/// Hears one process and enters what it says.
struct Listener {
    origin: Origin,
    books: Arc<Books>,
    /// The number of the first message of batches whose outcome is not known.
    began: HashMap<u64, u64>,
    /// Outcomes that came before it was said what is in the batch: two threads write.
    early: HashMap<u64, Record>,
    heard: Heard,
}

impl Listener {
    fn listen(mut self, mut output: ChildStdout) -> Heard {
        let mut bytes = [0; RECORD_BYTES];
        while output.read_exact(&mut bytes).is_ok() {
            match Record::from_bytes(&bytes) {
                Some(record) => self.enter(record),
                None => self.books.checker().fail(
                    Kind::Failure,
                    format_args!("{} wrote something else than records", self.origin),
                ),
            }
        }
        self.heard
    }

    fn enter(&mut self, record: Record) {
        match record {
            Record::Announced { below } => self.books.checker().announced(self.origin, below),
            Record::Began { batch, number } => {
                self.heard.published = number + 1;
                self.began.insert(batch, number);
                if let Some(outcome) = self.early.remove(&batch) {
                    self.enter(outcome);
                }
            }
            Record::Acknowledged {
                batch, messages, ..
            }
            | Record::Sent { batch, messages }
            | Record::GivenUp { batch, messages } => match self.began.remove(&batch) {
                None => drop(self.early.insert(batch, record)),
                Some(number) => self.settle(
                    record,
                    Run {
                        origin: self.origin,
                        number,
                        count: messages.into(),
                    },
                ),
            },
            Record::Ended { published } => {
                self.heard = Heard {
                    published,
                    ended: true,
                };
                self.books.checker().ended(self.origin, published);
            }
        }
    }

    fn settle(&self, outcome: Record, run: Run) {
        let books = &self.books;
        if let Record::GivenUp { .. } = outcome {
            books.given_up.fetch_add(run.count, Ordering::Relaxed);
            books.checker().given_up(run);
            return;
        }
        books.acknowledged.fetch_add(run.count, Ordering::Relaxed);
        let publisher = self.origin.publisher;
        books.gaps().acknowledged(publisher, Instant::now());
        if let Record::Acknowledged { position, .. } = outcome {
            if position.is_none() {
                books.unplaced.fetch_add(run.count, Ordering::Relaxed);
            }
            let place = position.map(|position| Place {
                broker: position.broker,
                offset: position.offset,
            });
            books.checker().acknowledged(run, place);
        }
    }
}
