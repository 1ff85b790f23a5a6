//! Looks at processes and connections for a span: counters at both ends of it, and gauges in between.

mod connections;
mod threads;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use embar_console::interrupt::Interrupt;
use embar_diagnose::observed::{Disk as DiskUse, Missing, Step, Thread};
use embar_readings::census::Census;
use embar_readings::disks::{Disk, disks};
use embar_readings::machine::{Processors, Shares};
use embar_readings::pressure::Pressure;
use embar_readings::process::{
    self as process_readings, KernelError, ProcessReading, ThreadReading,
};
use embar_readings::throttled::Throttled;

pub use self::connections::SeenConnection;
use self::connections::{CONNECTIONS_MAX, Connections};
use self::threads::{Lives, stayed};

/// Looks are this far apart, and so are looks at whether to stop.
pub const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The same of looks at what others use: each costs them something.
const LOOK_AT_OTHERS_EVERY: Duration = Duration::from_millis(100);

/// Part of all processors' time that no process explains before somebody is said to be hidden. Something is left on any machine: interrupts,
/// what processes did whose parents do not wait for them, and what was counted between two readings.
const UNSEEN_MIN: f64 = 0.1;
const CONNECTIONS: &str = "TCP connections";
/// What other processes did.
const OTHERS: &str = "what other processes used of the processors";

/// A span that is being looked at.
pub struct Sampling {
    pids: Vec<u32>,
    started: Instant,
    processors: Processors,
    census: Option<Census>,
    processes: Vec<Process>,
    /// The threads of this process, if it is one of them.
    own: Option<Lives>,
    throttled: Option<Throttled>,
    pressure: Option<Pressure>,
    disks: Vec<Disk>,
    connections: Option<Connections>,
    missing: Vec<Missing>,
}

/// A process and its threads at one moment.
struct Process {
    reading: ProcessReading,
    threads: Vec<ThreadReading>,
}

/// What was seen in a span.
#[derive(Default)]
pub struct Span {
    /// How long it was, seconds.
    pub seconds: f64,
    /// What all processors did.
    pub machine: Shares,
    /// How many there are.
    pub cores: u32,
    /// Processor seconds of the processes that were looked at.
    pub ours_s: f64,
    /// Those of all other processes; `None` where they could not be read.
    pub others_s: Option<f64>,
    /// Part of all processors' time that no process explains which can be seen; 0 if little is left.
    pub unseen: f64,
    /// How long some thread of the machine stood still in the span.
    pub pressure: Option<Pressure>,
    /// Disks that did something in the span.
    pub disks: Vec<DiskUse>,
    /// Part of all processors' time in which quotas stopped them.
    pub throttled: Option<f64>,
    /// The threads of each process.
    pub threads: BTreeMap<u32, Vec<Thread>>,
    /// Those of other processes by their own ids.
    pub by_id: BTreeMap<u32, Thread>,
    /// Connections of clients with the servers that were named.
    pub connections: Vec<SeenConnection>,
    /// Bytes that arrived by them, step by step.
    pub over_time: Vec<Step>,
    /// What could not be read.
    pub missing: Vec<Missing>,
}

impl Sampling {
    /// Begins to look at these processes, and at connections with these servers.
    pub fn start(pids: Vec<u32>, servers: BTreeSet<SocketAddr>) -> Result<Self> {
        let mut missing = Vec::new();
        let connections = Connections::of(servers)
            .map_err(|error| missing.push(absent(CONNECTIONS, &error)))
            .ok();
        let mut sampling = Self {
            processes: processes(&pids)?,
            own: pids.contains(&process::id()).then(Lives::default),
            throttled: Throttled::read(&pids),
            pressure: Pressure::read()
                .map_err(|error| missing.push(absent("who stood still (/proc/pressure)", &error)))
                .ok(),
            disks: disks()
                .map_err(|error| missing.push(absent("disks", &error)))
                .unwrap_or_default(),
            census: Census::take()
                .map_err(|error| missing.push(absent(OTHERS, &error)))
                .ok(),
            processors: Processors::read()?,
            started: Instant::now(),
            pids,
            connections,
            missing,
        };
        sampling.look();
        Ok(sampling)
    }

