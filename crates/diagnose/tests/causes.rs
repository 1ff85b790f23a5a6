//! Each cause, as numbers of the kind that real runs give, must come first; and an ordinary run has none.

use embar_diagnose::observed::{
    Broker, Connection, Flow, Machine, Observed, Publisher, ReceivingEnd, SendingEnd, Subscriber,
    Thread,
};
use embar_diagnose::picture::Picture;
use embar_diagnose::{Cause, Change, Diagnosis, diagnose};
use embar_meter::Snapshot;
use serde_json::Value;

const SECONDS: f64 = 4.0;
const GIB: u64 = 1 << 30;

fn thread(name: &str, on_cpu: f64, waiting: f64) -> Thread {
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

fn profile(stages: &[(&str, f64, u64)], counters: &[(&str, u64)]) -> Option<Snapshot> {
    let stages = stages
        .iter()
        .map(|(name, seconds, count)| ((*name).to_owned(), (seconds * 1e9) as u64, *count));
    let counters = counters
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value));
    Some(Snapshot::new("P", stages, counters))
}

/// One application thread, three brokers, on a machine with `cores` processors, of which the pipeline uses about two.
fn publishing(cores: u32) -> Observed {
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

fn connection(broker: u32, bytes: u64) -> Connection {
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
fn reading(cores: u32) -> Observed {
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

fn saturate(observed: &mut Observed) {
    observed.machine.busy = 0.99;
    observed.machine.ours = 0.96;
}

fn stage(observed: &mut Observed, name: &str, seconds: f64) {
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

fn publisher(observed: &mut Observed) -> &mut Publisher {
    observed.publisher.as_mut().expect("one publishes")
}

fn senders(observed: &mut Observed) -> impl Iterator<Item = &mut SendingEnd> {
    observed
        .connections
        .iter_mut()
        .filter_map(|it| it.sender.as_mut())
}

#[track_caller]
fn first(observed: &Observed, cause: Cause) -> Diagnosis {
    let diagnosis = diagnose(observed);
    assert_eq!(
        diagnosis.findings[0].cause, cause,
        "{:#?}",
        diagnosis.findings
    );
    diagnosis
}

#[test]
fn an_ordinary_run_with_processors_to_spare_has_no_fault() {
    for cores in [4, 8, 64] {
        first(&publishing(cores), Cause::NothingFound);
        first(&reading(cores), Cause::NothingFound);
    }
}

#[test]
fn a_pipeline_that_fills_the_machine_has_reached_its_wall() {
    let mut observed = publishing(2);
    saturate(&mut observed);
    first(&observed, Cause::MachineWall);
    let mut observed = reading(2);
    saturate(&mut observed);
    first(&observed, Cause::MachineWall);
}

#[test]
fn an_application_that_sleeps_is_too_slow() {
    let mut observed = publishing(4);
    observed.machine.busy = 0.15;
    publisher(&mut observed).application = vec![thread("publish-0", 0.2, 0.0)];
    stage(&mut observed, "WaitForBuffer", 0.0);
    let diagnosis = first(&observed, Cause::ApplicationTooSlow);
    assert!(diagnosis.findings[0].gain_at_most > 0.5);
    assert!(diagnosis.findings[0].confidence > 0.8);
}

#[test]
fn an_application_that_computes_is_too_slow_unless_it_is_the_benchmark() {
    let mut observed = publishing(4);
    publisher(&mut observed).application = vec![thread("publish-0", 0.98, 0.0)];
    stage(&mut observed, "WaitForBuffer", 0.0);
    stage(&mut observed, "BufferWrite", 0.8);
    first(&observed, Cause::BenchmarkItself);
    publisher(&mut observed).is_bench = false;
    first(&observed, Cause::ApplicationTooSlow);
}

#[test]
fn one_thread_that_copies_all_the_time_wants_a_second_where_there_is_a_processor() {
    let mut observed = publishing(4);
    publisher(&mut observed).application = vec![thread("publish-0", 0.97, 0.01)];
    stage(&mut observed, "WaitForBuffer", 0.05);
    stage(&mut observed, "BufferWrite", 3.6);
    let diagnosis = first(&observed, Cause::TooFewClientThreads);
    assert_eq!(
        diagnosis.findings[0].remedy.change,
        Some(Change::Publishers(2))
    );
    observed.machine.busy = 0.9;
    observed.machine.cores = 2;
    first(&observed, Cause::CopyBoundSender);
}

#[test]
fn a_window_that_is_full_while_nobody_works_is_too_small() {
    let mut observed = publishing(2);
    observed.machine.busy = 0.6;
    for end in senders(&mut observed) {
        end.window_full = 0.6;
        end.window_bytes = 43_690;
    }
    observed
        .brokers
        .iter_mut()
        .for_each(|it| it.recv_buffer = Some(43_690));
    let diagnosis = first(&observed, Cause::ReceiveWindowTooSmall);
    assert_eq!(
        diagnosis.findings[0].remedy.change,
        Some(Change::ReceiveBufferTuned)
    );
    assert!(diagnosis.findings[0].gain_at_most > 0.3);
}

#[test]
fn a_window_that_is_full_before_a_receiver_that_works_is_not_to_blame() {
    let mut observed = publishing(4);
    for end in senders(&mut observed) {
        end.window_full = 0.9;
    }
    observed.brokers[0].network = vec![thread("embar-net-1-0", 0.97, 0.0)];
    observed.brokers[1].network = vec![thread("embar-net-2-0", 0.96, 0.0)];
    observed.brokers[2].network = vec![thread("embar-net-3-0", 0.95, 0.0)];
    first(&observed, Cause::ReceiverCpuBound);
}

#[test]
fn a_window_at_the_kernels_maximum_is_the_kernels() {
    let mut observed = publishing(4);
    observed.machine.tcp_rmem_max = Some(6 << 20);
    for end in senders(&mut observed) {
        end.window_full = 0.7;
    }
    first(&observed, Cause::KernelBufferMaxima);
}

#[test]
fn a_connection_that_runs_dry_has_too_small_a_send_buffer() {
    let mut observed = reading(4);
    for end in senders(&mut observed) {
        end.send_buffer_full = 0.5;
        end.buffer_bytes = 16 << 10;
    }
    observed
        .brokers
        .iter_mut()
        .for_each(|it| it.send_buffer = Some(16 << 10));
    let diagnosis = first(&observed, Cause::SendBufferTooSmall);
    assert_eq!(
        diagnosis.findings[0].remedy.change,
        Some(Change::SendBufferTuned)
    );
}

#[test]
fn a_send_buffer_of_a_segment_is_too_small_although_the_kernel_counts_no_wait() {
    let mut observed = reading(4);
    observed.machine.busy = 0.1;
    for end in senders(&mut observed) {
        (end.busy, end.send_buffer_full, end.unsent_bytes) = (0.2, 0.0, 0);
        end.buffer_bytes = 96 << 10;
    }
    first(&observed, Cause::SendBufferTooSmall);
    // Nobody misses a larger one in front of a reader that is slow.
    let subscriber = observed.subscriber.as_mut().expect("one reads");
    subscriber.application = vec![thread("read-0", 0.1, 0.0)];
    subscriber.profile = profile(&[("WaitForBatch", 0.1, 10)], &[]);
    first(&observed, Cause::SlowSubscriber);
}

#[test]
fn an_application_that_sleeps_beside_others_on_the_processors_is_named_and_so_are_they() {
    let mut observed = publishing(2);
    observed.machine.busy = 1.0;
    observed.machine.ours = 0.2;
    observed.machine.others = 0.8;
    publisher(&mut observed).application = vec![thread("publish-0", 0.15, 0.2)];
    stage(&mut observed, "WaitForBuffer", 0.0);
    let diagnosis = first(&observed, Cause::ApplicationTooSlow);
    // The others would have to share what they have.
    assert!(diagnosis.findings[0].gain_at_most > 0.4);
    let second = diagnosis.findings.get(1).map(|it| it.cause);
    assert_eq!(second, Some(Cause::ProcessorsTakenByOthers));
}

#[test]
fn others_on_the_processors_are_named_and_the_window_is_not() {
    let mut observed = publishing(2);
    observed.machine.busy = 1.0;
    observed.machine.ours = 0.5;
    observed.machine.others = 0.5;
    for end in senders(&mut observed) {
        end.window_full = 0.5;
    }
    for broker in &mut observed.brokers {
        broker.network = vec![thread("embar-net", 0.3, 0.6)];
    }
    let diagnosis = first(&observed, Cause::ProcessorsTakenByOthers);
    assert!((diagnosis.findings[0].gain_at_most - 1.0).abs() < 0.1);
    let blamed = diagnosis
        .findings
        .iter()
        .any(|it| it.cause == Cause::ReceiveWindowTooSmall);
    assert!(!blamed);
}

#[test]
fn others_on_processors_that_nobody_wants_cost_nothing() {
    let mut observed = publishing(8);
    observed.machine.others = 0.25;
    observed.machine.busy = 0.5;
    first(&observed, Cause::NothingFound);
}

#[test]
fn a_quota_is_named_by_the_time_that_it_takes() {
    let mut observed = publishing(2);
    observed.machine.busy = 0.5;
    observed.machine.throttled = Some(0.45);
    first(&observed, Cause::ProcessorQuota);
}

#[test]
fn small_batches_cost_by_their_number() {
    let mut observed = publishing(2);
    saturate(&mut observed);
    publisher(&mut observed).batch_bytes = Some(4096);
    observed.bytes = GIB;
    observed.messages = GIB / 1024;
    let batches = GIB / 4096 / 3;
    for broker in &mut observed.brokers {
        broker.profile = profile(
            &[
                ("DrainHeader", 0.2, batches),
                ("ReserveBLogSpace", 0.1, batches),
                ("DrainPayloadToBuffer", 0.2, batches),
                ("CompleteBatchInCXL", 0.2, batches),
            ],
            &[
                ("batches", batches),
                ("bytes", GIB / 3),
                ("recv_calls", batches / 8),
                ("recv_bytes", GIB / 3),
            ],
        );
    }
    let diagnosis = first(&observed, Cause::BatchesTooSmall);
    assert_eq!(
        diagnosis.findings[0].remedy.change,
        Some(Change::BatchSize(2 << 20))
    );
}

#[test]
fn batches_that_are_small_because_little_comes_are_no_cause() {
    let mut observed = publishing(4);
    observed.machine.busy = 0.1;
    stage(&mut observed, "WaitForBuffer", 0.0);
    publisher(&mut observed).application = vec![thread("publish-0", 0.02, 0.0)];
    observed.bytes = 4 << 20;
    for broker in &mut observed.brokers {
        broker.profile = profile(
            &[("DrainHeader", 0.1, 400)],
            &[
                ("batches", 400),
                ("bytes", 1 << 20),
                ("recv_calls", 400),
                ("recv_bytes", 1 << 20),
            ],
        );
    }
    let diagnosis = first(&observed, Cause::ApplicationTooSlow);
    let blamed = diagnosis
        .findings
        .iter()
        .any(|it| it.cause == Cause::BatchesTooSmall);
    assert!(!blamed);
}

#[test]
fn an_application_that_waits_for_each_message_waits_for_the_linger() {
    let mut observed = publishing(2);
    observed.machine.busy = 0.1;
    observed.messages = 170;
    let publisher = publisher(&mut observed);
    publisher.waits_for_each = true;
    publisher.linger_s = Some(0.02);
    let diagnosis = first(&observed, Cause::LingerTooLong);
    assert_eq!(
        diagnosis.findings[0].remedy.change,
        Some(Change::Linger(0.0))
    );
    assert!(diagnosis.findings[0].gain_at_most > 2.0);
}

#[test]
fn few_batches_on_a_long_way_are_too_few() {
    let mut observed = publishing(4);
    observed.machine.busy = 0.2;
    stage(&mut observed, "WaitForBuffer", 3.6);
    stage(&mut observed, "WaitForAck", 11.0);
    publisher(&mut observed).in_flight_max = Some(3);
    publisher(&mut observed).application = vec![thread("publish-0", 0.1, 0.0)];
    let diagnosis = first(&observed, Cause::TooFewInFlight);
    assert_eq!(
        diagnosis.findings[0].remedy.change,
        Some(Change::BatchesInFlight(4))
    );
    // So little costs a wake-up for each batch, also where all processors work.
    saturate(&mut observed);
    publisher(&mut observed).batch_bytes = Some(64 << 10);
    for broker in &mut observed.brokers {
        broker.profile = profile(
            &[],
            &[
                ("batches", 30_000),
                ("bytes", 30_000 << 16),
                ("recv_calls", 60_000),
                ("recv_bytes", 30_000 << 16),
            ],
        );
    }
    let diagnosis = first(&observed, Cause::TooFewInFlight);
    assert_eq!(
        diagnosis.findings[0].remedy.change,
        Some(Change::BatchesInFlight(32))
    );
}

#[test]
fn a_broker_that_takes_less_than_the_others_is_named() {
    let mut observed = publishing(4);
    observed.machine.busy = 0.4;
    stage(&mut observed, "WaitForBuffer", 3.0);
    let slow = &mut observed.brokers[2];
    slow.network = vec![thread("embar-net-3-0", 0.1, 0.0)];
    slow.profile = profile(
        &[("DrainPayloadToBuffer", 0.3, 500)],
        &[
            ("batches", 500),
            ("bytes", GIB),
            ("recv_calls", 1500),
            ("recv_bytes", GIB),
        ],
    );
    let diagnosis = first(&observed, Cause::HotBroker);
    assert!(diagnosis.findings[0].evidence[0].what.contains("broker 3"));
}

#[test]
fn first_touches_are_named_by_their_cost() {
    let mut observed = publishing(2);
    saturate(&mut observed);
    observed.bytes = 2 * GIB;
    for broker in &mut observed.brokers {
        broker.network[0].on_cpu = 0.6;
        broker.network[0].faults = 170_000;
    }
    observed.machine.fault_s = Some(4e-6);
    first(&observed, Cause::ColdMemory);
}

#[test]
fn what_the_host_takes_for_a_page_is_seen_by_the_time_in_the_kernel() {
    let mut observed = publishing(2);
    saturate(&mut observed);
    observed.bytes = 2 * GIB;
    observed.machine.receive_byte_s = Some(1e-10);
    for broker in &mut observed.brokers {
        let thread = &mut broker.network[0];
        (thread.on_cpu, thread.system, thread.faults) = (0.6, 0.9, 100_000);
    }
    let gain = |observed: &Observed| first(observed, Cause::ColdMemory).findings[0].gain_at_most;
    assert!(gain(&observed) > 1.0, "{}", gain(&observed));
    // Without pages that are new the kernel may do what it wants.
    for broker in &mut observed.brokers {
        broker.network[0].faults = 100;
    }
    let causes = diagnose(&observed).findings;
    assert!(causes.iter().all(|it| it.cause != Cause::ColdMemory));
}

#[test]
fn a_slow_reader_is_named_and_the_full_window_to_it_is_not() {
    let mut observed = reading(4);
    observed.machine.busy = 0.2;
    for end in senders(&mut observed) {
        end.window_full = 0.9;
    }
    let subscriber = observed.subscriber.as_mut().expect("one reads");
    subscriber.application = vec![thread("read-0", 0.1, 0.0)];
    subscriber.profile = profile(&[("WaitForBatch", 0.1, 10)], &[]);
    let diagnosis = first(&observed, Cause::SlowSubscriber);
    let blamed = diagnosis
        .findings
        .iter()
        .any(|it| it.cause == Cause::ReceiveWindowTooSmall);
    assert!(!blamed);
}

#[test]
fn loss_delay_and_a_slow_link_are_told_apart() {
    let base = || {
        let mut observed = publishing(4);
        observed.machine.busy = 0.2;
        stage(&mut observed, "WaitForBuffer", 3.0);
        stage(&mut observed, "WaitForAck", 5.0);
        senders(&mut observed).for_each(|end| end.busy = 0.95);
        observed
    };
    let mut observed = base();
    for end in senders(&mut observed) {
        end.resent_bytes = end.sent_bytes / 50;
        (end.round_trip_s, end.round_trip_min_s) = (1e-3, 0.5e-3);
    }
    first(&observed, Cause::NetworkLoss);
    let mut observed = base();
    for end in senders(&mut observed) {
        (end.round_trip_s, end.round_trip_min_s) = (21e-3, 20e-3);
    }
    first(&observed, Cause::NetworkDelay);
    let mut observed = base();
    for end in senders(&mut observed) {
        (end.round_trip_s, end.round_trip_min_s) = (9e-3, 40e-6);
    }
    first(&observed, Cause::NetworkRateLimit);
}

#[test]
fn a_full_log_holds_publishers_back() {
    let mut observed = publishing(4);
    observed.machine.busy = 0.2;
    stage(&mut observed, "WaitForBuffer", 3.5);
    for broker in &mut observed.brokers {
        broker.paused_connections = Some(1);
        broker.profile = profile(
            &[("ReserveBLogSpace", 0.1, 100)],
            &[
                ("pauses", 200),
                ("batches", 500),
                ("bytes", GIB),
                ("recv_calls", 500),
                ("recv_bytes", GIB),
            ],
        );
    }
    first(&observed, Cause::LogFull);
}

#[test]
fn a_sequencer_that_works_all_the_time_is_named() {
    let mut observed = publishing(4);
    observed.brokers.push(Broker {
        id: 0,
        sequencer: Some(thread("embar-order-0", 0.97, 0.01)),
        ..Broker::default()
    });
    first(&observed, Cause::SequencerBound);
}

#[test]
fn many_threads_on_few_processors_take_turns() {
    let mut observed = publishing(2);
    saturate(&mut observed);
    let busy = |name: &str| Thread {
        preempted_per_s: 3000.0,
        ..thread(name, 0.15, 0.8)
    };
    publisher(&mut observed).application =
        (0..4).map(|it| busy(&format!("publish-{it}"))).collect();
    publisher(&mut observed).threads_per_broker = Some(4);
    for broker in &mut observed.brokers {
        broker.network = (0..4).map(|_| busy("embar-net")).collect();
    }
    first(&observed, Cause::MoreThreadsThanCores);
}

#[test]
fn nothing_measured_is_nothing_found_and_no_bound_is_beyond_reason() {
    let diagnosis = first(&Observed::default(), Cause::NothingFound);
    assert_eq!(diagnosis.findings[0].gain_at_most, 0.0);
    let mut observed = publishing(4);
    observed.publisher = None;
    observed.brokers.clear();
    observed.connections.clear();
    first(&observed, Cause::NothingFound);
}

#[test]
fn a_diagnosis_survives_being_written_down() {
    let mut observed = publishing(2);
    saturate(&mut observed);
    let text = serde_json::to_string(&observed).expect("JSON");
    let again: Observed = serde_json::from_str(&text).expect("what was written");
    assert_eq!(diagnose(&again), diagnose(&observed));
    let text = serde_json::to_string(&diagnose(&observed)).expect("JSON");
    let again: Diagnosis = serde_json::from_str(&text).expect("what was written");
    assert_eq!(again.findings.len(), diagnose(&observed).findings.len());
}

/// All numbers of a document, in its order.
fn numbers(of: &mut Value) -> Vec<&mut Value> {
    match of {
        Value::Number(_) => vec![of],
        Value::Array(all) => all.iter_mut().flat_map(numbers).collect(),
        Value::Object(all) => all.values_mut().flat_map(numbers).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn no_number_of_a_file_breaks_a_diagnosis() {
    let mut both = reading(2);
    both.flow = Flow::Both;
    both.publisher = publishing(2).publisher;
    for observed in [publishing(2), both] {
        let mut document = serde_json::to_value(&observed).expect("JSON");
        let count = numbers(&mut document).len();
        for extreme in ["0", "1", "18446744073709551615", "1e300", "-1.5"] {
            for place in 0..count {
                let mut changed = document.clone();
                *numbers(&mut changed)[place] = serde_json::from_str(extreme).expect("a number");
                // A count cannot be negative, nor a fraction: such a file is refused.
                let Ok(observed) = serde_json::from_value::<Observed>(changed) else {
                    continue;
                };
                let diagnosis = diagnose(&observed);
                assert!(!Picture(&diagnosis).to_string().is_empty());
                for finding in &diagnosis.findings {
                    assert!(finding.gain_at_most.is_finite(), "{finding:?}");
                    assert!((0.0..=1.0).contains(&finding.confidence), "{finding:?}");
                    finding.evidence.iter().for_each(|it| drop(it.to_string()));
                }
            }
        }
    }
}
