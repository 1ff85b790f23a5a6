//! Each cause of Redis, as numbers of the kind that real runs give, must come first, and what is just not it must not be
//! named.

mod redis_runs;

use embar_diagnose::observed::Machine;
use embar_diagnose::redis::diagnose;
use embar_diagnose::redis::observed::{KeyShare, Probe, SlowCommand, Traffic};
use embar_diagnose::{Cause, Change};
use redis_runs::*;

#[test]
fn an_ordinary_run_has_no_fault() {
    let mut observed = calling(8);
    assert_eq!(first(&observed).cause, Cause::NothingFound);
    observed.machine.busy = 0.99;
    observed.machine.ours = 0.95;
    assert_eq!(first(&observed).cause, Cause::MachineWall);
    assert_eq!(first(&servers()).cause, Cause::NothingFound);
}

#[test]
fn a_node_that_answers_late_is_slow() {
    let mut observed = calling(8);
    client(&mut observed).threads = vec![thread("calls-0", 0.4, 0.0)];
    let slow = &mut observed.nodes[2];
    slow.threads = vec![thread("redis-server", 0.1, 0.0)];
    let seen = traffic(slow);
    (seen.latency_s, seen.silent, seen.silent_longest_s) = (2.1e-3, 0.5, 0.012);
    let finding = first(&observed);
    assert_eq!(finding.cause, Cause::SlowNode);
    assert!(finding.evidence[0].what.contains("127.0.0.1:7002"));
    assert!(finding.gain_at_most > 0.5, "{}", finding.gain_at_most);
    // Twice as late is a matter of chance.
    traffic(&mut observed.nodes[2]).latency_s = 600e-6;
    assert!(!names(&observed, Cause::SlowNode));
    // But not that PINGs wait ten times as long.
    observed.nodes[2].probe.as_mut().expect("asked").mean_s = 2e-3;
    assert!(names(&observed, Cause::SlowNode));
    observed.nodes[2].probe.as_mut().expect("asked").mean_s = 400e-6;
    assert!(!names(&observed, Cause::SlowNode));
    // So is a little time, however many times that of others it is.
    for node in &mut observed.nodes {
        traffic(node).latency_s = 20e-6;
    }
    traffic(&mut observed.nodes[2]).latency_s = 100e-6;
    assert!(!names(&observed, Cause::SlowNode));
}

#[test]
fn pings_tell_a_slow_node_where_nobody_else_does() {
    let mut observed = servers();
    let probe = observed.nodes[0].probe.as_mut().expect("asked");
    (probe.mean_s, probe.longest_s) = (4e-3, 13e-3);
    assert_eq!(first(&observed).cause, Cause::SlowNode);
}

#[test]
fn a_node_that_never_answers_is_named() {
    // Nobody has its latency, and INFO may have been answered before or not.
    let unanswered = Probe {
        unanswered: 3,
        ..Probe::default()
    };
    for said in [servers().nodes.swap_remove(1).server, None] {
        let mut observed = servers();
        (observed.nodes[1].server, observed.nodes[1].probe) = (said, Some(unanswered));
        let finding = first(&observed);
        assert_eq!(finding.cause, Cause::SlowNode);
        assert!(
            finding.evidence[0].what.contains("127.0.0.1:7001"),
            "{finding:?}"
        );
        assert!(
            finding.remedy.text.contains("127.0.0.1:7001"),
            "{finding:?}"
        );
    }
    // Nobody asked it.
    let mut observed = servers();
    observed.nodes[1].probe = Some(Probe::default());
    assert_eq!(first(&observed).cause, Cause::NothingFound);

    // Commands wait, with PINGs that have no answer or without any.
    for probe in [Some(unanswered), None] {
        let mut observed = calling(8);
        client(&mut observed).threads = vec![thread("calls-0", 0.1, 0.0)];
        observed.nodes[2].threads = vec![thread("redis-server", 0.0, 0.0)];
        observed.nodes[2].probe = probe;
        *traffic(&mut observed.nodes[2]) = Traffic {
            in_flight: 60.0,
            silent: 0.97,
            silent_longest_s: 3.9,
            ..Traffic::default()
        };
        assert_eq!(first(&observed).cause, Cause::SlowNode);
        // It is at work on one command all the time.
        observed.nodes[2].threads = vec![thread("redis-server", 0.99, 0.0)];
        assert_eq!(first(&observed).cause, Cause::BlockedServer);
        // Nobody sends it anything.
        *traffic(&mut observed.nodes[2]) = Traffic::default();
        observed.nodes[2].probe = None;
        assert!(!names(&observed, Cause::BlockedServer));
    }
}

