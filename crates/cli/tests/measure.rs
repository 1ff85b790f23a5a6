//! `quickstart` and `bench`, small.

mod common;

use std::path::PathBuf;
use std::process::{Child, Stdio};

use common::{
    Space, children_of, embar, eventually, is_running, names_in, output_of, run, signal, state_of,
    text,
};
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    let output = run(&mut embar(args));
    assert!(
        output.status.success(),
        "{args:?}: {}",
        text(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("one JSON object and nothing else")
}

fn is_positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number > 0.0)
}

/// Regions that a process of this id made.
fn regions_of(pid: u32) -> Vec<String> {
    let root = PathBuf::from(format!(
        "/dev/shm/embar-{}",
        rustix::process::getuid().as_raw()
    ));
    names_in(&root)
        .into_iter()
        .filter(|name| name.split(['-', '.']).any(|part| part == pid.to_string()))
        .collect()
}

#[test]
fn quickstart_verifies_and_leaves_nothing() {
    let child = embar(&[
        "--json",
        "quickstart",
        "--size",
        "16MiB",
        "--region-size",
        "128MiB",
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .expect("embar starts");
    let pid = child.id();
    let output = output_of(child);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["verified"].as_u64(), Some(16 << 10));
    assert!(
        is_positive(&report["publish"]["mib_per_s"]) && is_positive(&report["read"]["mib_per_s"])
    );
    for profile in ["broker_profile", "publisher_profile", "subscriber_profile"] {
        assert!(
            report[profile]["stages"]
                .as_array()
                .is_some_and(|stages| !stages.is_empty()),
            "{profile}"
        );
    }
    let ways = report["ways"].as_array().expect("a list");
    let names: Vec<_> = ways.iter().map(|way| &way["transport"]).collect();
    assert_eq!(names, ["TCP", "Unix sockets", "shared memory"]);
    for way in ways {
        let rates = [&way["publish_mib_per_s"], &way["read_mib_per_s"]];
        assert!(rates.into_iter().all(is_positive), "{way}");
    }
    assert_eq!(report["chosen"], "shared memory");
    assert!(
        report["limits"]
            .as_array()
            .is_some_and(|limits| limits.len() == 2)
    );
    assert_eq!(regions_of(pid), Vec::<String>::new());
}

#[test]
fn quickstart_for_people_ends_with_what_limited_it() {
    let output = run(&mut embar(&[
        "quickstart",
        "--size",
        "8MiB",
        "--region-size",
        "128MiB",
    ]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for part in [
        "TCP            published",
        "Unix sockets   published",
        "shared memory  published",
        "chosen     shared memory",
        "each message once and unchanged",
        "[PublishPipelineProfile]",
        "What limited it",
        "Publishing: ",
        "Reading: ",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn bench_publish_reports_what_was_asked_for_and_measured() {
    let space = Space::new();
    let log = space.dir.join("result.csv");
    let report = json(&[
        "--json",
        "bench",
        "publish",
        "-m",
        "512",
        "-s",
        "8MiB",
        "-o",
        "1",
        "--trials",
        "2",
        "--warmup",
        "0",
        "--brokers",
        "3",
        "--region-size",
        "128MiB",
        "--batch-size",
        "256KiB",
        "--threads-per-broker",
        "2",
        "--publishers",
        "2",
        "--record-to",
        log.to_str().expect("a path"),
    ]);
    let config = &report["config"];
    for (name, value) in [
        ("message_bytes", 512),
        ("messages", 16 << 10),
        ("order", 1),
        ("acks", 1),
        ("threads_per_broker", 2),
        ("publishers", 2),
        ("brokers", 3),
        ("batch_bytes", 256 << 10),
    ] {
        assert_eq!(config[name].as_u64(), Some(value), "{name}");
    }
    assert_eq!(report["trials"].as_array().map(Vec::len), Some(2));
    for name in [
        "median_mib_per_s",
        "messages_per_s",
        "recv_calls_per_batch",
        "bytes_per_recv",
    ] {
        assert!(is_positive(&report[name]), "{name}");
    }
    assert!(is_positive(
        &report["trials"][0]["client"]["peak_rss_bytes"]
    ));
    let messages = report["broker_profile"]["counters"]
        .as_array()
        .expect("counters")
        .iter()
        .find(|c| c[0] == "messages");
    assert_eq!(
        messages.and_then(|counter| counter[1].as_u64()),
        Some(2 * (16 << 10)),
        "both trials, each message once"
    );
    assert!(report["publisher_profile"]["stages"].is_array() && report["note"].is_null());
    let rows = std::fs::read_to_string(&log).expect("recorded");
    let lines: Vec<&str> = rows.lines().collect();
    assert_eq!((lines.len(), lines[1].split(',').count()), (3, 14));
    assert!(
        lines[1].starts_with("512,8388608,2,1,1,1,0,1,0,0,"),
        "{}",
        lines[1]
    );
}

#[test]
fn ack_0_says_what_it_measures_and_metering_off_has_no_profile() {
    let small = [
        "-s",
        "2MiB",
        "--trials",
        "1",
        "--warmup",
        "0",
        "--brokers",
        "2",
        "--region-size",
        "64MiB",
    ];
    let report = json(
        &[
            &["--json", "bench", "publish", "-a", "0", "--metering", "off"][..],
            &small,
        ]
        .concat(),
    );
    assert!(
        report["note"]
            .as_str()
            .expect("a note")
            .contains("socket buffers")
    );
    assert!(report["broker_profile"].is_null() && report["publisher_profile"].is_null());
}

#[test]
fn comparisons_say_what_too_few_trials_cannot() {
    let small = [
        "-s",
        "2MiB",
        "--trials",
        "2",
        "--warmup",
        "0",
        "--brokers",
        "2",
        "--region-size",
        "64MiB",
    ];
    let report = json(&[&["--json", "bench", "publish", "--wall"][..], &small].concat());
    assert!(is_positive(
        &report["wall"]["ratio_to_working"]["ratio"]["point"]
    ));
    assert_eq!(report["wall"]["series"].as_array().map(Vec::len), Some(3));
    let small = [
        "-s",
        "1MiB",
        "--pairs",
        "2",
        "--brokers",
        "2",
        "--region-size",
        "64MiB",
    ];
    let report = json(&[&["--json", "bench", "metering"][..], &small].concat());
    assert_eq!(report["metering_cost"]["verdict"], "InsideNoise");
    assert_eq!(report["series"].as_array().map(Vec::len), Some(2));
    let looked = [
        "--attached",
        "-s",
        "32MiB",
        "--pairs",
        "2",
        "--brokers",
        "2",
        "--region-size",
        "64MiB",
    ];
    let report = json(&[&["--json", "bench", "metering"][..], &looked].concat());
    let names = report["series"].as_array().expect("two").iter();
    let names: Vec<_> = names
        .map(|it| it["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(names, ["alone", "looked at"]);
    assert_eq!(report["metering_cost"]["pairs"], 2);
}

#[test]
fn a_look_that_stands_still_ends_with_whoever_stopped_it() {
    let mut bench = embar(&["bench", "metering", "--attached", "-s", "32MiB"])
        .args([
            "--pairs",
            "10000",
            "--brokers",
            "2",
            "--region-size",
            "64MiB",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("embar starts");
    let mut looks = Vec::new();
    eventually("it is looked at, and then not", || {
        looks = children_of(bench.id(), " --attach ");
        let stands = |pid: &u32| state_of(*pid) == Some('T');
        !looks.is_empty() && looks.iter().all(stands)
    });
    signal(bench.id(), "KILL");
    bench.wait().expect("it was killed");
    eventually("the look is gone", || {
        looks.iter().all(|pid| !is_running(*pid))
    });
}

#[test]
fn bench_read_and_e2e_verify_every_message() {
    let small = [
        "-s",
        "4MiB",
        "--trials",
        "1",
        "--warmup",
        "0",
        "--brokers",
        "3",
        "--region-size",
        "128MiB",
    ];
    let report = json(&[&["--json", "bench", "read"][..], &small].concat());
    assert!(
        is_positive(&report["median_mib_per_s"])
            && report["subscriber_profile"]["stages"].is_array()
    );
    let report = json(&[&["--json", "bench", "e2e"][..], &small].concat());
    let latency = &report["trials"][0]["latency_us"];
    assert!(latency["p50"].as_f64() <= latency["p99"].as_f64() && is_positive(&latency["max"]));
}

#[test]
fn what_does_not_fit_is_refused_with_advice() {
    let refused = |args: &str| {
        let args: Vec<&str> = args.split_whitespace().collect();
        let output = run(&mut embar(&args));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        said
    };
    let small = "--trials 1 --warmup 0 --brokers 2 --region-size 64MiB";
    let said = refused(&format!("bench read -s 200MiB {small}"));
    assert!(said.contains("--region-size"), "{said}");
    let said = refused("bench publish --transport shm --compare receive=direct,staging");
    assert!(said.contains("--receive would change nothing"), "{said}");
}

/// `bench walls` with small rounds and these options.
fn walls(args: &[&str]) -> Value {
    let small = [
        "-s",
        "4MiB",
        "--trials",
        "1",
        "--warmup",
        "0",
        "--brokers",
        "3",
        "--region-size",
        "128MiB",
    ];
    json(&[&["--json", "bench", "walls"][..], &small, args].concat())
}

/// Its rows, without what was measured.
fn wall_rows(report: &Value) -> Vec<(String, u64, u64, String, bool)> {
    let rows = report["rows"].as_array().expect("rows").iter();
    rows.map(|row| {
        assert!(is_positive(&row["wall_gb_per_s"]), "{row}");
        let is_ours = is_positive(&row["ours_gb_per_s"]);
        assert_eq!(is_ours, is_positive(&row["ratio"]), "{row}");
        assert_eq!(is_ours, is_positive(&row["interval"]["point"]), "{row}");
        let text = |field: &str| row[field].as_str().expect(field).to_owned();
        let number = |field: &str| row[field].as_u64().expect(field);
        (
            text("path"),
            number("order"),
            number("batch_bytes"),
            text("wall"),
            is_ours,
        )
    })
    .collect()
}

#[test]
fn bench_walls_has_each_path_beside_its_walls() {
    let rows = wall_rows(&walls(&["--order", "0", "--batch-size", "256KiB"]));
    let row = |path: &str, wall: &str| (path.to_owned(), 0, 256 << 10, wall.to_owned(), true);
    assert_eq!(
        rows,
        [
            row("publish_tcp", "bare"),
            row("publish_tcp", "working"),
            row("read_tcp", "bare"),
            row("read_tcp", "working"),
            row("read_tcp", "working, verified"),
            row("read_tcp", "ours unverified"),
            row("e2e_tcp", "bare relay"),
            row("e2e_tcp", "working relay"),
            row("publish_unix", "bare"),
            row("publish_unix", "working"),
            row("read_unix", "bare"),
            row("read_unix", "working"),
            row("read_unix", "working, verified"),
            row("read_unix", "ours unverified"),
            row("e2e_unix", "bare relay"),
            row("e2e_unix", "working relay"),
            // On all brokers and on one, with messages of two sizes.
            row("publish_shm", "bare"),
            row("publish_shm", "bare"),
            row("publish_shm", "bare, streamed"),
            row("publish_shm", "bare, streamed"),
            row("publish_shm", "in place"),
            row("publish_shm", "in place"),
            row("publish_shm", "bare"),
            row("publish_shm", "bare"),
            row("publish_shm", "bare, streamed"),
            row("publish_shm", "bare, streamed"),
            row("publish_shm", "in place"),
            row("publish_shm", "in place"),
            row("read_shm", "plain pass"),
            row("read_shm", "plain pass"),
            row("read_shm", "ours unverified"),
            row("read_shm", "ours unverified"),
            row("read_shm", "plain pass"),
            row("read_shm", "plain pass"),
            row("read_shm", "ours unverified"),
            row("read_shm", "ours unverified"),
            row("e2e_shm", "bare, followed"),
            row("e2e_shm", "bare, followed"),
            row("e2e_shm", "bare, followed"),
            row("e2e_shm", "bare, followed"),
            row("beside_tcp", "beside TCP"),
        ]
    );
}

#[test]
fn bench_walls_compares_orders_and_sizes_on_the_path_that_was_asked_for() {
    let report = walls(&["--path", "publish_tcp", "--batch-size", "16KiB,64KiB"]);
    let rows = wall_rows(&report);
    assert_eq!(rows.len(), 2 * 5);
    for bytes in [16 << 10, 64 << 10] {
        let is_compared = |row: &(String, u64, u64, String, bool)| {
            row.1 == 5 && row.2 == bytes && row.3 == "order 0" && row.4
        };
        assert!(rows.iter().any(is_compared), "{rows:?}");
    }
}

#[test]
fn bench_walls_measures_the_machine_alone() {
    let report = walls(&[
        "--walls-only",
        "--batch-size",
        "16KiB",
        "--read-threads",
        "2",
    ]);
    let rows = wall_rows(&report);
    let of_sockets = rows.iter().filter(|row| !row.0.ends_with("_shm"));
    assert_eq!(of_sockets.count(), 2 * 7);
    assert!(rows.iter().all(|row| !row.4), "{rows:?}");
}

#[test]
fn bench_walls_measures_shared_memory_in_two_sizes_of_messages_and_how_long_an_answer_takes() {
    let report = walls(&["--path", "e2e_shm,ack_shm,delivery_shm", "-m", "1000"]);
    let sizes = |rows: &Value| -> Vec<u64> {
        let rows = rows.as_array().expect("rows").iter();
        let sizes = rows.map(|row| row["message_bytes"].as_u64().expect("a size"));
        sizes.collect()
    };
    // Each beside its wall at two orders, with a reader that touches as the wall does, and both orders side by side, with one that
    // verifies as well; all that on three brokers and on one.
    let expected = [[1000; 8], [64; 8]].concat();
    assert_eq!(sizes(&report["rows"]), expected);
    let kinds = report["rows"].as_array().expect("rows").iter().map(|row| {
        let of = |field: &str| row[field].to_string();
        ["message_bytes", "order", "brokers", "reader", "wall"].map(of)
    });
    let kinds: std::collections::BTreeSet<_> = kinds.collect();
    assert_eq!(
        kinds.len(),
        expected.len(),
        "no row is there twice: {kinds:?}"
    );
    let times = report["times"].as_array().expect("times");
    // Those that sleep, and those that spin.
    let mut expected = Vec::new();
    for (path, wall) in [("ack_shm", "hand-over"), ("delivery_shm", "ping")] {
        for wall in [wall, wall, "order 0"] {
            expected.extend([false, true].map(|spins| serde_json::json!([path, wall, spins])));
        }
    }
    let walls: Vec<Value> = times
        .iter()
        .map(|row| serde_json::json!([row["path"], row["wall"], row["spins"]]))
        .collect();
    assert_eq!(walls, expected);
    for row in times {
        assert!(is_positive(&row["wall_p50_ns"]), "{row}");
        assert!(
            is_positive(&row["ours_p50_ns"]) && is_positive(&row["ours_p99_ns"]),
            "{row}"
        );
        assert!(is_positive(&row["ratio"]), "{row}");
        assert!(
            row["wall_p99_ns"].as_f64() >= row["wall_p50_ns"].as_f64(),
            "{row}"
        );
    }
}

#[test]
fn bench_walls_measures_a_remote_client_beside_a_local_one() {
    let report = walls(&["--path", "beside_tcp", "--batch-size", "16KiB"]);
    let rows = report["rows"].as_array().expect("rows");
    let walls: Vec<_> = rows
        .iter()
        .map(|row| serde_json::json!([row["wall"], row["order"]]))
        .collect();
    assert_eq!(
        walls,
        [
            serde_json::json!(["beside TCP", 0]),
            serde_json::json!(["beside TCP", 5])
        ]
    );
    assert!(
        rows.iter().all(|row| is_positive(&row["ratio"])),
        "{rows:?}"
    );
}

#[test]
fn bench_scale_measures_each_point_of_a_curve() {
    let report = json(&[
        "--json",
        "bench",
        "scale",
        "--curve",
        "brokers,topics",
        "--max",
        "2",
        "--duration",
        "20ms",
        "--trials",
        "1",
        "--warmup",
        "0",
        "--region-size",
        "128MiB",
    ]);
    let curves = report["curves"].as_array().expect("curves");
    let points = |curve: &Value| -> Vec<u64> {
        let points = curve["points"].as_array().expect("points").iter();
        points
            .map(|point| {
                // The kernel counts CPU time in ticks, of which so short a trial may see none.
                assert!(point["cpu_s_per_gib"].is_number(), "{point}");
                assert!(is_positive(&point["messages_per_s"]), "{point}");
                point["value"].as_u64().expect("a number")
            })
            .collect()
    };
    assert_eq!(
        curves.iter().map(points).collect::<Vec<_>>(),
        [vec![1, 2], vec![1]]
    );
}

#[test]
fn bench_scale_reports_what_cannot_be_run_and_goes_on() {
    let output = run(&mut embar(&[
        "bench",
        "scale",
        "--curve",
        "publishers",
        "--max",
        "2",
        "--duration",
        "20ms",
        "--region-size",
        "1KiB",
    ]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for part in [
        "publishers 1 could not be run: ",
        "publishers 2 could not be run: ",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

/// A bench that is killed if its test fails.
struct Bench(Option<Child>);

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }
}

impl Bench {
    fn id(&self) -> u32 {
        self.0.as_ref().expect("it runs").id()
    }

    fn end(mut self) -> std::process::Output {
        output_of(self.0.take().expect("it runs"))
    }
}

/// A bench that takes long, with its brokers under load.
fn long_bench() -> (Bench, Vec<u32>) {
    let bench = embar(&[
        "bench",
        "publish",
        "-s",
        "1TiB",
        "--trials",
        "1",
        "--warmup",
        "0",
        "--brokers",
        "3",
        "--region-size",
        "128MiB",
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .expect("embar starts");
    let bench = Bench(Some(bench));
    // In steps of 10 ms; more than starting takes.
    let cpu = |pid: u32| -> Option<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<u64> = stat
            .rsplit(')')
            .next()?
            .split_whitespace()
            .skip(11)
            .take(2)
            .flat_map(str::parse)
            .collect();
        Some(fields.iter().sum())
    };
    let busy = |pid: &u32| cpu(*pid).is_some_and(|ticks| ticks > 30);
    let mut brokers = Vec::new();
    eventually("the brokers receive", || {
        brokers = children_of(bench.id(), " broker ");
        brokers.len() == 3 && brokers[1..].iter().all(busy)
    });
    (bench, brokers)
}

#[test]
fn a_broker_that_dies_in_a_bench_ends_it_with_an_error() {
    let (bench, brokers) = long_bench();
    let pid = bench.id();
    signal(brokers[1], "KILL");
    // Otherwise it would go on for longer than this test waits.
    let output = bench.end();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("broker 1 was killed"),
        "{}",
        text(&output.stderr)
    );
    assert!(brokers.into_iter().all(|broker| !is_running(broker)));
    assert_eq!(regions_of(pid), Vec::<String>::new());
}

#[test]
fn a_bench_that_is_interrupted_or_killed_leaves_nothing() {
    for (name, code) in [("INT", Some(130)), ("KILL", None)] {
        let (bench, brokers) = long_bench();
        let pid = bench.id();
        signal(pid, name);
        assert_eq!(bench.end().status.code(), code, "{name}");
        eventually("the brokers are gone", || {
            brokers.iter().all(|broker| !is_running(*broker))
        });
        eventually("the memory is free", || regions_of(pid).is_empty());
    }
}

#[test]
fn bench_disk_measures_what_was_asked_for_and_leaves_nothing() {
    let space = Space::new();
    let data = space.dir.join("data");
    let name = data.to_str().expect("UTF-8");
    let small = [
        "bench", "disk", "--data", name, "-s", "16MiB", "--trials", "1", "--warmup", "0",
    ];
    let mut bench = embar(&small);
    bench.args([
        "--io-size",
        "64KiB,1MiB",
        "--depth",
        "1,2",
        "--batch-size",
        "64KiB",
        "--json",
    ]);
    let output = run(&mut bench);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = report["rows"].as_array().expect("a list");
    let of = |row: &Value| {
        (
            row["work"].to_string(),
            row["bytes"].as_u64(),
            row["depth"].as_u64(),
        )
    };
    let seen: Vec<_> = rows.iter().map(of).collect();
    let sizes = [(64 << 10, 1), (64 << 10, 2), (1 << 20, 1), (1 << 20, 2)];
    let mut asked = Vec::new();
    for work in ["write", "read"] {
        asked.extend(sizes.map(|(size, depth)| (format!("\"{work}\""), Some(size), Some(depth))));
    }
    asked.extend(["journal", "recover"].map(|work| (format!("\"{work}\""), Some(64 << 10), None)));
    assert_eq!(seen, asked);
    assert!(rows.iter().all(|row| row["mib_per_s"].as_f64() > Some(0.0)));
    assert_eq!(std::fs::read_dir(&data).expect("it was made").count(), 0);
    let odd = run(embar(&small).args(["--io-size", "1000"]));
    assert!(!odd.status.success() && text(&odd.stderr).contains("multiples of 4KiB"));
}
