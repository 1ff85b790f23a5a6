//! Many callers at once, and what one of them may do to the others.

use std::future::poll_fn;
use std::io::Write;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use embar_mux::{CloseReason, Connection, ConnectionLimits, Mux, MuxSettings};
use tokio::runtime::{Builder, Runtime};

use super::support::{Lines, ask, echo, mux, open, patient, server, wait_until};

/// Counts how often it was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn only_room_wakes_callers_that_wait_for_it() {
    // It reads what comes, and answers nothing.
    let address = server(|stream| {
        let mut stream = stream;
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let (mux, full) = (mux(), "x".repeat(99));
    let few = ConnectionLimits {
        in_flight: 2,
        ..patient()
    };
    let in_flight = mux.open(address.into(), few, Lines::default()).unwrap();
    // Nothing leaves this one, as nobody answers the greeting.
    let greeted = Lines {
        greeting: Some(b"hello\n"),
        ..Lines::default()
    };
    let ring = mux.open(address.into(), patient(), greeted).unwrap();
    let other = open(&mux, server(echo));
    for conn in [in_flight, ring] {
        let waiters: Vec<_> = (0..20).map(|_| Arc::new(Woken::default())).collect();
        let mut calls = Vec::new();
        let mut submit = |cx: &mut Context<'_>| {
            let fill = &mut |to: &mut [u8]| to.copy_from_slice(format!("{full}\n").as_bytes());
            conn.poll_submit(cx, 100, 1, 0, None, fill)
                .map(|call| calls.push(call))
        };
        let mut cx = Context::from_waker(Waker::noop());
        while submit(&mut cx).is_ready() {}
        // All are polled once, then whoever is woken, until there is nobody, also after the driver has looked at its
        // connections once more: it had work on another one.
        let (mut polls, mut looked) = (0, false);
        let mut seen = vec![None; waiters.len()];
        loop {
            let before = polls;
            for (waiter, seen) in waiters.iter().zip(&mut seen) {
                let woken = Some(waiter.0.load(Ordering::SeqCst));
                if woken == *seen {
                    continue;
                }
                *seen = woken;
                polls += 1;
                let waker = Waker::from(Arc::clone(waiter));
                assert!(submit(&mut Context::from_waker(&waker)).is_pending());
            }
            let count = waiters.len();
            assert!(polls <= 3 * count, "{polls} polls of {count} waiters");
            if polls > before {
                looked = false;
            } else if looked {
                break;
            } else {
                ask(&other, "look").unwrap();
                looked = true;
            }
        }
    }
}

/// With two threads.
fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

async fn asked(conn: &Connection, text: &str) -> String {
    let line = format!("{text}\n");
    let call = poll_fn(|cx| {
        let fill = &mut |to: &mut [u8]| to.copy_from_slice(line.as_bytes());
        conn.poll_submit(cx, line.len(), 1, 0, None, fill)
    });
    let mut call = call.await.unwrap();
    let reply =
        poll_fn(|cx| call.poll_reply(cx, |reply| String::from_utf8(reply.clone()).unwrap()));
    pin!(reply).await.unwrap()
}

#[test]
fn a_task_that_keeps_its_thread_does_not_hold_up_the_others() {
    const CALLERS: usize = 16;
    let (runtime, address) = (runtime(), server(echo));
    let mux = Mux::on_tokio(&MuxSettings::default(), runtime.handle()).unwrap();
    let conn = open(&mux, address);
    // Replies to the others, who go on until the first one is done.
    let (replies, over) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let tasks: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (conn, replies, over) = (conn.clone(), Arc::clone(&replies), Arc::clone(&over));
            runtime.spawn(async move {
                let mut turn = 0;
                while !over.load(Ordering::Relaxed) {
                    let text = format!("{caller}-{turn}");
                    assert_eq!(asked(&conn, &text).await, format!("re:{text}\n"));
                    turn += 1;
                    if caller != 0 {
                        replies.fetch_add(1, Ordering::Relaxed);
                    } else if turn % 100 == 50 {
                        // Just woken, together with others, by the driver on this very thread,
                        // which it keeps until others were given replies meanwhile.
                        let seen = replies.load(Ordering::Relaxed);
                        wait_until(|| replies.load(Ordering::Relaxed) > seen + 2 * CALLERS);
                        over.store(turn == 450, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
}

#[test]
fn answers_before_the_question_end_their_connection_and_no_other() {
    fn greeted() -> Lines {
        Lines {
            greeting: Some(b"hello\n"),
            ..Lines::default()
        }
    }
    let hasty = server(|mut stream| {
        let _ = stream.write_all(&b"a\n".repeat(100));
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let (mux, sane) = (mux(), server(echo));
    for _ in 0..50 {
        let conn = mux.open(hasty.into(), patient(), greeted()).unwrap();
        wait_until(|| conn.close_reason().is_some());
        assert!(matches!(
            conn.close_reason(),
            Some(CloseReason::BadReply(_))
        ));
    }
    assert_eq!(ask(&open(&mux, sane), "one").unwrap(), "re:one\n");
}
