//! Looks at processes and connections for a span: counters at both ends of it, and gauges in between.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use embar_console::interrupt::Interrupt;
use embar_diagnose::observed::{Disk as DiskUse, Missing, ReceivingEnd, SendingEnd, Thread};
use embar_readings::census::Census;
use embar_readings::disks::{Disk, disks};
use embar_readings::machine::{Processors, Shares};
use embar_readings::pressure::Pressure;
use embar_readings::process::{
    self as process_readings, KernelError, ProcessReading, ThreadReading,
};
use embar_readings::tcp::{TcpEnd, TcpReader};
use embar_readings::throttled::throttled;

/// Looks are this far apart, and so are looks at whether to stop.
pub const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A span that is being looked at.
pub struct Sampling {
    pids: Vec<u32>,
    servers: BTreeSet<SocketAddr>,
    started: Instant,
    processors: Processors,
    census: Option<Census>,
    processes: Vec<Process>,
    /// Threads of this process that came after the beginning: a subscriber that is opened anew has new ones.
    newcomers: BTreeMap<u32, ThreadReading>,
    throttled: Option<Duration>,
    pressure: Option<Pressure>,
    disks: Vec<Disk>,
    tcp: Option<TcpReader>,
    connections: BTreeMap<Key, Ends>,
    missing: Vec<Missing>,
}

/// A process and its threads at one moment.
struct Process {
    reading: ProcessReading,
    threads: Vec<ThreadReading>,
}

/// A connection by its two addresses: the client's and the server's.
type Key = (SocketAddr, SocketAddr);

/// Both ends of a connection.
#[derive(Default)]
struct Ends {
    client: Watched,
    server: Watched,
}

/// One end: as it was first, as it is now, and what its gauges summed up to.
#[derive(Default)]
struct Watched {
    first: Option<TcpEnd>,
    last: Option<TcpEnd>,
    looks: f64,
    round_trip_us: f64,
    congestion_window: f64,
    unsent: f64,
    queued: f64,
    window_most: u32,
}

/// What was seen in a span.
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
    /// How long some thread of the machine stood still in the span.
    pub pressure: Option<Pressure>,
    /// Disks that did something in the span.
    pub disks: Vec<DiskUse>,
    /// Part of all processors' time in which quotas stopped them.
    pub throttled: Option<f64>,
    /// The threads of each process.
    pub threads: BTreeMap<u32, Vec<Thread>>,
    /// Connections of clients with the servers that were named.
    pub connections: Vec<SeenConnection>,
    /// What could not be read.
    pub missing: Vec<Missing>,
}

/// A connection, seen from both ends.
pub struct SeenConnection {
    /// The server's address.
    pub server: SocketAddr,
    /// The client as the one that sends, and the server as the one that receives.
    pub upward: (Option<SendingEnd>, Option<ReceivingEnd>),
    /// The other way round.
    pub downward: (Option<SendingEnd>, Option<ReceivingEnd>),
}

impl Sampling {
    /// Begins to look at these processes, and at connections with these servers.
    pub fn start(pids: Vec<u32>, servers: BTreeSet<SocketAddr>) -> Result<Self> {
        let mut missing = Vec::new();
        let tcp = TcpReader::open()
            .map_err(|error| missing.push(absent("TCP connections", &error)))
            .ok();
        let mut sampling = Self {
            processes: processes(&pids)?,
            newcomers: BTreeMap::new(),
            throttled: quota(&pids),
            pressure: Pressure::read()
                .map_err(|error| missing.push(absent("who stood still (/proc/pressure)", &error)))
                .ok(),
            disks: disks()
                .map_err(|error| missing.push(absent("disks", &error)))
                .unwrap_or_default(),
            census: Census::take().ok(),
            processors: Processors::read()?,
            started: Instant::now(),
            pids,
            servers,
            tcp,
            connections: BTreeMap::new(),
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
        mut pause: impl FnMut(Duration) -> Result<()>,
    ) -> Result<()> {
        let until = Instant::now() + span;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            pause(left.min(LOOK_EVERY))?;
            self.look();
        }
    }

