//! `bench redis` against real servers, for a moment: what it counts, and that it says what is wrong.

mod common;

use std::process::Output;

use common::{embar, eventually, output_of, run, signal, text};
use embar_redis_servers::{Cluster, ClusterOptions, Options, Server};
use serde_json::Value;

/// The options of a short bench, unless a test gives others.
const SHORT: [[&str; 2]; 3] = [
    ["--duration", "200ms"],
    ["--warmup", "50ms"],
    ["--keyspace", "100"],
];

fn server() -> Server {
    Server::start(&Options::default()).expect("a server")
}

fn bench(server: &[&str], args: &[&str]) -> Output {
    let short = SHORT.iter().filter(|option| !args.contains(&option[0]));
    let short: Vec<&str> = short.flatten().copied().collect();
    let args = [&["--json", "bench", "redis"], server, &short, args].concat();
    run(&mut embar(&args))
}

fn good(server: &[&str], args: &[&str]) -> Value {
    let output = bench(server, args);
    assert!(
        output.status.success(),
        "{args:?}: {}",
        text(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("one JSON object and nothing else")
}

/// The bench fails with this exit code; what it says.
fn bad(code: i32, server: &[&str], args: &[&str]) -> String {
    let output = bench(server, args);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    said
}

/// As [`good`], for as long as it takes until each run has so many operations, on any machine.
fn good_for(operations: u64, server: &[&str], args: &[&str]) -> Value {
    let mut ms = 200;
    loop {
        let duration = format!("{ms}ms");
        let said = good(server, &[args, &["--duration", &duration]].concat());
        let runs = said["runs"].as_array().expect("runs");
        if runs
            .iter()
            .all(|run| count(run, "operations") >= operations)
        {
            return said;
        }
        ms *= 2;
    }
}

fn count(value: &Value, name: &str) -> u64 {
    value[name]
        .as_u64()
        .unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// Everything that was counted of a run must add up.
fn check(run: &Value) {
    let [operations, hits, misses, sets] =
        ["operations", "hits", "misses", "sets"].map(|name| count(run, name));
    assert!(operations > 0, "{run}");
    assert_eq!(operations, hits + misses + sets);
    assert_eq!((count(run, "errors"), count(run, "wrong")), (0, 0));
    let seconds = run["seconds"].as_f64().expect("seconds");
    let rate = run["ops_per_s"].as_f64().expect("a rate");
    assert!((rate * seconds / operations as f64 - 1.0).abs() < 1e-6);
    let quantiles = ["p50_ns", "p99_ns", "p999_ns", "max_ns"].map(|name| count(run, name));
    assert!(quantiles.is_sorted() && quantiles[0] > 0, "{quantiles:?}");
    for cost in [
        "client_cpu_us_per_op",
        "replies_per_write",
        "replies_per_read",
    ] {
        assert!(run[cost].as_f64().is_some_and(|cost| cost > 0.0), "{cost}");
    }
}

#[test]
fn all_three_operations_are_counted() {
    let server = server();
    let at = server.address().to_string();
    let said = good_for(100, &["--standalone", &at], &["--operation", "all"]);
    let runs = said["runs"].as_array().expect("runs");
    runs.iter().for_each(check);
    let names: Vec<_> = runs.iter().map(|run| run["operation"].as_str()).collect();
    assert_eq!(names, [Some("set"), Some("get"), Some("mixed")]);
    let [set, get, mixed] = runs.as_slice() else {
        panic!("three runs");
    };
    assert_eq!(count(set, "sets"), count(set, "operations"));
    assert_eq!(count(get, "hits"), count(get, "operations"));
    assert!(count(mixed, "hits") > count(mixed, "sets"), "80 to 20");
    assert!(count(mixed, "sets") > 0);
    for (summary, run) in said["operations"]
        .as_array()
        .expect("some")
        .iter()
        .zip(runs)
    {
        for name in ["ops_per_s", "hits", "p50_ns", "p99_ns", "p999_ns"] {
            assert_eq!(summary[name].as_f64(), run[name].as_f64(), "{name}");
        }
    }
    assert_eq!(said["plan"]["keyspace"], 100);
    let keys = server.command(&["DBSIZE"]).expect("it answers");
    assert_eq!(keys, "100");
}

#[test]
fn every_kind_of_caller_works_with_a_cluster() {
    let cluster = Cluster::start(&ClusterOptions::default()).expect("a cluster");
    let at = cluster.seeds()[0].to_string();
    let at = ["--cluster", at.as_str()];
    let kinds = [
        &["--blocking-threads", "2"][..],
        &["--pipeline", "8", "--mux-per-node", "2"],
        &[
            "--pipeline",
            "8",
            "--callers",
            "0",
            "--blocking-threads",
            "1",
        ],
        &["--driver", "thread", "--owned-values"],
    ];
    for kind in kinds {
        let said = good_for(100, &at, &[&["--operation", "mixed"], kind].concat());
        let run = &said["runs"][0];
        check(run);
        assert_eq!(count(run, "misses"), 0, "{kind:?}");
        if run["tasks"].is_object() {
            let parts = [&run["tasks"], &run["blocking_threads"]];
            let sum: u64 = parts.iter().map(|part| count(part, "operations")).sum();
            assert_eq!(sum, count(run, "operations"));
            assert!(parts.iter().all(|part| count(part, "operations") > 0));
        }
    }
}

#[test]
fn keys_that_are_gone_are_misses() {
    let server = server();
    let at = server.address().to_string();
    let at = ["--standalone", at.as_str()];
    let args = ["--operation", "get", "--runs", "2"];
    let there = good(&at, &args);
    assert_eq!(there["operations"][0]["runs"], 2);
    assert_eq!(count(&there["operations"][0], "misses"), 0);
    server.command(&["FLUSHALL"]).expect("it answers");
    let gone = good(&at, &[&args[..], &["--no-load"]].concat());
    for run in gone["runs"].as_array().expect("runs") {
        check(run);
        assert_eq!(count(run, "misses"), count(run, "operations"));
    }
}

#[test]
fn values_of_other_keys_are_noticed() {
    let server = server();
    let at = server.address().to_string();
    let at = ["--standalone", at.as_str()];
    for pipeline in ["1", "4"] {
        // One key, so that whoever reads anything reads it.
        let args = ["--operation", "get", "--pipeline", pipeline];
        let args = [&args[..], &["--keyspace", "1"]].concat();
        good(&at, &args);
        let key = "0".repeat(16);
        server
            .command(&["SET", &key, "another"])
            .expect("it answers");
        let said = bad(4, &at, &[&args[..], &["--no-load"]].concat());
        assert!(said.contains("not those of their keys"), "{said}");
    }
}

#[test]
fn the_time_is_reported_by_stage() {
    let server = server();
    // A place for a reply allocates when it is used for the first time: so there are few. Nobody is
    // slow to take a reply, which would need another place for it, where there is one caller.
    let url = format!("redis://{}?max_in_flight=4", server.address());
    let args = ["--operation", "set", "--profile", "--callers", "1"];
    let said = good_for(100, &["--url", &url], &args);
    let profile = &said["runs"][0]["profile"];
    let stages = profile["stages"].as_array().expect("stages");
    let names: Vec<_> = stages.iter().map(|stage| stage["name"].as_str()).collect();
    let expected = ["Submit", "Encode", "Send", "Receive", "Parse", "Complete"];
    assert_eq!(names, expected.map(Some));
    assert!(stages.iter().all(|stage| count(stage, "count") > 0));
    assert!(count(profile, "cpu_ns") > 0);
    let each = ["allocations_per_op", "allocated_bytes_per_op"];
    for name in each {
        assert!(stages.iter().all(|stage| stage[name].is_number()), "{name}");
    }
    // Other than that sets are made without. What the bench does beside is counted, too.
    let in_stages: u64 = stages.iter().map(|of| count(of, "allocations")).sum();
    assert!(in_stages <= 4, "{profile}");
    assert!(count(profile, "allocations") > in_stages, "{profile}");
    let said = good(&["--url", &url], &args[..2]);
    assert!(said["runs"][0]["profile"].is_null());
}

#[test]
fn who_is_not_there_or_refuses_is_named() {
    let server = server();
    let at = server.address().to_string();
    drop(server);
    let soon = ["--timeout", "300ms"];
    for kind in ["--standalone", "--cluster"] {
        let said = bad(3, &[kind, &at], &soon);
        assert!(said.contains(&at), "{said}");
    }
    let locked = Server::start(&Options {
        password: Some("secret".into()),
        ..Options::default()
    });
    let locked = locked.expect("a server");
    let at = locked.address().to_string();
    let output = bench(&["--standalone", &at], &soon);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("NOAUTH"), "{output:?}");
    let url = format!("redis://:secret@{at}");
    check(&good(&["--url", &url], &["--operation", "get"])["runs"][0]);
}

#[test]
fn a_wrong_command_line_is_refused_before_anything_is_done() {
    let at = ["--standalone", "127.0.0.1:1"];
    let wrong = [
        (&["--key-size", "1"][..], "--key-size"),
        (&["--keyspace", "0"], "--keyspace"),
        (&["--callers", "0"], "--callers"),
        (&["--duration", "0"], "--duration"),
        (&["--runs", "0"], "--runs"),
        (&["--mix", "0:0"], "80:20"),
        (&["--cluster", "127.0.0.1:1"], "--cluster"),
    ];
    for (args, word) in wrong {
        let said = bad(2, &at, args);
        assert!(said.contains(word), "{args:?}: {said}");
    }
    assert!(bad(2, &[], &[]).contains("--cluster"));
    let said = bad(2, &["--url", "http://127.0.0.1"], &[]);
    assert!(said.contains("redis://"), "{said}");
}

#[test]
fn an_interrupt_ends_it() {
    let server = server();
    let at = server.address().to_string();
    let args = ["bench", "redis", "--standalone", &at, "--keyspace", "10"];
    let mut command = embar(&args);
    command.stdout(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped());
    let child = command.spawn().expect("embar starts");
    eventually("keys are loaded", || {
        server.command(&["DBSIZE"]).is_ok_and(|keys| keys == "10")
    });
    signal(child.id(), "INT");
    let output = output_of(child);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
}