#[test]
fn one_server_alone_is_slow_if_it_says_nothing_and_does_not_work() {
    let mut observed = calling(8);
    observed.nodes.truncate(1);
    observed.nodes[0].slots = None;
    client(&mut observed).threads = vec![thread("calls-0", 0.4, 0.0)];
    let seen = traffic(&mut observed.nodes[0]);
    (seen.silent, seen.silent_longest_s) = (0.5, 0.012);
    assert_eq!(first(&observed).cause, Cause::SlowNode);
    // It works meanwhile: with something of its own.
    observed.nodes[0].threads = vec![thread("redis-server", 0.99, 0.0)];
    assert!(!names(&observed, Cause::SlowNode));
}

#[test]
fn a_node_with_more_than_its_part_of_the_commands_is_hot() {
    let mut observed = skewed(800_000);
    assert_eq!(first(&observed).cause, Cause::HotSlot);
    client(&mut observed).keys = vec![KeyShare {
        key: "0000000000000000".into(),
        slot: 11_000,
        share: 0.7,
    }];
    let finding = first(&observed);
    assert_eq!(finding.cause, Cause::HotKey);
    let named = |it: &embar_diagnose::Evidence| it.what.contains("0000000000000000");
    assert!(finding.evidence.iter().any(named));
    // A key that explains little of it is not to blame.
    client(&mut observed).keys[0].share = 0.1;
    assert_eq!(first(&observed).cause, Cause::HotSlot);
}

#[test]
fn a_node_with_the_commands_of_its_slots_is_not_hot() {
    let mut observed = skewed(800_000);
    observed.nodes[0].slots = Some(1638);
    observed.nodes[1].slots = Some(1638);
    observed.nodes[2].slots = Some(13_108);
    assert!(!names(&observed, Cause::HotSlot));
    assert!(!names(&skewed(420_000), Cause::HotSlot));
    // Of one server nobody can say.
    let mut one = skewed(800_000);
    one.nodes.truncate(1);
    assert!(!names(&one, Cause::HotSlot) && !names(&one, Cause::HotKey));
}

#[test]
fn a_node_whose_replies_are_large_has_a_big_value() {
    let mut observed = calling(8);
    let seen = traffic(&mut observed.nodes[1]);
    seen.received_bytes = seen.replies * 34_000;
    seen.latency_s = 900e-6;
    let finding = first(&observed);
    assert_eq!(finding.cause, Cause::BigValue);
    assert!(finding.evidence[0].what.contains("127.0.0.1:7001"));
    assert!(!names(&observed, Cause::SlowNode), "it is explained");
    // Four times as long as others is usual.
    let seen = traffic(&mut observed.nodes[1]);
    seen.received_bytes = seen.replies * 800;
    assert!(!names(&observed, Cause::BigValue));
    // And so is what is short.
    for node in &mut observed.nodes {
        let seen = traffic(node);
        seen.received_bytes = seen.replies * 8;
    }
    let seen = traffic(&mut observed.nodes[1]);
    seen.received_bytes = seen.replies * 1000;
    assert!(!names(&observed, Cause::BigValue));
}

#[test]
fn long_commands_block_a_server() {
    let mut observed = calling(8);
    client(&mut observed).threads = vec![thread("calls-0", 0.4, 0.0)];
    let kinds = &mut server(&mut observed.nodes[2]).by_command;
    kinds.get_or_insert_default().push(command("keys", 20, 2.0));
    traffic(&mut observed.nodes[2]).latency_s = 3e-3;
    let finding = first(&observed);
    assert_eq!(finding.cause, Cause::BlockedServer);
    assert!(finding.remedy.text.contains("keys"));
    assert!(!names(&observed, Cause::SlowNode), "it is explained");
    assert!(!names(&observed, Cause::TooFewCallers));
    // Much of a command that is short is no block.
    let kinds = &mut server(&mut observed.nodes[2]).by_command;
    kinds.get_or_insert_default().pop();
    kinds
        .get_or_insert_default()
        .push(command("hgetall", 20_000, 2.0));
    assert!(!names(&observed, Cause::BlockedServer));
}

