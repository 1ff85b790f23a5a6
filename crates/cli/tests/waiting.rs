//! Commands that wait say whom for and how long, and what became of what they read.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use common::{Space, Up, embar, end_of, eventually, is_running, run, signal, state_of, text};
use serde_json::Value;

/// A process whose words are gathered as they come.
struct Talker {
    child: Child,
    input: Option<ChildStdin>,
    out: Arc<Mutex<String>>,
    err: Arc<Mutex<String>>,
}

impl Talker {
    fn start(up: &Up, args: &[&str]) -> Self {
        let mut talker = Self::spawn(up.embar(args).stdout(Stdio::piped()));
        talker.out = gather(talker.child.stdout.take().expect("a pipe"));
        talker
    }

    /// No process reads its output.
    fn start_unheard(up: &Up, args: &[&str]) -> Self {
        let (_gone, output) = std::io::pipe().expect("a pipe");
        Self::spawn(up.embar(args).stdout(output))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("embar starts");
        let out = Arc::default();
        let err = gather(child.stderr.take().expect("a pipe"));
        Self {
            input: child.stdin.take(),
            child,
            out,
            err,
        }
    }

    fn lines(&mut self, range: std::ops::Range<u64>) {
        let lines: String = range.map(|n| format!("{n}\n")).collect();
        let input = self.input.as_mut().expect("it is open");
        input.write_all(lines.as_bytes()).expect("it reads");
    }

    fn out(&self) -> String {
        self.out.lock().expect("no panic").clone()
    }

    fn err(&self) -> String {
        self.err.lock().expect("no panic").clone()
    }

    fn waits(&self) -> Vec<String> {
        waits(&self.err())
    }

    /// All that it said, and its exit code.
    fn end(mut self) -> (Option<i32>, String, String) {
        drop(self.input.take());
        let code = end_of(&mut self.child).code();
        let whole = |text: &Arc<Mutex<String>>| {
            eventually("all is read", || Arc::strong_count(text) == 1);
            text.lock().expect("no panic").clone()
        };
        (code, whole(&self.out), whole(&self.err))
    }

    /// The same once it has ended while its input was open.
    fn end_by_itself(mut self) -> (Option<i32>, String, String) {
        end_of(&mut self.child);
        self.end()
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        // Only a failed test comes here with it running.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn gather(pipe: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let gathered = text.clone();
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = String::new();
        while pipe.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            gathered.lock().expect("no panic").push_str(&line);
            line.clear();
        }
    });
    text
}

fn waits(err: &str) -> Vec<String> {
    let lines = err.lines().filter(|line| line.starts_with("waiting for "));
    lines.map(str::to_owned).collect()
}

fn data_pids(up: &Up) -> Vec<u32> {
    up.pids()[1..3].to_vec()
}

fn readable(up: &Up, topic: &str) -> u64 {
    let described = run(&mut up.embar(&["--json", "topic", "describe", topic]));
    let described: Value = serde_json::from_slice(&described.stdout).unwrap_or_default();
    let partitions = described["partitions"].as_array().cloned();
    let partitions = partitions.unwrap_or_default().into_iter();
    let next = partitions.map(|it| it["next"].as_u64().unwrap_or(0));
    // One order over all of them: each has the same.
    next.max().unwrap_or(0)
}

#[test]
fn a_producer_whose_cluster_is_killed_says_what_became_of_each_line() {
    let space = Space::new();
    let mut up = Up::start(&space, &[]);
    up.ok(&["topic", "create", "t", "--order", "5"]);
    let mut produce = Talker::start(&up, &["--json", "produce", "t", "--timeout", "5s"]);
    produce.lines(0..1000);
    eventually("they are stored", || readable(&up, "t") == 1000);
    // Sent to brokers that do not answer any more: whether it is stored cannot be known.
    for pid in data_pids(&up) {
        signal(pid, "STOP");
    }
    produce.lines(1000..1500);
    eventually("it says whom it waits for", || {
        let waits = produce.waits();
        let named = |it: &String| it.contains("has not acknowledged") && it.contains("127.0.0.1:");
        waits.iter().any(named)
    });
    signal(up.child.id(), "STOP");
    for pid in up.pids() {
        signal(pid, "KILL");
    }
    up.child.kill().expect("our own child");
    end_of(&mut up.child);
    let (code, out, err) = produce.end();
    assert_eq!(code, Some(4), "{err}");
    assert!(
        err.contains("1,500 lines were read: 1,000 acknowledged, 500 in doubt, 0 not stored"),
        "{err}"
    );
    let all = waits(&err);
    assert!(all.iter().all(|it| it.contains("; gives up in ")), "{err}");
    let mut distinct = all.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), all.len(), "each once: {err}");
    let summary: Value = serde_json::from_str(&out).expect("one object, and nothing else");
    for (field, expected) in [
        ("lines", 1500),
        ("acknowledged", 1000),
        ("in_doubt", 500),
        ("not_stored", 0),
    ] {
        assert_eq!(summary[field], expected, "{summary}");
    }
}

