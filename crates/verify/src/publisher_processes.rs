//! The publishing processes, seen from their parent: started, paused, killed and succeeded.

use std::fmt::Arguments;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
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

use super::plan::{TOPIC, VerifyPlan};
use super::publisher::{self, PublisherSpec};
use super::record_reader::{PublisherEnd, RecordReader};
use super::shared::Shared;
use super::stamp::Origin;
use super::violation::Kind;

/// One publisher of so many gives up soon what no broker takes.
const HASTY_EVERY: u32 = 4;

/// What every publisher process needs.
pub struct ProcessSetup {
    /// The program whose publisher command is run.
    pub program: PathBuf,
    /// What is run.
    pub plan: VerifyPlan,
    /// Addresses of all brokers.
    pub bootstrap: String,
    /// Marks the messages of this run.
    pub run: u32,
    /// The directory of their logs.
    pub logs: PathBuf,
}

/// All publisher processes. Those that still run when it is dropped are killed.
pub struct PublisherProcesses {
    setup: ProcessSetup,
    shared: Arc<Shared>,
    slots: Vec<Slot>,
    /// Messages published by processes that are gone.
    published: u64,
    is_stopping: bool,
}

/// The place of one publisher.
struct Slot {
    instance: u32,
    process: Option<Process>,
    /// Where in the publisher's log the part of this process begins.
    log_from: u64,
    /// Its process is paused until then.
    paused_until: Option<Instant>,
}

struct Process {
    child: Child,
    stdin: ChildStdin,
    reader: JoinHandle<PublisherEnd>,
}

impl PublisherProcesses {
    /// Starts all of them.
    pub fn start(setup: ProcessSetup, shared: &Arc<Shared>) -> Result<Self> {
        let count = setup.plan.publishers;
        let mut processes = Self {
            setup,
            shared: shared.clone(),
            slots: Vec::new(),
            published: 0,
            is_stopping: false,
        };
        for publisher in 0..count {
            let slot = processes.start_slot(publisher, 0)?;
            processes.slots.push(slot);
        }
        Ok(processes)
    }

    fn start_slot(&self, publisher: u32, instance: u32) -> Result<Slot> {
        let log_from = fs::metadata(self.log(publisher)).map_or(0, |log| log.len());
        Ok(Slot {
            instance,
            process: Some(self.spawn(publisher, instance)?),
            log_from,
            paused_until: None,
        })
    }

    fn spawn(&self, publisher: u32, instance: u32) -> Result<Process> {
        let setup = &self.setup;
        let plan = &setup.plan;
        let log = OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.log(publisher))
            .context("cannot open a publisher's log")?;
        let spec = PublisherSpec {
            bootstrap: setup.bootstrap.clone(),
            topic: TOPIC.to_owned(),
            run: setup.run,
            publisher,
            instance,
            producer: u64::from(setup.run) << 32 | u64::from(publisher),
            acks: plan.acks,
            message_bytes: plan.message_bytes,
            batch_bytes: plan.batch_bytes,
            rate: f64::from(plan.rate) / f64::from(plan.publishers),
            hasty: publisher % HASTY_EVERY == HASTY_EVERY - 1,
            // A successor goes another way than the one before.
            transport: plan
                .transport_of((publisher + instance) as usize)
                .to_string(),
        };
        let mut child = Command::new(&setup.program)
            .arg(publisher::COMMAND)
            .arg(serde_json::to_string(&spec)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", setup.program.display()))?;
        let stdin = child.stdin.take().context("standard input is a pipe")?;
        let output = child.stdout.take().context("standard output is a pipe")?;
        let origin = Origin {
            publisher,
            instance,
        };
        let reader = RecordReader::new(origin, self.shared.clone());
        let reader = std::thread::Builder::new()
            .name("publisher-output".into())
            .spawn(move || reader.read_all(output))?;
        Ok(Process {
            child,
            stdin,
            reader,
        })
    }

    fn log(&self, publisher: u32) -> PathBuf {
        let name = format!("publisher-{publisher}.log");
        self.setup.logs.join(name)
    }

    /// Kills a running process, chosen by `choice`, and starts its successor; false if none runs.
    pub fn kill(&mut self, choice: u64) -> Result<bool> {
        let Some(publisher) = self.choose(choice, |slot| slot.process.is_some()) else {
            return Ok(false);
        };
        self.kill_slot(publisher);
        self.start_successor(publisher)?;
        Ok(true)
    }

    fn start_successor(&mut self, publisher: usize) -> Result<()> {
        let instance = self.slots[publisher].instance + 1;
        self.slots[publisher] = self.start_slot(publisher as u32, instance)?;
        Ok(())
    }

    /// Pauses a running process, chosen by `choice`, until `until`; false if none runs.
    pub fn pause(&mut self, choice: u64, until: Instant) -> Result<bool> {
        let runs = |slot: &Slot| slot.process.is_some() && slot.paused_until.is_none();
        let Some(publisher) = self.choose(choice, runs) else {
            return Ok(false);
        };
        let slot = &mut self.slots[publisher];
        if let Some(process) = &slot.process {
            process.signal(Signal::STOP)?;
            slot.paused_until = Some(until);
        }
        Ok(true)
    }

