//! Each cause in message sessions, as numbers of the kind that real runs give, must come first; and an ordinary run has none.

mod common;

use std::collections::BTreeSet;

use common::{numbers, thread};
use embar_diagnose::observed::{Connection, Machine, ReceivingEnd, SendingEnd, Thread};
use embar_diagnose::session::diagnose;
use embar_diagnose::session::observed::{Application, End, Large, Observed, Way};
use embar_diagnose::{Cause, Change, Finding, Resource};

const SECONDS: f64 = 4.0;

fn end(name: &str, on_cpu: f64, messages: u64, bytes: u64) -> End {
    End {
        workers: vec![thread(name, on_cpu, 0.02)],
        sessions: Some(1),
        messages_received: Some(messages),
        bytes_received: Some(bytes),
        bytes_sent: Some(bytes),
        reads: Some(bytes / 65_536),
        writes: Some(bytes / 65_536),
        send_ring_bytes: Some(256 << 10),
        ..End::default()
    }
}

/// A run one way with processors to spare, in which the sending thread does what it can.
fn one_way(cores: u32) -> Observed {
    let messages = 40_000_000;
    let bytes = messages * 80;
    Observed {
        seconds: SECONDS,
        way: Way::OneWay,
        messages,
        bytes,
        machine: Machine {
            cores,
            busy: 2.0 / f64::from(cores),
            ours: 1.95 / f64::from(cores),
            syscall_s: Some(3e-7),
            tcp_rmem_max: Some(32 << 20),
            ..Machine::default()
        },
        application: Some(Application {
            threads: vec![thread("send-0", 0.7, 0.02)],
            waited_for_room: 0.15,
            waited_to_leave: 0.0,
            waits_after: None,
            in_sends: Some(0.9),
            is_bench: false,
        }),
        client: Some(End {
            messages_received: Some(0),
            bytes_received: Some(0),
            reads: Some(0),
            ..end("sess-client-0", 0.5, 0, bytes)
        }),
        server: Some(End {
            in_handlers: Some(0.05),
            in_decoding: Some(0.1),
            ..end("sess-server-0", 0.6, messages, bytes)
        }),
        connections: vec![Connection {
            sender: Some(SendingEnd {
                busy: 0.9,
                sent_bytes: bytes,
                round_trip_s: 60e-6,
                round_trip_min_s: 10e-6,
                window_bytes: 3 << 20,
                buffer_bytes: 2 << 20,
                ..SendingEnd::default()
            }),
            receiver: Some(ReceivingEnd {
                buffer_bytes: 6 << 20,
                ..ReceivingEnd::default()
            }),
            ..Connection::default()
        }],
        ..Observed::default()
    }
}

/// Messages there and back, with so many on their way.
fn echo(cores: u32, in_flight: u64) -> Observed {
    let mut observed = one_way(cores);
    observed.way = Way::Echo;
    observed.application = None;
    observed.in_flight = Some(in_flight);
    observed
}

fn sender(observed: &mut Observed) -> &mut SendingEnd {
    let connection = observed.connections.first_mut().expect("one");
    connection.sender.as_mut().expect("it was seen")
}

fn client(observed: &mut Observed) -> &mut End {
    observed.client.as_mut().expect("there is one")
}

fn server(observed: &mut Observed) -> &mut End {
    observed.server.as_mut().expect("there is one")
}

fn application(observed: &mut Observed) -> &mut Application {
    observed.application.as_mut().expect("there is one")
}

fn saturate(observed: &mut Observed) {
    observed.machine.busy = 0.99;
    observed.machine.ours = 0.97;
}

#[track_caller]
fn first(observed: &Observed, cause: Cause) -> Finding {
    let mut findings = diagnose(observed).findings;
    assert_eq!(findings[0].cause, cause, "{findings:#?}");
    findings.remove(0)
}

#[test]
fn an_ordinary_run_has_no_fault_and_a_full_machine_is_its_wall() {
    first(&one_way(4), Cause::NothingFound);
    let mut full = one_way(2);
    saturate(&mut full);
    first(&full, Cause::MachineWall);
}

#[test]
fn an_application_that_sleeps_or_computes_is_too_slow() {
    let mut observed = one_way(4);
    let its = application(&mut observed);
    (its.waited_for_room, its.in_sends) = (0.0, Some(0.1));
    its.threads = vec![thread("send-0", 0.15, 0.0)];
    first(&observed, Cause::ApplicationTooSlow);
    let its = application(&mut observed);
    its.threads = vec![thread("send-0", 0.98, 0.0)];
    first(&observed, Cause::ApplicationTooSlow);
    application(&mut observed).is_bench = true;
    first(&observed, Cause::BenchmarkItself);
}