    /// Looks again and again for so long. `pause` lets so much time pass, or says why not to go on.
    ///
    /// # Errors
    /// Those of `pause`.
    pub fn watch(
        &mut self,
        span: Duration,
        pause: impl FnMut(Duration) -> Result<()>,
    ) -> Result<()> {
        self.watch_each(LOOK_EVERY, span, pause)
    }

    /// The same of what others use, until Ctrl-C. `also` is called before each look.
    ///
    /// # Errors
    /// It was interrupted.
    pub fn watch_others(
        &mut self,
        span: Duration,
        interrupt: &Interrupt,
        mut also: impl FnMut(),
    ) -> Result<()> {
        self.watch_each(LOOK_AT_OTHERS_EVERY, span, |time| {
            interrupt.check()?;
            also();
            thread::sleep(time);
            Ok(())
        })
    }

    fn watch_each(
        &mut self,
        every: Duration,
        span: Duration,
        mut pause: impl FnMut(Duration) -> Result<()>,
    ) -> Result<()> {
        let until = Instant::now() + span;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            pause(left.min(every))?;
            self.look();
        }
    }

    /// Looks at what has no counter, or may end before the span does.
    pub fn look(&mut self) {
        self.look_at_own_threads();
        self.look_at_connections(Connections::look);
    }

    fn look_at_connections(&mut self, look: fn(&mut Connections, Instant) -> io::Result<()>) {
        let connections = self.connections.as_mut();
        let looked = connections.map(|it| look(it, Instant::now()));
        if let Some(Err(error)) = looked {
            self.missing.push(absent(CONNECTIONS, &error));
        }
    }

    fn look_at_own_threads(&mut self) {
        if let Some(own) = &mut self.own {
            // What cannot be read now is read at the next look.
            own.see(process_readings::threads(process::id()).unwrap_or_default());
        }
    }

    /// Ends the span.
    pub fn end(mut self) -> Result<Span> {
        self.look_at_own_threads();
        self.look_at_connections(Connections::last_look);
        let seconds = self.started.elapsed().as_secs_f64();
        let after = Processors::read()?;
        let processes = processes(&self.pids)?;
        let mut ours_s = 0.0;
        let (mut threads, mut by_id) = (BTreeMap::new(), BTreeMap::new());
        for before in &self.processes {
            let pid = before.reading.pid;
            let Some(after) = processes.iter().find(|it| it.reading.pid == pid) else {
                self.missing.push(ended(pid));
                continue;
            };
            // Another process with the same number is not the one that was looked at.
            let Ok(did) = after.reading.since(&before.reading) else {
                self.missing.push(ended(pid));
                continue;
            };
            ours_s += did.cpu_s();
            let own = self.own.as_ref().filter(|_| pid == process::id());
            let did = match own {
                Some(own) => own.threads(seconds),
                None => {
                    let stayed = stayed(&before.threads, &after.threads, seconds);
                    let did = stayed.values().cloned().collect();
                    by_id.extend(stayed);
                    did
                }
            };
            threads.insert(pid, did);
        }
        let no_schedule = |it: &Process| it.threads.iter().any(|it| it.waiting_s.is_none());
        if processes.iter().any(no_schedule) {
            self.missing.push(Missing {
                what: "how long threads waited for a processor".to_owned(),
                why: "this kernel has no /proc/PID/schedstat".to_owned(),
            });
        }
        let stopped = Throttled::read(&self.pids).zip(self.throttled.take());
        let stopped = stopped.map(|(after, before)| after.since(&before).as_secs_f64());
        let pressure = Pressure::read().ok().zip(self.pressure);
        let connections = self.connections.take();
        if connections.as_ref().is_some_and(|it| it.has_too_many) {
            self.missing.push(Missing {
                what: "some of the connections".to_owned(),
                why: format!("there were more than {CONNECTIONS_MAX} in the span"),
            });
        }
        let others_s = self.others_s();
        let machine = after.since(&self.processors).unwrap_or_default();
        // What a process did that has ended is not among what ours did.
        let unseen = match threads.len() == self.pids.len() {
            true => unseen(&machine, ours_s + others_s.unwrap_or(0.0)),
            false => 0.0,
        };
        if unseen > 0.0 {
            self.missing.push(Missing {
                what: format!("who used {:.0} % of the processors", unseen * 100.0),
                why: "no process in /proc did: it hides those of other users (hidepid), or they are outside of this container"
                    .to_owned(),
            });
        }
        Ok(Span {
            seconds,
            machine,
            unseen,
            cores: after.count,
            ours_s,
            others_s,
            pressure: pressure.map(|(after, before)| after.since(&before)),
            disks: used(&self.disks, &disks().unwrap_or_default(), seconds),
            // The kernel adds up what it takes on each processor.
            throttled: stopped.map(|it| (it / seconds / f64::from(after.count.max(1))).min(1.0)),
            threads,
            by_id,
            over_time: connections
                .as_ref()
                .map_or_else(Vec::new, Connections::over_time),
            connections: connections.map_or_else(Vec::new, |it| it.seen(seconds)),
            missing: self.missing,
        })
    }
}

