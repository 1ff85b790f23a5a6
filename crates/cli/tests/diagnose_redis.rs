//! `embar diagnose redis` with real servers: each fault acts, what was seen can be looked at again, and servers that tell nothing
//! are no reason to fail. Which causes are named is tested by numbers (`crates/diagnose/tests/redis.rs`): here other tests take
//! the processors.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Output;
use std::thread;

use common::{Space, embar, list, number, reported, run, text};
use embar_redis_servers::{Options, Server};
use serde_json::Value;

fn tried(options: &[&str]) -> Output {
    tried_for(400, options)
}

fn tried_for(ms: u32, options: &[&str]) -> Output {
    let span = format!("{ms}ms");
    run(embar(&["--json", "diagnose", "redis", "--for", &span]).args(options))
}

/// A short look at callers of one server of our own.
fn diagnose(options: &[&str]) -> Value {
    diagnose_for(400, options)
}

fn diagnose_for(ms: u32, options: &[&str]) -> Value {
    let always = ["--warm-up", "50ms", "--nodes", "1", "--keyspace", "100"];
    reported(&tried_for(ms, &[&always[..], options].concat()))
}

/// A short look at servers.
fn look(server: &str) -> Value {
    reported(&tried(&["--server", server]))
}

fn is_missing(report: &Value, what: &str) -> bool {
    let missing = list(report, "missing").iter();
    { missing }.any(|it| it["what"].as_str().is_some_and(|it| it.starts_with(what)))
}

#[test]
fn a_look_has_its_numbers_and_says_the_same_again() {
    let space = Space::new();
    let saved = space.dir.join("seen.json");
    let saved = saved.to_str().expect("a name");
    let report = diagnose(&["--save", saved]);
    assert!(number(&report["operations_per_s"]) > 0.0);
    assert!(!list(&report, "findings").is_empty());
    for finding in list(&report, "findings") {
        assert!(!list(finding, "evidence").is_empty(), "{finding}");
    }
    let observed = &report["observed"];
    assert_eq!(
        (&observed["errors"], list(observed, "nodes").len()),
        (&0.into(), 1)
    );
    let node = &observed["nodes"][0];
    assert!(node["slots"].is_null(), "it is no cluster");
    let (server, traffic) = (&node["server"], &node["traffic"]);
    for counted in [
        &server["commands"],
        &server["sent_bytes"],
        &traffic["replies"],
    ] {
        assert!(number(counted) > 0.0, "{node}");
    }
    let commands = list(server, "by_command").iter();
    assert!({ commands }.any(|it| it["name"] == "get"), "{node}");
    assert!(number(&traffic["latency_s"]) > 0.0 && !list(node, "threads").is_empty());
    assert!(
        !list(&observed["client"], "threads").is_empty(),
        "{observed}"
    );

    let again = report_from(saved);
    assert_eq!(again["findings"], report["findings"]);
    assert_eq!(again["limits"], report["limits"]);
    let picture = run(&mut embar(&["diagnose", "redis", "--from", saved]));
    let picture = text(&picture.stdout);
    assert!(picture.contains("client threads"), "{picture}");
}

fn report_from(saved: &str) -> Value {
    let output = run(&mut embar(&[
        "--json", "diagnose", "redis", "--from", saved,
    ]));
    reported(&output)
}

#[test]
fn what_is_injected_acts() {
    let faults = [
        "tls",
        "hot-key=90",
        "big-value=64KiB",
        "full-pipe=4",
        "few-callers=8",
    ];
    let options: Vec<&str> = faults.iter().flat_map(|it| ["--inject", it]).collect();
    // Callers say one key of many operations: as long as it takes on this machine.
    let mut ms = 400;
    let report = loop {
        let report = diagnose_for(ms, &options);
        if !list(&report["observed"]["client"], "keys").is_empty() {
            break report;
        }
        ms *= 2;
    };
    assert_eq!(list(&report, "injected").len(), faults.len());
    let client = &report["observed"]["client"];
    assert_eq!(
        (&client["by_tls"], &client["callers"]),
        (&true.into(), &8.into())
    );
    assert_eq!(client["in_flight_max"], 4);
    let key = &client["keys"][0];
    assert_eq!(key["key"], "0000000000000000");
    assert!(number(&key["share"]) > 0.5, "{key}");
    let traffic = &report["observed"]["nodes"][0]["traffic"];
    assert!(number(&traffic["in_flight"]) <= 4.0);
    let bytes = number(&traffic["received_bytes"]) / number(&traffic["replies"]);
    assert!(bytes > 300.0, "{bytes} bytes of a reply");
}

