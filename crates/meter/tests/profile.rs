//! What a user of the stage timers relies on: right sums from many threads, no times when off, the table's form.

use std::sync::Arc;
use std::time::{Duration, Instant};

use embar_meter::{Profile, Scale, Schema, Snapshot};

static SCHEMA: Schema = Schema {
    title: "PublishPipelineProfile",
    stages: &["DrainHeader", "DrainPayloadToBuffer", "CompleteBatchInCXL"],
    counters: &["recv calls", "EAGAIN"],
};

const HEADER: usize = 0;
const PAYLOAD: usize = 1;
const EAGAIN: usize = 1;

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn snapshot(stages: [(&str, u64, u64); 2], counters: &[(&str, u64)]) -> Snapshot {
    Snapshot::new(
        "P",
        stages.map(|(name, ns, count)| (name.to_owned(), ns, count)),
        counters.iter().map(|(name, n)| ((*name).to_owned(), *n)),
    )
}

#[test]
fn a_timed_stage_holds_the_time_that_passed() {
    let profile = Profile::new(&SCHEMA);
    let recorder = profile.recorder();
    let outside = Instant::now();
    let start = recorder.start();
    spin(Duration::from_millis(5));
    recorder.stop(PAYLOAD, start);
    let outside = outside.elapsed().as_nanos() as f64;
    let row = profile.snapshot().stages[PAYLOAD].clone();
    assert_eq!(row.count, 1);
    assert!(row.total_ns as f64 >= 5e6 * 0.99 && row.total_ns as f64 <= outside * 1.01);
    assert_eq!(row.share, 1.0);
}

#[test]
fn laps_share_one_reading_and_leave_no_gap() {
    let profile = Profile::new(&SCHEMA);
    let recorder = profile.recorder();
    let outside = Instant::now();
    let mut start = recorder.start();
    for _ in 0..4 {
        spin(Duration::from_millis(1));
        recorder.lap(HEADER, &mut start);
        spin(Duration::from_millis(1));
        recorder.lap(PAYLOAD, &mut start);
    }
    let outside = outside.elapsed().as_nanos() as f64;
    let snapshot = profile.snapshot();
    assert_eq!(
        (
            snapshot.stages[HEADER].count,
            snapshot.stages[PAYLOAD].count
        ),
        (4, 4)
    );
    let total = snapshot.total_ns() as f64;
    assert!(
        total >= 8e6 * 0.99 && total <= outside * 1.01,
        "{total} of {outside}"
    );
}

#[test]
fn sums_of_many_threads_are_exact_even_after_they_ended() {
    let profile = Profile::new(&SCHEMA);
    let (threads, events) = (4_u64, 20_000_u64);
    let reader = profile.clone();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let recorder = profile.recorder();
            scope.spawn(move || {
                for _ in 0..events {
                    recorder.add_ticks(PAYLOAD, 3, 1);
                    recorder.count(EAGAIN, 2);
                }
            });
        }
        let mut seen = 0;
        while seen < threads * events {
            let now = reader.snapshot().stages[PAYLOAD].count;
            assert!(now >= seen, "sums went back from {seen} to {now}");
            seen = now;
        }
    });
    let snapshot = profile.snapshot();
    assert_eq!(snapshot.stages[PAYLOAD].count, threads * events);
    assert_eq!(
        snapshot.stages[PAYLOAD].total_ns,
        Scale::of_this_machine().to_ns(3 * threads * events)
    );
    assert_eq!(snapshot.counter("EAGAIN"), Some(2 * threads * events));
    assert_eq!(snapshot.counter("recv calls"), Some(0));
    // Nothing but the test and its reader holds the profile: ended recorders were let go.
    assert_eq!(Arc::strong_count(&profile), 2);
}

#[test]
fn off_times_nothing_and_on_again_times() {
    let profile = Profile::new(&SCHEMA);
    let recorder = profile.recorder();
    profile.set_enabled(false);
    let mut start = recorder.start();
    assert!(!start.is_running());
    recorder.lap(HEADER, &mut start);
    recorder.stop(HEADER, start);
    recorder.stop_sampled(HEADER, start);
    recorder.add_ticks(HEADER, 10, 1);
    recorder.add_count(HEADER, 1);
    assert!((0..1_000).all(|_| !recorder.sample()));
    assert_eq!(profile.snapshot(), Profile::new(&SCHEMA).snapshot());
    // Counters are no timers: they go on.
    recorder.count(EAGAIN, 1);
    let (name, count) = &profile.snapshot().counters[EAGAIN];
    assert_eq!(*count, 1, "{name}");

    profile.set_enabled(true);
    // A lap that was started while off begins to time, without an event of its own.
    recorder.lap(HEADER, &mut start);
    assert_eq!(profile.snapshot().stages[HEADER].count, 0);
    recorder.lap(HEADER, &mut start);
    assert_eq!(profile.snapshot().stages[HEADER].count, 1);

    // One that was started while on is finished after the switch.
    profile.set_enabled(false);
    recorder.lap(HEADER, &mut start);
    assert_eq!(profile.snapshot().stages[HEADER].count, 2);
    assert!(!start.is_running());
}

