//! `embar status`: who is in the cluster and how it does.

mod disks;

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use embar_client::{AdminError, Request};
use embar_console::size::Size;
use embar_memory::payload::LENT_PART;
use embar_meter::table::{Table, grouped};
use embar_wire::control::{BrokerInfo, BrokerRole, BrokerState, BrokerStatus};
use serde::Serialize;

use crate::connect::AskArgs;
use crate::context::Context;
use disks::Disk;

/// Show the brokers of a cluster and their counters, and its disks
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar status
  embar --json status --bootstrap 127.0.0.1:9400

JSON, one object: head, sequencer (null while no process sequences), brokers[] with id, role,
state, address, incarnation, takes_data, error (null, or why it does not answer) and, unless it has
left or does not answer, uptime_s, connections, unix_connections and shm_connections (those of them
by its Unix socket, and by shared memory), log_total_bytes, log_free_bytes, lent_bytes (in blocks
of which readers on its machine have something where it lies), held_bytes (those of them that it
keeps for readers whose connection has ended), lane_batches (batches that wait for their place in
an order), held_batches (those of them that wait for an earlier one of their publisher),
lane_capacity (how many may wait), batches, messages, bytes_in, bytes_out, refused_batches,
backpressured_connections, cpu_s, minor_faults, peak_memory_bytes, heartbeat_age_s,
repaired_records (places of shared memory where the broker found one wrong bit), damaged_records
(places with more of them), refused_users (connections by its Unix socket that it refused, because
they were another user's); and disks[] (of a log that has any, as the broker that sequences says)
with number, directory, state (opens: it is read, or nobody writes it; writes; full; failed),
free_bytes of its file system, what_to_do (null where nothing is wrong). Exit code 1 if a broker
does not answer.")]
pub struct StatusArgs {
    #[command(flatten)]
    ask: AskArgs,
}

#[derive(Serialize)]
struct Report {
    head: u32,
    sequencer: Option<u32>,
    brokers: Vec<Broker>,
    disks: Vec<Disk>,
}

#[derive(Serialize)]
struct Broker {
    id: u32,
    role: &'static str,
    state: &'static str,
    address: String,
    incarnation: u32,
    takes_data: bool,
    #[serde(flatten)]
    counters: Option<Counters>,
    error: Option<String>,
}

#[derive(Serialize)]
struct Counters {
    uptime_s: f64,
    connections: u64,
    unix_connections: u64,
    shm_connections: u64,
    log_total_bytes: u64,
    log_free_bytes: u64,
    lent_bytes: u64,
    held_bytes: u64,
    lane_batches: u64,
    held_batches: u64,
    lane_capacity: u64,
    batches: u64,
    messages: u64,
    bytes_in: u64,
    bytes_out: u64,
    refused_batches: u64,
    backpressured_connections: u64,
    cpu_s: f64,
    minor_faults: u64,
    peak_memory_bytes: u64,
    heartbeat_age_s: f64,
    repaired_records: u64,
    damaged_records: u64,
    refused_users: u64,
}

impl From<&BrokerStatus> for Counters {
    fn from(status: &BrokerStatus) -> Self {
        let seconds = |ns| Duration::from_nanos(ns).as_secs_f64();
        Self {
            uptime_s: seconds(status.uptime_ns),
            connections: status.connections,
            unix_connections: status.unix_connections,
            shm_connections: status.shm_connections,
            log_total_bytes: status.payload_total_bytes,
            log_free_bytes: status.payload_free_bytes,
            lent_bytes: status.lent_bytes,
            held_bytes: status.held_bytes,
            lane_batches: status.lane_batches,
            held_batches: status.held_batches,
            lane_capacity: status.lane_capacity,
            batches: status.batches,
            messages: status.messages,
            bytes_in: status.bytes_in,
            bytes_out: status.bytes_out,
            refused_batches: status.refused_batches,
            backpressured_connections: status.backpressured_connections,
            cpu_s: seconds(status.cpu_ns),
            minor_faults: status.minor_faults,
            peak_memory_bytes: status.peak_memory_bytes,
            heartbeat_age_s: seconds(status.heartbeat_age_ns),
            repaired_records: status.repaired_records,
            damaged_records: status.damaged_records,
            refused_users: status.refused_users,
        }
    }
}

/// Asks every broker.
pub fn run(args: &StatusArgs, context: &Context) -> Result<()> {
    let admin = args.ask.admin(context)?;
    let cluster = admin.metadata().wait()?;
    // All are asked before the first answer is waited for: one that hangs does not hide the others for long.
    // Nobody expects an answer of one that left for good.
    let ask = |info: &BrokerInfo| (info.state != BrokerState::Left).then(|| admin.status(info.id));
    let asked: Vec<_> = cluster
        .brokers
        .iter()
        .map(|info| (info, ask(info)))
        .collect();
    let answers: Vec<_> = asked
        .into_iter()
        .map(|(info, request)| (info, request.map(Request::wait)))
        .collect();
    let statuses = answers
        .iter()
        .filter_map(|(_, answer)| answer.as_ref()?.as_ref().ok());
    let disks = disks::of(statuses, cluster.sequencer);
    let brokers = answers
        .into_iter()
        .map(|(info, answer)| broker(info, answer))
        .collect();
    let report = Report {
        head: cluster.head,
        sequencer: cluster.sequencer,
        brokers,
        disks,
    };
    context.output.json(&report)?;
    context.output.say(table(&report))?;
    if !report.disks.is_empty() {
        context.output.say(disks::table(&report.disks))?;
    }
    for line in report.disks.iter().filter_map(Disk::remark) {
        context.note(line);
    }
    for line in report.brokers.iter().filter_map(held) {
        context.note(line);
    }
    for line in report.brokers.iter().filter_map(damage) {
        context.note(line);
    }
    let silent: Vec<String> = report
        .brokers
        .iter()
        .filter_map(|broker| Some(format!("broker {}: {}", broker.id, broker.error.as_ref()?)))
        .collect();
    if silent.is_empty() {
        Ok(())
    } else {
        bail!("{}", silent.join("; "))
    }
}

/// In a word.
pub fn state(state: BrokerState) -> &'static str {
    match state {
        BrokerState::Starting => "starting",
        BrokerState::Ready => "ready",
        BrokerState::Draining => "draining",
        BrokerState::Gone => "gone",
        BrokerState::Left => "left",
        // Of a later version.
        _ => "unknown",
    }
}

