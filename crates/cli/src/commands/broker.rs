//! `embar broker`: one broker in the foreground.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use embar_broker::{BrokerConfig, Entry, Progress, RegionSpec, Role, Server, StartError};
use embar_console::interrupt;
use embar_console::size::{Size, parse_duration};
use embar_fabric::error::RegionError;
use embar_fabric::records::BrokerState;
use embar_fabric::region::Region;
use embar_memory::Coherence;
use embar_supervise::protocol::ProcessReport;
use embar_supervise::regions;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::context::Context;
use crate::exit::Problem;
use crate::settings::BrokerSettings;

/// How often a broker looks whether its threads live.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long a head waits for the other brokers to let go of a region that it shall remove.
const REMOVE_WITHIN: Duration = Duration::from_secs(5);

/// How long the processes that hold a region may take to end, once they are ending.
const DYING_WITHIN: Duration = Duration::from_secs(3);

/// Run one broker in the foreground
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar broker --head --listen 127.0.0.1:9400 --region-size 2GiB
  embar broker --follower 127.0.0.1:9400            # also while the cluster runs
  embar broker --follower 127.0.0.1:9400 --id 2     # take over the row of a broker that died
  embar broker --standby 127.0.0.1:9400             # sequence when the head cannot
  embar broker --follower 127.0.0.1:9400 --id 2 --region DIR   # also while the head does not answer
  embar broker --follower 127.0.0.1:9400 --data /mnt/a/log     # whose head has this directory, too

Standard output carries one line once the broker serves:
  ready id=1 address=127.0.0.1:9401 pid=4711 topics=0 batches=0 receive=direct
Logs go to standard error. SIGTERM and Ctrl-C drain: what was received is acknowledged, then
the broker ends. `embar drain ID` does the same for good; the line then is
  left id=1")]
pub struct BrokerArgs {
    /// Create the region, or take over one that was left, and lead the cluster
    #[arg(long, conflicts_with = "member", required_unless_present = "member")]
    pub head: bool,
    /// Join the cluster of the head at this address and take data
    #[arg(long, value_name = "HEAD", group = "member")]
    pub follower: Option<SocketAddr>,
    /// Join the cluster of the head at this address and sequence when no other process does
    #[arg(long, value_name = "HEAD", group = "member")]
    pub standby: Option<SocketAddr>,
    /// Row to take; the first free one unless given
    #[arg(long, value_name = "N", requires = "member")]
    pub id: Option<u16>,
    /// Where to listen; port 0 takes any free port [default: head 127.0.0.1:9400, others 127.0.0.1:0]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Directory of the region [default: /dev/shm/embar-UID/default]. One that joins asks the head for it. With
    /// this and --id the head need not answer
    #[arg(long, value_name = "DIR")]
    pub region: Option<PathBuf>,
    /// Bytes of the whole region
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1GiB",
        conflicts_with = "member"
    )]
    pub region_size: Size,
    /// Topics that there may be at the same time [default: one for each MiB of the region, and at least 256]
    #[arg(long, value_name = "N", conflicts_with = "member", value_parser = clap::value_parser!(u16).range(1..=16384))]
    pub topics: Option<u16>,
    /// Brokers the region has room for: the head and those that take data
    #[arg(long, value_name = "N", default_value_t = 4, conflicts_with = "member",
          value_parser = clap::value_parser!(u16).range(1..=128))]
    pub brokers: u16,
    /// Places beside these for data brokers that join later; each takes its memory then
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "member",
          value_parser = clap::value_parser!(u16).range(0..=126))]
    pub spares: u16,
    /// Standbys the region has room for beside them
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "member",
          value_parser = clap::value_parser!(u16).range(0..=7))]
    pub standbys: u16,
    /// Discard the data of a region that was left
    #[arg(long, conflicts_with = "member")]
    pub fresh: bool,
    /// Remove the region at the end
    #[arg(long, conflicts_with = "member")]
    pub temporary: bool,
    /// How long to drain before connections are cut
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    pub grace: Duration,
    /// End when standard input ends, and report progress: for processes that start brokers
    #[arg(long, hide = true)]
    pub exit_with_parent: bool,
    /// Be killed when the thread ends that started this process: for those that are stopped on purpose
    #[arg(long, hide = true, requires = "exit_with_parent")]
    pub kill_with_parent: bool,
    #[command(flatten)]
    pub settings: BrokerSettings,
}

