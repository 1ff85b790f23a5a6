//! Each cause in brokers, subscribers, the network and the machine, as numbers of the kind that real runs give, must come first;
//! and no number breaks a diagnosis.

mod common;

use common::*;
use embar_diagnose::limits::Resource;
use embar_diagnose::observed::*;
use embar_diagnose::picture::Picture;
use embar_diagnose::{Cause, Change, Diagnosis, Verified, diagnose};
use embar_meter::{Better, Comparison, Series};

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
fn a_broker_that_takes_less_is_named_where_the_others_make_up_for_it() {
    let mut observed = publishing(4);
    (observed.machine.busy, observed.machine.ours) = (0.99, 0.98);
    let bytes = GIB / 2;
    observed.brokers[2].profile = profile(&[], &[("batches", 500), ("bytes", bytes)]);
    let diagnosis = first(&observed, Cause::HotBroker);
    assert!(diagnosis.findings[0].gain_at_most < 0.03);
    // What it has waits there, and what limits is something else.
    let limiting = diagnosis.limiting().expect("the machine is full");
    assert_eq!(limiting.cause, Cause::MachineWall);
}

#[test]
fn a_broker_that_does_not_tell_or_has_little_by_chance_is_not_behind() {
    let causes = |observed: &Observed| -> Vec<Cause> {
        let findings = diagnose(observed).findings;
        findings.iter().map(|it| it.cause).collect()
    };
    let mut silent = publishing(4);
    silent.brokers[2].profile = None;
    assert!(!causes(&silent).contains(&Cause::HotBroker));
    let with = |batches: [u64; 4]| {
        let mut observed = publishing(4);
        for (broker, batches) in observed.brokers.iter_mut().zip(batches) {
            let counters = [("batches", batches), ("bytes", batches << 21)];
            broker.profile = profile(&[], &counters);
        }
        causes(&observed).contains(&Cause::HotBroker)
    };
    assert!(!with([30, 30, 10, 30]), "so few are spread by chance");
    assert!(!with([50, 50, 25, 50]), "and so may half of fifty be");
    assert!(with([400, 400, 200, 400]));
}

#[test]
fn a_broker_that_hands_out_less_than_the_others_is_named() {
    let mut observed = reading(4);
    observed.machine.busy = 0.4;
    for (index, broker) in observed.brokers.iter_mut().enumerate() {
        let bytes = if index == 1 { GIB } else { 5 * GIB };
        let counters = [("send_calls", bytes / (1 << 20)), ("send_bytes", bytes)];
        broker.profile = profile(&[], &counters);
    }
    let diagnosis = first(&observed, Cause::HotBroker);
    assert!(diagnosis.findings[0].evidence[0].what.contains("broker 2"));
}

#[test]
fn of_a_broker_with_threads_that_wait_the_one_that_works_says_how_much_it_works() {
    let mut observed = publishing(4);
    for broker in &mut observed.brokers {
        broker.network = vec![
            thread("embar-net-0", 0.95, 0.0),
            thread("embar-net-1", 0.1, 0.6),
        ];
    }
    senders(&mut observed).for_each(|end| end.window_full = 0.9);
    let diagnosis = diagnose(&observed);
    let uses = &diagnosis.limits.uses;
    let brokers = uses.iter().find(|it| it.part == Resource::Brokers);
    let brokers = brokers.expect("they were seen");
    assert_eq!((brokers.share, brokers.without_processor), (0.95, 0.0));
    // The window is full because they work all the time.
    let causes: Vec<_> = diagnosis.findings.iter().map(|it| it.cause).collect();
    assert!(
        !causes.contains(&Cause::ReceiveWindowTooSmall),
        "{causes:?}"
    );
}

#[test]
fn batches_in_flight_are_those_of_each_connection_by_unix_sockets_too() {
    let mut observed = publishing(4);
    observed.machine.busy = 0.3;
    observed.connections.clear();
    publisher(&mut observed).in_flight_max = Some(12);
    stage(&mut observed, "WaitForBuffer", 3.0);
    stage(&mut observed, "WaitForAck", 46.0);
    let found = first(&observed, Cause::TooFewInFlight).findings.remove(0);
    assert_eq!(found.remedy.change, Some(Change::BatchesInFlight(8)));
}