#[test]
fn the_slow_log_names_what_commands_of_a_name_hide() {
    let mut observed = servers();
    let slow = |name: &str| SlowCommand {
        name: name.into(),
        count: 20,
        seconds: 2.0,
        longest_s: 0.2,
    };
    // Most scripts are short.
    server(&mut observed.nodes[0]).slow = Some(vec![slow("eval")]);
    assert_eq!(first(&observed).cause, Cause::BlockedServer);
    // A GET does not take long by itself: somebody stopped the server.
    server(&mut observed.nodes[0]).slow = Some(vec![slow("get")]);
    assert!(!names(&observed, Cause::BlockedServer));
    let server = server(&mut observed.nodes[0]);
    (server.slow, server.by_command) = (None, None);
    assert!(!names(&observed, Cause::BlockedServer), "nobody knows");
}

#[test]
fn a_server_that_works_all_the_time_is_the_limit() {
    let mut observed = calling(8);
    client(&mut observed).threads = vec![thread("calls-0", 0.3, 0.0)];
    observed.nodes[0].threads = vec![thread("redis-server", 0.98, 0.0)];
    let finding = first(&observed);
    assert_eq!(finding.cause, Cause::ServerCpuBound);
    // On a full machine there is no processor for another one.
    observed.machine.busy = 0.97;
    observed.machine.ours = 0.95;
    assert_eq!(first(&observed).cause, Cause::MachineWall);
    // Of another machine it says so itself.
    let mut remote = servers();
    server(&mut remote.nodes[0]).main_thread_s = Some(0.95 * SECONDS);
    assert_eq!(first(&remote).cause, Cause::ServerCpuBound);
    server(&mut remote.nodes[0]).main_thread_s = Some(0.7 * SECONDS);
    assert!(!names(&remote, Cause::ServerCpuBound));
}

#[test]
fn callers_that_wait_for_a_place_have_too_few() {
    let mut observed = calling(8);
    let own = client(&mut observed);
    own.threads = vec![thread("calls-0", 0.4, 0.0)];
    (own.in_flight_max, own.latency_s) = (4, 1.8e-3);
    for node in &mut observed.nodes {
        let seen = traffic(node);
        (seen.full, seen.in_flight) = (0.8, 3.8);
    }
    let finding = first(&observed);
    assert_eq!(finding.cause, Cause::FullPipe);
    assert_eq!(finding.remedy.change, Some(Change::MaxInFlight(64)));
    assert!(!names(&observed, Cause::TooFewCallers));
    // Places are taken, and nobody waits for one.
    client(&mut observed).latency_s = 310e-6;
    assert!(!names(&observed, Cause::FullPipe));
}

#[test]
fn encryption_costs_where_something_works_all_the_time() {
    let mut observed = calling(2);
    observed.machine.busy = 0.99;
    observed.machine.ours = 0.97;
    for node in &mut observed.nodes {
        let seen = traffic(node);
        (seen.writes, seen.reads) = (100_000, 50_000);
    }
    client(&mut observed).by_tls = true;
    let finding = first(&observed);
    assert_eq!(finding.cause, Cause::TlsCost);
    assert_eq!(finding.remedy.change, Some(Change::PlainConnections));
    client(&mut observed).by_tls = false;
    assert!(!names(&observed, Cause::TlsCost));
    // Who has time to spare has it for that, too.
    observed.machine.busy = 0.3;
    let own = client(&mut observed);
    own.by_tls = true;
    own.threads = vec![thread("calls-0", 0.4, 0.0)];
    assert!(!names(&observed, Cause::TlsCost));
}

#[test]
fn an_application_that_computes_keeps_its_threads() {
    let mut observed = calling(8);
    let own = client(&mut observed);
    own.threads = vec![thread("calls-0", 0.98, 0.0), thread("calls-1", 0.97, 0.0)];
    (own.between_s, own.latency_s) = (7.0, 3.5e-3);
    assert_eq!(first(&observed).cause, Cause::CallerRuntimeBusy);
    // What it does between operations is little.
    client(&mut observed).between_s = 0.8;
    assert!(!names(&observed, Cause::CallerRuntimeBusy));
}

#[test]
fn callers_that_do_something_else_make_the_application_slow() {
    let mut observed = calling(8);
    observed.machine.busy = 0.1;
    let own = client(&mut observed);
    own.threads = vec![thread("calls-0", 0.2, 0.0), thread("calls-1", 0.2, 0.0)];
    own.between_s = 240.0;
    let finding = first(&observed);
    assert_eq!(finding.cause, Cause::ApplicationTooSlow);
    assert!(!names(&observed, Cause::CallerRuntimeBusy));
    assert!(!names(&observed, Cause::TooFewCallers));
    client(&mut observed).between_s = 20.0;
    assert!(!names(&observed, Cause::ApplicationTooSlow));
}

