//! The publishing processes, as their parent sees them.

use std::fs::OpenOptions;
use std::io::Write;
use std::num::NonZeroU64;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context as _, Result};
use embar_supervise::child::tail;
use rustix::process::{Pid, Signal, kill_process};

use super::books::Books;
use super::listener::{Heard, Listener};
use super::plan::{TOPIC, VerifyPlan};
use super::publisher::{self, PublisherSpec};
use super::stamp::Origin;
use super::violation::Kind;

/// One publisher of so many gives up soon what no broker takes.
const HASTY_EVERY: u32 = 4;

/// What every publisher is started with.
pub struct Setting {
    /// The program whose publisher command is run.
    pub program: PathBuf,
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
    /// Its process is stopped until then.
    stopped_until: Option<Instant>,
}

struct Process {
    child: Child,
    leash: ChildStdin,
    listener: JoinHandle<Heard>,
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
                stopped_until: None,
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
        let spec = PublisherSpec {
            bootstrap: setting.bootstrap.clone(),
            topic: TOPIC.to_owned(),
            run: setting.run,
            publisher,
            instance,
            producer: u64::from(setting.run) << 32 | u64::from(publisher),
            acks: plan.acks,
            message_bytes: plan.message_bytes,
            batch_bytes: plan.batch_bytes,
            rate: f64::from(plan.rate) / f64::from(plan.publishers),
            hasty: publisher % HASTY_EVERY == HASTY_EVERY - 1,
        };
        let mut child = Command::new(&setting.program)
            .arg(publisher::COMMAND)
            .arg(serde_json::to_string(&spec)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", setting.program.display()))?;
        let leash = child.stdin.take().context("standard input is a pipe")?;
        let output = child.stdout.take().context("standard output is a pipe")?;
        let origin = Origin {
            publisher,
            instance,
        };
        let listener = Listener::new(origin, self.books.clone());
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
        let Some(publisher) = self.victim(choice, |seat| seat.process.is_some()) else {
            return Ok(false);
        };
        self.kill_in(publisher);
        let instance = self.seats[publisher].instance + 1;
        let process = self.spawn(publisher as u32, instance)?;
        self.seats[publisher] = Seat {
            instance,
            process: Some(process),
            stopped_until: None,
        };
        Ok(true)
    }

    /// Stops one that runs, the `choice`th of them, until `until`; false if none runs.
    pub fn pause(&mut self, choice: u64, until: Instant) -> Result<bool> {
        let runs = |seat: &Seat| seat.process.is_some() && seat.stopped_until.is_none();
        let Some(publisher) = self.victim(choice, runs) else {
            return Ok(false);
        };
        let seat = &mut self.seats[publisher];
        if let Some(process) = &seat.process {
            process.signal(Signal::STOP)?;
            seat.stopped_until = Some(until);
        }
        Ok(true)
    }

    /// Lets those go on whose time is over.
    pub fn resume_due(&mut self, now: Instant) {
        for seat in &mut self.seats {
            if seat.stopped_until.is_some_and(|until| until <= now) {
                seat.resume();
            }
        }
    }

    /// When the next one goes on.
    pub fn next_due(&self) -> Option<Instant> {
        self.seats.iter().filter_map(|it| it.stopped_until).min()
    }

    fn victim(&mut self, choice: u64, suits: impl Fn(&Seat) -> bool) -> Option<usize> {
        // Those that ended before are told of, and are no victims.
        self.running();
        let seats = 0..self.seats.len();
        let suited: Vec<usize> = seats.filter(|seat| suits(&self.seats[*seat])).collect();
        let count = NonZeroU64::new(suited.len() as u64)?;
        Some(suited[(choice % count) as usize])
    }

    /// Tells all of them to end in good order, also those that were stopped.
    pub fn stop(&mut self) {
        self.seats.iter_mut().for_each(Seat::resume);
        for process in self.seats.iter_mut().flat_map(|seat| &mut seat.process) {
            // One that has ended is found by `running`.
            let _told = process.leash.write_all(b"s");
        }
    }

    /// Looks who ended; how many still run. One that ended by itself is a violation.
    pub fn running(&mut self) -> usize {
        let (mut running, mut failures) = (0, Vec::new());
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
                failures.push((publisher, seat.instance, status));
            }
        }
        for (publisher, instance, status) in failures {
            self.fail(publisher, instance, status);
        }
        running
    }

    /// Kills those that still run.
    pub fn end(&mut self) {
        (0..self.seats.len()).for_each(|seat| self.kill_in(seat));
    }

    /// Kills whoever is in this seat. One that had ended by itself a moment before is a violation.
    fn kill_in(&mut self, seat: usize) {
        self.seats[seat].stopped_until = None;
        let Some(process) = self.seats[seat].process.take() else {
            return;
        };
        let (heard, status) = process.kill();
        self.published += heard.published;
        if let Some(status) = status
            && !heard.ended
            && status.signal() != Some(Signal::KILL.as_raw())
        {
            self.fail(seat as u32, self.seats[seat].instance, status);
        }
    }

    fn fail(&self, publisher: u32, instance: u32, status: ExitStatus) {
        self.books.checker().fail(
            Kind::Failure,
            format_args!(
                "publisher {publisher}.{instance} ended by itself ({status}):{}",
                tail(&self.log(publisher))
            ),
        );
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

impl Seat {
    fn resume(&mut self) {
        if self.stopped_until.take().is_some()
            && let Some(process) = &self.process
        {
            // One that somebody else killed meanwhile is found by `running`.
            let _ended = process.signal(Signal::CONT);
        }
    }
}

impl Process {
    /// It was not waited for, so its id is its own.
    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal)
            .context("cannot send a signal to a publisher")
    }

    /// What it said, and how it ended.
    fn kill(mut self) -> (Heard, Option<ExitStatus>) {
        // It may have ended, which is what the signal is for.
        let _ended = self.child.kill();
        let status = self.child.wait().ok();
        (self.hear_out(), status)
    }

    /// What it said until its end.
    fn hear_out(self) -> Heard {
        // One that panicked has told the books.
        self.listener.join().unwrap_or_default()
    }
}
