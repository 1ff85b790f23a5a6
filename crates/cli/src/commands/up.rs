//! `embar up`: a local cluster in the foreground.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use embar_console::size::{Size, parse_duration};
use embar_disk::Directory;
use embar_fabric::{Probe, Region};
use embar_meter::table::Table;
use embar_supervise::plan::{self, Role};
use embar_supervise::regions;
use embar_supervise::{Broker, Cluster, ClusterPlan, Supervisor};
use serde::Serialize;

use crate::context::Context;
use crate::settings::BrokerSettings;

/// Start a local cluster and keep it running
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar up                                   a head, 3 data brokers, a standby: 9400-9403, 9405
  embar up --brokers 2 --region-size 4GiB
  embar up --listen 127.0.0.1:0 --temporary  any free ports; nothing is kept
  embar up --data /mnt/a --data /mnt/b       a log on two disks, which are mounted there

The log lives in shared memory: it survives the death of any process, also of all of them, but
not a reboot. The next `embar up` with the same region finds the data again, unless --fresh is
given. Ctrl-C and SIGTERM drain. A broker that dies is restarted with its
data, after 0.1 s and then later each time, up to 10 s, for as long as it takes; standard error
says why it died and when it is tried again. While the head is gone, a standby sequences, and only
topics cannot be created or deleted. A broker of an earlier command that still lives in the region
(stopped, for instance) stays, and is started again when it ends.

Brokers join and leave while the cluster runs: `embar broker --follower ADDRESS` takes a spare
place, and `embar drain ID` lets one leave for good. `up` does not start one again that joined so
and died: whoever started it does, with its --id, or a service manager of yours. A spare costs
tables now, about 5 % of what each data broker has (14 MiB of 1GiB), and as much as each of these
has, on top of the region's size, once somebody joins there; `embar layout` shows both.

With --data the log has a directory on each disk, and topics of a --replication-factor above 1 are
there, too: they survive a reboot, and the loss of the region, also with --fresh. A file in it says
which disk of which log it is, so the order of the directories does not matter, and all of them are
needed. One cluster at a time uses a directory. Two on one device are refused, because both are lost
when it fails.

JSON, one object when the cluster is ready:
  brokers[]     id, role (head, data, standby), address, pid, recovered_topics, recovered_batches
  bootstrap     address of the head
  region, region_bytes, log_dir, ready_s
and one when it has ended:
  stopped, killed[] (ids of brokers that did not drain in time), region (null if removed),
  region_bytes")]
pub struct UpArgs {
    /// The head and the brokers that take data; the head only sequences unless it is alone
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=128))]
    brokers: u16,
    /// Brokers beside these that sequence when the head cannot [default: 1, or 0 for a head that is alone]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=7))]
    standbys: Option<u16>,
    /// Places for data brokers that join while the cluster runs [default: 1, or 0 for a head that is alone]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=126))]
    spares: Option<u16>,
    /// Address of the head; the others take the next ports, or any free ones if the port is 0
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9400")]
    listen: SocketAddr,
    /// Directory of the region [default: /dev/shm/embar-UID/default]
    #[arg(long, value_name = "DIR")]
    region: Option<PathBuf>,
    /// Bytes of shared memory in all
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    region_size: Size,
    /// Topics that there may be at the same time, at most 16384 [default: one for each MiB of the region, and at
    /// least 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16384))]
    topics: Option<u16>,
    /// Discard what an earlier cluster left in the region
    #[arg(long)]
    fresh: bool,
    /// Remove the region at the end
    #[arg(long)]
    temporary: bool,
    /// Directory of the brokers' logs [default: ~/.local/state/embar/REGION]
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// How long brokers may drain before connections are cut
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    grace: Duration,
    #[command(flatten)]
    settings: BrokerSettings,
}

#[derive(Serialize)]
struct Ready<'a> {
    brokers: Vec<&'a Broker>,
    bootstrap: SocketAddr,
    region: &'a Path,
    region_bytes: u64,
    log_dir: &'a Path,
    ready_s: f64,
}

#[derive(Serialize)]
struct Stopped<'a> {
    stopped: bool,
    killed: Vec<u16>,
    region: Option<&'a Path>,
    region_bytes: u64,
}

/// Runs until a signal asks it to stop.
pub fn run(args: &UpArgs, context: &Context) -> Result<()> {
    let started = Instant::now();
    let mut cluster = Cluster::start(make_plan(args, context)?, &context.work)?;
    announce(&cluster, started.elapsed(), context)?;
    Supervisor::new(&mut cluster, &context.work).run();
    context.note("draining; press Ctrl-C again to stop at once");
    let plan = cluster.plan().clone();
    let killed = cluster.stop();
    say_what_is_left(&plan, killed, context)
}