/// In a word.
pub fn role(info: &BrokerInfo) -> &'static str {
    match (info.role, info.takes_data) {
        (BrokerRole::Head, _) => "head",
        (BrokerRole::Member, true) => "data",
        (BrokerRole::Member, false) => "standby",
        _ => "unknown",
    }
}

fn broker(info: &BrokerInfo, status: Option<Result<BrokerStatus, AdminError>>) -> Broker {
    let status = status.map(|answer| answer.map_err(|error| error.to_string()));
    Broker {
        id: info.id,
        role: role(info),
        state: state(info.state),
        address: info.address.clone(),
        incarnation: info.incarnation,
        takes_data: info.takes_data,
        counters: status.iter().flatten().next().map(Counters::from),
        error: status.and_then(Result::err),
    }
}

fn table(report: &Report) -> Table {
    let mut table = Table::new([
        "broker",
        "role",
        "state",
        "address",
        "connections",
        "messages",
        "batches",
        "in",
        "out",
        "log used",
        "refused",
        "CPU s",
        "up s",
    ]);
    for broker in &report.brokers {
        let mut row = vec![
            broker.id.to_string(),
            if report.sequencer == Some(broker.id) {
                format!("{}, sequences", broker.role)
            } else {
                broker.role.into()
            },
            broker.state.into(),
            broker.address.clone(),
        ];
        match &broker.counters {
            Some(counters) => row.extend([
                match (counters.unix_connections, counters.shm_connections) {
                    (0, 0) => counters.connections.to_string(),
                    (unix, 0) => format!("{} ({unix} unix)", counters.connections),
                    (0, shm) => format!("{} ({shm} shm)", counters.connections),
                    (unix, shm) => format!("{} ({unix} unix, {shm} shm)", counters.connections),
                },
                grouped(counters.messages),
                grouped(counters.batches),
                Size(counters.bytes_in).to_string(),
                Size(counters.bytes_out).to_string(),
                used(counters),
                counters.refused_batches.to_string(),
                format!("{:.2}", counters.cpu_s),
                format!("{:.0}", counters.uptime_s),
            ]),
            None if broker.error.is_some() => row.push("no answer".into()),
            None => {}
        }
        table.row(row);
    }
    table
}

/// A remark on memory that comes back late.
fn held(broker: &Broker) -> Option<String> {
    let counters = broker.counters.as_ref()?;
    let (id, held) = (broker.id, counters.held_bytes);
    if held > counters.log_total_bytes / LENT_PART {
        return Some(format!(
            "broker {id} keeps {} of its log as it is, more than readers were ever lent: another program has a lock on the \
             region's file payload-{id}. `lslocks` names it. Until it ends publishers may wait for room",
            Size(held)
        ));
    }
    (held > 0).then(|| {
        format!(
            "broker {id} keeps {} of its log as it is for readers whose connection has ended, and who still have \
             messages in it. It is free when they drop these, or end",
            Size(held)
        )
    })
}

/// A remark on memory that cannot be trusted.
fn damage(broker: &Broker) -> Option<String> {
    let counters = broker.counters.as_ref()?;
    let (repaired, damaged) = (counters.repaired_records, counters.damaged_records);
    (repaired + damaged > 0).then(|| {
        format!(
            "broker {} found damaged shared memory: {repaired} records with one wrong bit, which it put right, and \
             {damaged} that it cannot use; its log names them. Check this machine's memory, and who else writes to \
             the region's files",
            broker.id
        )
    })
}

fn used(counters: &Counters) -> String {
    match counters.log_total_bytes {
        0 => "-".into(),
        total => {
            let used = total.saturating_sub(counters.log_free_bytes);
            format!("{} of {}", Size(used), Size(total))
        }
    }
}
