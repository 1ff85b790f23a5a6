//! Many callers at once, and what one of them may do to the others.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use embar_mux::{Call, CloseReason, Connection, ConnectionLimits, SubmitError, Turn};

use super::support::{LONG, Lines, ask, echo, mux, open, patient, server, wait_until};

/// Counts how often it was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A caller that waits to submit a line of 100 bytes.
#[derive(Default)]
struct Caller {
    woken: Arc<Woken>,
    turn: Turn,
}

impl Caller {
    fn poll(&mut self, conn: &Connection) -> Poll<Result<Call, SubmitError>> {
        let waker = Waker::from(Arc::clone(&self.woken));
        let line = format!("{}\n", "x".repeat(99));
        let fill = &mut |to: &mut [u8]| to.copy_from_slice(line.as_bytes());
        let mut cx = Context::from_waker(&waker);
        conn.poll_submit(&mut self.turn, &mut cx, 100, 1, 0, None, fill)
    }

    fn woken(&self) -> usize {
        self.woken.0.load(Ordering::SeqCst)
    }
}

/// Submits until there is room for no more.
fn fill_up(conn: &Connection) -> Vec<Call> {
    let mut calls = Vec::new();
    while let Poll::Ready(call) = Caller::default().poll(conn) {
        calls.push(call.unwrap());
    }
    calls
}

