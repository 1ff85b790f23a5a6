//! `embar diagnose`: each fault acts, what was seen can be looked at again, and a remedy is tried. Which causes are named is
//! tested by numbers (`crates/diagnose/tests`): here other tests take the processors.

mod common;

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use common::{Space, embar, list, number, reported, run, text};
use serde_json::Value;

/// A short look at a small cluster.
const ALWAYS: [&str; 8] = [
    "--json",
    "diagnose",
    "--for",
    "800ms",
    "--warm-up",
    "400ms",
    "--region-size",
    "128MiB",
];

/// One with these options.
fn diagnose(options: &[&str]) -> Value {
    let args = [&ALWAYS[..], options].concat();
    let output = run(&mut embar(&args));
    reported(&output)
}

fn refused(options: &[&str]) -> String {
    let output = run(embar(&["diagnose"]).args(options));
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    text(&output.stderr)
}

/// The brokers that take data.
fn data_brokers(report: &Value) -> impl Iterator<Item = &Value> {
    let all = list(&report["observed"], "brokers").iter();
    all.filter(|it| it["takes_data"] == true)
}

fn counter(broker: &Value, name: &str) -> f64 {
    let counters = list(&broker["profile"], "counters").iter();
    let found = counters.clone().find(|it| it[0] == name);
    number(&found.unwrap_or_else(|| panic!("no counter {name}"))[1])
}

#[test]
fn each_finding_has_its_numbers_and_a_saved_look_says_the_same_again() {
    let space = Space::new();
    let saved = space.dir.join("seen.json");
    let saved = saved.to_str().expect("a name");
    let report = diagnose(&["--save", saved]);
    assert!(number(&report["bytes_per_s"]) > 0.0);
    for finding in list(&report, "findings") {
        assert!(
            finding["cause"].is_string() && finding["part"].is_string(),
            "{finding}"
        );
        assert!(!list(finding, "evidence").is_empty(), "{finding}");
        assert!(
            (0.0..=1.0).contains(&number(&finding["confidence"])),
            "{finding}"
        );
        assert!(number(&finding["gain_at_most"]) >= 0.0, "{finding}");
        assert!(finding["remedy"]["text"].is_string() && finding["verified"].is_null());
    }
    assert!(!list(&report, "findings").is_empty());
    let observed = &report["observed"];
    assert_eq!(list(observed, "connections").len(), 3, "{observed}");
    for connection in list(observed, "connections") {
        assert!(number(&connection["sender"]["sent_bytes"]) > 0.0);
        assert!(number(&connection["receiver"]["buffer_bytes"]) > 0.0);
    }
    // What moved over time is what moved in all.
    let steps = list(observed, "over_time").iter();
    let carried = steps.map(|it| number(&it["seconds"]) * number(&it["per_s"]));
    let (carried, all) = (carried.sum::<f64>(), number(&observed["bytes"]));
    let part = carried / all;
    assert!((0.7..=1.01).contains(&part), "{carried} of {all}");
    let steps = list(observed, "over_time").iter();
    let seconds: f64 = steps.map(|it| number(&it["seconds"])).sum();
    let part = seconds / number(&observed["seconds"]);
    assert!((0.7..=1.01).contains(&part), "{observed}");
    // One for each connection, and one that looks after the publisher.
    assert_eq!(list(&observed["publisher"], "senders").len(), 4);
    assert_eq!(data_brokers(&report).count(), 3);

    let printed = space.dir.join("printed.json");
    std::fs::write(&printed, report.to_string()).expect("written");
    for file in [saved, printed.to_str().expect("UTF-8")] {
        let again = run(&mut embar(&["--json", "diagnose", "--from", file]));
        assert!(again.status.success(), "{}", text(&again.stderr));
        let again: Value = serde_json::from_slice(&again.stdout).expect("JSON");
        assert_eq!(again["findings"], report["findings"]);
        assert_eq!(again["limits"], report["limits"]);
    }

    let picture = run(&mut embar(&["diagnose", "--from", saved]));
    let picture = text(&picture.stdout);
    assert!(
        ["brokers", "processors", "over time", "MiB/s in steps of"]
            .iter()
            .all(|it| picture.contains(it)),
        "{picture}"
    );
}

