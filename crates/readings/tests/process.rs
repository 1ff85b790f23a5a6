//! Readings of real processes.

use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use embar_readings::process::{KernelError, ProcessReading, own_threads};

#[test]
fn work_and_first_touches_show_in_the_difference() {
    let before = ProcessReading::of_self().expect("own process");
    // 32 MiB are thousands of pages, whatever the page size is.
    let mut memory = vec![0_u8; 32 << 20];
    memory.iter_mut().step_by(512).for_each(|byte| *byte = 1);
    let deadline = Instant::now() + Duration::from_secs(60);
    let usage = loop {
        std::hint::black_box(&mut memory);
        let usage = ProcessReading::of_self()
            .expect("own process")
            .since(&before)
            .expect("the same process");
        if usage.cpu_s() > 0.0 || Instant::now() > deadline {
            break usage;
        }
    };
    assert!(usage.cpu_s() > 0.0 && usage.cpus() > 0.0, "{usage:?}");
    assert!(usage.minor_faults > 0, "{usage:?}");
    assert!(
        usage.peak_rss_bytes.is_some_and(|peak| peak >= 32 << 20),
        "{usage:?}"
    );
}

#[test]
fn another_process_is_read_while_it_lives_and_gone_after() {
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .spawn()
        .expect("cat");
    let reading = ProcessReading::of(child.id()).expect("it waits for its input");
    assert_eq!(reading.pid, child.id());
    let own = ProcessReading::of_self().expect("own process");
    assert!(matches!(
        own.since(&reading),
        Err(KernelError::OtherProcess { .. })
    ));
    drop(child.stdin.take());
    child.wait().expect("it ends with its input");
    assert!(
        matches!(ProcessReading::of(reading.pid), Err(KernelError::Gone { pid }) if pid == reading.pid)
    );
}

#[test]
fn threads_are_listed_by_name() {
    let (ready, is_ready) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let thread = std::thread::Builder::new()
        .name("lane (0)".to_owned())
        .spawn(move || {
            ready.send(()).expect("the test waits");
            let _ = ended.recv();
        })
        .expect("a thread");
    is_ready.recv().expect("the thread started");
    let threads = own_threads().expect("own threads");
    assert!(
        threads.iter().any(|thread| thread.name == "lane (0)"),
        "{threads:?}"
    );
    assert!(threads.is_sorted_by_key(|thread| thread.tid));
    drop(end);
    thread.join().expect("it ends");
}

#[test]
fn a_thread_that_computes_and_one_that_sleeps_are_told_apart() {
    let (end, ended) = mpsc::channel::<()>();
    let (also_end, also_ended) = mpsc::channel::<()>();
    let computes = move || while ended.try_recv() == Err(mpsc::TryRecvError::Empty) {};
    let sleeps = move || {
        while also_ended.recv_timeout(Duration::from_millis(1))
            == Err(mpsc::RecvTimeoutError::Timeout)
        {}
    };
    let start = |name: &str| std::thread::Builder::new().name(name.to_owned());
    let computing = start("computes").spawn(computes).expect("a thread");
    let sleeping = start("sleeps").spawn(sleeps).expect("a thread");
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let threads = own_threads().expect("own threads");
        let of = |name: &str| threads.iter().find(|thread| thread.name == name).cloned();
        if let (Some(computes), Some(sleeps)) = (of("computes"), of("sleeps")) {
            let on_cpu = computes.on_cpu_s.expect("the kernel keeps accounts");
            if on_cpu > 0.1 && sleeps.voluntary_switches > 20 {
                assert!(sleeps.on_cpu_s.is_some_and(|it| it < on_cpu), "{sleeps:?}");
                assert!(computes.waiting_s.is_some());
                assert!(computes.voluntary_switches < sleeps.voluntary_switches);
                break;
            }
        }
        assert!(Instant::now() < deadline, "{threads:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop((end, also_end));
    computing.join().expect("it ends");
    sleeping.join().expect("it ends");
}