impl Sampling {
    /// Processor seconds of all processes but ours.
    fn others_s(&mut self) -> Option<f64> {
        let before = self.census.take()?;
        let ours = self.pids.iter().copied().collect();
        match Census::take() {
            Ok(after) => Some(after.others_s(&before, &ours)),
            Err(error) => {
                self.missing.push(absent(OTHERS, &error));
                None
            }
        }
    }
}

/// The part of all processors' time that neither these seconds of processes explain nor softirqs, which belong to nobody.
fn unseen(machine: &Shares, explained_s: f64) -> f64 {
    if machine.all_s <= 0.0 {
        return 0.0;
    }
    let left = machine.busy - machine.softirq - explained_s / machine.all_s;
    if left < UNSEEN_MIN { 0.0 } else { left }
}

/// What disks did between two looks `seconds` apart. Those that did nothing, or came meanwhile, are left out.
fn used(before: &[Disk], after: &[Disk], seconds: f64) -> Vec<DiskUse> {
    let mean = |time: Duration, count: u64| match count {
        0 => 0.0,
        count => time.as_secs_f64() / count as f64,
    };
    let used = after.iter().filter_map(|after| {
        let before = before.iter().find(|it| it.name == after.name)?;
        let did = after.since(before);
        (did.reads + did.writes + did.flushes > 0).then(|| DiskUse {
            busy: (did.busy.as_secs_f64() / seconds).min(1.0),
            read_s: mean(did.read_time, did.reads),
            write_s: mean(did.write_time, did.writes),
            flush_s: mean(did.flush_time, did.flushes),
            reads: did.reads,
            writes: did.writes,
            flushes: did.flushes,
            name: did.name,
        })
    });
    used.collect()
}

fn absent(what: &str, error: &dyn std::fmt::Display) -> Missing {
    Missing {
        what: what.to_owned(),
        why: error.to_string(),
    }
}

fn processes(pids: &[u32]) -> Result<Vec<Process>> {
    let read = |pid: &u32| {
        let reading = ProcessReading::of(*pid)?;
        let threads = process_readings::threads(*pid)?;
        Ok(Process { reading, threads })
    };
    let all = pids.iter().map(read);
    // Clients of a cluster come and go while it is looked at.
    let here = all.filter(|it| !matches!(it, Err(KernelError::Gone { .. })));
    Ok(here.collect::<Result<_, KernelError>>()?)
}

fn ended(pid: u32) -> Missing {
    Missing {
        what: format!("what process {pid} did"),
        why: "it ended meanwhile".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_process_explains_is_unseen() {
        // Two processors for four seconds, 90 % busy.
        let machine = Shares {
            all_s: 8.0,
            busy: 0.9,
            softirq: 0.2,
            ..Shares::default()
        };
        assert!((unseen(&machine, 1.6) - 0.5).abs() < 1e-9);
        assert_eq!(unseen(&machine, 5.0), 0.0, "little is left on any machine");
        assert_eq!(unseen(&machine, 9.0), 0.0);
        assert_eq!(unseen(&Shares::default(), 0.0), 0.0);
    }
}
