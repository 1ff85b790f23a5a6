//! `embar diagnose --attach`: a cluster that runs, and its clients.

mod common;

use std::io::Write;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{
    PATIENCE, Space, Up, embar, eventually, is_running, list, reported, run, signal, state_of, text,
};
use embar_bench::diagnose::attach::asking::Asker;
use embar_bench::diagnose::attach::look_by;
use embar_client::{Admin, Transport};
use embar_console::interrupt::Interrupt;
use embar_diagnose::observed::Missing;
use serde_json::Value;

fn look(up: &Up) -> Value {
    let mut command = embar(&["--json", "diagnose", "--for", "700ms", "--attach"]);
    let output = run(command.arg(up.bootstrap()));
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object and nothing else")
}

fn missing(report: &Value) -> Vec<String> {
    let all = report["observed"]["missing"].as_array().expect("a list");
    let what = all.iter().map(|it| it["what"].as_str().expect("a text"));
    what.map(str::to_owned).collect()
}

#[test]
fn a_client_that_hands_over_little_is_seen_from_outside_with_its_stages() {
    let space = Space::new();
    let up = Up::start(&space, &["--brokers", "2"]);
    up.ok(&["topic", "create", "t"]);
    let mut producer = up.embar(&["produce", "t", "--transport", "tcp"]);
    let mut producer = producer
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("embar runs");
    let mut lines = producer.stdin.take().expect("a pipe");
    let over = AtomicBool::new(false);
    let report = thread::scope(|scope| {
        // A megabyte each 20 ms, which is less than a log takes on any machine that builds it.
        let over = &over;
        scope.spawn(move || {
            let line = [&[b'x'; 1023][..], b"\n"].concat().repeat(1024);
            while !over.load(Ordering::Relaxed) && lines.write_all(&line).is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
        let mut report = Value::Null;
        eventually("the client is seen while it publishes", || {
            report = look(&up);
            report["observed"]["publisher"]["profile"].is_object()
                && report["bytes_per_s"].as_f64() > Some(0.0)
                && !list(&report["observed"]["publisher"], "application").is_empty()
        });
        over.store(true, Ordering::Relaxed);
        report
    });
    producer.wait().expect("it ends");
    let observed = &report["observed"];
    assert_eq!(
        report["findings"][0]["cause"], "application-too-slow",
        "{report}"
    );
    for broker in observed["brokers"].as_array().expect("brokers") {
        let threads = broker["network"].as_array().map(Vec::len);
        assert_eq!(threads, Some(1), "its process was found: {broker}");
    }
    let application = list(&observed["publisher"], "application");
    assert_eq!(application.len(), 1, "the one that publishes: {observed}");
    let senders = observed["publisher"]["senders"].as_array().map(Vec::len);
    assert!(senders > Some(0), "{observed}");
    let stages = observed["publisher"]["profile"]["stages"].as_array();
    let named = |it: &Value| it["name"] == "WaitForBuffer";
    assert!(stages.is_some_and(|all| all.iter().any(named)));
    let connections = observed["connections"].as_array().expect("connections");
    assert!(
        connections
            .iter()
            .any(|it| it["sender"].is_object() && it["receiver"].is_object())
    );
    let lacks = missing(&report);
    assert!(
        lacks.iter().all(|it| !it.contains("stages of client")),
        "{lacks:?}"
    );
    let carried = list(observed, "over_time").iter();
    let carried = carried.map(|it| it["per_s"].as_f64().expect("a rate"));
    assert!(carried.sum::<f64>() > 0.0, "{observed}");
    let took = report["look_cpu_s"].as_f64();
    assert!(took > Some(0.0), "a look takes something: {took:?}");
    // Without anybody there is nothing to find, and no client to be missed.
    let idle = look(&up);
    assert!(idle["observed"]["publisher"].is_null());
    assert!(missing(&idle).iter().all(|it| it != "the clients"));
    up.stop();
}

#[test]
fn where_no_broker_answers_the_error_says_so() {
    let mut command = embar(&["diagnose", "--attach", "127.0.0.1:1"]);
    let output = run(&mut command);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let mut command = embar(&["diagnose", "--attach", "--verify"]);
    assert_eq!(run(&mut command).status.code(), Some(2));
}

#[test]
fn top_shows_one_look_where_no_terminal_is() {
    let space = Space::new();
    let up = Up::start(&space, &["--brokers", "2"]);
    up.ok(&["topic", "create", "t", "--order", "5"]);
    let look: Value = serde_json::from_str(&up.ok(&["--json", "top", "--interval", "300ms"]))
        .expect("one JSON object and nothing else");
    let brokers = look["brokers"].as_array().expect("brokers");
    assert!(
        brokers.iter().all(|it| it["rates"]["connections"].is_u64()),
        "{look}"
    );
    assert_eq!(look["topics"][0]["name"], "t");
    assert_eq!(look["topics"][0]["order"], 5);
    assert!(look["diagnosis"]["findings"].is_array());
    let shown = up.ok(&["top", "--interval", "300ms"]);
    for part in ["log used", "messages/s", "remedy:"] {
        assert!(shown.contains(part), "{shown}");
    }
    assert!(
        !shown.contains('\u{1b}'),
        "no codes of terminals: {shown:?}"
    );
    up.stop();
}

/// A process that stands still, and goes on when this is dropped.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Self {
        signal(pid, "STOP");
        eventually("it stands still", || state_of(pid) == Some('T'));
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if is_running(self.0) {
            signal(self.0, "CONT");
        }
    }
}