#[test]
fn handlers_that_keep_their_worker_are_named_and_what_is_full_before_them_is_not() {
    for on_cpu in [0.97, 0.05] {
        let mut observed = one_way(4);
        application(&mut observed).waited_for_room = 0.9;
        sender(&mut observed).window_full = 0.9;
        let its = server(&mut observed);
        its.workers = vec![thread("sess-server-0", on_cpu, 0.01)];
        its.in_handlers = Some(0.9);
        first(&observed, Cause::SlowHandler);
        let named = diagnose(&observed).findings;
        let blamed = |it: &Finding| it.cause == Cause::ReceiveWindowTooSmall;
        assert!(!named.iter().any(blamed), "{named:#?}");
    }
}

#[test]
fn a_ring_that_is_full_while_nobody_works_is_too_small() {
    let mut observed = one_way(4);
    application(&mut observed).waited_for_room = 0.7;
    application(&mut observed).threads[0].sleeps_per_s = 18_000.0;
    server(&mut observed).workers[0].sleeps_per_s = 18_000.0;
    client(&mut observed).send_ring_bytes = Some(4096);
    let finding = first(&observed, Cause::SendRingTooSmall);
    assert_eq!(finding.remedy.change, Some(Change::SendRing(256 << 10)));
    // A large one that is full waits for what is behind it.
    client(&mut observed).send_ring_bytes = Some(1 << 20);
    first(&observed, Cause::NothingFound);
}

#[test]
fn windows_and_send_buffers_that_hold_little_are_named() {
    let mut observed = one_way(4);
    sender(&mut observed).window_full = 0.8;
    sender(&mut observed).window_bytes = 4096;
    server(&mut observed).recv_buffer = Some(4096);
    let finding = first(&observed, Cause::ReceiveWindowTooSmall);
    assert_eq!(finding.remedy.change, Some(Change::ReceiveBufferTuned));

    let mut observed = one_way(4);
    sender(&mut observed).buffer_bytes = 9216;
    client(&mut observed).send_buffer = Some(4096);
    server(&mut observed).workers = vec![thread("sess-server-0", 0.3, 0.0)];
    client(&mut observed).workers = vec![thread("sess-client-0", 0.3, 0.0)];
    let finding = first(&observed, Cause::SendBufferTooSmall);
    assert_eq!(finding.remedy.change, Some(Change::SendBufferTuned));
}

#[test]
fn few_messages_on_their_way_are_too_few() {
    let mut observed = echo(4, 1);
    observed.messages = 100_000;
    client(&mut observed).workers = vec![thread("sess-client-0", 0.2, 0.0)];
    server(&mut observed).workers = vec![thread("sess-server-0", 0.2, 0.0)];
    observed.machine.busy = 0.15;
    let finding = first(&observed, Cause::TooFewInFlight);
    assert_eq!(finding.remedy.change, Some(Change::InFlight(32)));
    assert!(finding.gain_at_most > 1.0);
    // Many keep somebody busy.
    let mut many = echo(4, 64);
    client(&mut many).workers = vec![thread("sess-client-0", 0.8, 0.0)];
    first(&many, Cause::NothingFound);
}

#[test]
fn workers_that_work_all_the_time_are_too_few_where_there_are_processors() {
    let mut observed = one_way(4);
    server(&mut observed).workers = vec![thread("sess-server-0", 0.98, 0.0)];
    let finding = first(&observed, Cause::ReceiverCpuBound);
    assert_eq!(finding.remedy.change, None, "one session has one worker");
    server(&mut observed).sessions = Some(8);
    let finding = first(&observed, Cause::ReceiverCpuBound);
    assert_eq!(finding.remedy.change, Some(Change::Workers(2)));

    let mut observed = one_way(4);
    application(&mut observed).threads = vec![thread("send-0", 0.98, 0.0)];
    application(&mut observed).waited_for_room = 0.0;
    first(&observed, Cause::TooFewClientThreads);
}

#[test]
fn encryption_is_named_by_what_it_takes() {
    let mut observed = one_way(2);
    saturate(&mut observed);
    observed.by_tls = true;
    let finding = first(&observed, Cause::TlsCost);
    assert_eq!(finding.remedy.change, Some(Change::PlainConnections));
}

