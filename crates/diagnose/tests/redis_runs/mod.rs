//! Runs of Redis as numbers: of callers and three nodes, and of servers alone.
#![allow(dead_code, reason = "each test takes what it needs")]

use embar_diagnose::observed::{Machine, Thread};
use embar_diagnose::picture::Picture;
use embar_diagnose::redis::diagnose;
use embar_diagnose::redis::observed::{Client, CommandUse, Node, Observed, Probe, Server, Traffic};
use embar_diagnose::{Cause, Diagnosis, Finding};

pub const SECONDS: f64 = 4.0;

pub fn thread(name: &str, on_cpu: f64, waiting: f64) -> Thread {
    Thread {
        name: name.into(),
        on_cpu,
        system: 0.6,
        waiting,
        ..Thread::default()
    }
}

pub fn command(name: &str, calls: u64, seconds: f64) -> CommandUse {
    CommandUse {
        name: name.into(),
        calls,
        seconds,
    }
}

/// One of three nodes of a cluster, with `commands` commands.
pub fn node(port: u16, commands: u64) -> Node {
    Node {
        name: format!("127.0.0.1:{port}"),
        slots: Some(5461),
        threads: vec![thread("redis-server", 0.35, 0.02)],
        server: Some(Server {
            commands: Some(commands),
            sent_bytes: Some(commands * 200),
            received_bytes: Some(commands * 60),
            main_thread_s: Some(0.35 * SECONDS),
            clients: Some(4),
            by_command: Some(vec![
                command("get", commands * 4 / 5, 0.1),
                command("set", commands / 5, 0.05),
            ]),
            slow: Some(Vec::new()),
        }),
        traffic: Some(Traffic {
            replies: commands,
            sent_bytes: commands * 60,
            received_bytes: commands * 200,
            writes: commands / 8,
            reads: commands / 8,
            latency_s: 300e-6,
            in_flight: 20.0,
            full: 0.0,
            silent: 0.0,
            silent_longest_s: 0.0,
        }),
        probe: Some(Probe {
            answered: 150,
            unanswered: 0,
            mean_s: 200e-6,
            longest_s: 1e-3,
        }),
    }
}

/// Callers on two threads, three nodes, and a machine that has processors to spare.
pub fn calling(cores: u32) -> Observed {
    let nodes: Vec<Node> = (7000..7003).map(|port| node(port, 200_000)).collect();
    Observed {
        seconds: SECONDS,
        operations: 600_000,
        errors: 0,
        machine: Machine {
            cores,
            busy: 2.9 / f64::from(cores.max(3)),
            ours: 2.8 / f64::from(cores.max(3)),
            others: 0.02,
            ..Machine::default()
        },
        client: Some(Client {
            callers: 64,
            pipeline: 1,
            threads: vec![thread("calls-0", 0.9, 0.02), thread("calls-1", 0.88, 0.02)],
            connection_threads: Vec::new(),
            latency_s: 420e-6,
            between_s: 0.3,
            in_flight_max: 4096,
            connections_per_node: 1,
            by_tls: false,
            keys: Vec::new(),
        }),
        nodes,
        over_time: Vec::new(),
        missing: Vec::new(),
    }
}

/// Servers that others use, on other machines.
pub fn servers() -> Observed {
    let mut observed = calling(2);
    observed.client = None;
    observed.machine = Machine::default();
    for node in &mut observed.nodes {
        node.threads.clear();
        node.traffic = None;
    }
    observed
}

pub fn client(observed: &mut Observed) -> &mut Client {
    observed.client.as_mut().expect("callers")
}

pub fn traffic(node: &mut Node) -> &mut Traffic {
    node.traffic.as_mut().expect("counted")
}

pub fn server(node: &mut Node) -> &mut Server {
    node.server.as_mut().expect("it says")
}

pub fn first(observed: &Observed) -> Finding {
    let diagnosis = diagnose(observed);
    assert!(!diagnosis.findings.is_empty());
    check(&diagnosis);
    diagnosis.findings[0].clone()
}

pub fn names(observed: &Observed, cause: Cause) -> bool {
    let diagnosis = diagnose(observed);
    check(&diagnosis);
    diagnosis.findings.iter().any(|it| it.cause == cause)
}

/// What holds for each diagnosis.
pub fn check(diagnosis: &Diagnosis) {
    for finding in &diagnosis.findings {
        assert!((0.0..=1.0).contains(&finding.confidence), "{finding:?}");
        assert!(finding.gain_at_most >= 0.0 && finding.gain_at_most.is_finite());
        assert!(!finding.evidence.is_empty() && !finding.remedy.text.is_empty());
        assert!(
            finding.evidence.iter().all(|it| it.value.is_finite()),
            "{finding:?}"
        );
    }
    for used in &diagnosis.limits.uses {
        assert!((0.0..=1.0).contains(&used.share), "{used:?}");
    }
    assert!(!Picture(diagnosis).to_string().is_empty());
}

/// The third node gets so many of a million commands.
pub fn skewed(commands: u64) -> Observed {
    let mut observed = calling(8);
    for (index, node) in observed.nodes.iter_mut().enumerate() {
        let own = if index == 2 {
            commands
        } else {
            (1_000_000 - commands) / 2
        };
        server(node).commands = Some(own);
        traffic(node).replies = own;
    }
    observed.nodes[2].threads = vec![thread("redis-server", 0.7, 0.0)];
    observed
}
