//! Each cause in a publisher and in the buffers behind it, as numbers of the kind that real runs give, must come first; and an
//! ordinary run has none.

mod common;

use common::*;
use embar_diagnose::{Cause, Change};

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
fn a_send_buffer_that_is_filled_again_and_again_takes_the_time_of_a_full_machine() {
    let mut observed = reading(2);
    saturate(&mut observed);
    for end in senders(&mut observed) {
        (end.send_buffer_full, end.sent_bytes) = (0.0, 4 * GIB);
        end.buffer_bytes = 192 << 10;
    }
    let diagnosis = first(&observed, Cause::SendBufferTooSmall);
    let gain = diagnosis.findings[0].gain_at_most;
    assert!((0.1..0.6).contains(&gain), "{gain}");
    // One that the kernel made as large as it is needed has no part in it.
    senders(&mut observed).for_each(|end| end.buffer_bytes = 1 << 20);
    first(&observed, Cause::MachineWall);
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
    for sender in &mut publisher(&mut observed).senders {
        sender.sleeps_per_s = 15_000.0;
    }
    for broker in &mut observed.brokers {
        broker.network[0].sleeps_per_s = 12_000.0;
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
fn processors_of_a_container_may_be_taken_by_what_it_does_not_see() {
    let mut observed = publishing(2);
    saturate(&mut observed);
    observed.machine.ours = 0.3;
    observed.machine.others = 0.0;
    observed.machine.unseen = 0.66;
    observed.brokers[0].network[0].waiting = 0.4;
    let diagnosis = first(&observed, Cause::ProcessorsTakenByOthers);
    let causes: Vec<_> = diagnosis.findings.iter().map(|it| it.cause).collect();
    assert!(!causes.contains(&Cause::MachineWall), "{causes:?}");
}

#[test]
fn others_take_nothing_of_a_pipeline_that_does_nothing() {
    let mut observed = publishing(2);
    observed.machine.busy = 0.95;
    (observed.machine.ours, observed.machine.others) = (0.02, 0.93);
    observed.publisher = None;
    observed.connections.clear();
    for broker in &mut observed.brokers {
        broker.network = vec![thread("embar-net-0", 0.005, 0.02)];
        broker.profile = None;
    }
    first(&observed, Cause::NothingFound);
    observed.brokers[0].network[0].waiting = 0.4;
    first(&observed, Cause::ProcessorsTakenByOthers);
}

#[test]
fn a_process_that_names_no_thread_that_publishes_is_not_judged() {
    let mut observed = publishing(4);
    observed.machine.busy = 0.15;
    senders(&mut observed).for_each(|end| end.busy = 0.1);
    publisher(&mut observed).application.clear();
    first(&observed, Cause::NothingFound);
    publisher(&mut observed).profile = None;
    first(&observed, Cause::ApplicationTooSlow);
}

#[test]
fn each_cause_is_in_the_documentation() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/architecture/diagnosis.md"
    );
    let text = std::fs::read_to_string(path).expect("it is there");
    for cause in Cause::ALL {
        assert!(text.contains(&format!("`{cause}`")), "{cause}");
    }
}
