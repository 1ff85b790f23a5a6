//! Runs as numbers: of a publisher, and of a subscriber, with three brokers.
#![allow(dead_code, reason = "each test takes what it needs")]

use embar_diagnose::observed::{
    Broker, Connection, Flow, Machine, Observed, Publisher, ReceivingEnd, SendingEnd, Subscriber,
    Thread,
};
use embar_diagnose::{Cause, Diagnosis, diagnose};
use embar_meter::Snapshot;
use serde_json::Value;

pub const SECONDS: f64 = 4.0;
pub const GIB: u64 = 1 << 30;

pub fn thread(name: &str, on_cpu: f64, waiting: f64) -> Thread {
    Thread {
        name: name.into(),
        on_cpu,
        system: 0.5,
        waiting,
        sleeps_per_s: 2000.0,
        preempted_per_s: 100.0,
        faults: 10,
    }
}

pub fn profile(stages: &[(&str, f64, u64)], counters: &[(&str, u64)]) -> Option<Snapshot> {
    let stages = stages
        .iter()
        .map(|(name, seconds, count)| ((*name).to_owned(), (seconds * 1e9) as u64, *count));
    let counters = counters
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value));
    Some(Snapshot::new("P", stages, counters))
}

/// One application thread, three brokers, on a machine with `cores` processors, of which the pipeline uses about two.
pub fn publishing(cores: u32) -> Observed {
    let bytes = 12 * GIB;
    let batches = bytes / (2 << 20);
    let broker = |id| Broker {
        id,
        network: vec![thread(&format!("embar-net-{id}-0"), 0.4, 0.02)],
        sequencer: None,
        profile: profile(
            &[
                ("DrainHeader", 0.01, batches / 3),
                ("DrainPayloadToBuffer", 1.2, batches / 3),
                ("CompleteBatchInCXL", 0.02, batches / 3),
            ],
            &[
                ("batches", batches / 3),
                ("bytes", bytes / 3),
                ("recv_calls", batches),
                ("recv_eagain", batches / 3),
                ("recv_bytes", bytes / 3),
            ],
        ),
        log_bytes: Some(GIB / 2),
        log_free_bytes: Some(0),
        paused_connections: Some(0),
        lane_batches: None,
        held_batches: None,
        lane_capacity: None,
        recv_buffer: None,
        send_buffer: None,
        takes_data: true,
    };
    Observed {
        seconds: SECONDS,
        flow: Flow::Publish,
        bytes,
        messages: bytes / 1024,
        machine: Machine {
            cores,
            busy: 2.0 / f64::from(cores),
            ours: 1.95 / f64::from(cores),
            others: 0.02,
            fault_s: Some(1e-6),
            syscall_s: Some(5e-7),
            tcp_rmem_max: Some(32 << 20),
            ..Machine::default()
        },
        publisher: Some(Publisher {
            application: vec![thread("publish-0", 0.45, 0.02)],
            senders: (0..3)
                .map(|it| thread(&format!("embar-pub-{it}"), 0.3, 0.02))
                .collect(),
            profile: profile(
                &[
                    ("BufferWrite", 1.4, bytes / 1024),
                    ("WaitForBuffer", 2.1, batches),
                    ("SendPayload", 1.5, batches),
                    ("WaitForAck", 20.0, batches),
                ],
                &[],
            ),
            batch_bytes: Some(2 << 20),
            linger_s: Some(0.005),
            threads_per_broker: Some(1),
            in_flight_max: Some(12),
            waits_for_each: false,
            is_bench: true,
        }),
        brokers: (1..=3).map(broker).collect(),
        connections: (1..=3).map(|it| connection(it, bytes / 3)).collect(),
        ..Observed::default()
    }
}

pub fn connection(broker: u32, bytes: u64) -> Connection {
    Connection {
        broker,
        sender: Some(SendingEnd {
            busy: 0.7,
            window_full: 0.05,
            send_buffer_full: 0.02,
            sent_bytes: bytes,
            resent_bytes: 0,
            round_trip_s: 80e-6,
            round_trip_min_s: 30e-6,
            window_bytes: 3 << 20,
            congestion_window_bytes: 1 << 20,
            buffer_bytes: 1 << 20,
            unsent_bytes: 100 << 10,
        }),
        receiver: Some(ReceivingEnd {
            buffer_bytes: 6 << 20,
            queued_bytes: 300 << 10,
        }),
        ..Connection::default()
    }
}

/// A subscriber of the same brokers.
pub fn reading(cores: u32) -> Observed {
    let mut observed = publishing(cores);
    observed.flow = Flow::Read;
    observed.publisher = None;
    observed
        .connections
        .iter_mut()
        .for_each(|it| it.to_subscriber = true);
    observed.subscriber = Some(Subscriber {
        application: vec![thread("read-0", 0.4, 0.02)],
        receivers: (0..3)
            .map(|it| thread(&format!("embar-sub-{it}"), 0.4, 0.02))
            .collect(),
        profile: profile(
            &[
                ("Receive", 2.0, 100),
                ("Verify", 2.0, 100),
                ("WaitForBatch", 2.2, 100),
            ],
            &[("recv_calls", 6000), ("recv_bytes", 12 * GIB)],
        ),
        is_bench: true,
    });
    observed
}

pub fn saturate(observed: &mut Observed) {
    observed.machine.busy = 0.99;
    observed.machine.ours = 0.96;
}

pub fn stage(observed: &mut Observed, name: &str, seconds: f64) {
    let publisher = observed.publisher.as_mut().expect("one publishes");
    let profile = publisher.profile.as_mut().expect("it was asked");
    let stages = profile.stages.iter().map(|row| {
        let ns = if row.name == name {
            (seconds * 1e9) as u64
        } else {
            row.total_ns
        };
        (row.name.clone(), ns, row.count)
    });
    *profile = Snapshot::new("P", stages.collect::<Vec<_>>(), profile.counters.clone());
}

pub fn publisher(observed: &mut Observed) -> &mut Publisher {
    observed.publisher.as_mut().expect("one publishes")
}

pub fn senders(observed: &mut Observed) -> impl Iterator<Item = &mut SendingEnd> {
    observed
        .connections
        .iter_mut()
        .filter_map(|it| it.sender.as_mut())
}

#[track_caller]
pub fn first(observed: &Observed, cause: Cause) -> Diagnosis {
    let diagnosis = diagnose(observed);
    assert_eq!(
        diagnosis.findings[0].cause, cause,
        "{:#?}",
        diagnosis.findings
    );
    diagnosis
}

/// All numbers of a document, in its order.
pub fn numbers(of: &mut Value) -> Vec<&mut Value> {
    match of {
        Value::Number(_) => vec![of],
        Value::Array(all) => all.iter_mut().flat_map(numbers).collect(),
        Value::Object(all) => all.values_mut().flat_map(numbers).collect(),
        _ => Vec::new(),
    }
}