fn make_plan(args: &UpArgs, context: &Context) -> Result<ClusterPlan> {
    let region = args
        .region
        .clone()
        .unwrap_or_else(|| regions::named(regions::DEFAULT_NAME));
    let standbys = args.standbys.unwrap_or(u16::from(args.brokers > 1));
    let spares = args.spares;
    Ok(ClusterPlan {
        program: context.work.program.clone(),
        brokers: args.brokers,
        spares: spares.unwrap_or_else(|| plan::default_spares(args.brokers, standbys)),
        standbys,
        log_dir: args
            .log_dir
            .clone()
            .unwrap_or_else(|| default_log_dir(&region)),
        region,
        region_bytes: args.region_size.0,
        topics: args.topics,
        fresh: args.fresh,
        temporary: args.temporary,
        kill_with_parent: Vec::new(),
        grace: args.grace,
        // Finds contradictions before anything is started.
        config: args.settings.to_config(args.listen)?,
    })
}

/// In the user's own directories, where no other user can put a link in the way.
fn default_log_dir(region: &Path) -> PathBuf {
    let from = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let state = from("XDG_STATE_HOME")
        .or_else(|| from("HOME").map(|home| home.join(".local/state")))
        .unwrap_or_else(|| {
            std::env::temp_dir().join(format!("embar-{}", rustix::process::getuid().as_raw()))
        });
    let name = region.file_name().map_or_else(
        || "region".into(),
        |name| name.to_string_lossy().into_owned(),
    );
    state.join("embar").join(name)
}

fn announce(cluster: &Cluster, elapsed: Duration, context: &Context) -> Result<()> {
    let plan = cluster.plan();
    let ready = Ready {
        brokers: cluster.brokers().collect(),
        bootstrap: cluster.head(),
        region: &plan.region,
        region_bytes: plan.region_bytes,
        log_dir: &plan.log_dir,
        ready_s: elapsed.as_secs_f64(),
    };
    context.output.json(&ready)?;
    for dir in &plan.config.data {
        let said = Directory::open_to_read(dir).and_then(|dir| dir.is_in_memory());
        if said.unwrap_or(false) {
            context.note(format_args!(
                "{} is in memory: what is there survives the cluster, and no reboot; give a directory on a disk to keep it",
                dir.display()
            ));
        }
    }
    let mut table = Table::new([
        "broker",
        "role",
        "address",
        "pid",
        "receives",
        "found in memory",
    ]);
    for broker in &ready.brokers {
        let found = match broker.recovered_batches {
            0 => "nothing".to_owned(),
            n => format!("{n} batches, {} topics", broker.recovered_topics),
        };
        table.row([
            broker.id.to_string(),
            role(broker.role, plan.brokers).to_owned(),
            broker.address.to_string(),
            broker.pid.to_string(),
            if broker.role == Role::Data || plan.brokers == 1 {
                broker.receive.to_string()
            } else {
                "-".into()
            },
            if broker.role == Role::Data || plan.brokers == 1 {
                found
            } else {
                "-".into()
            },
        ]);
    }
    context.output.say(format_args!(
        "{table}\n\nregion     {} ({})\nlogs       {}\nconnect    --bootstrap {} (the default is 127.0.0.1:9400)\n\n{} in {:.2} s; Ctrl-C stops",
        plan.region.display(),
        Size(plan.region_bytes),
        plan.log_dir.display(),
        cluster.head(),
        context.output.paint().good("ready"),
        elapsed.as_secs_f64(),
    ))
}

fn role(role: Role, brokers: u16) -> &'static str {
    match (role, brokers) {
        (Role::Head, 1) => "head, takes data",
        (Role::Head, _) => "head",
        (Role::Data, _) => "data",
        (Role::Standby, _) => "standby",
    }
}

fn say_what_is_left(plan: &ClusterPlan, killed: Vec<u16>, context: &Context) -> Result<()> {
    let kept = plan.region.exists();
    let bytes = if kept {
        regions::bytes_in(&plan.region)
    } else {
        0
    };
    for id in &killed {
        context.note(format_args!(
            "broker {id} did not end within its grace and was killed"
        ));
    }
    if let Probe::InUse { rows } = Region::probe(&plan.region) {
        for (id, pid) in rows {
            context.note(format_args!(
                "broker {id} (pid {pid}) was not started by this command and goes on"
            ));
        }
    }
    context.output.json(&Stopped {
        stopped: true,
        killed,
        region: kept.then_some(plan.region.as_path()),
        region_bytes: bytes,
    })?;
    if kept {
        context.output.say(format_args!(
            "stopped; {} of memory stay in use, with the data, at {}\n  use them again:  embar up{}\n  free them:       rm -r {}",
            Size(bytes),
            plan.region.display(),
            region_option(&plan.region),
            plan.region.display(),
        ))
    } else {
        context.output.say("stopped; nothing is kept")
    }
}

fn region_option(region: &Path) -> String {
    if region == regions::named(regions::DEFAULT_NAME) {
        String::new()
    } else {
        format!(" --region {}", region.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_names_the_region_unless_it_is_the_default() {
        assert_eq!(region_option(&regions::named(regions::DEFAULT_NAME)), "");
        assert_eq!(
            region_option(Path::new("/dev/shm/x")),
            " --region /dev/shm/x"
        );
    }
}
