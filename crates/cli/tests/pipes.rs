//! `produce` and `consume` between other programs.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use common::{Space, Up, embar, end_of, output_of, run, signal, text};

#[test]
fn a_reader_that_goes_is_no_error() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    up.produce("numbers", 0..200_000);
    let mut consume = up
        .embar(&["consume", "numbers"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("embar starts");
    let mut line = String::new();
    BufReader::with_capacity(64, consume.stdout.take().expect("a pipe"))
        .read_line(&mut line)
        .expect("a line");
    assert_eq!(end_of(&mut consume).code(), Some(0));
    let mut errors = String::new();
    consume
        .stderr
        .take()
        .expect("a pipe")
        .read_to_string(&mut errors)
        .expect("text");
    // A slow machine may make it wait, and say so.
    let errors = errors
        .lines()
        .filter(|line| !line.starts_with("waiting for "));
    assert_eq!(errors.count(), 0);
    up.stop();
}

#[test]
fn keys_formats_positions_and_counts() {
    let space = Space::new();
    let up = Up::start(&space, &["--brokers", "2"]);
    let file = space.dir.join("users.txt");
    std::fs::write(&file, "anna:17\nplain\nbob:x:y\n").expect("a file");
    up.ok(&[
        "produce",
        "users",
        file.to_str().expect("a path"),
        "--key-separator",
        ":",
    ]);
    assert_eq!(
        up.ok(&["consume", "users", "--format", "%b:%o [%k] %v\\n"]),
        "1:0 [anna] 17\n1:1 [] plain\n1:2 [bob] x:y\n"
    );
    assert_eq!(up.ok(&["consume", "users", "--from", "1:2"]), "x:y\n");
    assert_eq!(
        up.ok(&["consume", "users", "--from", "start", "--count", "1"]),
        "17\n"
    );
    assert_eq!(up.ok(&["consume", "users", "--from", "end"]), "");
    let json: Vec<serde_json::Value> = up
        .ok(&["--json", "consume", "users"])
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(
        (
            json[0]["key"].as_str(),
            json[0]["value"].as_str(),
            json[1]["key"].is_null()
        ),
        (Some("anna"), Some("17"), true)
    );
    up.stop();
}

#[test]
fn following_prints_what_comes_until_a_signal() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    up.produce("live", 0..1);
    let mut consume = up
        .embar(&["consume", "live", "--from", "start", "--follow"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("embar starts");
    let mut lines = BufReader::new(consume.stdout.take().expect("a pipe")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    assert_eq!(next(), "0");
    up.produce("live", 1..2);
    assert_eq!(next(), "1");
    signal(consume.id(), "INT");
    assert_eq!(end_of(&mut consume).code(), Some(130));
    up.stop();
}

#[test]
fn an_interrupted_producer_has_sent_what_it_read() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    let mut produce = up
        // Long enough that only the signal can be what sends it.
        .embar(&["produce", "typed", "--linger", "60s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("embar starts");
    let mut input = produce.stdin.take().expect("a pipe");
    input.write_all(b"one\ntwo\n").expect("it reads");
    input.flush().expect("it reads");
    common::eventually("the topic is there", || {
        up.ok(&["topic", "list"]).contains("typed")
    });
    // The pipe is empty once both lines were taken out of it.
    common::eventually("the lines are read", || {
        let mut left = [rustix::event::PollFd::new(
            &input,
            rustix::event::PollFlags::OUT,
        )];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        rustix::event::poll(&mut left, Some(&now)).is_ok()
            && rustix::io::ioctl_fionread(&input).is_ok_and(|n| n == 0)
    });
    signal(produce.id(), "INT");
    let output = output_of(produce);
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    drop(input);
    let mut lines: Vec<String> = up
        .ok(&["consume", "typed"])
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    assert_eq!(lines, ["one", "two"]);
    up.stop();
}

#[test]
fn a_line_that_is_too_long_is_named_and_what_is_before_it_is_stored() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    let file = space.dir.join("long.txt");
    let long = "x".repeat(100_000);
    std::fs::write(&file, format!("first\nsecond\n{long}\nfourth\n")).expect("a file");
    let output = run(&mut up.embar(&[
        "produce",
        "lines",
        "--batch-size",
        "64KiB",
        file.to_str().expect("a path"),
    ]));
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("long.txt, line 3") && message.contains("--batch-size"),
        "{message}"
    );
    let mut lines: Vec<String> = up
        .ok(&["consume", "lines"])
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    assert_eq!(lines, ["first", "second"]);
    up.stop();
}

#[test]
fn a_topic_has_the_message_limit_it_was_created_with() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    up.ok(&["topic", "create", "short", "--max-message-size", "100"]);
    let file = space.dir.join("lines.txt");
    let path = file.to_str().expect("a path");
    std::fs::write(&file, format!("{}\n", "x".repeat(101))).expect("a file");
    let output = run(&mut up.embar(&["produce", "short", path]));
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("limit of 100"), "{message}");

    // Larger than the default of 1 MiB, and within a batch.
    up.ok(&["topic", "create", "long", "--max-message-size", "3MiB"]);
    let line = "y".repeat(2 << 20);
    std::fs::write(&file, format!("{line}\n")).expect("a file");
    up.ok(&["produce", "long", "--batch-size", "4MiB", path]);
    assert_eq!(up.ok(&["consume", "long"]).trim_end(), line);

    let output = run(&mut up.embar(&["topic", "create", "huge", "--max-message-size", "1GiB"]));
    assert!(
        text(&output.stderr).contains("--max-batch-bytes"),
        "{}",
        text(&output.stderr)
    );
    up.stop();
}

