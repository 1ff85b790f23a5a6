//! Callers against a real server of a small protocol: a command is a line, and so is its reply.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

mod crowds;
mod support;
#[cfg(feature = "tokio")]
mod tasks;

use embar_mux::{
    Call, CallError, CloseReason, Connection, ConnectionLimits, ConnectionState, Mux, MuxSettings,
    SubmitError, Turn, block_on,
};
use support::*;

#[test]
fn many_threads_get_the_replies_to_their_own_commands() {
    let (mux, address) = (mux(), server(echo));
    let conn = open(&mux, address);
    thread::scope(|scope| {
        for caller in 0..16 {
            let conn = &conn;
            scope.spawn(move || {
                for turn in 0..500 {
                    let text = format!("{caller}-{turn}");
                    assert_eq!(ask(conn, &text).unwrap(), format!("re:{text}\n"));
                }
            });
        }
    });
    assert_eq!(conn.stats().replies, 8_000);
    assert_eq!(conn.in_flight(), 0);
    assert!(conn.stats().writes < 8_000, "some left together");
}

#[test]
fn connections_that_share_meters_count_together_and_by_class() {
    const COMMANDS: usize = 40;
    // The slow server answers each line when the test lets it.
    let (go, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let slow = server(move |stream| {
        let mut to = stream.try_clone().unwrap();
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return };
            gate.lock().unwrap().recv().unwrap();
            let _ = to.write_all(format!("re:{line}\n").as_bytes());
        }
    });
    let (mux, heard) = (mux(), Heard::default());
    let open = |address: SocketAddr| {
        let lines = Lines {
            heard: heard.clone(),
            ..Lines::default()
        };
        mux.open(address.into(), patient(), lines).unwrap()
    };
    let (fast, slow) = (open(server(echo)), open(slow));
    // Some larger than the ring.
    let lens = [10, 10, 10, 200_000];
    let send = |connection: &Connection, class| {
        let calls = (0..COMMANDS).map(|turn| {
            let len = lens[turn % lens.len()];
            let fill = |to: &mut [u8]| {
                to.fill(b'x');
                to[len - 1] = b'\n';
            };
            let submitted = connection.submit(len, 1, class, None, None, fill);
            submitted.unwrap()
        });
        calls.collect::<Vec<_>>()
    };
    let wait = |call: Call| call.wait(|_| ()).unwrap();
    send(&fast, 0).into_iter().for_each(wait);
    let begin = Instant::now();
    let calls = send(&slow, 1);
    let submitted = Instant::now();
    // How long the server held each reply back at least, after its command was submitted.
    let held = (1..=COMMANDS).map(|count| {
        let held = submitted.elapsed();
        go.send(()).unwrap();
        wait_until(|| heard.meters.latency(1).count() == count as u64);
        held.as_nanos() as u64
    });
    let held: Vec<u64> = held.collect();
    calls.into_iter().for_each(wait);
    let most = begin.elapsed().as_nanos() as u64;
    let meters = &heard.meters;
    assert_eq!(
        (meters.latency(0).count(), meters.latency(1).count()),
        (40, 40)
    );
    // The meters have a clock of their own, so one may be a hundredth faster than the other.
    let latency = meters.latency(1);
    let slowest = latency.quantile(1.0).unwrap();
    assert!(slowest >= held[COMMANDS - 1] / 100 * 99, "{slowest}");
    let (least, sum) = (held.iter().sum::<u64>(), latency.sum());
    assert!(sum >= least / 100 * 99, "{sum} of {least}");
    assert!(sum <= most / 100 * 101 * COMMANDS as u64, "{sum} of {most}");
    for together in [meters.commands_per_write(), meters.replies_per_read()] {
        assert_eq!(together.sum(), 80);
        assert!((1..=80).contains(&together.count()));
    }
    let bytes: usize = lens.iter().sum();
    assert_eq!(meters.stats(0).bytes_sent, (2 * 10 * bytes) as u64);
    assert_eq!(fast.stats(), slow.stats());
}

#[test]
fn a_call_that_is_dropped_gives_its_reply_to_nobody() {
    let (mux, address) = (mux(), server(echo));
    let conn = open(&mux, address);
    for turn in 0..2_000 {
        let line = format!("dropped-{turn}\n");
        let fill = |to: &mut [u8]| to.copy_from_slice(line.as_bytes());
        drop(conn.submit(line.len(), 1, 0, None, None, fill));
        let text = format!("kept-{turn}");
        assert_eq!(ask(&conn, &text).unwrap(), format!("re:{text}\n"));
    }
}

