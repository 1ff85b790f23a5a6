//! `bench session`, small: what it reports, and that nothing is lost without a word.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use common::{Space, embar, end_of, eventually, output_of, run, signal, text};
use serde_json::Value;

const SMALL: [&str; 6] = ["--iterations", "200", "--runs", "2", "--warmup", "0"];

/// Options of the program as a whole come first.
fn session(args: &[&str]) -> Vec<String> {
    let (json, args) = match args {
        ["--json", rest @ ..] => (&["--json"][..], rest),
        args => (&[][..], args),
    };
    let args = [json, &["bench", "session"], args].concat();
    args.into_iter().map(str::to_owned).collect()
}

fn said(args: &[&str]) -> String {
    let args = session(args);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = run(&mut embar(&args));
    assert!(
        output.status.success(),
        "{args:?}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

fn json(args: &[&str]) -> Value {
    let said = said(&[&["--json"], args].concat());
    serde_json::from_str(&said).expect("one JSON object and nothing else")
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is a number"))
}

#[test]
fn four_phases_and_the_wall_are_printed_side_by_side() {
    let said = said(&SMALL);
    for phase in [
        "wall",
        "baseline",
        "scatter-gather",
        "zero-copy send",
        "zero-copy receive",
    ] {
        let rows = said
            .lines()
            .filter(|line| line.contains("LatencyTest") && line.contains(&format!(" {phase}  ")));
        assert_eq!(rows.count(), 2, "a row for each run of {phase} in\n{said}");
        assert!(
            said.lines()
                .any(|line| line.starts_with(&format!("{phase}  "))),
            "medians of {phase} in\n{said}"
        );
    }
    for (changed, baseline) in [
        ("zero-copy receive", "wall"),
        ("scatter-gather", "baseline"),
        ("zero-copy send", "scatter-gather"),
        ("zero-copy receive", "zero-copy send"),
    ] {
        let row = format!("{changed} {baseline} 2 ");
        let compared = said.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.join(" ").starts_with(&row)
        });
        assert!(compared, "{changed} to {baseline} in\n{said}");
    }
    for part in [
        "P50 / wall",
        "inside the noise",
        "too few runs for any verdict: it takes at least 8",
        "all 2,000 messages arrived, in time and unchanged",
    ] {
        assert!(said.contains(part), "{part} in\n{said}");
    }
}

#[test]
fn json_has_every_run_with_its_figures() {
    let report = json(&SMALL);
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 8);
    for run in runs
        .iter()
        .chain(report["wall"]["runs"].as_array().expect("runs"))
    {
        let at = |name: &str| number(&run[name]);
        assert!(at("p50_ns") > 0.0 && at("p50_ns") <= at("p99_ns"));
        assert!(at("p99_ns") <= at("p999_ns") && at("avg_ns") > 0.0);
        assert!(at("round_trips_per_s") > 0.0 && at("mb_per_s") > 0.0);
        assert_eq!((at("lost"), at("iterations")), (0.0, 200.0));
        assert!(run["stalls"].is_array());
    }
    for phase in [
        "baseline",
        "scatter-gather",
        "zero-copy send",
        "zero-copy receive",
    ] {
        let median = &report["median"][phase];
        let interval = &median["interval"]["p50_ns"];
        assert!(
            number(&interval["low"]) <= number(&median["p50_ns"]),
            "{phase}"
        );
        assert!(
            number(&interval["high"]) >= number(&median["p50_ns"]),
            "{phase}"
        );
    }
    assert_eq!(report["config"]["payload"]["max"], 64);
    assert_eq!(report["lost"], 0);
}

#[test]
fn many_sessions_with_much_under_way_are_all_accounted_for() {
    let report = json(
        &[
            &[
                "--send",
                "zerocopy",
                "--receive",
                "zerocopy",
                "--sessions",
                "5",
                "--threads",
                "2",
            ],
            &[
                "--in-flight",
                "8",
                "--transport",
                "unix",
                "--payload",
                "1..3000",
            ][..],
            &SMALL,
        ]
        .concat(),
    );
    assert_eq!(report["runs"].as_array().map(Vec::len), Some(2));
    assert_eq!(report["runs"][0]["iterations"], 1000);
    assert_eq!(
        report["runs"][0]["session_p50_ns"].as_array().map(Vec::len),
        Some(5)
    );
    assert!(
        report["no_wall"]
            .as_str()
            .expect("a reason")
            .contains("one size")
    );
    assert_eq!(report["lost"], 0);
}