/// Runs until a signal or its parent asks it to stop.
pub fn run(args: &BrokerArgs, context: &Context) -> Result<()> {
    if args.kill_with_parent {
        // A parent that is gone already has closed our standard input, which ends us, too.
        set_parent_process_death_signal(Some(Signal::KILL))
            .context("cannot end with the parent process")?;
    }
    let (stop, stopped) = mpsc::channel();
    let on_signal = stop.clone();
    context.work.interrupt.on_raise(move || request(&on_signal));
    if args.exit_with_parent {
        interrupt::on_parent_exit(move || request(&stop))?;
    }
    let result = serve(args, &stopped);
    // One that failed is started again by its parent, which removes the region itself in the end.
    let comes_back = result.is_err() && args.exit_with_parent;
    if args.temporary && !comes_back {
        remove_region(&region_dir(args));
    }
    if let (Err(error), true) = (&result, args.exit_with_parent) {
        let code = crate::exit::code(error);
        say(&ProcessReport::Failed {
            code,
            message: crate::exit::explain(error),
        })?;
    }
    result
}

fn request(stop: &mpsc::Sender<()>) {
    // A broker that has stopped receives nothing.
    let _received = stop.send(());
}

fn serve(args: &BrokerArgs, stopped: &mpsc::Receiver<()>) -> Result<()> {
    embar_console::process::raise_file_limit();
    let port = if args.head { 9400 } else { 0 };
    let listen = args
        .listen
        .unwrap_or(SocketAddr::from(([127, 0, 0, 1], port)));
    let config = args.settings.to_config(listen)?;
    let progress = Narrator {
        on: args.exit_with_parent,
        started: Instant::now(),
        last_ms: AtomicU64::new(0),
    };
    let server = start(&role(args)?, &config, &|step| progress.show(&step))?;
    let recovered = server.recovered();
    say(&ProcessReport::Ready {
        id: server.id(),
        address: server.address(),
        pid: std::process::id(),
        topics: recovered.topics,
        batches: recovered.batches,
        receive: server.receive_path(),
    })?;
    // Both senders live in callbacks that are never dropped; an error means the same as a message.
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK_EVERY) {
        if server.is_overtaken() {
            return Err(Problem::Overtaken.into());
        }
        if server.has_failed() {
            bail!(
                "a thread of this broker died (see its log): start it again, what it acknowledged is kept"
            );
        }
        if server.has_left() {
            say(&ProcessReport::Left { id: server.id() })?;
            return Ok(());
        }
    }
    tracing::info!("draining");
    let outcome = server.shutdown(args.grace);
    tracing::info!(?outcome, "stopped");
    Ok(())
}