/// Whether a look names this, first or not: what others take of the processors may come before it.
fn is_named(report: &Value, cause: &str) -> bool {
    let found = list(report, "findings").iter();
    { found }.any(|it| it["cause"] == cause)
}

#[test]
fn a_server_that_stands_still_says_nothing_for_most_of_the_time() {
    let report = diagnose(&["--inject", "slow-node=90"]);
    let traffic = &report["observed"]["nodes"][0]["traffic"];
    assert!(number(&traffic["silent"]) > 0.2, "{report}");
    assert!(is_named(&report, "slow-node"), "{report}");
}

#[test]
fn callers_that_sleep_or_compute_are_named_as_such() {
    let report = diagnose(&["--inject", "slow-callers=50ms"]);
    assert!(is_named(&report, "application-too-slow"), "{report}");
    let report = diagnose(&["--inject", "busy-callers=5ms"]);
    assert!(is_named(&report, "caller-runtime-busy"), "{report}");
}

#[test]
fn a_third_of_the_slots_has_most_of_the_commands() {
    let nodes = ["--nodes", "3", "--keyspace", "100", "--warm-up", "50ms"];
    let report = reported(&tried(
        &[&nodes[..], &["--inject", "hot-slots=100"]].concat(),
    ));
    let nodes = list(&report["observed"], "nodes").iter();
    let replies: Vec<f64> = { nodes }
        .map(|it| number(&it["traffic"]["replies"]))
        .collect();
    let (most, all) = (
        replies.iter().copied().fold(0.0, f64::max),
        replies.iter().sum(),
    );
    assert!(most > 0.9 * f64::max(all, 1.0), "{replies:?}");
    assert!(is_named(&report, "hot-slot"), "{report}");
}

#[test]
fn scripts_and_hogs_run_beside_the_callers() {
    let report = diagnose(&["--inject", "heavy-commands=2ms", "--inject", "cpu-hog=2"]);
    let commands = list(&report["observed"]["nodes"][0]["server"], "by_command").iter();
    let scripts = { commands }.find(|it| it["name"] == "eval");
    let scripts = scripts.unwrap_or_else(|| panic!("no EVAL in {report}"));
    // A hundred times what a plain command takes.
    let each = number(&scripts["seconds"]) / number(&scripts["calls"]);
    assert!(each > 100e-6, "{each} s");
    let others = number(&report["observed"]["machine"]["others"]);
    assert!(others > 0.02, "{report}");
}

#[test]
fn a_fault_is_given_once() {
    let output = tried(&["--inject", "cpu-hog=1", "--inject", "cpu-hog=2"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("twice"));
}

#[test]
fn a_command_that_blocks_is_seen_by_its_time() {
    let report = diagnose(&["--inject", "blocked-server=50ms"]);
    let commands = list(&report["observed"]["nodes"][0]["server"], "by_command").iter();
    let debug = { commands }.find(|it| {
        it["name"]
            .as_str()
            .is_some_and(|it| it.starts_with("debug"))
    });
    let debug = debug.unwrap_or_else(|| panic!("no DEBUG in {report}"));
    let each = number(&debug["seconds"]) / number(&debug["calls"]);
    assert!(each >= 0.05, "{each} s");
}

#[test]
fn a_server_that_forbids_questions_is_looked_at_as_far_as_it_allows() {
    let server = Server::start(&Options::default()).expect("a server");
    let allow = ["ACL", "SETUSER", "default", "-info", "-slowlog", "-cluster"];
    server.command(&allow).expect("it knows ACL");
    let report = look(&server.address().to_string());
    assert!(
        is_missing(&report, "INFO of") && is_missing(&report, "SLOWLOG of"),
        "{report}"
    );
    let node = &report["observed"]["nodes"][0];
    assert!(node["server"].is_null());
    assert!(number(&node["probe"]["answered"]) > 0.0, "{node}");
    assert!(report["observed"]["client"].is_null());
}

#[test]
fn a_seed_that_is_dead_is_missing_and_the_next_one_is_asked() {
    let (mut dead, alive) = (
        Server::start(&Options::default()).expect("a server"),
        Server::start(&Options::default()).expect("a server"),
    );
    let seeds = format!("redis-cluster://{},{}", dead.address(), alive.address());
    dead.kill();
    let report = look(&seeds);
    assert!(
        is_missing(&report, &format!("anything of {}", dead.address())),
        "{report}"
    );
    assert!(is_missing(&report, "the other nodes of"), "{report}");
    assert_eq!(list(&report["observed"], "nodes").len(), 1);
}

#[test]
fn servers_of_which_none_answers_are_an_error() {
    let mut dead = Server::start(&Options::default()).expect("a server");
    dead.kill();
    let output = tried(&["--server", &dead.address().to_string()]);
    assert!(!output.status.success());
    assert!(
        text(&output.stderr).contains("no server answers"),
        "{}",
        text(&output.stderr)
    );
}

/// Answers PING, refuses HELLO, and has one odd word for everything else.
fn odd_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(stream));
        }
    });
    address
}

