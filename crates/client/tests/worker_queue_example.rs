//! The example `worker_queue`, with real brokers.

use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use embar_broker::Cluster;
use worker_queue::{Failed, Worker, submit};

#[allow(dead_code, reason = "its `main` is not used here")]
#[path = "../examples/worker_queue.rs"]
mod worker_queue;

/// No test takes so long, on no machine.
const LONG: Duration = Duration::from_secs(3600);

/// How long a worker waits for a job before it looks whether there is anything left to do.
const PAUSE: Duration = Duration::from_millis(50);

fn start() -> (Cluster, String) {
    let builder = Cluster::builder().brokers(3).region_bytes(96 << 20);
    let cluster = builder.start().expect("a small cluster starts");
    let bootstrap = cluster.bootstrap().to_string();
    (cluster, bootstrap)
}

fn names(jobs: std::ops::Range<u32>) -> Vec<String> {
    jobs.map(|job| format!("job {job}")).collect()
}

fn submit_all(bootstrap: &str, jobs: &[String]) -> Result<(), Failed> {
    submit(
        bootstrap,
        &jobs.iter().map(String::as_str).collect::<Vec<_>>(),
    )
}

/// A worker that does jobs until `count` are done, by whomever.
fn work(mut worker: Worker, done: &Mutex<Vec<String>>, count: usize) -> Result<(), Failed> {
    let is_over = || done.lock().expect("no panic").len() >= count;
    while !is_over() {
        if let Some(job) = worker.next(PAUSE)? {
            done.lock().expect("no panic").push(job.text.clone());
            worker.finish(&job)?;
        }
    }
    Ok(())
}

/// The next job, however long it takes.
fn next(worker: &mut Worker) -> worker_queue::Job {
    let job = worker.next(LONG).expect("it reads");
    job.expect("a job comes within an hour")
}

#[test]
fn each_job_is_done_by_one_of_several_workers() {
    let (_cluster, bootstrap) = start();
    let dir = tempfile::tempdir().expect("a directory");
    let done = Mutex::new(Vec::new());
    let jobs = names(0..60);
    // Some jobs are there before the workers, and some come while they work.
    submit_all(&bootstrap, &jobs[..30]).expect("all are taken");
    thread::scope(|scope| {
        for name in ["anna", "ben", "carla"] {
            let file = dir.path().join(name);
            let worker = Worker::open(&bootstrap, name, &file, LONG);
            let worker = worker.expect("the queue is there");
            let (done, count) = (&done, jobs.len());
            scope.spawn(move || work(worker, done, count).expect("the brokers live"));
        }
        submit_all(&bootstrap, &jobs[30..]).expect("all are taken");
    });
    let mut done = done.into_inner().expect("no panic");
    let mut jobs = jobs;
    done.sort();
    jobs.sort();
    assert_eq!(done, jobs);
}

#[test]
fn a_worker_that_is_started_again_goes_on_with_its_job() {
    let (_cluster, bootstrap) = start();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("anna");
    let open = || Worker::open(&bootstrap, "anna", &file, LONG).expect("the queue is there");
    let kept = |file: &Path| std::fs::read_to_string(file).expect("it kept how far it is");
    submit_all(&bootstrap, &names(0..2)).expect("all are taken");

    let mut worker = open();
    let first = next(&mut worker);
    drop(worker);
    let mut worker = open();
    assert_eq!(next(&mut worker), first, "the job, and the claim on it");
    worker.finish(&first).expect("the brokers live");
    let second = next(&mut worker);
    assert_ne!(first.number, second.number);
    assert!(kept(&file).parse::<u64>().expect("a position") <= second.number.max(first.number));
    worker.finish(&second).expect("the brokers live");
    let end: u64 = kept(&file).parse().expect("a position");
    assert!(end > second.claim, "nothing before it is read again");
    drop(worker);

    let mut worker = open();
    submit_all(&bootstrap, &names(2..3)).expect("all are taken");
    let third = next(&mut worker);
    assert_eq!(third.text, "job 2", "those before it are done");
}

#[test]
fn a_job_goes_from_a_silent_worker_to_another() {
    let (_cluster, bootstrap) = start();
    let dir = tempfile::tempdir().expect("a directory");
    let open = |name: &str, lease| {
        let worker = Worker::open(&bootstrap, name, &dir.path().join(name), lease);
        worker.expect("the queue is there")
    };
    submit_all(&bootstrap, &names(0..1)).expect("all are taken");

    let mut silent = open("anna", LONG);
    let lost = next(&mut silent);
    let mut other = open("ben", Duration::ZERO);
    let taken = next(&mut other);
    assert_eq!((&taken.text, taken.number), (&lost.text, lost.number));
    assert!(
        taken.claim > lost.claim,
        "so that it can be told from the first"
    );

    // The first one was only slow: that it does the job as well does not stop the other.
    silent.finish(&lost).expect("the brokers live");
    other.finish(&taken).expect("the brokers live");
    submit_all(&bootstrap, &names(1..2)).expect("all are taken");
    assert_eq!(next(&mut silent).text, "job 1");
}
