//! From what was seen of a load to what a diagnosis looks at.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process;
use std::time::Duration;

use embar_client::BrokerStatus;
use embar_diagnose::Observed;
use embar_diagnose::observed::{
    Broker, Connection, Machine, Missing, Publisher, Step, Subscriber, Thread,
};
use embar_meter::Snapshot;
use embar_readings::machine::BufferMaxima;
use embar_readings::pressure::Pressure;

use super::costs;
use super::load::{Moved, PUBLISHES, READS};
use super::plan::LoadPlan;
use super::sampling::{SeenConnection, Span};

/// What fewer pages cost that were touched for the first time, nobody has to know: to measure it touches a thousand.
const FAULTS_MIN: u64 = 10_000;
/// A connection that moved less carries no batches.
const BATCHES_MIN: u64 = 64 << 10;
/// A broker as its load knows it.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its row.
    pub id: u32,
    /// Its process, if that is one of this machine that may be looked at.
    pub pid: Option<u32>,
    /// Where it listens.
    pub address: SocketAddr,
    /// Whether it takes data.
    pub takes_data: bool,
}

/// What was seen of one load.
pub struct Seen<'a> {
    /// What was run.
    pub plan: &'a LoadPlan,
    /// All brokers.
    pub brokers: &'a [Known],
    /// Processes and connections.
    pub span: Span,
    /// What brokers timed and counted in the span.
    pub profiles: BTreeMap<u32, Snapshot>,
    /// What brokers said at its end.
    pub statuses: BTreeMap<u32, BrokerStatus>,
    /// What had moved at its beginning.
    pub before: Moved,
    /// And at its end.
    pub after: Moved,
    /// Bytes of message values, step by step.
    pub over_time: Vec<Step>,
}

impl Seen<'_> {
    /// All of it, as a diagnosis wants it.
    pub fn observed(self) -> Observed {
        let flow = self.plan.flow;
        let messages = if flow.publishes() {
            self.after.published - self.before.published
        } else {
            self.after.read - self.before.read
        };
        let own = self.span.threads.get(&process::id());
        let own = own.map_or(&[][..], Vec::as_slice);
        Observed {
            seconds: self.span.seconds,
            flow,
            bytes: messages * u64::from(self.plan.bench.message_bytes),
            messages,
            machine: machine(&self.span),
            publisher: flow.publishes().then(|| self.publisher(own)),
            brokers: self.brokers.iter().map(|it| self.broker(it)).collect(),
            subscriber: flow.reads().then(|| self.subscriber(own)),
            connections: connections(&self.span, self.brokers),
            over_time: self.over_time,
            missing: missing(&self.span),
        }
    }

    fn publisher(&self, own: &[Thread]) -> Publisher {
        let (bench, settings) = (&self.plan.bench, &self.plan.settings);
        let connections = u64::from(bench.threads_per_broker) * u64::from(bench.data_brokers);
        Publisher {
            application: named(own, PUBLISHES),
            senders: named(own, "embar-pub-"),
            profile: between(&self.before.publisher, &self.after.publisher),
            batch_bytes: Some(bench.batch_bytes.into()),
            linger_s: settings.linger.map(|it| it.as_secs_f64()),
            threads_per_broker: Some(bench.threads_per_broker),
            in_flight_max: Some(self.after.in_flight * connections),
            waits_for_each: settings.waits_for_each,
            is_bench: true,
        }
    }

    fn subscriber(&self, own: &[Thread]) -> Subscriber {
        Subscriber {
            application: named(own, READS),
            receivers: named(own, "embar-sub"),
            profile: between(&self.before.subscriber, &self.after.subscriber),
            is_bench: true,
        }
    }

    fn broker(&self, known: &Known) -> Broker {
        let settings = &self.plan.settings;
        let (profile, status) = (self.profiles.get(&known.id), self.statuses.get(&known.id));
        Broker {
            recv_buffer: settings.recv_buffer.map(u64::from),
            send_buffer: settings.send_buffer.map(u64::from),
            ..broker(known, &self.span, profile, status)
        }
    }
}