#[test]
fn sends_of_single_messages_are_small() {
    let mut observed = one_way(2);
    saturate(&mut observed);
    for end in [observed.client.as_mut(), observed.server.as_mut()]
        .into_iter()
        .flatten()
    {
        (end.writes, end.reads) = (Some(1_000_000), Some(1_000_000));
        (end.bytes_sent, end.bytes_received) = (Some(80_000_000), Some(80_000_000));
    }
    first(&observed, Cause::SmallWrites);
}

#[test]
fn a_thread_that_waits_until_each_message_has_left_sends_little_at_a_time() {
    let mut observed = one_way(4);
    observed.messages = 160_000;
    let its = application(&mut observed);
    (its.waited_for_room, its.waited_to_leave) = (0.0, 0.8);
    (its.in_sends, its.waits_after) = (Some(0.95), Some(1));
    its.threads = vec![thread("send-0", 0.15, 0.02)];
    let its = client(&mut observed);
    (its.writes, its.bytes_sent) = (Some(160_000), Some(13_000_000));
    its.workers = vec![thread("sess-client-0", 0.4, 0.02)];
    server(&mut observed).workers = vec![thread("sess-server-0", 0.4, 0.02)];
    let finding = first(&observed, Cause::SmallWrites);
    assert_eq!(finding.remedy.change, Some(Change::MessagesTogether(1024)));
    assert!(finding.gain_at_most > 0.5, "{finding:?}");
    // Whoever waits is not what is too slow, nor does it work all the time.
    let named = diagnose(&observed).findings;
    assert!(
        named.iter().all(|it| it.part != Resource::Application),
        "{named:#?}"
    );
}

#[test]
fn a_few_large_messages_hold_up_the_others() {
    let mut observed = one_way(4);
    observed.messages = 4_000_000;
    observed.bytes = 4_000_000_000;
    observed.large = Some(Large {
        messages: 62_000,
        bytes: 3_700_000_000,
    });
    let finding = first(&observed, Cause::BigValue);
    assert!(finding.gain_at_most > 0.2, "{finding:?}");
    // If all are large, none holds up others.
    observed.large = Some(Large {
        messages: 4_000_000,
        bytes: 4_000_000_000,
    });
    first(&observed, Cause::NothingFound);
    // And a few in many small ones take nothing.
    let mut rare = one_way(4);
    rare.large = Some(Large {
        messages: 10,
        bytes: 1_000_000,
    });
    first(&rare, Cause::NothingFound);
}

#[test]
fn messages_of_many_fields_take_long_to_decode_and_to_encode() {
    let mut observed = one_way(4);
    observed.messages = 2_000_000;
    server(&mut observed).messages_received = Some(2_000_000);
    server(&mut observed).workers = vec![thread("sess-server-0", 0.97, 0.0)];
    server(&mut observed).in_decoding = Some(0.8);
    application(&mut observed).waited_for_room = 0.6;
    first(&observed, Cause::DecodingBound);
    // The time in which a worker had no processor is not that of decoding.
    let mut waiting = observed.clone();
    server(&mut waiting).workers = vec![thread("sess-server-0", 0.2, 0.75)];
    let named = diagnose(&waiting).findings;
    let blamed = |it: &Finding| it.cause == Cause::DecodingBound;
    assert!(!named.iter().any(blamed), "{named:#?}");
    // The same time for many plain messages is not that of decoding.
    let mut plain = one_way(4);
    server(&mut plain).workers = vec![thread("sess-server-0", 0.97, 0.0)];
    server(&mut plain).in_decoding = Some(0.6);
    first(&plain, Cause::ReceiverCpuBound);

    let mut observed = one_way(4);
    observed.messages = 2_000_000;
    application(&mut observed).threads = vec![Thread {
        system: 0.1,
        ..thread("send-0", 0.98, 0.0)
    }];
    application(&mut observed).waited_for_room = 0.0;
    application(&mut observed).in_sends = Some(0.96);
    first(&observed, Cause::EncodingBound);
}

#[test]
fn the_way_and_the_machine_are_judged_as_those_of_the_log() {
    let mut observed = one_way(4);
    application(&mut observed).waited_for_room = 0.4;
    sender(&mut observed).round_trip_min_s = 4e-3;
    sender(&mut observed).round_trip_s = 5e-3;
    first(&observed, Cause::NetworkDelay);
    let mut observed = one_way(4);
    application(&mut observed).waited_for_room = 0.4;
    sender(&mut observed).resent_bytes = sender(&mut observed).sent_bytes / 50;
    first(&observed, Cause::NetworkLoss);
    let mut observed = one_way(2);
    (
        observed.machine.busy,
        observed.machine.ours,
        observed.machine.others,
    ) = (1.0, 0.5, 0.5);
    server(&mut observed).workers = vec![thread("sess-server-0", 0.4, 0.5)];
    first(&observed, Cause::ProcessorsTakenByOthers);
    let mut observed = one_way(4);
    observed.machine.throttled = Some(0.4);
    first(&observed, Cause::ProcessorQuota);
    // Packets that threads take late, which it stops, are sent again.
    sender(&mut observed).resent_bytes = sender(&mut observed).sent_bytes / 50;
    first(&observed, Cause::ProcessorQuota);
}