#[test]
fn lines_that_could_not_be_sent_are_not_in_doubt() {
    let space = Space::new();
    let mut up = Up::start(&space, &[]);
    for (topic, order) in [("none", "0"), ("all", "5")] {
        up.ok(&["topic", "create", topic, "--order", order]);
    }
    let mut produce =
        ["none", "all"].map(|topic| Talker::start(&up, &["produce", topic, "--timeout", "2s"]));
    for (it, topic) in produce.iter_mut().zip(["none", "all"]) {
        it.lines(0..10);
        // Of order 0 one broker has them all.
        eventually("they are stored", || readable(&up, topic) == 10);
    }
    let pids = up.pids();
    up.child.kill().expect("our own child");
    end_of(&mut up.child);
    eventually("all are gone", || pids.iter().all(|pid| !is_running(*pid)));
    for mut produce in produce {
        produce.lines(10..15);
        let (code, out, err) = produce.end_by_itself();
        assert_ne!(code, Some(0), "{err}");
        assert!(
            err.contains("15 lines were read: 10 acknowledged, 0 in doubt, 5 not stored"),
            "{err}"
        );
        assert_eq!(out, "");
        assert!(
            waits(&err)
                .iter()
                .any(|it| it.contains("it is tried again")),
            "{err}"
        );
    }
}

#[test]
fn an_idle_producer_gives_up_in_time_and_reports_lines_in_doubt() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    for (topic, order) in [("none", "0"), ("all", "5"), ("unheard", "5")] {
        up.ok(&["topic", "create", topic, "--order", order]);
    }
    let mut produce = [
        Talker::start(&up, &["produce", "none", "--timeout", "1s"]),
        Talker::start(&up, &["produce", "all", "--timeout", "1s"]),
        Talker::start_unheard(&up, &["--json", "produce", "unheard", "--timeout", "1s"]),
    ];
    for (it, topic) in produce.iter_mut().zip(["none", "all", "unheard"]) {
        it.lines(0..10);
        eventually("they are stored", || readable(&up, topic) == 10);
    }
    for pid in data_pids(&up) {
        signal(pid, "STOP");
    }
    produce.iter_mut().for_each(|it| it.lines(10..11));
    for produce in produce {
        let (code, _, err) = produce.end_by_itself();
        assert_eq!(code, Some(4), "{err}");
        assert!(
            err.contains("11 lines were read: 10 acknowledged, 1 in doubt, 0 not stored"),
            "{err}"
        );
        assert!(
            err.contains("nothing was acknowledged for 1s: waiting for "),
            "{err}"
        );
    }
    for pid in data_pids(&up) {
        signal(pid, "CONT");
    }
    up.stop();
}

#[test]
fn a_producer_that_opens_has_the_time_of_that() {
    let args = ["produce", "t", "--bootstrap", "127.0.0.1:1"];
    let output = run(embar(&args).args(["--timeout", "500ms", "--open-timeout", "3s"]));
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{err}");
    let said = waits(&err);
    assert_eq!(said.len(), 1, "{err}");
    assert!(
        said[0].contains("gives up in ") && !said[0].contains("in 0s"),
        "{err}"
    );
}

#[test]
fn a_producer_that_waited_goes_on_and_loses_nothing() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    up.ok(&["topic", "create", "t", "--order", "5"]);
    let mut produce = Talker::start(&up, &["produce", "t"]);
    produce.lines(0..10);
    eventually("they are stored", || readable(&up, "t") == 10);
    for pid in data_pids(&up) {
        signal(pid, "STOP");
    }
    produce.lines(10..20);
    eventually("it says whom it waits for", || !produce.waits().is_empty());
    assert!(
        produce.waits()[0].contains("; gives up in "),
        "{}",
        produce.err()
    );
    for pid in data_pids(&up) {
        signal(pid, "CONT");
    }
    let (code, _, err) = produce.end();
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("20 messages"), "{err}");
    assert_eq!(up.consume("t"), (0..20).collect::<Vec<_>>());
    up.stop();
}

