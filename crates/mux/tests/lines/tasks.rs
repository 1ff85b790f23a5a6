//! The driver as a task of a runtime, beside those of its callers.

use std::future::poll_fn;
use std::io::{BufRead, BufReader};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use embar_mux::{CallError, CloseReason, Connection, Mux, MuxSettings, SubmitError, Turn};
use tokio::runtime::{Builder, Runtime};

use super::support::{echo, open, server, wait_until};

/// With two threads.
fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

async fn asked(conn: &Connection, text: &str) -> String {
    let line = format!("{text}\n");
    let mut turn = Turn::default();
    let call = poll_fn(|cx| {
        let fill = &mut |to: &mut [u8]| to.copy_from_slice(line.as_bytes());
        conn.poll_submit(&mut turn, cx, line.len(), 1, 0, None, fill)
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
fn nobody_waits_for_a_driver_that_went_with_its_runtime() {
    let address = server(|stream| {
        for line in BufReader::new(stream).lines() {
            drop(line);
        }
    });
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let mux = Mux::on_tokio(&MuxSettings::default(), runtime.handle()).unwrap();
    let conn = open(&mux, address);
    let fill = |to: &mut [u8]| to.copy_from_slice(b"a\n");
    let call = conn.submit(2, 1, 0, None, None, fill).unwrap();
    wait_until(|| conn.stats().bytes_sent == 2);
    let waiting = thread::spawn(move || call.wait(|_| ()));
    drop(runtime);
    let error = waiting.join().unwrap().unwrap_err();
    assert_eq!(error, CallError::Unknown(CloseReason::Closed));
    let refused = conn.submit(2, 1, 0, None, None, fill).unwrap_err();
    assert_eq!(refused, SubmitError::Closed(CloseReason::Closed));
}
