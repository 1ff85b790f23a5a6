//! Many callers at once, and what one of them may do to the others.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use embar_mux::{CloseReason, ConnectionLimits};

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