#[test]
fn one_way_counts_on_the_other_side() {
    let report = json(&[
        "--one-way",
        "--iterations",
        "5000",
        "--runs",
        "1",
        "--warmup",
        "0",
        "--spin-us",
        "20",
    ]);
    for run in report["runs"].as_array().expect("runs") {
        assert!(number(&run["messages_per_s"]) > 0.0);
        assert_eq!((&run["lost"], &run["wrong"]), (&0.into(), &0.into()));
        assert!(
            run.get("p50_ns").is_none(),
            "nothing is answered one by one"
        );
    }
    assert_eq!(report["runs"].as_array().map(Vec::len), Some(4));
    assert!(number(&report["wall"]["median"]["messages_per_s"]) > 0.0);
}

#[test]
fn half_load_finds_the_maximum_and_halves_it() {
    let report = json(&[
        "--half-load",
        "--sessions",
        "4",
        "--payload",
        "4KiB..16KiB",
        "--iterations",
        "100",
        "--runs",
        "1",
        "--warmup",
        "0",
        "--send",
        "zerocopy",
    ]);
    let (highest, rate) = (&report["max_messages_per_s"], &report["config"]["rate"]);
    assert!((number(highest) / 2.0 - number(rate)).abs() < 1.0);
    assert_eq!(report["lost"], 0);
    assert!(number(&report["median"]["zero-copy receive"]["p99_by_p50"]) >= 1.0);
    let memory = &report["memory"];
    assert!(number(&memory["peak_rss_bytes"]) > 0.0 && number(&memory["ring_bytes"]) > 0.0);
}

#[test]
fn a_rate_is_kept() {
    let report = json(&[
        "--rate",
        "2000",
        "--sessions",
        "2",
        "--iterations",
        "200",
        "--runs",
        "1",
        "--warmup",
        "0",
        "--send",
        "copy",
        "--receive",
        "copy",
    ]);
    // 400 messages at 2,000 a second: the last is due after 199.5 ms, and not before.
    let seconds = number(&report["runs"][0]["seconds"]);
    assert!(seconds >= 0.199, "{seconds}");
    assert_eq!(report["runs"][0]["phase"], "baseline");
}

#[test]
fn the_wall_stands_alone() {
    let report = json(&[&["wall", "--spin-us", "30"], &SMALL[..]].concat());
    assert_eq!(report["bench"], "session wall");
    assert_eq!(report["runs"].as_array().map(Vec::len), Some(2));
    assert!(number(&report["median"]["wall"]["p50_ns"]) > 0.0);
}

#[test]
fn a_log_grows_under_one_title_and_csv_is_a_line_per_run() {
    let space = Space::new();
    let log = space.dir.join("results.md");
    let log = log.to_str().expect("a path");
    let args = [&["--send", "zerocopy", "--log", log, "--csv"], &SMALL[..]].concat();
    let csv = said(&args);
    assert_eq!(
        csv.lines().count(),
        1 + 2 + 2,
        "a header, two runs of the wall, two of the phase:\n{csv}"
    );
    assert!(csv.starts_with("time,test,phase,"));
    said(&args);
    let text = std::fs::read_to_string(log).expect("written");
    assert_eq!(text.matches("# Session benchmark log").count(), 1);
    assert_eq!(
        text.matches("## LatencyTest: 200 messages of 64 bytes")
            .count(),
        2
    );
    assert_eq!(text.matches("| zero-copy receive | 200 | 64 |").count(), 4);
    assert!(text.contains("| zero-copy receive | wall | 2 | "));
}

#[test]
fn contradictions_are_a_matter_of_usage() {
    for args in [
        &["--iterations", "0"][..],
        &["--one-way", "--sessions", "2"],
        &["--one-way", "--rate", "10"],
        &["--payload", "9MiB"],
        &["--json", "--csv"],
        &["wall", "--payload", "1..2"],
        &["--connect", "nowhere"],
    ] {
        let args = session(args);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = run(&mut embar(&args));
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            text(&output.stderr)
        );
    }
}

/// A process that is killed if its test fails.
struct Killed(Option<Child>);

impl Killed {
    fn id(&self) -> u32 {
        self.0.as_ref().expect("it runs").id()
    }

    fn child(&mut self) -> Child {
        self.0.take().expect("it runs")
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }
}

