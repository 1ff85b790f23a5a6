//! `embar diagnose session`: each fault acts, what was seen can be looked at again, and a remedy is tried. Which causes are named is
//! tested by numbers (`crates/diagnose/tests/session.rs`): here other tests take the processors.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use common::{Space, embar, list, number, reported, run, text};
use serde_json::Value;

/// A short look at sessions.
const ALWAYS: [&str; 7] = [
    "--json",
    "diagnose",
    "session",
    "--for",
    "500ms",
    "--warm-up",
    "100ms",
];

/// One with these options.
fn diagnose(options: &[&str]) -> Value {
    let args = [&ALWAYS[..], options].concat();
    let output = run(&mut embar(&args));
    reported(&output)
}

fn refused(options: &[&str]) -> String {
    let output = run(embar(&["diagnose", "session"]).args(options));
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    text(&output.stderr)
}

#[test]
fn a_look_has_its_numbers_and_says_the_same_again() {
    let space = Space::new();
    let saved = space.dir.join("seen.json");
    let saved = saved.to_str().expect("a name");
    for flow in ["one-way", "echo"] {
        let report = diagnose(&["--flow", flow, "--save", saved]);
        assert!(number(&report["messages_per_s"]) > 0.0);
        assert!(!list(&report, "findings").is_empty());
        for finding in list(&report, "findings") {
            assert!(!list(finding, "evidence").is_empty(), "{finding}");
        }
        let observed = &report["observed"];
        for end in ["client", "server"] {
            assert_eq!(list(&observed[end], "workers").len(), 1, "{observed}");
        }
        let counted = [&observed["client"]["writes"], &observed["server"]["reads"]];
        assert!(counted.iter().all(|it| number(it) > 0.0), "{observed}");
        assert_eq!(list(observed, "connections").len(), 1, "{observed}");
        assert_eq!(observed["application"].is_null(), flow == "echo");

        let again = run(&mut embar(&[
            "--json", "diagnose", "session", "--from", saved,
        ]));
        let again: Value = serde_json::from_slice(&again.stdout).expect("JSON");
        assert_eq!(again["findings"], report["findings"]);
        let picture = run(&mut embar(&["diagnose", "session", "--from", saved]));
        assert!(text(&picture.stdout).contains("receivers"));
    }
}

#[test]
fn what_is_injected_acts() {
    let report = diagnose(&["--inject", "small-ring=4KiB"]);
    assert_eq!(report["observed"]["client"]["send_ring_bytes"], 4096);
    assert_eq!(report["injected"][0], "small-ring=4KiB");
    // The kernel grants twice what is asked for (socket(7)).
    let report = diagnose(&[
        "--inject",
        "small-rcvbuf=8KiB",
        "--inject",
        "small-sndbuf=16KiB",
    ]);
    let connection = &report["observed"]["connections"][0];
    assert_eq!(number(&connection["receiver"]["buffer_bytes"]), 16_384.0);
    assert_eq!(number(&connection["sender"]["buffer_bytes"]), 32_768.0);
    let report = diagnose(&["--inject", "slow-sender=100KiB", "--payload", "100"]);
    assert!(number(&report["messages_per_s"]) < 2048.0, "{report}");
    let report = diagnose(&["--inject", "slow-handler=1ms"]);
    assert!(
        number(&report["observed"]["server"]["in_handlers"]) > 0.5,
        "{report}"
    );
    let report = diagnose(&[
        "--flow",
        "echo",
        "--inject",
        "few-in-flight=3",
        "--sessions",
        "2",
    ]);
    assert_eq!(report["observed"]["in_flight"], 6);
    let report = diagnose(&["--inject", "tls", "--payload", "1KiB"]);
    assert_eq!(report["observed"]["by_tls"], true);
    assert!(number(&report["messages_per_s"]) > 0.0);
    let report = diagnose(&["--inject", "cpu-hog=2"]);
    assert!(
        number(&report["observed"]["machine"]["others"]) > 0.02,
        "{report}"
    );
    let report = diagnose(&["--inject", "small-writes=2"]);
    let application = &report["observed"]["application"];
    assert_eq!(application["waits_after"], 2);
    assert!(number(&application["waited_to_leave"]) > 0.0, "{report}");
    // Two messages of 64 bytes, and now and then something of the session itself.
    let client = &report["observed"]["client"];
    let each = number(&client["bytes_sent"]) / number(&client["writes"]);
    assert!(each < 256.0, "{report}");
    let report = diagnose(&["--inject", "net-loss=5"]);
    let sender = &report["observed"]["connections"][0]["sender"];
    assert!(number(&sender["resent_bytes"]) > 0.0, "{report}");
    assert!(refused(&["--inject", "tls", "--inject", "tls"]).contains("twice"));
    let report = diagnose(&["--inject", "net-delay=4ms"]);
    let sender = &report["observed"]["connections"][0]["sender"];
    assert!(number(&sender["round_trip_min_s"]) > 7e-3, "{report}");
}