#[test]
fn replies_that_are_taken_late_are_kept() {
    let (mux, address) = (mux(), server(echo));
    let limits = ConnectionLimits {
        in_flight: 4,
        ..patient()
    };
    let conn = mux.open(address.into(), limits, Lines::default()).unwrap();
    let late: Vec<_> = (0..100)
        .map(|number| {
            let line = format!("{number}\n");
            let mut turn = Turn::default();
            let call = block_on(|cx| {
                conn.poll_submit(&mut turn, cx, line.len(), 1, 0, None, &mut |to| {
                    to.copy_from_slice(line.as_bytes());
                })
            });
            (format!("re:{line}"), call.unwrap())
        })
        .collect();
    for (expected, call) in late {
        let reply = call.wait(|reply| String::from_utf8(reply.clone()).unwrap());
        assert_eq!(reply.unwrap(), expected);
    }
}

#[test]
fn a_command_may_have_several_replies() {
    let (mux, address) = (mux(), server(echo));
    let conn = open(&mux, address);
    let fill = |to: &mut [u8]| to.copy_from_slice(b"a\nb\nc\n");
    let call = conn.submit(6, 3, 0, None, None, fill).unwrap();
    let reply = call.wait(|reply| reply.clone()).unwrap();
    assert_eq!(reply, b"re:a\nre:b\nre:c\n");
}

#[test]
fn commands_larger_than_the_ring_keep_their_place() {
    let settings = MuxSettings {
        ring_bytes: 4096,
        ..MuxSettings::default()
    };
    let mux = Mux::on_thread(&settings).unwrap();
    let conn = open(&mux, server(echo));
    thread::scope(|scope| {
        for caller in 0..4 {
            let conn = &conn;
            scope.spawn(move || {
                for turn in 0..50 {
                    let len = [10, 3_000, 100_000][turn % 3];
                    let text = format!("{caller}-{turn}-{}", "x".repeat(len));
                    assert_eq!(ask(conn, &text).unwrap(), format!("re:{text}\n"));
                }
            });
        }
    });
}

#[test]
fn what_was_not_sent_is_told_apart_from_what_may_have_been_done() {
    // Takes one line and says nothing, then ends.
    let address = server(|stream| {
        let mut line = String::new();
        let _ = BufReader::new(stream).read_line(&mut line);
    });
    let mux = mux();
    let conn = open(&mux, address);
    let error = ask(&conn, "one").unwrap_err();
    assert!(
        matches!(error, CallError::Unknown(CloseReason::Io(_))),
        "{error}"
    );
    let fill = |_: &mut [u8]| panic!("a closed connection takes nothing");
    let refused = conn.submit(4, 1, 0, None, None, fill).unwrap_err();
    assert!(matches!(refused, SubmitError::Closed(_)), "{refused}");
    // Nobody listens there.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let conn = open(&mux, gone.unwrap());
    let error = ask(&conn, "one").unwrap_err();
    assert!(
        matches!(error, CallError::NotSent(CloseReason::Unreachable(_))),
        "{error}"
    );
    assert_eq!(conn.state(), ConnectionState::Closed);
}

#[test]
fn of_several_commands_in_one_that_are_cut_the_first_may_have_been_done() {
    use std::io::Read;
    // Takes a little, and ends.
    let address = server(|mut stream| {
        let _ = stream.read_exact(&mut [0; 1000]);
    });
    let mux = mux();
    let len = 32 << 20;
    for (replies, may_be_done) in [(1, false), (2, true)] {
        let conn = open(&mux, address);
        let fill = |to: &mut [u8]| to.fill(b'x');
        let call = conn.submit(len, replies, 0, None, None, fill).unwrap();
        let error = call.wait(|_| ()).unwrap_err();
        let unknown = matches!(error, CallError::Unknown(_));
        assert_eq!(unknown, may_be_done, "{error}");
    }
}