#[test]
fn what_cannot_be_is_refused_with_what_can() {
    assert!(refused(&["--inject", "slow-disk=1"]).contains("small-rcvbuf=43690"));
    assert!(refused(&["--inject", "cpu-hog=1", "--inject", "cpu-hog=2"]).contains("twice"));
    assert!(refused(&["--inject", "cpu-hog=many"]).contains("cpu-hog=2"));
    assert!(refused(&["--verify", "--pairs", "3"]).contains("8 or more"));
    assert!(refused(&["--inject", "small-batches=1152", "-m", "4KiB"]).contains("batch"));
    assert!(refused(&["--inject", "slow-reader=1MiB"]).contains("--flow read"));
    assert!(refused(&["--flow", "read", "--inject", "long-linger=1ms"]).contains("--flow publish"));
    let by_memory = ["--transport", "shm", "--inject", "small-rcvbuf=43690"];
    assert!(refused(&by_memory).contains("--transport tcp"));
    // What one run is like means nothing to none, or to those of a matrix.
    assert!(refused(&["--matrix", "2", "-m", "64"]).contains("--message-size"));
    assert!(refused(&["--matrix", "0"]).contains("1.."));
    assert!(refused(&["--matrix", "2", "--verify", "--pairs", "3"]).contains("8 or more"));
    assert!(refused(&["--from", "seen.json", "--batch-size", "4KiB"]).contains("--batch-size"));
    assert!(refused(&["--pairs", "8"]).contains("--verify"));
    let space = Space::new();
    let file = space.dir.join("not.json");
    std::fs::write(&file, "{}").expect("written");
    let output = run(embar(&["diagnose", "--from"]).arg(&file));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("--save"));
}

#[test]
fn brokers_tell_of_their_lanes_and_the_kernel_of_who_stood_still() {
    let report = diagnose(&["--order", "5", "--inject", "cpu-hog=2"]);
    for broker in data_brokers(&report) {
        assert!(number(&broker["lane_capacity"]) > 0.0, "{broker}");
        assert!(number(&broker["lane_batches"]) <= number(&broker["lane_capacity"]));
        assert!(number(&broker["held_batches"]) <= number(&broker["lane_batches"]));
    }
    let stood = &report["observed"]["machine"]["cpu_pressure"];
    if std::path::Path::new("/proc/pressure/cpu").exists() {
        assert!(number(stood) > 0.0, "{stood}");
    } else {
        let missing = list(&report, "missing").iter();
        let said = { missing }.any(|it| it["what"] == "who stood still (/proc/pressure)");
        assert!(said && stood.is_null(), "{report}");
    }
}

#[test]
fn small_buffers_are_granted_as_small() {
    // The kernel grants twice what is asked for (socket(7)).
    let report = diagnose(&["--inject", "small-rcvbuf=43690"]);
    for connection in list(&report["observed"], "connections") {
        assert_eq!(number(&connection["receiver"]["buffer_bytes"]), 87_380.0);
    }
    assert_eq!(report["injected"][0], "small-rcvbuf=43690");
    let report = diagnose(&["--flow", "read", "--inject", "small-sndbuf=16KiB"]);
    let connections = list(&report["observed"], "connections");
    assert!(!connections.is_empty(), "{report}");
    for connection in connections {
        assert_eq!(connection["to_subscriber"], true);
        assert_eq!(number(&connection["sender"]["buffer_bytes"]), 32_768.0);
    }
}

#[test]
fn slow_applications_keep_to_their_rate() {
    let rate = f64::from(4 << 20);
    for options in [
        ["--flow", "publish", "--inject", "slow-sender=4MiB"],
        ["--flow", "read", "--inject", "slow-reader=4MiB"],
    ] {
        let report = diagnose(&options);
        assert!(number(&report["bytes_per_s"]) < 2.0 * rate, "{report}");
    }
}

#[test]
fn batches_threads_and_what_is_on_its_way_are_as_injected() {
    let report = diagnose(&[
        "--inject",
        "small-batches=4KiB",
        "--inject",
        "few-in-flight=1",
    ]);
    for broker in data_brokers(&report) {
        assert!(counter(broker, "bytes") <= 4096.0 * counter(broker, "batches"));
    }
    let publisher = &report["observed"]["publisher"];
    let stages = list(&publisher["profile"], "stages");
    let waited = stages
        .iter()
        .find(|it| it["name"] == "WaitForAck")
        .expect("a stage");
    let on_their_way = number(&waited["total_ns"]) / 1e9 / number(&report["observed"]["seconds"]);
    // One on each of three connections, and what waited before; unless told otherwise it would be dozens.
    assert!(on_their_way < 12.0, "{on_their_way}");

    let report = diagnose(&["--inject", "many-threads=2"]);
    let publisher = &report["observed"]["publisher"];
    assert_eq!(list(publisher, "application").len(), 2);
    assert_eq!(list(publisher, "senders").len(), 7);
    assert!(data_brokers(&report).all(|it| list(it, "network").len() == 2));
}