#[test]
fn what_messages_are_acts() {
    for flow in ["one-way", "echo"] {
        let options: &[&str] = match flow {
            "echo" => &["--flow", flow, "--in-flight", "128"],
            flow => &["--flow", flow],
        };
        let report = diagnose(&[options, &["--inject", "big-message=60KiB"]].concat());
        let observed = &report["observed"];
        let large = &observed["large"];
        let share = number(&large["messages"]) / number(&observed["messages"]);
        assert!((0.01..0.025).contains(&share), "{observed}");
        let each = number(&large["bytes"]) / number(&large["messages"]);
        assert_eq!(each, 61_440.0);
        assert!(number(&observed["bytes"]) > number(&large["bytes"]));
        // Rings hold two of them.
        assert_eq!(number(&observed["client"]["send_ring_bytes"]), 262_144.0);

        let decoding = |faults: &[&str]| {
            let report = diagnose(&[options, faults].concat());
            let server = &report["observed"]["server"];
            number(&server["in_decoding"]) / number(&server["messages_received"])
        };
        let (many, none) = (decoding(&["--inject", "many-fields=300"]), decoding(&[]));
        assert!(many > 4.0 * none, "{many}, {none}");
    }
}

#[test]
fn a_quota_needs_root_and_throttles() {
    common::quota_throttles(&ALWAYS);
}

#[test]
fn several_sessions_and_workers_by_a_unix_socket() {
    let report = diagnose(&["--transport", "unix", "--sessions", "3", "--threads", "2"]);
    let observed = &report["observed"];
    assert_eq!(list(observed, "connections").len(), 0);
    assert_eq!(list(&observed["server"], "workers").len(), 2);
    assert_eq!(list(&observed["application"], "threads").len(), 3);
    assert!(number(&report["messages_per_s"]) > 0.0);
}

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// A server that serves whoever comes, and where it listens.
fn serve(listen: &str) -> (Running, String) {
    let mut serve = embar(&["--json", "bench", "session", "serve", "--listen", listen]);
    let mut server = Running(serve.stdout(Stdio::piped()).spawn().expect("a server"));
    let mut line = String::new();
    let output = server.0.stdout.take().expect("its output");
    BufReader::new(output).read_line(&mut line).expect("a line");
    let ready: Value = serde_json::from_str(&line).expect("JSON");
    let address = ready["listening"].as_str().expect("an address");
    (server, address.to_owned())
}

fn client_of(address: &str) -> Running {
    let mut bench = embar(&["bench", "session", "--connect", address]);
    bench.args(["--send", "zerocopy", "--in-flight", "64"]);
    bench.args(["--iterations", "1000000000"]);
    let bench = bench.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Running(bench.expect("a client"))
}

/// Looks until the client is connected, and its threads work.
fn look(address: &str) -> Value {
    loop {
        let looked = run(&mut embar(&[
            "--json", "diagnose", "session", "--for", "400ms", "--server", address,
        ]));
        if looked.status.success() {
            let report: Value = serde_json::from_slice(&looked.stdout).expect("JSON");
            let worker = &report["observed"]["client"]["workers"][0];
            if worker["on_cpu"].as_f64().is_some_and(|it| it > 0.0) {
                return report;
            }
        }
    }
}