#[test]
fn a_refuted_finding_limits_nothing_and_neither_does_nothing() {
    let mut observed = publishing(4);
    stage(&mut observed, "WaitForBuffer", 3.0);
    senders(&mut observed).for_each(|end| end.window_full = 0.9);
    let mut diagnosis = first(&observed, Cause::ReceiveWindowTooSmall);
    let marked = |diagnosis: &Diagnosis| Picture(diagnosis).to_string().contains("limits");
    assert!(marked(&diagnosis));
    diagnosis.findings.truncate(1);
    let same = Series::new([1.0; 8]).expect("finite");
    let same = Comparison::of(("a", &same), ("b", &same), Better::Higher).expect("pairs");
    diagnosis.findings[0].verified = Some(Verified::new(&same, 0.5, 0.0));
    diagnosis.withdraw();
    assert!(!marked(&diagnosis), "{}", Picture(&diagnosis));
    let causes: Vec<_> = diagnosis.findings.iter().map(|it| it.cause).collect();
    assert_eq!(causes, [Cause::NothingFound, Cause::ReceiveWindowTooSmall]);
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
    // Its publishers' batches are as large as is worth trying.
    let found = first(&observed, Cause::SequencerBound).findings.remove(0);
    assert_eq!(found.remedy.change, None);
    publisher(&mut observed).batch_bytes = Some(64 << 10);
    let found = first(&observed, Cause::SequencerBound).findings.remove(0);
    assert_eq!(found.remedy.change, Some(Change::BatchSize(2 << 20)));
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

#[test]
fn no_number_of_a_file_breaks_a_diagnosis() {
    let mut both = reading(2);
    both.flow = Flow::Both;
    both.publisher = publishing(2).publisher;
    for observed in [publishing(2), both] {
        let mut document = serde_json::to_value(&observed).expect("JSON");
        let count = numbers(&mut document).len();
        let extremes = [
            "0",
            "1",
            "4294967295",
            "18446744073709551615",
            "1e300",
            "-1.5",
        ];
        for extreme in extremes {
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

#[test]
fn a_thread_with_more_connections_than_the_others_of_its_broker_is_a_hot_lane() {
    let mut observed = publishing(4);
    for broker in &mut observed.brokers {
        broker.network = vec![
            thread("embar-net-0", 0.97, 0.0),
            thread("embar-net-1", 0.02, 0.0),
        ];
    }
    let diagnosis = first(&observed, Cause::HotLane);
    let change = diagnosis.findings[0].remedy.change.as_ref();
    assert_eq!(change, Some(&Change::ThreadsPerBroker(2)));
    // Where all work, another thread may help.
    for broker in &mut observed.brokers {
        broker.network[1].on_cpu = 0.9;
    }
    first(&observed, Cause::ReceiverCpuBound);
}

#[test]
fn sends_that_move_little_are_named_by_their_calls() {
    let mut observed = publishing(2);
    saturate(&mut observed);
    observed.machine.syscall_s = Some(1e-6);
    let calls = 4_000_000;
    let publisher = publisher(&mut observed);
    for sender in &mut publisher.senders {
        sender.on_cpu = 0.6;
    }
    publisher.profile = profile(
        &[("BufferWrite", 0.5, 1), ("WaitForBuffer", 2.9, 1)],
        &[
            ("send_calls", calls),
            ("send_bytes", calls * 2048),
            ("batches", calls),
        ],
    );
    let diagnosis = first(&observed, Cause::SmallWrites);
    assert_eq!(diagnosis.findings[0].part, Resource::Senders);
}

#[test]
fn a_disk_that_is_waited_for_is_named_with_what_it_did() {
    let mut observed = publishing(4);
    observed.machine.busy = 0.3;
    observed.machine.iowait = 0.4;
    observed.machine.io_pressure = Some(0.7);
    observed.machine.disks = vec![Disk {
        name: "vda".into(),
        busy: 0.9,
        flushes: 40,
        flush_s: 0.02,
        ..Disk::default()
    }];
    let finding = first(&observed, Cause::DiskBound).findings.remove(0);
    let said: Vec<&str> = finding.evidence.iter().map(|it| it.what.as_str()).collect();
    assert!(said.contains(&"vda was busy"), "{said:?}");
    assert!(said.contains(&"a flush of vda took"), "{said:?}");
    assert!(!said.contains(&"a write of vda took"), "{said:?}");
}