    /// Resumes processes whose pause is over.
    pub fn resume_due(&mut self, now: Instant) {
        for slot in &mut self.slots {
            if slot.paused_until.is_some_and(|until| until <= now) {
                slot.resume();
            }
        }
    }

    /// When the next pause is over.
    pub fn next_due(&self) -> Option<Instant> {
        self.slots.iter().filter_map(|it| it.paused_until).min()
    }

    fn choose(&mut self, choice: u64, suits: impl Fn(&Slot) -> bool) -> Option<usize> {
        // Reports those that ended by themselves before; they cannot be chosen.
        self.running();
        let slots = 0..self.slots.len();
        let suitable: Vec<usize> = slots.filter(|slot| suits(&self.slots[*slot])).collect();
        let count = NonZeroU64::new(suitable.len() as u64)?;
        Some(suitable[(choice % count) as usize])
    }

    /// Asks all of them to end in good order, after resuming those that are paused.
    pub fn stop(&mut self) {
        self.is_stopping = true;
        self.slots.iter_mut().for_each(Slot::resume);
        for process in self.slots.iter_mut().flat_map(|slot| &mut slot.process) {
            // One that has ended is found by `running`.
            let _ended = process.stdin.write_all(b"s");
        }
    }

    /// Collects processes that ended; returns how many still run. One that ended by itself is a violation, unless it was told that
    /// the power of its disk was cut; then it has a successor.
    pub fn running(&mut self) -> usize {
        let (mut running, mut failures) = (0, Vec::new());
        for (publisher, slot) in (0..).zip(&mut self.slots) {
            let Some(process) = &mut slot.process else {
                continue;
            };
            // An error would mean that it was waited for, which only this function does.
            let Ok(Some(status)) = process.child.try_wait() else {
                running += 1;
                continue;
            };
            let end = slot
                .process
                .take()
                .map_or_else(PublisherEnd::default, Process::read_out);
            self.published += end.published;
            if end.in_good_order {
                self.shared.gaps().ended(publisher);
            } else {
                failures.push((publisher, status));
            }
        }
        for (publisher, status) in failures {
            match self.was_told_of_the_cut(publisher) {
                true if !self.is_stopping => match self.start_successor(publisher as usize) {
                    Ok(()) => {
                        running += 1;
                        continue;
                    }
                    Err(why) => self.fail(publisher, format_args!("has no successor: {why:#}")),
                },
                true => {}
                false => self.fail(publisher, format_args!("ended by itself ({status})")),
            }
            self.shared.gaps().ended(publisher);
        }
        running
    }

    /// Whether a publisher's process said that a disk has failed, where disks lose their power.
    fn was_told_of_the_cut(&self, publisher: u32) -> bool {
        let said = || -> std::io::Result<String> {
            let mut log = File::open(self.log(publisher))?;
            log.seek(SeekFrom::Start(self.slots[publisher as usize].log_from))?;
            std::io::read_to_string(log)
        };
        self.setup.plan.power.is_some()
            && said().is_ok_and(|said| {
                let last = said.lines().last();
                last.is_some_and(|line| line.contains("(DiskUnavailable)"))
            })
    }

    /// Kills those that still run.
    pub fn kill_all(&mut self) {
        (0..self.slots.len()).for_each(|slot| self.kill_slot(slot));
    }

    /// Kills the process of this slot. One that had ended by itself a moment before is a violation.
    fn kill_slot(&mut self, slot: usize) {
        self.slots[slot].paused_until = None;
        let Some(process) = self.slots[slot].process.take() else {
            return;
        };
        let (end, status) = process.kill();
        self.published += end.published;
        if let Some(status) = status
            && !end.in_good_order
            && status.signal() != Some(Signal::KILL.as_raw())
            && !self.was_told_of_the_cut(slot as u32)
        {
            self.fail(slot as u32, format_args!("ended by itself ({status})"));
        }
    }

    /// A violation of the process that a publisher has, or had last.
    fn fail(&self, publisher: u32, what: Arguments<'_>) {
        let instance = self.slots[publisher as usize].instance;
        self.shared.checker().fail(
            Kind::Failure,
            format_args!(
                "publisher {publisher}.{instance} {what}:{}",
                tail(&self.log(publisher))
            ),
        );
    }

    /// Messages published by processes that are gone; of killed ones, as far as they reported.
    pub fn published(&self) -> u64 {
        self.published
    }
}

impl Drop for PublisherProcesses {
    fn drop(&mut self) {
        self.kill_all();
    }
}

impl Slot {
    fn resume(&mut self) {
        if self.paused_until.take().is_some()
            && let Some(process) = &self.process
        {
            // One that was killed from outside meanwhile is found by `running`.
            let _ended = process.signal(Signal::CONT);
        }
    }
}

impl Process {
    /// It was not waited for, so its id cannot belong to another process.
    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal)
            .context("cannot send a signal to a publisher")
    }

    /// Kills it; returns what it reported, and how it ended.
    fn kill(mut self) -> (PublisherEnd, Option<ExitStatus>) {
        // It may have ended, which is what the signal is for.
        let _ended = self.child.kill();
        let status = self.child.wait().ok();
        (self.read_out(), status)
    }

    /// What it reported until its end.
    fn read_out(self) -> PublisherEnd {
        // A reader that panicked has added a violation.
        self.reader.join().unwrap_or_default()
    }
}