fn addresses(up: &Up) -> Vec<String> {
    let brokers = list(&up.ready, "brokers").iter();
    let address = brokers.map(|it| it["address"].as_str().expect("an address").to_owned());
    address.collect()
}

/// A look as `embar top` has it: with clients that were there before. The brokers that answered, what is missing, the topics, and
/// whether they were listed.
fn look_again(admin: &Admin, asker: &mut Asker) -> (Vec<u32>, Vec<Missing>, Vec<String>, bool) {
    let span = Duration::from_millis(50);
    let seen = look_by(admin, asker, span, &Interrupt::default()).expect("somebody answers");
    let topics = asker.topics(&seen.cluster, &["t".to_owned()]);
    let described = topics.described.into_iter().map(|it| it.topic.name);
    (
        seen.statuses.into_keys().collect(),
        seen.observed.missing,
        described.collect(),
        topics.unlisted.is_none(),
    )
}

#[test]
fn a_look_goes_on_without_the_head() {
    let space = Space::new();
    let up = Up::start(&space, &["--brokers", "3", "--standbys", "0"]);
    up.ok(&["topic", "create", "t"]);
    let admin = Admin::connect(up.bootstrap()).expect("a thread");
    let admin = admin.transport(Transport::Tcp);
    let mut asker = Asker::new(PATIENCE);
    let (answer, _, topics, is_listed) = look_again(&admin, &mut asker);
    assert_eq!(
        (answer, topics, is_listed),
        (vec![0, 1, 2], vec!["t".to_owned()], true)
    );
    // It would start the head anew.
    let stopped = Stopped::new(up.child.id());
    let head = up.pids()[0];
    signal(head, "KILL");
    eventually("the head is gone", || !is_running(head));
    let (answer, _, topics, is_listed) = look_again(&admin, &mut asker);
    assert_eq!(
        (answer, topics, is_listed),
        (vec![1, 2], vec!["t".to_owned()], false),
        "the others are still seen"
    );
    let output = run(&mut embar(&[
        "--json",
        "top",
        "--interval",
        "250ms",
        "--bootstrap",
        &addresses(&up).join(","),
    ]));
    let look = reported(&output);
    let answers = |it: &&Value| it["rates"].is_object();
    assert_eq!(
        list(&look, "brokers").iter().filter(answers).count(),
        2,
        "{look}"
    );
    let missing = list(&look["diagnosis"], "missing");
    assert!(
        missing.iter().any(|it| it["what"] == "the list of topics"),
        "{look}"
    );
    drop(stopped);
}