#[test]
fn sessions_that_others_use_are_looked_at_from_outside() {
    let space = Space::new();
    let by_unix = format!("unix:{}", space.dir.join("sessions.sock").display());
    for (listen, connections) in [("127.0.0.1:0", 1), (&by_unix, 0)] {
        let (_server, address) = serve(listen);
        let nobody = run(&mut embar(&["diagnose", "session", "--server", &address]));
        assert_eq!(nobody.status.code(), Some(1), "{}", text(&nobody.stderr));
        assert!(text(&nobody.stderr).contains("no process here"));

        let _client = client_of(&address);
        let report = look(&address);
        let observed = &report["observed"];
        for end in ["client", "server"] {
            let workers = list(&observed[end], "workers");
            assert_eq!(workers.len(), 1, "{observed}");
            assert_eq!(observed[end]["sessions"], 1, "{observed}");
        }
        assert_eq!(list(observed, "connections").len(), connections);
        let is_counted = number(&observed["bytes"]) > 0.0;
        assert_eq!(is_counted, connections > 0, "{observed}");
        let missing = |what: &str| {
            let mut missing = list(&report, "missing").iter();
            missing.any(|it| it["what"].as_str().is_some_and(|it| it.contains(what)))
        };
        assert!(missing("messages"), "{report}");
        assert_eq!(missing("bytes and buffers"), connections == 0, "{report}");
        assert!(!list(&report, "findings").is_empty(), "{report}");
    }
}

#[test]
fn what_cannot_be_is_refused_with_what_can() {
    assert!(refused(&["--server", "127.0.0.1:1", "--tls"]).contains("--server"));
    assert!(refused(&["--inject", "slow-disk=1"]).contains("small-ring=4KiB"));
    assert!(refused(&["--flow", "echo", "--inject", "small-ring=4KiB"]).contains("--flow"));
    assert!(refused(&["--inject", "few-in-flight=1"]).contains("--flow"));
    let by_unix = refused(&["--transport", "unix", "--inject", "net-rate=20MiB"]);
    assert!(by_unix.contains("--transport"));
    assert!(refused(&["--transport", "unix", "--tls"]).contains("--tls"));
    assert!(refused(&["--ring", "5000"]).contains("--ring"));
    assert!(refused(&["--payload", "1GiB"]).contains("--payload"));
    assert!(refused(&["--ring", "4KiB", "--payload", "16KiB"]).contains("--ring"));
    assert!(refused(&["--flow", "echo", "--inject", "small-writes=1"]).contains("--flow"));
    let alike = refused(&["--payload", "16KiB", "--inject", "big-message=60KiB"]);
    assert!(alike.contains("--payload"));
    assert!(refused(&["--inject", "big-message=9MiB"]).contains("--inject"));
    assert!(refused(&["--verify", "--pairs", "2"]).contains("--pairs"));
    assert!(refused(&["--from", "x", "--tls"]).contains("--from"));
    assert!(refused(&["--from", "x", "--remedies", "2"]).contains("--remedies"));
    let looks = ["--server", "127.0.0.1:1", "--remedies", "2"];
    assert!(refused(&looks).contains("--remedies"));
    assert!(refused(&["--in-flight", "8"]).contains("--flow echo"));
}

#[test]
fn a_remedy_is_tried_beside_what_is_and_found_to_help() {
    let report = diagnose(&["--flow", "echo", "--inject", "few-in-flight=1", "--verify"]);
    let findings = list(&report, "findings");
    let tried = findings.iter().find(|it| !it["verified"].is_null());
    let tried = tried.unwrap_or_else(|| panic!("nothing was tried: {report}"));
    assert_eq!(tried["cause"], "too-few-in-flight", "{report}");
    assert_eq!(tried["verified"]["outcome"], "helped", "{report}");
}