/// Waits for predecessors that left, or were killed a moment ago: the kernel gives their rows free when it has put away
/// their memory, which takes longer than starting a new process.
fn start(
    role: &Role,
    config: &BrokerConfig,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Server, StartError> {
    let deadline = Instant::now() + DYING_WITHIN;
    loop {
        match Server::start(role.clone(), config.clone(), progress) {
            Err(StartError::Region(RegionError::InUse { dir, rows }))
                if Instant::now() < deadline && (are_ending(&rows) || have_left(&dir, &rows)) =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
}

/// Whether those are ending that are in the way: the head before, if it is among them, as the others of its cluster may
/// stay. No rows at all are in the way while a region is being created.
fn are_ending(rows: &[(u16, u32)]) -> bool {
    let head = rows.iter().find(|(row, _)| *row == 0);
    let in_the_way = head.map_or(rows, std::slice::from_ref);
    !rows.is_empty() && in_the_way.iter().all(|(_, pid)| regions::is_ending(*pid))
}

/// Whether those in the way have said that they left the cluster: their processes are about to end.
fn have_left(dir: &Path, rows: &[(u16, u32)]) -> bool {
    let Ok(region) = Region::open(dir, Coherence::Coherent) else {
        return false;
    };
    let has_left = |row| {
        let found = region.broker_row(row).found();
        found.and_then(|found| found.broker_state()) == Some(BrokerState::Left)
    };
    !rows.is_empty() && rows.iter().all(|(row, _)| has_left(*row))
}

fn role(args: &BrokerArgs) -> Result<Role> {
    let coherence = Coherence::Coherent;
    let entry = |address| match (args.id, args.region.clone()) {
        (id, None) => Ok(Entry::Head { address, id }),
        (Some(id), Some(dir)) => Ok(Entry::Region { dir, id }),
        (None, Some(_)) => Err(crate::exit::usage(
            "--region of one that joins needs --id: without it the head says which row is free",
        )),
    };
    Ok(match (args.follower, args.standby) {
        (Some(head), _) => Role::Follower {
            entry: entry(head)?,
            coherence,
        },
        (None, Some(head)) => Role::Standby {
            entry: entry(head)?,
            coherence,
        },
        (None, None) => Role::Head {
            dir: region_dir(args),
            region: RegionSpec {
                bytes: args.region_size.0,
                data_brokers: args.brokers - 1,
                standbys: args.standbys,
                spares: args.spares,
                topics: args.topics,
                sessions: None,
                fresh: args.fresh,
                coherence,
            },
        },
    })
}

fn region_dir(args: &BrokerArgs) -> PathBuf {
    args.region
        .clone()
        .unwrap_or_else(|| regions::named(regions::DEFAULT_NAME))
}

/// The other brokers may still be draining: wait for them, not forever.
fn remove_region(dir: &Path) {
    let deadline = Instant::now() + REMOVE_WITHIN;
    while !regions::remove(dir) {
        if Instant::now() >= deadline {
            tracing::warn!(dir = %dir.display(), "the region is still in use and was not removed");
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    regions::tidy(dir);
}

fn say(report: &ProcessReport) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{report}").and_then(|()| out.flush());
    // Nobody has to listen: a broker serves also when its standard output is closed.
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(crate::exit::output(error)),
        _ => Ok(()),
    }
}

/// Reports progress to the parent, at most every 50 ms.
struct Narrator {
    on: bool,
    started: Instant,
    last_ms: AtomicU64,
}

impl Narrator {
    fn show(&self, step: &Progress) {
        let Some(report) = report(step).filter(|_| self.on) else {
            return;
        };
        let is_end = matches!(report, ProcessReport::Prefault { done, total } if done == total);
        let now = self.started.elapsed().as_millis() as u64;
        let last = self.last_ms.load(Ordering::Relaxed);
        let due = is_end || now >= last + 50;
        if due
            && self
                .last_ms
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            // A parent that is gone reads no reports.
            let _shown = say(&report);
        }
    }
}

/// What the process reports to its parent of a step: all that can take long, as the parent ends a start that is silent.
fn report(step: &Progress) -> Option<ProcessReport> {
    match *step {
        Progress::Reserving { .. } | Progress::Recovering => Some(ProcessReport::Busy),
        Progress::Prefault { done, total } => Some(ProcessReport::Prefault { done, total }),
        Progress::Ready => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_takes_long_is_reported_to_the_parent() {
        let (done, total) = (1, 2);
        for step in [
            Progress::Reserving { done, total },
            Progress::Prefault { done, total },
            Progress::Recovering,
        ] {
            assert!(report(&step).is_some(), "{step:?}");
        }
        assert_eq!(report(&Progress::Ready), None, "that is a line of its own");
    }
}