#[test]
fn a_wait_for_a_sequencer_says_that_nobody_sequences() {
    let space = Space::new();
    let up = Up::start(&space, &["--standbys", "0"]);
    up.ok(&["topic", "create", "t", "--order", "5"]);
    let mut produce = Talker::start(&up, &["produce", "t"]);
    produce.lines(0..10);
    eventually("they are stored", || readable(&up, "t") == 10);
    let nobody = |it: &String| it.contains("(nobody sequences)");
    // No process starts the head again.
    signal(up.child.id(), "STOP");
    signal(up.pids()[0], "KILL");
    produce.lines(10..20);
    eventually("it says that nobody sequences", || {
        produce.waits().iter().any(nobody)
    });
    let data = up.ready["brokers"][1]["address"].as_str();
    let data = ["--bootstrap", data.expect("an address")];
    let status = run(up.embar(&["--json", "status"]).args(data));
    let status: Value = serde_json::from_slice(&status.stdout).expect("one object");
    assert_eq!(status["sequencer"], Value::Null, "{status}");
    let open = ["produce", "t", "--open-timeout", "4s", data[0], data[1]];
    let mut late = Talker::start(&up, &open);
    late.lines(0..1);
    let (code, _, err) = late.end();
    assert_ne!(code, Some(0), "{err}");
    assert!(waits(&err).iter().any(nobody), "{err}");
    assert!(err.contains("no sequencer has answered"), "{err}");
    signal(up.child.id(), "CONT");
    let (code, _, err) = produce.end();
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(up.consume("t"), (0..20).collect::<Vec<_>>());
    up.stop();
}

#[test]
fn a_consumer_that_follows_says_once_that_it_is_at_the_end() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    up.produce("t", 0..10);
    let consume = Talker::start(&up, &["consume", "t", "--from", "start", "--follow"]);
    eventually("it says whom it waits for", || {
        let waits = consume.waits();
        let at_end = |it: &String| it.contains("has no more messages") && it.ends_with("ends it");
        waits.iter().any(at_end)
    });
    let said = consume.waits().len();
    let pid = up.pids()[1];
    signal(pid, "KILL");
    eventually("it says who is away", || {
        let said_by_up = std::fs::read_to_string(space.dir.join("up.err")).unwrap_or_default();
        said_by_up.contains("broker 1 serves again") || consume.waits().len() > said
    });
    assert_eq!(consume.out().lines().count(), 10);
    signal(consume.child.id(), "INT");
    let (code, out, _) = consume.end();
    assert_eq!((code, out.lines().count()), (Some(130), 10));
    up.stop();
}

#[test]
fn a_consumer_that_finds_no_broker_says_where_it_looks() {
    let output = run(&mut embar(&[
        "consume",
        "t",
        "--bootstrap",
        "127.0.0.1:1",
        "--open-timeout",
        "3s",
    ]));
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert_eq!(text(&output.stdout), "");
    let said = waits(&err);
    assert_eq!(said.len(), 1, "{err}");
    assert!(
        said[0].contains("a broker at 127.0.0.1:1 (") && said[0].contains("gives up in "),
        "{err}"
    );
}

#[test]
fn a_question_says_whom_it_waits_for_and_ends_when_its_time_is_up() {
    // The kernel connects, and no broker answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = silent.local_addr().expect("its address").to_string();
    for args in [
        &["topic", "list"][..],
        &["status"],
        &["profile"],
        &["drain", "1"],
    ] {
        let more = ["--bootstrap", &address, "--timeout", "2500ms"];
        let output = run(embar(args).args(more));
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{args:?}: {err}");
        assert_eq!(text(&output.stdout), "");
        let said = waits(&err);
        assert_eq!(said.len(), 1, "{args:?}: {err}");
        assert!(
            said[0].starts_with(&format!("waiting for a broker at {address} "))
                && said[0].contains("gives up in "),
            "{args:?}: {err}"
        );
    }
}

/// As by Ctrl-Z and `fg`.
#[test]
fn a_question_goes_on_when_its_process_does() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    let head = up.pids()[0];
    signal(head, "STOP");
    let create = Talker::start(&up, &["topic", "create", "t", "--timeout", "60s"]);
    eventually("it says whom it waits for", || !create.waits().is_empty());
    let pid = create.child.id();
    signal(pid, "STOP");
    eventually("it is stopped", || state_of(pid) == Some('T'));
    signal(pid, "CONT");
    eventually("it goes on", || state_of(pid) != Some('T'));
    signal(head, "CONT");
    let (code, _, err) = create.end();
    assert_eq!(code, Some(0), "{err}");
    up.stop();
}

#[test]
fn limits_are_shown_with_their_defaults() {
    for (args, options) in [
        (&["produce"][..], &["--timeout", "--open-timeout"][..]),
        (
            &["consume"],
            &["--timeout", "--loss-timeout", "--open-timeout"],
        ),
        (&["topic", "create"], &["--timeout"]),
        (&["status"], &["--timeout"]),
        (&["profile"], &["--timeout"]),
        (&["drain"], &["--timeout"]),
    ] {
        let output = run(embar(args).arg("--help"));
        let help = text(&output.stdout);
        for option in options {
            let at = help.find(&format!("{option} <TIME>")).expect("it is there");
            let until = help[at..].find("\n\n").map_or(help.len(), |end| at + end);
            let has_default = help[at..until].contains("[default: ");
            assert!(
                has_default || (args, *option) == (&["consume"][..], "--timeout"),
                "{args:?} {option}: {help}"
            );
        }
    }
}
