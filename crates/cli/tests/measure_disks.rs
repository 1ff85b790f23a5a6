//! Benches of topics on disks, small.

mod common;

use std::path::Path;
use std::process::Stdio;

use common::{Space, embar, eventually, list, names_in, number, output_of, reported, run, text};
use serde_json::Value;

/// Options of a small cluster with one disk, in a directory of this space.
fn small(space: &Space, bench: &str) -> Vec<String> {
    let data = space.dir.join("disk").display().to_string();
    let line = format!("--json bench {bench} --replication-factor 2 --trials 1 --warmup 0");
    let cluster = match bench.contains("--brokers") {
        true => "",
        false => "--brokers 2 --region-size 64MiB",
    };
    let words = line.split_whitespace().chain(cluster.split_whitespace());
    let words = words.map(str::to_owned);
    words.chain(["--data".into(), data]).collect()
}

/// What a bench printed that leaves nothing on its disk.
fn measured(space: &Space, bench: &str) -> Value {
    let options = small(space, bench);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let report = reported(&run(&mut embar(&options)));
    leaves_nothing(&space.dir.join("disk"));
    report
}

fn leaves_nothing(dir: &Path) {
    assert!(names_in(dir).is_empty(), "{:?}", names_in(dir));
}

fn refused(args: &str) -> String {
    let args: Vec<&str> = args.split_whitespace().collect();
    let output = run(&mut embar(&args));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    said
}

#[test]
fn publishing_at_acks_2_stands_beside_synced_writes() {
    let space = Space::new();
    let report = measured(&space, "publish -o 5 -a 2 -s 8MiB --wall");
    let config = &report["config"];
    assert_eq!((&config["order"], &config["acks"]), (&5.into(), &2.into()));
    let disk = &report["wall"]["disk"];
    assert!(number(&disk["ratio"]["ratio"]["point"]) > 0.0, "{disk}");
    assert!([1, 2, 4].contains(&disk["depth"].as_u64().expect("a depth")));
    assert_eq!(list(&report["wall"], "series").len(), 6);
    let stages = list(&report["disk_profile"], "stages").iter();
    let names: Vec<_> = stages.map(|stage| stage["name"].as_str()).collect();
    let expected = [
        "GatherCommit",
        "WriteAndSync",
        "AdvanceFrontier",
        "ReadBlock",
    ];
    assert_eq!(names, expected.map(Some));
    // All payload is written once, with its headers.
    let amplification = number(&report["write_amplification"]);
    assert!((1.0..1.5).contains(&amplification), "{amplification}");
}

#[test]
fn the_longest_time_without_an_acknowledgement_stands_beside_the_disks_own() {
    let space = Space::new();
    let report = measured(&space, "publish -o 5 -s 8MiB --stalls");
    for trial in list(&report, "trials") {
        let stalls = &trial["stalls"];
        let [longest, beyond, of_disk] =
            ["longest_ms", "beyond_disk_ms", "disk_longest_ms"].map(|it| number(&stalls[it]));
        assert!(beyond <= longest && of_disk > 0.0, "{stalls}");
    }
    let refused = refused("bench publish -o 5 -s 8MiB --stalls");
    assert!(
        refused.contains("--stalls is for topics on disks"),
        "{refused}"
    );
}

#[test]
fn latencies_at_acks_2_stand_beside_acks_1_and_synced_writes() {
    let space = Space::new();
    let bench =
        "latency --orders 5 --acks 1,2 -s 2MiB --iterations 20 --duration 200ms --rate 2MiB";
    let report = measured(&space, bench);
    let acks = |lines: &str| {
        let lines = list(&report, lines).iter();
        lines.map(|it| it["acks"].as_u64()).collect::<Vec<_>>()
    };
    assert_eq!(acks("alone"), [None, Some(1), Some(2)]);
    assert_eq!(acks("loaded"), [Some(1), Some(2)]);
    let writes = list(&report, "writes").iter();
    let bytes: Vec<_> = writes.map(|it| it["bytes"].as_u64()).collect();
    assert_eq!(bytes, [Some(4 << 10), Some(16 << 10)]);
    for it in list(&report, "differences") {
        let [one, two, write] =
            ["acks_1_us", "acks_2_us", "write_us"].map(|name| number(&it[name]));
        let in_writes = number(&it["in_writes"]);
        assert!(((two - one) / write - in_writes).abs() < 1e-6, "{it}");
    }
    assert_eq!(list(&report, "differences").len(), 4);
    assert_eq!(report["loaded"][0]["messages_per_s"].as_f64(), Some(2048.0));
}