fn answer(mut stream: TcpStream) -> Option<()> {
    let mut requests = BufReader::new(stream.try_clone().ok()?);
    let line = |requests: &mut BufReader<TcpStream>| {
        let mut line = String::new();
        requests.read_line(&mut line).ok().filter(|it| *it > 0)?;
        line.trim_end().get(1..)?.parse::<usize>().ok()
    };
    loop {
        let words = line(&mut requests)?;
        let mut name = Vec::new();
        for place in 0..words {
            let mut word = vec![0; line(&mut requests)? + 2];
            requests.read_exact(&mut word).ok()?;
            if place == 0 {
                name = word.trim_ascii_end().to_ascii_uppercase();
            }
        }
        let reply: &[u8] = match name.as_slice() {
            b"PING" => b"+PONG\r\n",
            b"HELLO" => b"-ERR unknown command 'HELLO'\r\n",
            b"CLIENT" => b"+OK\r\n",
            _ => b"$13\r\nrun_id:\r\n:::x\r\n",
        };
        stream.write_all(reply).ok()?;
    }
}

#[test]
fn odd_answers_are_missing_and_no_reason_to_fail() {
    let report = look(&odd_server().to_string());
    for what in ["total_commands_processed of", "cmdstat_* of", "SLOWLOG of"] {
        assert!(is_missing(&report, what), "{what}: {report}");
    }
    // Tests beside this one may take the processors, and that may be said.
    let causes = list(&report, "findings").iter().map(|it| &it["cause"]);
    let named: Vec<_> = causes
        .filter(|cause| *cause != "nothing-found" && *cause != "processors-taken-by-others")
        .collect();
    assert!(named.is_empty(), "{named:?}");
}

#[test]
fn what_cannot_be_is_refused_with_what_can() {
    let refused = |options: &[&str]| {
        let output = tried(options);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{options:?}: {}",
            text(&output.stderr)
        );
        text(&output.stderr)
    };
    assert!(refused(&["--inject", "slow-disk=1"]).contains("slow-node=60"));
    assert!(refused(&["--inject", "hot-key=many"]).contains("hot-key=90"));
    let given = ["--standalone", "127.0.0.1:1", "--inject"];
    assert!(refused(&[&given[..], &["slow-node=60"]].concat()).contains("servers of its own"));
    assert!(refused(&["--server", "127.0.0.1:1", "--inject", "hot-key=90"]).contains("--inject"));
    assert!(refused(&["--verify", "--pairs", "3"]).contains("8 or more"));
    for of in [["--from", "x"], ["--server", "127.0.0.1:1"]] {
        for (option, value) in [
            ("--callers", "5"),
            ("--pairs", "9"),
            ("--remedies", "2"),
            ("--driver", "task"),
        ] {
            assert!(refused(&[&of[..], &[option, value]].concat()).contains(option));
        }
    }
    assert!(refused(&["--url", "http://127.0.0.1"]).contains("redis://"));
    let of_the_log = run(&mut embar(&["diagnose", "--flow", "read", "redis"]));
    assert_eq!(
        of_the_log.status.code(),
        Some(2),
        "{}",
        text(&of_the_log.stderr)
    );
    let space = Space::new();
    let file = space.dir.join("not.json");
    std::fs::write(&file, "{}").expect("written");
    let output = run(embar(&["diagnose", "redis", "--from"]).arg(&file));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
}