#[test]
fn no_number_of_a_file_breaks_a_diagnosis() {
    let mut with_large = one_way(2);
    with_large.large = Some(Large {
        messages: 1000,
        bytes: 64_000_000,
    });
    application(&mut with_large).waits_after = Some(1);
    let mut tried = BTreeSet::new();
    let all = [one_way(2), echo(2, 1), with_large, Observed::default()];
    for (kind, observed) in all.into_iter().enumerate() {
        let plain = serde_json::to_value(&observed).expect("JSON");
        let count = numbers(&mut plain.clone()).len();
        for index in 0..count {
            // Counts take whole numbers alone, and refuse what they cannot hold.
            for number in [
                "0",
                "1",
                "18446744073709551615",
                "0.0",
                "-1.5",
                "1e308",
                "1e-308",
            ] {
                let mut changed = plain.clone();
                *numbers(&mut changed)[index] = serde_json::from_str(number).expect("a number");
                let Ok(observed) = serde_json::from_value::<Observed>(changed) else {
                    continue;
                };
                tried.insert((kind, index, number));
                diagnose(&observed).findings.iter().for_each(sound);
            }
        }
        // All are tried; a broker's id and the number of processors alone have fewer digits than others.
        for (number, refused) in [("0", 0), ("1", 0), ("18446744073709551615", 2)] {
            let tried = { 0..count }.filter(|index| tried.contains(&(kind, *index, number)));
            assert!(tried.count() >= count - refused, "{number}");
        }
    }
}

/// What holds whatever a file says.
#[track_caller]
fn sound(finding: &Finding) {
    let can_be = |value: f64| value.is_finite() && value >= 0.0;
    assert!(can_be(finding.gain_at_most), "{finding:?}");
    assert!((0.0..=1.0).contains(&finding.confidence), "{finding:?}");
    let all = finding.evidence.iter().all(|it| can_be(it.value));
    assert!(all, "{finding:?}");
}

#[test]
fn all_counts_at_once_may_be_as_large_as_they_can_be() {
    for observed in [one_way(2), echo(2, 1)] {
        let mut changed = serde_json::to_value(&observed).expect("JSON");
        for number in numbers(&mut changed) {
            if number.is_u64() {
                *number = u64::from(u32::MAX).into();
            }
        }
        let mut observed: Observed = serde_json::from_value(changed).expect("they fit");
        for end in [&mut observed.client, &mut observed.server] {
            let end = end.as_mut().expect("there is one");
            (end.bytes_sent, end.writes) = (Some(u64::MAX), Some(u64::MAX));
            (end.bytes_received, end.reads) = (Some(u64::MAX), Some(u64::MAX));
        }
        diagnose(&observed).findings.iter().for_each(sound);
    }
}

#[test]
fn time_in_the_kernel_is_a_part_of_that_on_a_processor() {
    let mut observed = one_way(4);
    (observed.messages, observed.bytes) = (1000, 1000);
    application(&mut observed).threads = vec![Thread {
        system: 0.5,
        ..thread("send-0", 0.7, 0.0)
    }];
    application(&mut observed).waited_for_room = 0.0;
    application(&mut observed).in_sends = Some(0.96);
    let found = diagnose(&observed).findings;
    let encoding = found.iter().find(|it| it.cause == Cause::EncodingBound);
    let share = encoding
        .expect("half of its time on a processor is no system's")
        .evidence[0]
        .value;
    assert!((share - 0.35).abs() < 1e-3, "{share}");
}

#[test]
fn what_a_part_does_and_what_it_waits_for_are_of_one_thread() {
    let mut observed = one_way(4);
    server(&mut observed).workers = vec![
        thread("sess-server-0", 0.9, 0.01),
        thread("sess-server-1", 0.1, 0.7),
    ];
    let limits = diagnose(&observed).limits;
    let receivers = limits.uses.iter().find(|it| it.part == Resource::Receivers);
    let receivers = receivers.expect("it was seen");
    assert!((receivers.share - 0.91).abs() < 1e-9, "{receivers:?}");
    assert_eq!(receivers.without_processor, 0.01);
}