#[test]
fn a_broker_that_stands_still_has_less_to_do_than_another() {
    let report = diagnose(&["--inject", "hot-broker=90", "--batch-size", "64KiB"]);
    let occupied = |broker: &Value| {
        let thread = &broker["network"][0];
        number(&thread["on_cpu"]) + number(&thread["waiting"])
    };
    let occupied: Vec<f64> = data_brokers(&report).map(occupied).collect();
    let most = occupied.iter().copied().fold(0.0, f64::max);
    assert!(occupied[2] < most, "{occupied:?}");
}

#[test]
fn others_take_processors_and_are_gone_afterwards() {
    let report = diagnose(&["--inject", "cpu-hog=2"]);
    assert!(
        number(&report["observed"]["machine"]["others"]) > 0.02,
        "{report}"
    );
}

#[test]
fn a_quota_needs_root_and_throttles() {
    common::quota_throttles(&ALWAYS);
}

/// A look that goes on until it is ended. It is killed if its test fails.
struct Long(Child);

impl Long {
    fn start(options: &[&str]) -> Self {
        Self::start_by(embar(&[]), options)
    }

    /// By a command that runs the program with more arguments.
    fn start_by(mut command: Command, options: &[&str]) -> Self {
        command.args(["diagnose", "--for", "60m", "--region-size", "128MiB"]);
        let output = (Stdio::null(), Stdio::null());
        let child = command
            .args(options)
            .stdout(output.0)
            .stderr(output.1)
            .spawn();
        Self(child.expect("embar starts"))
    }

    /// The brokers, once they serve what is published.
    fn brokers(&self) -> Vec<u32> {
        let threads = format!("/proc/{}/task", self.0.id());
        let publishes = |it: &String| {
            let name = std::fs::read_to_string(format!("{threads}/{it}/comm"));
            name.is_ok_and(|it| it.starts_with("publish-"))
        };
        common::eventually("it publishes", || {
            common::names_in(Path::new(&threads)).iter().any(publishes)
        });
        let brokers = common::children_of(self.0.id(), " broker ");
        assert_eq!(brokers.len(), 4);
        brokers
    }

    /// Sends it a signal, and waits until it has ended.
    fn end(&mut self, name: &str) -> ExitStatus {
        common::signal(self.0.id(), name);
        common::end_of(&mut self.0)
    }
}

impl Drop for Long {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn are_gone(pids: &[u32]) {
    common::eventually("its processes are gone", || {
        pids.iter().all(|pid| !common::is_running(*pid))
    });
}

#[test]
fn who_computes_beside_the_load_has_no_part_of_its_quota() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (hog, quota) = (["--inject", "cpu-hog=1"], ["--inject", "cpu-quota=50"]);
    for options in [[hog, quota], [quota, hog]] {
        let mut look = Long::start(&options.concat());
        let group = |pid: u32| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup"));
            text.unwrap_or_default()
        };
        let name = format!("embar-quota-{}-", look.0.id());
        common::eventually("it has a quota", || group(look.0.id()).contains(&name));
        let brokers = look.brokers();
        let hogs = common::children_of(look.0.id(), " cpu-hog ");
        assert_eq!(hogs.len(), 1);
        assert!(brokers.iter().all(|it| group(*it).contains(&name)));
        assert!(!group(hogs[0]).contains(&name), "{options:?}");
        look.end("TERM");
        are_gone(&[brokers, hogs].concat());
        assert_eq!(common::groups_in(Path::new("/sys/fs/cgroup"), &name), 0);
    }
}

#[test]
fn a_broker_that_stands_still_ends_with_whoever_stops_it() {
    // Whose session has a parent for its orphans, as in a container, gets no SIGCONT from the kernel for those that stand still.
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own)).expect("any process may take orphans");
    let mut look = Long::start(&["--inject", "hot-broker=95"]);
    let brokers = look.brokers();
    // Whoever stops and continues it stands still in the moment in which the broker does.
    let stopped = |pid: &u32| common::state_of(*pid) == Some('T');
    common::eventually("a broker stands still", || {
        common::signal(look.0.id(), "STOP");
        common::eventually("so does the tool", || stopped(&look.0.id()));
        let is_so = brokers.iter().any(stopped);
        if !is_so {
            common::signal(look.0.id(), "CONT");
        }
        is_so
    });
    look.end("KILL");
    are_gone(&brokers);
}