fn start(args: &[&str]) -> Killed {
    let args = session(args);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let child = embar(&args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("embar starts");
    Killed(Some(child))
}

/// A server in a process of its own, and its address.
fn serve() -> (Killed, String) {
    let mut server = start(&["--json", "serve", "--listen", "127.0.0.1:0"]);
    let output = server.0.as_mut().and_then(|child| child.stdout.take());
    let mut line = String::new();
    BufReader::new(output.expect("a pipe"))
        .read_line(&mut line)
        .expect("a line");
    let ready: Value = serde_json::from_str(&line).expect("JSON");
    let address = ready["listening"].as_str().expect("an address").to_owned();
    (server, address)
}

/// Waits until a process has worked: CPU time, in steps of 10 ms.
fn wait_until_busy(pid: u32) {
    let ticks = || -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        fields.skip(11).take(2).flat_map(str::parse::<u64>).sum()
    };
    let before = ticks();
    eventually("messages go back and forth", || ticks() > before + 4);
}

/// A bench against a server in another process, under way.
fn under_way(iterations: &str, timeout: &str) -> (Killed, Killed) {
    let (server, address) = serve();
    let bench = start(&[
        "--json",
        "--connect",
        &address,
        "--send",
        "zerocopy",
        "--iterations",
        iterations,
        "--timeout",
        timeout,
        "--runs",
        "1",
        "--warmup",
        "0",
    ]);
    wait_until_busy(server.id());
    (server, bench)
}

/// The report of a bench in which something was lost.
fn report_of_losses(mut bench: Killed) -> Value {
    let output = output_of(bench.child());
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("were lost"),
        "{}",
        text(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("a report all the same")
}

#[test]
fn a_server_elsewhere_echoes_and_ends_in_order() {
    let (mut server, address) = serve();
    let report = json(&[&["--connect", &address], &SMALL[..]].concat());
    assert_eq!(report["runs"].as_array().map(Vec::len), Some(8));
    assert_eq!(report["lost"], 0);
    assert!(report["wall"].is_null());
    signal(server.id(), "TERM");
    assert!(end_of(&mut server.child()).success());
    let output = run(&mut embar(&["bench", "session", "--connect", &address]));
    assert!(!output.status.success());
    assert!(
        text(&output.stderr).contains(&address),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_server_that_dies_takes_messages_with_it_and_that_is_reported() {
    // A bench that waited for the dead server would wait for longer than this test does.
    let (server, bench) = under_way("1000000000", "3600s");
    signal(server.id(), "KILL");
    let report = report_of_losses(bench);
    let run = &report["runs"][0];
    assert!(number(&run["lost"]) > 0.0 && number(&run["p50_ns"]) > 0.0);
    assert_eq!(report["lost"], run["lost"]);
    assert!(
        report["ended_early"]
            .as_str()
            .expect("a reason")
            .contains("session 0 ended")
    );
}

#[test]
fn a_server_that_freezes_costs_one_message_and_is_reported_as_a_stall() {
    let (server, bench) = under_way("30000", "1s");
    signal(server.id(), "STOP");
    // How long it is frozen is the test's input: longer than the timeout, shorter than what ends the run, five of it.
    std::thread::sleep(Duration::from_millis(1500));
    signal(server.id(), "CONT");
    let report = report_of_losses(bench);
    let run = &report["runs"][0];
    let stalls = run["stalls"].as_array().expect("stalls");
    let timeout_ms = number(&report["config"]["timeout_ms"]);
    let ms = |stall: &Value| number(&stall["ms"]);
    let long = stalls.iter().filter(|stall| ms(stall) > timeout_ms);
    let lost = number(&run["lost"]);
    assert_eq!(
        lost,
        long.count() as f64,
        "one message is under way at a time"
    );
    assert!(lost >= 1.0 && stalls.iter().all(|stall| stall["ended"] == true));
    let longest = stalls.iter().map(ms).fold(0.0, f64::max);
    assert!(
        number(&run["max_ns"]) >= longest * 1e6,
        "what was waited for stays in the latencies"
    );
    assert!(report["ended_early"].is_null(), "it went on");
}

#[test]
fn a_server_that_freezes_for_good_ends_the_run() {
    let (server, bench) = under_way("1000000000", "50ms");
    signal(server.id(), "STOP");
    let report = report_of_losses(bench);
    let run = &report["runs"][0];
    // The machine may have been busy before, for a moment.
    let stalls = run["stalls"].as_array().expect("stalls");
    let last = stalls.last().expect("one for good");
    assert_eq!(last["ended"], false);
    assert!(number(&last["ms"]) >= 5.0 * number(&report["config"]["timeout_ms"]));
    assert!(
        report["ended_early"]
            .as_str()
            .expect("a reason")
            .contains("given up")
    );
}

#[test]
fn an_interrupt_ends_it() {
    let (_server, mut bench) = under_way("1000000000", "5s");
    signal(bench.id(), "INT");
    assert_eq!(end_of(&mut bench.child()).code(), Some(130));
}