#[test]
fn of_several_commands_in_one_the_replies_that_came_are_not_lost() {
    // Answers two lines. Then it ends, or says nothing more, until the test is over.
    let answers_two = |then: fn(BufReader<TcpStream>)| {
        server(move |stream| {
            let mut to = stream.try_clone().unwrap();
            let mut from = BufReader::new(stream);
            for _ in 0..2 {
                let mut line = String::new();
                let _ = from.read_line(&mut line);
                let _ = to.write_all(format!("re:{line}").as_bytes());
            }
            then(from);
        })
    };
    let ends = answers_two(drop);
    let hangs = answers_two(|from| from.lines().for_each(drop));
    let mux = mux();
    let took = |address: SocketAddr, limits, timeout, fill: &'static [u8]| {
        let conn = mux.open(address.into(), limits, Lines::default()).unwrap();
        let (len, replies) = (fill.len(), fill.split(|byte| *byte == b'\n').count() - 1);
        let call = conn.submit(len, replies as u32, 0, timeout, None, |to| {
            to.copy_from_slice(fill);
        });
        let mut call = call.unwrap();
        block_on(|cx| call.poll_partial(cx, |outcome, reply| (outcome, reply.clone())))
    };
    let (outcome, reply) = took(ends, patient(), None, b"a\nb\nc\n");
    assert!(matches!(outcome, Err(CallError::Unknown(_))), "{outcome:?}");
    assert_eq!(reply, b"re:a\nre:b\n");
    let timeout = Some(Duration::from_millis(200));
    let (outcome, reply) = took(hangs, patient(), timeout, b"a\nb\nc\n");
    assert_eq!(outcome, Err(CallError::TimedOut));
    assert!(b"re:a\nre:b\n".starts_with(&reply), "{reply:?}");
    let small = |max_reply_bytes| ConnectionLimits {
        max_reply_bytes,
        ..patient()
    };
    let (outcome, reply) = took(hangs, small(12), None, b"a\nb123456\nc\n");
    assert_eq!(outcome, Err(CallError::TooLarge { max: 12 }));
    assert!(
        reply.starts_with(b"re:a\n") && reply.len() <= 12,
        "{reply:?}"
    );
    // Of one frame there is nothing.
    let (outcome, reply) = took(hangs, small(4), None, b"a123456789\n");
    assert_eq!(outcome, Err(CallError::TooLarge { max: 4 }));
    assert_eq!(reply, b"");
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let address = server(|stream| {
        for line in BufReader::new(stream).lines() {
            drop(line);
        }
    });
    let mux = mux();
    let timeout = Duration::from_millis(100);
    let limits = ConnectionLimits {
        timeout,
        dead_after: Duration::from_secs(1),
        ..patient()
    };
    let heard = Heard::default();
    let lines = Lines {
        heard: heard.clone(),
        ..Lines::default()
    };
    let conn = mux.open(address.into(), limits, lines).unwrap();
    let started = Instant::now();
    // Both at once: on a busy machine the connection may be over when the first has timed out.
    let [one, two] = [None, Some(LONG)].map(|timeout| {
        let fill = |to: &mut [u8]| to.copy_from_slice(b"one\n");
        conn.submit(4, 1, 0, timeout, None, fill).unwrap()
    });
    assert_eq!(one.wait(|_| ()).unwrap_err(), CallError::TimedOut);
    // The driver has a clock of its own, so it may be a hundredth faster.
    assert!(
        started.elapsed() >= timeout / 100 * 99,
        "not before its time"
    );
    let error = two.wait(|_| ()).unwrap_err();
    assert_eq!(error, CallError::Unknown(CloseReason::Silent));
    assert_eq!(conn.in_flight(), 0);
    wait_until(|| heard.end.lock().unwrap().is_some());
    assert_eq!(*heard.end.lock().unwrap(), Some(CloseReason::Silent));
}

#[test]
fn a_late_reply_goes_to_nobody_else() {
    // Answers the first line when it is told to, the others at once.
    let (go, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let address = server(move |stream| {
        let mut to = stream.try_clone().unwrap();
        for (turn, line) in BufReader::new(stream).lines().enumerate() {
            let Ok(line) = line else { return };
            if turn == 0 {
                gate.lock().unwrap().recv().unwrap();
            }
            let _ = to.write_all(format!("re:{line}\n").as_bytes());
        }
    });
    let mux = mux();
    let conn = open(&mux, address);
    let fill = |to: &mut [u8]| to.copy_from_slice(b"slow\n");
    let soon = Some(Duration::from_millis(20));
    let call = conn.submit(5, 1, 0, soon, None, fill).unwrap();
    assert_eq!(call.wait(|_| ()).unwrap_err(), CallError::TimedOut);
    go.send(()).unwrap();
    assert_eq!(ask(&conn, "next").unwrap(), "re:next\n");
    assert_eq!(conn.stats().timeouts, 1);
}

#[test]
fn a_greeting_comes_first_and_may_be_refused() {
    let (mux, address) = (mux(), server(echo));
    let greeted = |greeting: &'static [u8], address: SocketAddr| {
        let lines = Lines {
            greeting: Some(greeting),
            ..Lines::default()
        };
        mux.open(address.into(), patient(), lines).unwrap()
    };
    let conn = greeted(b"hello\n", address);
    assert_eq!(ask(&conn, "one").unwrap(), "re:one\n");
    assert_eq!(conn.stats().replies, 1, "the greeting is none");
    let unfriendly = server(|stream| {
        let mut to = stream.try_clone().unwrap();
        // After the greeting, and before a close with something unread would take the words back.
        for line in BufReader::new(stream).lines() {
            drop(line);
            let _ = to.write_all(b"no\n");
        }
    });
    let conn = greeted(b"hello\n", unfriendly);
    let error = ask(&conn, "one").unwrap_err();
    assert_eq!(error, CallError::NotSent(CloseReason::Refused("no".into())));
}