/// A connection to a server that reads what comes and answers nothing, with so many commands in flight at most.
fn unanswered(in_flight: usize) -> Connection {
    let address = server(|stream| {
        let mut stream = stream;
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let limits = ConnectionLimits {
        in_flight,
        ..patient()
    };
    let mux = mux();
    let conn = mux.open(address.into(), limits, Lines::default()).unwrap();
    // The driver lives as long as the test.
    std::mem::forget(mux);
    conn
}

#[test]
fn only_room_wakes_callers_that_wait_for_it() {
    // Nothing leaves this one, as nobody answers the greeting.
    let greeted = Lines {
        greeting: Some(b"hello\n"),
        ..Lines::default()
    };
    let silent = server(|stream| {
        let mut stream = stream;
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let mux = mux();
    let ring = mux.open(silent.into(), patient(), greeted).unwrap();
    let other = open(&mux, server(echo));
    for conn in [unanswered(2), ring] {
        let _calls = fill_up(&conn);
        let mut callers: Vec<Caller> = (0..20).map(|_| Caller::default()).collect();
        for caller in &mut callers {
            assert!(caller.poll(&conn).is_pending());
        }
        // The driver has looked at its connections meanwhile.
        ask(&other, "look").unwrap();
        assert!(callers.iter().all(|caller| caller.woken() == 0));
    }
}

#[test]
fn callers_that_give_up_leave_nothing() {
    let conn = unanswered(2);
    let _calls = fill_up(&conn);
    let mut callers: Vec<Caller> = (0..11_000).map(|_| Caller::default()).collect();
    for caller in &mut callers {
        assert!(caller.poll(&conn).is_pending());
    }
    let wakers: Vec<_> = callers.iter().map(|one| Arc::clone(&one.woken)).collect();
    drop(callers);
    assert!(wakers.iter().all(|waker| Arc::strong_count(waker) == 1));
}

#[test]
fn a_turn_that_is_given_up_goes_to_the_next() {
    // It answers one line, when it is told to.
    let answers = Arc::new((Mutex::new(0), Condvar::new()));
    let address = {
        let answers = Arc::clone(&answers);
        server(move |stream| {
            let mut stream = stream;
            let (count, changed) = &*answers;
            let count = count.lock().unwrap();
            drop(changed.wait_while(count, |count| *count == 0).unwrap());
            let _ = stream.write_all(b"answer\n");
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        })
    };
    let limits = ConnectionLimits {
        in_flight: 2,
        ..patient()
    };
    let mux = mux();
    let conn = mux.open(address.into(), limits, Lines::default()).unwrap();
    let _calls = fill_up(&conn);
    let mut callers = [(); 3].map(|()| Caller::default());
    for caller in &mut callers {
        assert!(caller.poll(&conn).is_pending());
    }
    *answers.0.lock().unwrap() = 1;
    answers.1.notify_all();
    let [first, mut second, third] = callers;
    wait_until(|| first.woken() == 1);
    assert_eq!((second.woken(), third.woken()), (0, 0));
    drop(first);
    assert_eq!((second.woken(), third.woken()), (1, 0));
    let Poll::Ready(Ok(_call)) = second.poll(&conn) else {
        panic!("it is its turn");
    };
    // The end is for all.
    conn.close();
    let mut third = third;
    wait_until(|| third.woken() == 1);
    let Poll::Ready(Err(SubmitError::Closed(_))) = third.poll(&conn) else {
        panic!("the connection is over");
    };
}

/// Tasks that are ready, by their numbers.
#[derive(Default)]
struct ReadyTasks {
    numbers: Mutex<VecDeque<usize>>,
    some: Condvar,
}

struct WakesTask {
    number: usize,
    ready: Arc<ReadyTasks>,
}

impl Wake for WakesTask {
    fn wake(self: Arc<Self>) {
        self.ready.numbers.lock().unwrap().push_back(self.number);
        self.ready.some.notify_one();
    }
}

impl ReadyTasks {
    fn next(&self) -> usize {
        let numbers = self.numbers.lock().unwrap();
        let waited = self
            .some
            .wait_timeout_while(numbers, LONG, |numbers| numbers.is_empty());
        let next = waited.unwrap().0.pop_front();
        next.expect("somebody is woken")
    }
}

/// Each is polled once for its place, once for its turn and once for its reply, however many others there are.
#[test]
fn fifty_thousand_callers_are_served_in_turn_by_few_slots() {
    const CALLERS: usize = 50_000;
    let limits = ConnectionLimits {
        in_flight: 64,
        ..patient()
    };
    let mux = mux();
    // Nobody is answered before all have their places: who comes while there is room for all that wait need not wait.
    let (goes_on, all_wait) = channel::<()>();
    let all_wait = Mutex::new(all_wait);
    let address = server(move |stream| {
        let _ = all_wait.lock().unwrap().recv();
        echo(stream);
    });
    let conn = mux.open(address.into(), limits, Lines::default()).unwrap();
    let ready = Arc::new(ReadyTasks::default());
    let mut tasks: Vec<(Turn, Option<Call>)> = Vec::new();
    tasks.resize_with(CALLERS, Default::default);
    ready.numbers.lock().unwrap().extend(0..CALLERS);
    let (mut polls, mut served, mut last) = (0, 0, None);
    while served < CALLERS {
        if polls == CALLERS {
            goes_on.send(()).unwrap();
        }
        let number = ready.next();
        polls += 1;
        let (turn, call) = &mut tasks[number];
        let waker = Waker::from(Arc::new(WakesTask {
            number,
            ready: Arc::clone(&ready),
        }));
        let mut cx = Context::from_waker(&waker);
        if call.is_none() {
            let fill = &mut |to: &mut [u8]| to.copy_from_slice(b"x\n");
            match conn.poll_submit(turn, &mut cx, 2, 1, 0, None, fill) {
                Poll::Ready(submitted) => *call = Some(submitted.unwrap()),
                Poll::Pending => continue,
            }
            assert!(last < Some(number), "{number} overtakes {last:?}");
            last = Some(number);
        } else if let Some(Poll::Ready(reply)) = call
            .as_mut()
            .map(|call| call.poll_reply(&mut cx, |reply| reply.len()))
        {
            assert_eq!(reply, Ok(5));
            *call = None;
            served += 1;
        }
    }
    assert!(polls <= 3 * CALLERS, "{polls} polls of {CALLERS} callers");
}

/// Polls its call in the very moment in which it is woken, as some executors do.
struct PollsAtOnce {
    call: Mutex<Option<Call>>,
    told: Sender<bool>,
}

impl Wake for PollsAtOnce {
    fn wake(self: Arc<Self>) {
        let mut call = self.call.lock().unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        let reply = call.as_mut().unwrap().poll_reply(&mut cx, |_| ());
        let _ = self.told.send(matches!(reply, Poll::Ready(Err(_))));
    }
}

#[test]
fn a_caller_whose_reply_is_too_large_is_woken_without_a_lock() {
    let limits = ConnectionLimits {
        max_reply_bytes: 10,
        ..patient()
    };
    let mux = mux();
    let address = server(echo);
    let conn = mux.open(address.into(), limits, Lines::default()).unwrap();
    let (told, heard) = channel();
    let caller = Arc::new(PollsAtOnce {
        call: Mutex::default(),
        told,
    });
    let mut call = caller.call.lock().unwrap();
    let waker = Waker::from(Arc::clone(&caller));
    let fill = |to: &mut [u8]| to.copy_from_slice(b"a line of more than ten\n");
    *call = Some(conn.submit(24, 1, 0, None, Some(waker), fill).unwrap());
    drop(call);
    assert_eq!(heard.recv_timeout(LONG), Ok(true));
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