#[test]
fn brokers_that_stand_still_hide_nobody() {
    let space = Space::new();
    let up = Up::start(&space, &["--brokers", "3", "--standbys", "0"]);
    up.ok(&["topic", "create", "t", "u"]);
    let limit = Duration::from_secs(3);
    let admin = Admin::connect(up.bootstrap()).expect("a thread");
    let admin = admin.transport(Transport::Tcp).timeout(limit);
    let mut asker = Asker::new(limit);
    let (answer, _, _, _) = look_again(&admin, &mut asker);
    assert_eq!(answer, [0, 1, 2]);
    let _one = Stopped::new(up.pids()[1]);
    let (answer, missing, topics, is_listed) = look_again(&admin, &mut asker);
    assert_eq!((answer, is_listed), (vec![0, 2], true));
    assert_eq!(topics, ["t", "u"], "others tell of them");
    let said = missing.iter().filter(|it| it.what.contains("broker 1 "));
    let said: Vec<_> = said.map(|it| it.what.as_str()).collect();
    assert_eq!(said, ["what broker 1 counts"], "it is asked once");
    // The one that the client was told of, and has a connection with.
    let _head = Stopped::new(up.pids()[0]);
    let (answer, _, topics, is_listed) = look_again(&admin, &mut asker);
    assert_eq!((answer, is_listed), (vec![2], false));
    assert_eq!(topics, ["t"], "what was known before");
}

#[test]
fn a_broker_that_stands_still_in_the_middle_of_a_look_is_missing_in_it() {
    let space = Space::new();
    let up = Up::start(&space, &["--brokers", "3", "--standbys", "0"]);
    let (limit, span) = (Duration::from_millis(500), Duration::from_secs(8));
    let admin = Admin::connect(up.bootstrap()).expect("a thread");
    let admin = admin.transport(Transport::Tcp).timeout(limit);
    let look = std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut asker = Asker::new(limit);
            look_by(&admin, &mut asker, span, &Interrupt::default()).expect("others answer")
        });
        // Whenever it stops in that time, it is missing; this long it answers at first.
        std::thread::sleep(span / 4);
        let _one = Stopped::new(up.pids()[1]);
        looks.join().expect("no panic")
    });
    let missing = look.observed.missing.iter();
    let said: Vec<_> = missing
        .map(|it| it.what.as_str())
        .filter(|it| it.contains("broker 1"))
        .collect();
    assert_eq!(said, ["what broker 1 counts"]);
    assert!(!look.statuses.contains_key(&1) && look.statuses.contains_key(&2));
}

#[test]
fn a_terminal_without_a_screen_is_refused() {
    let space = Space::new();
    let screen = space.dir.join("screen");
    let program = embar(&[]).get_program().to_owned();
    let line = format!(
        "TERM=dumb {} top --bootstrap 127.0.0.1:1",
        program.display()
    );
    let mut command = std::process::Command::new("script");
    let command = command.args(["-q", "-e", "-f", "-c", &line]).arg(&screen);
    let output = run(command.stdin(Stdio::null()));
    assert!(!output.status.success());
    let shown = std::fs::read_to_string(&screen).expect("what it said");
    assert!(shown.contains("embar top --once"), "{shown}");
}

#[test]
fn top_hears_keys_while_nobody_answers_and_gives_the_terminal_back() {
    let space = Space::new();
    let dir = tempfile::tempdir().expect("a directory");
    let screen = dir.path().join("screen");
    // script(1) is a terminal that writes down what it is shown.
    let program = embar(&[]).get_program().to_owned();
    let line = format!(
        "stty rows 24 cols 100; {} top --bootstrap 127.0.0.1:1 --interval 250ms; echo ended $?; stty -a",
        program.display()
    );
    let mut terminal = std::process::Command::new("script")
        .args(["-q", "-f", "-c", &line])
        .arg(&screen)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("script of bsdutils");
    let mut keys = terminal.stdin.take().expect("a pipe");
    let shown =
        || String::from_utf8_lossy(&std::fs::read(&screen).unwrap_or_default()).into_owned();
    eventually("it says that nobody answers", || {
        shown().contains("no answer")
    });
    keys.write_all(b"5?").expect("it reads");
    eventually("it hears keys while nobody answers", || {
        shown().contains("another")
    });
    keys.write_all(b"?q").expect("it reads");
    eventually("it ends by q", || shown().contains("ended 0"));
    eventually("the terminal echoes again", || {
        let text = shown();
        text.contains(" echo ") && text.contains(" icanon")
    });
    drop(keys);
    terminal.wait().expect("it ends");
    drop(space);
}