    /// The same, until Ctrl-C.
    ///
    /// # Errors
    /// It was interrupted.
    pub fn watch_until(&mut self, span: Duration, interrupt: &Interrupt) -> Result<()> {
        self.watch(span, |time| {
            interrupt.check()?;
            thread::sleep(time);
            Ok(())
        })
    }

    /// Looks at what has no counter, or may end before the span does.
    pub fn look(&mut self) {
        self.look_at_own_threads();
        let Some(tcp) = &mut self.tcp else {
            return;
        };
        let servers = &self.servers;
        let is_one = |end: &TcpEnd| servers.contains(&end.local) || servers.contains(&end.remote);
        let ends = match tcp.connections(is_one) {
            Ok(ends) => ends,
            Err(error) => {
                self.missing.push(absent("TCP connections", &error));
                self.tcp = None;
                return;
            }
        };
        for end in ends {
            if servers.contains(&end.remote) {
                let key = (end.local, end.remote);
                self.connections.entry(key).or_default().client.see(end);
            } else {
                let key = (end.remote, end.local);
                self.connections.entry(key).or_default().server.see(end);
            }
        }
    }

    fn look_at_own_threads(&mut self) {
        let own = process::id();
        let began = self.processes.iter().find(|it| it.reading.pid == own);
        let Some(began) = began else { return };
        // One that cannot be read now is read at the next look.
        for thread in process_readings::threads(own).unwrap_or_default() {
            if began.threads.iter().all(|it| it.tid != thread.tid) {
                self.newcomers.insert(thread.tid, thread);
            }
        }
    }

    /// Ends the span.
    pub fn end(mut self) -> Result<Span> {
        self.look();
        let seconds = self.started.elapsed().as_secs_f64();
        let after = Processors::read()?;
        let processes = processes(&self.pids)?;
        let mut ours_s = 0.0;
        let mut threads = BTreeMap::new();
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
            let stayed = after.threads.iter().filter_map(|now| {
                let then = before.threads.iter().find(|it| it.tid == now.tid)?;
                Some(between(Some(then), now, seconds))
            });
            let came = self
                .newcomers
                .values()
                .map(|now| between(None, now, seconds));
            let came = came.filter(|_| after.reading.pid == process::id());
            threads.insert(after.reading.pid, by_name(stayed.chain(came)));
        }
        let no_schedule = |it: &Process| it.threads.iter().any(|it| it.waiting_s.is_none());
        if processes.iter().any(no_schedule) {
            self.missing.push(Missing {
                what: "how long threads waited for a processor".to_owned(),
                why: "this kernel has no /proc/PID/schedstat".to_owned(),
            });
        }
        let stopped = quota(&self.pids).zip(self.throttled);
        let stopped = stopped.map(|(after, before)| after.saturating_sub(before).as_secs_f64());
        let pressure = Pressure::read().ok().zip(self.pressure);
        let connections = std::mem::take(&mut self.connections);
        Ok(Span {
            seconds,
            machine: after.since(&self.processors).unwrap_or_default(),
            cores: after.count,
            ours_s,
            others_s: self.census.as_ref().and_then(|before| {
                let ours = self.pids.iter().copied().collect();
                Some(Census::take().ok()?.others_s(before, &ours))
            }),
            pressure: pressure.map(|(after, before)| after.since(&before)),
            disks: used(&self.disks, &disks().unwrap_or_default(), seconds),
            // The kernel adds up what it takes on each processor.
            throttled: stopped.map(|it| (it / seconds / f64::from(after.count.max(1))).min(1.0)),
            threads,
            connections: connections
                .into_iter()
                .map(|((_, server), ends)| SeenConnection {
                    server,
                    upward: (ends.client.sending(seconds), ends.server.receiving()),
                    downward: (ends.server.sending(seconds), ends.client.receiving()),
                })
                .collect(),
            missing: self.missing,
        })
    }
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