#[test]
fn regions_of_a_network_of_its_own_are_where_those_of_the_user_are() {
    let uid = rustix::process::geteuid().as_raw();
    let options = ["--inject", "net-rate=8MiB"];
    // Root needs no user namespace for a network of its own, so somebody else tries it, where the program is for all to use.
    let (mut look, user) = if uid == 0 {
        const NOBODY: u32 = 65_534;
        let Some(become_nobody) = as_user(NOBODY) else {
            return;
        };
        (Long::start_by(become_nobody, &options), NOBODY)
    } else {
        (Long::start(&options), uid)
    };
    let brokers = look.brokers();
    let region = format!("/dev/shm/embar-{user}/bench-{}", look.0.id());
    assert!(Path::new(&region).exists(), "{region}");
    look.end("TERM");
    are_gone(&brokers);
    common::eventually("the memory is free", || !Path::new(&region).exists());
}

/// What makes the command behind it run as another user; `None` where that cannot be, or he may not run the program.
fn as_user(uid: u32) -> Option<Command> {
    let id = uid.to_string();
    let switch = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]);
        command
    };
    let program = env!("CARGO_BIN_EXE_embar");
    let network = ["unshare", "--user", "--map-current-user", "--net", program];
    let tried = switch().args(network).arg("--version").output();
    tried.is_ok_and(|it| it.status.success()).then(|| {
        let mut command = switch();
        command.arg(program);
        command
    })
}

#[test]
fn a_look_in_a_network_of_its_own_ends_by_signals_as_any_other() {
    for name in ["TERM", "KILL"] {
        let mut look = Long::start(&["--inject", "net-rate=8MiB"]);
        let brokers = look.brokers();
        look.end(name);
        are_gone(&brokers);
    }
}

#[test]
fn a_slow_network_carries_no_more_than_it_is_told() {
    let report = diagnose(&["--inject", "net-rate=8MiB"]);
    let observed = &report["observed"];
    let carried = number(&observed["bytes"]);
    // What is in the bucket at the beginning comes at once, and what was carried before may be acknowledged now.
    let allowed = f64::from(8 << 20) * number(&observed["seconds"]) + f64::from(2 << 20);
    assert!(carried > 0.0 && carried < allowed, "{report}");
}

#[test]
fn a_long_way_takes_time_and_a_bad_one_loses_packets() {
    let ends = |fault: &str, name: &str| -> Vec<f64> {
        let report = diagnose(&["--inject", fault]);
        let connections = list(&report["observed"], "connections").iter();
        let ends = connections.map(|it| number(&it["sender"][name])).collect();
        assert_ne!(ends, [0.0; 0], "{fault}: {report}");
        ends
    };
    let round_trips = ends("net-delay=4ms", "round_trip_min_s");
    // The kernel rounds down to its ticks.
    assert!(round_trips.iter().all(|it| *it > 7e-3), "{round_trips:?}");
    let resent: f64 = ends("net-loss=5", "resent_bytes").iter().sum();
    assert!(resent > 0.0);
}

#[test]
fn cold_memory_is_touched_by_whoever_receives() {
    let faults = |options: &[&str]| -> f64 {
        let report = diagnose(options);
        let of = |broker| number(&list(broker, "network")[0]["faults"]);
        data_brokers(&report).map(of).sum()
    };
    // So slow that the log is not full before the look ends.
    let slow = ["--inject", "slow-sender=40MiB"];
    let cold = faults(&[&slow[..], &["--inject", "cold-memory"]].concat());
    let warm = faults(&slow);
    // How many pages the kernel maps at once is its own business.
    assert!(cold > 4.0 * warm + 20.0, "{cold}, {warm}");
}

#[test]
fn a_network_is_made_in_no_namespace_but_its_own() {
    let mut command = embar(&["diagnose", "--inject", "net-rate=8MiB"]);
    for from in ["net:[1]", "x"] {
        let output = run(command.env("EMBAR_NETWORK_FROM", from));
        let is_refused = text(&output.stderr).contains("EMBAR_NETWORK_FROM is set");
        assert!(is_refused, "{}", text(&output.stderr));
    }
}

#[test]
fn a_remedy_is_tried_beside_what_is_and_found_to_help() {
    let report = diagnose(&[
        "--inject",
        "long-linger=100ms",
        "--verify",
        "--pairs",
        "9",
        "--brokers",
        "1",
    ]);
    let finding = &report["findings"][0];
    assert_eq!(finding["cause"], "linger-too-long", "{report}");
    assert_eq!(finding["remedy"]["change"]["setting"], "linger");
    let verified = &finding["verified"];
    assert_eq!(verified["outcome"], "helped", "{verified}");
    assert!(number(&verified["ratio"]["low"]) > 1.0, "{verified}");
    assert_eq!(number(&verified["pairs"]), 9.0);
}
