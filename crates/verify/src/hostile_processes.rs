//! The hostile processes of a run, seen from their parent: started, stopped and killed at any moment, and started again.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use embar_meter::random::SplitMix64;
use rustix::process::{Pid, Signal, kill_process};

use super::faults::DurationRange;
use super::hostile::{self, HARM, HostileSpec};
use super::shared::Shared;
use super::violation::Kind;

/// How long a process lives before it is killed, in the middle of something.
const LIFE: DurationRange = DurationRange {
    shortest: Duration::from_millis(500),
    longest: Duration::from_secs(5),
};
/// How long one that is stopped stays so.
const STOP: DurationRange = DurationRange {
    shortest: Duration::from_millis(100),
    longest: Duration::from_secs(3),
};
/// One of so many is stopped before it is killed.
const STOPPED_EVERY: u64 = 2;
/// Between two looks at whether to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How often each attack was tried.
pub type Attacks = BTreeMap<String, u64>;

/// One thread for each hostile client, which ends when this is dropped.
pub struct HostileProcesses {
    stop: Arc<AtomicBool>,
    attacks: Arc<Mutex<Attacks>>,
    threads: Vec<JoinHandle<()>>,
}

impl HostileProcesses {
    /// Starts a process for each of these, by a command of `program`.
    pub fn start(program: PathBuf, specs: Vec<HostileSpec>, shared: &Arc<Shared>) -> Result<Self> {
        let mut all = Self {
            stop: Arc::default(),
            attacks: Arc::default(),
            threads: Vec::new(),
        };
        for spec in specs {
            let parent = Parent {
                program: program.clone(),
                random: SplitMix64::new(spec.seed),
                spec,
                stop: all.stop.clone(),
                attacks: all.attacks.clone(),
                shared: shared.clone(),
            };
            let thread = std::thread::Builder::new().name("hostile".into());
            all.threads.push(thread.spawn(|| parent.work())?);
        }
        Ok(all)
    }

    /// Ends them all; returns what they tried.
    pub fn stop(mut self) -> Attacks {
        self.end();
        std::mem::take(&mut *self.attacks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that panicked tried nothing more.
            let _ended = thread.join();
        }
    }
}

impl Drop for HostileProcesses {
    fn drop(&mut self) {
        self.end();
    }
}

struct Parent {
    program: PathBuf,
    spec: HostileSpec,
    random: SplitMix64,
    stop: Arc<AtomicBool>,
    attacks: Arc<Mutex<Attacks>>,
    shared: Arc<Shared>,
}

impl Parent {
    fn work(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            self.spec.seed = self.random.next_u64();
            if let Err(error) = self.live_once() {
                self.shared.checker().fail(
                    Kind::Failure,
                    format_args!("a hostile client cannot be run: {error:#}"),
                );
                return;
            }
        }
    }

    /// One process, from its start to its violent end.
    fn live_once(&mut self) -> Result<()> {
        let mut child = Command::new(&self.program)
            .arg(hostile::COMMAND)
            .arg(serde_json::to_string(&self.spec)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("cannot start it")?;
        let output = child.stdout.take().context("standard output is a pipe")?;
        let (attacks, shared) = (self.attacks.clone(), self.shared.clone());
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if line.starts_with(HARM) {
                    shared.checker().fail(Kind::Failure, format_args!("{line}"));
                }
                let mut attacks = attacks.lock().unwrap_or_else(PoisonError::into_inner);
                *attacks.entry(line).or_default() += 1;
            }
        });
        self.sleep(LIFE);
        if self.random.below(STOPPED_EVERY) == 0 {
            // It was not waited for, so its id cannot belong to another process.
            let _ended = kill_process(Pid::from_child(&child), Signal::STOP);
            self.sleep(STOP);
        }
        let ended = child.try_wait();
        end(&mut child);
        let _panicked = reader.join();
        match ended {
            Ok(Some(status)) => bail!("it ended by itself: {status}"),
            _ => Ok(()),
        }
    }

    /// Sleeps so long, or until all is to end.
    fn sleep(&mut self, range: DurationRange) {
        let mut left = range.draw(&mut self.random);
        while !left.is_zero() && !self.stop.load(Ordering::Relaxed) {
            let nap = left.min(LOOK_EVERY);
            std::thread::sleep(nap);
            left -= nap;
        }
    }
}

fn end(child: &mut Child) {
    // It may have ended by itself, when its parent does not read any more.
    let _ended = child.kill();
    let _status = child.wait();
}