fn quota(pids: &[u32]) -> Option<Duration> {
    pids.iter().filter_map(|pid| throttled(*pid)).max()
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

/// What a thread did in the span, in which it began if there is nothing from before.
fn between(then: Option<&ThreadReading>, now: &ThreadReading, seconds: f64) -> Thread {
    let since = |of: fn(&ThreadReading) -> f64| (of(now) - then.map_or(0.0, of)).max(0.0);
    let times = |of: fn(&ThreadReading) -> u64| now_less(of(now), then.map(of)) as f64 / seconds;
    let system_s = since(|it| it.system_s);
    let ticks_s = since(|it| it.user_s) + system_s;
    let on_cpu_s = match now.on_cpu_s {
        Some(_) => since(|it| it.on_cpu_s.unwrap_or(0.0)),
        None => ticks_s,
    };
    Thread {
        name: now.name.clone(),
        on_cpu: (on_cpu_s / seconds).min(1.0),
        system: if ticks_s > 0.0 {
            system_s / ticks_s
        } else {
            0.0
        },
        waiting: (since(|it| it.waiting_s.unwrap_or(0.0)) / seconds).min(1.0),
        sleeps_per_s: times(|it| it.voluntary_switches),
        preempted_per_s: times(|it| it.involuntary_switches),
        faults: now_less(now.minor_faults, then.map(|it| it.minor_faults)),
    }
}

fn now_less(now: u64, then: Option<u64>) -> u64 {
    now.saturating_sub(then.unwrap_or(0))
}

/// One thread for each name: those of a name came one after the other.
fn by_name(threads: impl Iterator<Item = Thread>) -> Vec<Thread> {
    let mut all: BTreeMap<String, Thread> = BTreeMap::new();
    for thread in threads {
        let Some(sum) = all.get_mut(&thread.name) else {
            all.insert(thread.name.clone(), thread);
            continue;
        };
        let on_cpu = sum.on_cpu + thread.on_cpu;
        if on_cpu > 0.0 {
            sum.system = (sum.system * sum.on_cpu + thread.system * thread.on_cpu) / on_cpu;
        }
        sum.on_cpu = on_cpu.min(1.0);
        sum.waiting = (sum.waiting + thread.waiting).min(1.0);
        sum.sleeps_per_s += thread.sleeps_per_s;
        sum.preempted_per_s += thread.preempted_per_s;
        sum.faults += thread.faults;
    }
    all.into_values().collect()
}

impl Watched {
    fn see(&mut self, end: TcpEnd) {
        self.looks += 1.0;
        self.round_trip_us += f64::from(end.rtt_us);
        self.congestion_window += f64::from(end.congestion_window) * f64::from(end.segment_bytes);
        self.unsent += f64::from(end.unsent_bytes);
        self.queued += f64::from(end.receive_queue);
        self.window_most = self.window_most.max(end.send_window);
        self.first.get_or_insert_with(|| end.clone());
        self.last = Some(end);
    }

    fn mean(&self, sum: f64) -> f64 {
        if self.looks > 0.0 {
            sum / self.looks
        } else {
            0.0
        }
    }

    fn sending(&self, seconds: f64) -> Option<SendingEnd> {
        let (first, last) = (self.first.as_ref()?, self.last.as_ref()?);
        let share = |of: fn(&TcpEnd) -> u64| {
            let us = of(last).saturating_sub(of(first)) as f64;
            (us / 1e6 / seconds).min(1.0)
        };
        Some(SendingEnd {
            busy: share(|end| end.busy_us),
            window_full: share(|end| end.window_limited_us),
            send_buffer_full: share(|end| end.send_buffer_limited_us),
            sent_bytes: last.bytes_sent.saturating_sub(first.bytes_sent),
            resent_bytes: last.bytes_resent.saturating_sub(first.bytes_resent),
            round_trip_s: self.mean(self.round_trip_us) / 1e6,
            // The kernel has seen none yet.
            round_trip_min_s: match last.min_rtt_us {
                u32::MAX => 0.0,
                us => f64::from(us) / 1e6,
            },
            window_bytes: self.window_most.into(),
            congestion_window_bytes: self.mean(self.congestion_window) as u64,
            buffer_bytes: last.send_buffer.into(),
            unsent_bytes: self.mean(self.unsent) as u64,
        })
    }

    fn receiving(&self) -> Option<ReceivingEnd> {
        let last = self.last.as_ref()?;
        Some(ReceivingEnd {
            buffer_bytes: last.receive_buffer.into(),
            queued_bytes: self.mean(self.queued) as u64,
        })
    }
}