#[test]
fn one_caller_is_too_few_where_nobody_works() {
    let mut observed = calling(8);
    observed.machine.busy = 0.15;
    let own = client(&mut observed);
    (own.callers, own.between_s, own.latency_s) = (1, 0.05, 70e-6);
    own.threads = vec![thread("calls-0", 0.3, 0.0), thread("calls-1", 0.2, 0.0)];
    for node in &mut observed.nodes {
        node.threads = vec![thread("redis-server", 0.15, 0.0)];
        let seen = traffic(node);
        (seen.in_flight, seen.latency_s) = (0.3, 60e-6);
    }
    let finding = first(&observed);
    assert_eq!(finding.cause, Cause::TooFewCallers);
    assert_eq!(finding.remedy.change, Some(Change::Callers(48)));
    assert!(finding.gain_at_most > 1.0);
    // Calls that carry one command each may fill the machine, and more callers cost no more of them.
    (observed.machine.cores, observed.machine.busy) = (2, 0.9);
    observed.machine.ours = 0.9;
    assert_eq!(first(&observed).cause, Cause::TooFewCallers);
    // A machine that many callers fill is full.
    client(&mut observed).callers = 64;
    assert!(!names(&observed, Cause::TooFewCallers));
    // And a thread that works all the time is what many callers wait for.
    (observed.machine.cores, observed.machine.busy) = (8, 0.3);
    assert!(names(&observed, Cause::TooFewCallers));
    client(&mut observed).threads[0] = thread("calls-0", 0.95, 0.0);
    assert!(!names(&observed, Cause::TooFewCallers));
}

#[test]
fn others_that_take_processors_matter_to_those_that_wait_for_one() {
    let mut observed = calling(2);
    observed.machine = Machine {
        cores: 2,
        busy: 1.0,
        ours: 0.45,
        others: 0.5,
        ..Machine::default()
    };
    client(&mut observed).threads = vec![thread("calls-0", 0.3, 0.6), thread("calls-1", 0.3, 0.6)];
    assert_eq!(first(&observed).cause, Cause::ProcessorsTakenByOthers);
    // A node that is stopped half of the time is what callers wait for, whatever others do.
    client(&mut observed).threads = vec![thread("calls-0", 0.3, 0.02)];
    let seen = traffic(&mut observed.nodes[2]);
    (seen.latency_s, seen.silent) = (4e-3, 0.5);
    observed.nodes[2].threads = vec![thread("redis-server", 0.1, 0.02)];
    assert_eq!(first(&observed).cause, Cause::SlowNode);
    observed.machine.busy = 0.5;
    observed.machine.throttled = Some(0.4);
    assert!(names(&observed, Cause::ProcessorQuota));
}

#[test]
fn processors_that_others_take_are_named_where_nobody_knows_who_waits() {
    let mut observed = calling(2);
    let machine = &mut observed.machine;
    (machine.busy, machine.ours, machine.others) = (1.0, 0.4, 0.6);
    // Without /proc/PID/schedstat nobody knows.
    for known in [0.4, 0.0] {
        client(&mut observed).threads = vec![thread("calls-0", 0.3, known)];
        for node in &mut observed.nodes {
            node.threads = vec![thread("redis-server", 0.1, known)];
        }
        assert!(names(&observed, Cause::ProcessorsTakenByOthers), "{known}");
    }
}

#[test]
fn no_more_places_are_tried_than_there_are() {
    let mut observed = calling(8);
    observed.nodes.truncate(1);
    client(&mut observed).latency_s = 10.0 * traffic(&mut observed.nodes[0]).latency_s;
    client(&mut observed).callers = 20_000;
    traffic(&mut observed.nodes[0]).full = 0.95;
    for (places, tried) in [(1024, Some(4096)), (4000, None), (4096, None), (8192, None)] {
        client(&mut observed).in_flight_max = places;
        let found = diagnose(&observed).findings;
        let full = found.iter().find(|it| it.cause == Cause::FullPipe);
        let change = &full.expect("it is full").remedy.change;
        assert_eq!(*change, tried.map(Change::MaxInFlight), "{places}");
    }
}