/// What the machine did, as a diagnosis wants it.
pub(super) fn machine(span: &Span) -> Machine {
    let ours = if span.machine.all_s > 0.0 {
        (span.ours_s / span.machine.all_s).min(span.machine.busy)
    } else {
        0.0
    };
    let maxima = BufferMaxima::read();
    let threads = span.threads.values().flatten();
    let touches = threads.map(|it| it.faults).sum::<u64>() >= FAULTS_MIN;
    let pressure = |of: fn(&Pressure) -> Duration| {
        let stood = span.pressure.as_ref().map(of);
        stood.map(|it| (it.as_secs_f64() / span.seconds).min(1.0))
    };
    Machine {
        cores: span.cores,
        busy: span.machine.busy,
        ours,
        others: match span.others_s {
            Some(others_s) if span.machine.all_s > 0.0 => {
                (others_s / span.machine.all_s).min((span.machine.busy - ours).max(0.0))
            }
            _ => 0.0,
        },
        unseen: span.unseen,
        steal: span.machine.steal,
        softirq: span.machine.softirq,
        iowait: span.machine.iowait,
        cpu_pressure: pressure(|it| it.cpu),
        memory_pressure: pressure(|it| it.memory),
        io_pressure: pressure(|it| it.io),
        disks: span.disks.clone(),
        throttled: span.throttled,
        fault_s: touches.then(costs::fault_s).flatten(),
        syscall_s: costs::syscall_s(),
        receive_byte_s: touches.then(costs::receive_byte_s).flatten(),
        rmem_max: maxima.rmem_max,
        wmem_max: maxima.wmem_max,
        tcp_rmem_max: maxima.tcp_rmem_max,
        tcp_wmem_max: maxima.tcp_wmem_max,
    }
}

/// A broker, without what it was told of buffers.
pub(super) fn broker(
    known: &Known,
    span: &Span,
    profile: Option<&Snapshot>,
    status: Option<&BrokerStatus>,
) -> Broker {
    let threads = known.pid.and_then(|pid| span.threads.get(&pid));
    let threads = threads.map_or(&[][..], Vec::as_slice);
    Broker {
        id: known.id,
        network: named(threads, "embar-net-"),
        sequencer: named(threads, "embar-order-").pop(),
        profile: profile.cloned(),
        log_bytes: status.map(|it| it.payload_total_bytes),
        log_free_bytes: status.map(|it| it.payload_free_bytes),
        paused_connections: status.map(|it| it.backpressured_connections),
        lane_batches: status.map(|it| it.lane_batches),
        held_batches: status.map(|it| it.held_batches),
        lane_capacity: status.map(|it| it.lane_capacity),
        recv_buffer: None,
        send_buffer: None,
        takes_data: known.takes_data,
    }
}

/// Connections that carried batches.
pub(super) fn connections(span: &Span, brokers: &[Known]) -> Vec<Connection> {
    let of = |seen: &SeenConnection| {
        let broker = brokers.iter().find(|it| it.address == seen.server)?.id;
        let sent = |end: &(Option<_>, _)| {
            let end: Option<&embar_diagnose::observed::SendingEnd> = end.0.as_ref();
            end.map_or(0, |end| end.sent_bytes)
        };
        let to_subscriber = sent(&seen.downward) > sent(&seen.upward);
        let (sender, receiver) = if to_subscriber {
            &seen.downward
        } else {
            &seen.upward
        };
        let moved = sent(&seen.upward).max(sent(&seen.downward));
        (moved >= BATCHES_MIN).then(|| Connection {
            broker,
            to_subscriber,
            sender: sender.clone(),
            receiver: receiver.clone(),
        })
    };
    span.connections.iter().filter_map(of).collect()
}

/// What could not be read of the span.
pub(super) fn missing(span: &Span) -> Vec<Missing> {
    let mut missing = span.missing.clone();
    if span.throttled.is_none() {
        missing.push(Missing {
            what: "what processor quotas took".to_owned(),
            why: "no control group of processors tells (/sys/fs/cgroup)".to_owned(),
        });
    }
    missing
}

/// Threads whose names begin so.
pub(super) fn named(threads: &[Thread], prefix: &str) -> Vec<Thread> {
    let wanted = |it: &&Thread| it.name.starts_with(prefix);
    threads.iter().filter(wanted).cloned().collect()
}

fn between(before: &Option<Snapshot>, after: &Option<Snapshot>) -> Option<Snapshot> {
    Some(after.as_ref()?.since(before.as_ref()?))
}