#[test]
fn what_needs_disks_is_refused_without_them_and_says_what_to_do() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    up.ok(&["topic", "create", "t"]);
    let file = space.dir.join("lines.txt");
    let path = file.to_str().expect("a path");
    std::fs::write(&file, "one\n").expect("a file");
    let no_disk = "needs one disk, and the cluster has none: start it with --data DIR, or choose 1";
    let in_memory = "acks 2 needs a topic on a disk, and topic t has replication factor 1: create one with --replication-factor 2";
    for (args, why) in [
        (
            &["topic", "create", "d", "--replication-factor", "2"][..],
            no_disk,
        ),
        (&["produce", "t", "--acks", "all", path], in_memory),
        // It would be created on a disk.
        (&["produce", "d", "--acks", "2", path], no_disk),
    ] {
        let output = run(&mut up.embar(args));
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(why), "{message}");
    }
    let list: serde_json::Value =
        serde_json::from_str(&up.ok(&["--json", "topic", "list"])).expect("JSON");
    let known = list.as_array().expect("topics").iter();
    let known = known.map(|it| (it["name"].as_str(), it["replication_factor"].as_u64()));
    assert_eq!(known.collect::<Vec<_>>(), [(Some("t"), Some(1))]);

    // In memory alone there is nothing to wait for.
    up.ok(&["produce", "t", path]);
    for isolation in ["durable", "latest"] {
        let read = up.ok(&["consume", "t", "--isolation", isolation]);
        assert_eq!(read, "one\n");
    }
    up.stop();
}

#[test]
fn bad_arguments_and_absent_clusters_have_their_own_exit_codes() {
    let code = |args: &[&str]| {
        let output = run(&mut embar(args));
        assert!(!output.stderr.is_empty(), "{args:?} says why");
        output.status.code()
    };
    for args in [
        &["up", "--region-size", "2MB"][..],
        &["up", "--brokers", "0"],
        &["topic", "create", "t", "--replication-factor", "10"],
        &["produce", "t", "--acks", "3"],
        &["consume", "t", "--isolation", "none"],
        &["up", "--high-watermark", "10", "--low-watermark", "50"],
        &["up", "--listen", "0.0.0.0:0"],
        &["broker"],
        &["consume", "t", "--from", "nowhere"],
        &["consume", "t", "--format", "%q"],
        &["produce"],
        &["produce", "t", "--key-separator", ""],
        &["bench", "publish", "-m", "0"],
        &["bench", "publish", "-o", "3"],
        &["bench", "read", "-m", "8"],
        &["no-such-command"],
    ] {
        assert_eq!(code(args), Some(2), "{args:?}");
    }
    // Port 1 is privileged and unused; nothing of ours listens there.
    for args in [
        &["status", "--bootstrap", "127.0.0.1:1"][..],
        &["consume", "t", "--bootstrap", "127.0.0.1:1"],
        &["broker", "--follower", "127.0.0.1:1"],
        &["broker", "--standby", "127.0.0.1:1"],
    ] {
        assert_eq!(code(args), Some(3), "{args:?}");
    }
}

#[test]
fn an_unknown_topic_is_an_error_that_says_what_to_do() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    let output = run(&mut up.embar(&["consume", "nothing"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("embar topic create nothing"),
        "{}",
        text(&output.stderr)
    );
    up.stop();
}