/// How many bytes came from the disk.
fn bytes_read(report: &Value) -> u64 {
    let counters = list(&report["disk_profile"], "counters");
    let read = counters.iter().find(|it| it[0] == "read_bytes");
    read.and_then(|it| it[1].as_u64()).expect("a count")
}

#[test]
fn cold_reading_is_from_the_disk_and_has_a_price_for_publishers() {
    let space = Space::new();
    let bench = "read -o 5 --cold --wall --with-publisher=2MiB -s 8MiB";
    let report = measured(&space, bench);
    assert!(bytes_read(&report) >= 8 << 20);
    assert!(number(&report["wall"]["disk"]["ratio"]["ratio"]["point"]) > 0.0);
    let publisher = &report["publisher"];
    assert!(number(&publisher["ratio"]["ratio"]["point"]) > 0.0);
    let trials = list(publisher, "trials").iter();
    let beside: Vec<_> = trials.map(|it| it["read_mib_per_s"].is_number()).collect();
    assert_eq!(beside.iter().filter(|has| **has).count(), 1, "{beside:?}");
    assert_eq!(beside.len(), 2);
}

#[test]
fn what_lies_on_a_disk_is_read_once_however_many_brokers_there_are() {
    let space = Space::new();
    let report = measured(
        &space,
        "read -o 5 --cold -s 96MiB --brokers 4 --region-size 128MiB",
    );
    assert_eq!(report["config"]["data_brokers"], 3);
    let read = bytes_read(&report);
    assert!((96 << 20..120 << 20).contains(&read), "{read}");
}

#[test]
fn publishing_and_reading_at_once_works_on_disks() {
    let space = Space::new();
    let report = measured(&space, "e2e -o 5 -s 4MiB");
    assert_eq!(report["config"]["replication_factor"], 2);
    assert!(number(&report["median_mib_per_s"]) > 0.0);
}

#[test]
fn recovery_stands_beside_reads() {
    let space = Space::new();
    let dir = space.dir.join("disk").display().to_string();
    let line = "--json bench recover -s 8MiB --segments 20 --trials 1 --warmup 0 --data";
    let options: Vec<&str> = line.split_whitespace().chain([dir.as_str()]).collect();
    let report = reported(&run(&mut embar(&options)));
    leaves_nothing(&space.dir.join("disk"));
    assert!(number(&report["journal"]["ratio"]["point"]) > 0.0);
    assert_eq!(
        report["sealed"]["simulated_bytes"].as_u64(),
        Some(20 * (256 << 20))
    );
    assert!(number(&report["sealed"]["us_per_segment"]) > 0.0);
    assert_eq!(list(&report, "reads").len(), 3);
}

#[test]
fn topics_on_disks_need_directories() {
    let said = refused("bench publish -a 2 --replication-factor 2 -o 5");
    assert!(
        said.contains("change --data or --replication-factor"),
        "{said}"
    );
    let said = refused("bench latency --acks 1,2 --orders 5");
    assert!(said.contains("--replication-factor"), "{said}");
}

#[test]
fn what_a_killed_bench_left_on_a_disk_goes_with_the_next() {
    let space = Space::new();
    let disk = space.dir.join("disk");
    let options = small(&space, "publish -o 5 -s 1GiB");
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut bench = embar(&options)
        .env("TMPDIR", &space.dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("embar starts");
    eventually("it writes to the disk", || {
        let trial = names_in(&disk).into_iter().next();
        trial.is_some_and(|name| names_in(&disk.join(name)).len() > 2)
    });
    bench.kill().expect("our own child");
    output_of(bench);
    assert_eq!(names_in(&disk).len(), 1, "it had no time to tidy");
    measured(&space, "publish -o 5 -s 1MiB");
}