#[test]
fn pushes_reach_the_protocol_and_nonsense_ends_the_connection() {
    let address = server(|stream| {
        let mut to = stream.try_clone().unwrap();
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return };
            let _ = match line.as_str() {
                "bad" => to.write_all(b"bad\n"),
                "extra" => to.write_all(b"re:extra\nwhat\n"),
                _ => to.write_all(format!(">news\nre:{line}\n").as_bytes()),
            };
        }
    });
    let mux = mux();
    let heard = Heard::default();
    let lines = Lines {
        heard: heard.clone(),
        ..Lines::default()
    };
    let conn = mux.open(address.into(), patient(), lines).unwrap();
    assert_eq!(ask(&conn, "one").unwrap(), "re:one\n");
    assert_eq!(*heard.pushes.lock().unwrap(), [b">news\n"]);
    let error = ask(&conn, "bad").unwrap_err();
    assert_eq!(error, CallError::Unknown(CloseReason::BadReply("bad")));
    let conn = open(&mux, address);
    let _ = ask(&conn, "extra");
    wait_until(|| conn.state() == ConnectionState::Closed);
    assert!(matches!(
        conn.close_reason(),
        Some(CloseReason::BadReply(_))
    ));
}

#[test]
fn too_many_in_flight_are_refused_or_wait() {
    // Answers only when it is told to.
    let (go, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let address = server(move |stream| {
        gate.lock().unwrap().recv().unwrap();
        echo(stream);
    });
    let mux = mux();
    let limits = ConnectionLimits {
        in_flight: 4,
        ..patient()
    };
    let conn = mux.open(address.into(), limits, Lines::default()).unwrap();
    let fill = |to: &mut [u8]| to.copy_from_slice(b"a\n");
    let calls: Vec<_> = (0..4)
        .map(|_| conn.submit(2, 1, 0, None, None, fill).unwrap())
        .collect();
    let full = conn.submit(2, 1, 0, None, None, fill).unwrap_err();
    assert_eq!(full, SubmitError::Full);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ask(&conn, "patient"));
        go.send(()).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), "re:patient\n");
    });
    for call in calls {
        assert_eq!(call.wait(|reply| reply.clone()).unwrap(), b"re:a\n");
    }
}

#[test]
fn a_panicking_encoder_ends_its_connection_and_nobody_waits_for_ever() {
    let (mux, address) = (mux(), server(echo));
    let conn = open(&mux, address);
    assert!(ask(&conn, "one").is_ok());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        drop(conn.submit(4, 1, 0, None, None, |_| panic!("on purpose")));
    }));
    assert!(panicked.is_err());
    wait_until(|| conn.state() == ConnectionState::Closed);
    assert_eq!(conn.close_reason(), Some(&CloseReason::EncoderPanicked));
    let other = open(&mux, address);
    assert_eq!(ask(&other, "one").unwrap(), "re:one\n");
}

#[test]
fn closing_ends_everything() {
    let (mux, address) = (mux(), server(drop));
    let quiet = server(|mut stream| {
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    drop(open(&mux, address));
    let conn = open(&mux, quiet);
    let call = conn.submit(2, 1, 0, None, None, |to| to.copy_from_slice(b"a\n"));
    mux.close();
    let error = call.unwrap().wait(|_| ()).unwrap_err();
    assert!(
        matches!(
            error,
            CallError::NotSent(CloseReason::Closed) | CallError::Unknown(CloseReason::Closed)
        ),
        "{error}"
    );
    assert!(mux.open(quiet.into(), patient(), Lines::default()).is_err());
}