#[test]
fn samples_are_one_in_64_and_keep_no_step_with_the_work() {
    let profile = Profile::new(&SCHEMA);
    let recorder = profile.recorder();
    let calls = 640_000_u32;
    let mut sampled = 0_u32;
    let mut on_the_seal = 0_u32;
    for call in 0..calls {
        if recorder.sample() {
            sampled += 1;
            // Work with the very period of the sampling: every 64th message seals a batch.
            on_the_seal += u32::from(call % 64 == 0);
        }
    }
    assert!(
        (9_700..=10_300).contains(&sampled),
        "{sampled} samples of {calls} calls"
    );
    assert!(
        (80..=240).contains(&on_the_seal),
        "{on_the_seal} of {sampled} hit the seal, expected 156"
    );
}

#[test]
fn sampled_time_stands_for_all_messages_and_their_count_is_exact() {
    let profile = Profile::new(&SCHEMA);
    let recorder = profile.recorder();
    let start = recorder.start();
    spin(Duration::from_millis(2));
    recorder.stop_sampled(HEADER, start);
    recorder.add_count(HEADER, 64);
    let row = &profile.snapshot().stages[HEADER];
    assert_eq!(row.count, 64);
    assert!(row.avg_ns >= 2e6 * 0.99, "{} ns a message", row.avg_ns);
}

#[test]
#[should_panic(expected = "no such stage")]
fn a_stage_that_is_not_in_the_schema_is_a_bug() {
    Profile::new(&SCHEMA).recorder().add_count(3, 1);
}

#[test]
fn the_table_reads_like_the_reports() {
    let snapshot = Snapshot::new(
        "PublishPipelineProfile",
        [
            ("DrainHeader".to_owned(), 14_622_000, 2_886),
            ("DrainPayloadToBuffer".to_owned(), 3_063_500_000, 86_698),
            ("BufferWrite".to_owned(), 90_500, 1_000),
            ("GetCXLBuffer".to_owned(), 0, 0),
        ],
        [("EAGAIN".to_owned(), 83_812)],
    );
    let expected = "\
[PublishPipelineProfile]
Component             total (us)   count  avg (ns)  % of pipeline
DrainHeader               14,622   2,886     5,067          0.48%
DrainPayloadToBuffer   3,063,500  86,698    35,335         99.52%
BufferWrite                   91   1,000      90.5          0.00%
GetCXLBuffer                   0       0         0          0.00%
TOTAL                  3,078,213       -         -        100.00%
EAGAIN                            83,812";
    assert_eq!(snapshot.to_string(), expected);
    let lines = [
        ("recv calls per batch".to_owned(), "30.0".to_owned()),
        ("bytes per call".to_owned(), "69,905".to_owned()),
    ];
    assert_eq!(
        snapshot.with_lines(&lines).to_string(),
        format!("{expected}\nrecv calls per batch  30.0\nbytes per call        69,905")
    );
}

#[test]
fn a_window_is_the_difference_and_a_cluster_the_sum() {
    let early = snapshot([("a", 100, 1), ("b", 300, 3)], &[("n", 5)]);
    let late = snapshot([("a", 200, 3), ("b", 1_200, 12)], &[("n", 9)]);
    let window = late.since(&early);
    assert_eq!(
        window,
        snapshot([("a", 100, 2), ("b", 900, 9)], &[("n", 4)])
    );
    assert_eq!(
        (window.stages[0].avg_ns, window.stages[0].share),
        (50.0, 0.1)
    );
    assert_eq!(early.merge(&window), late);
    assert_eq!(
        early.since(&late),
        snapshot([("a", 0, 0), ("b", 0, 0)], &[("n", 0)])
    );
    let other = snapshot([("b", 1, 1), ("c", 7, 1)], &[("m", 2)]);
    let merged = early.merge(&other);
    let names: Vec<&str> = merged.stages.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(
        (
            merged.stage("b").map(|row| row.total_ns),
            merged.counter("m")
        ),
        (Some(301), Some(2))
    );
}

#[test]
fn the_largest_stage_is_named_only_when_there_is_one() {
    assert_eq!(
        snapshot([("a", 5, 1), ("b", 9, 1)], &[])
            .largest()
            .map(|row| &*row.name),
        Some("b")
    );
    assert_eq!(
        snapshot([("a", 5, 1), ("b", 5, 1)], &[])
            .largest()
            .map(|row| &*row.name),
        Some("a")
    );
    assert_eq!(snapshot([("a", 0, 0), ("b", 0, 0)], &[]).largest(), None);
}

#[cfg(feature = "serde")]
#[test]
fn json_carries_everything() {
    let snapshot = snapshot([("a", 0, 0), ("b", 1_234_567, 3)], &[("n", u64::MAX)]);
    let json = serde_json::to_string(&snapshot).expect("plain data");
    assert_eq!(
        serde_json::from_str::<Snapshot>(&json).expect("what was written"),
        snapshot
    );
}

#[test]
fn sums_from_a_peer_may_be_any_number() {
    let huge = snapshot(
        [("a", u64::MAX, 1), ("b", u64::MAX, u64::MAX)],
        &[("n", u64::MAX)],
    );
    let both = huge.merge(&huge);
    assert_eq!(
        (both.total_ns(), both.counter("n")),
        (u64::MAX, Some(u64::MAX))
    );
    assert!(both.to_string().contains("TOTAL"));
}
