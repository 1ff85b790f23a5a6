//! Wakers that panic: what they were to wake is their own concern.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use embar_rpc::session::Settings;
use embar_rpc::{BoxFuture, ChannelSettings, Code, Router};

use crate::support::proto::{OtherClient, TestingAsyncServer};
use crate::support::{Awaiting, LONG, Pair, text, until};

/// Soon over.
const SHORT: Duration = Duration::from_millis(20);

/// Counts, and panics.
#[derive(Default)]
struct Panics(AtomicUsize);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("as the test wants it");
    }
}

fn panics() -> (Arc<Panics>, Waker) {
    let panics = Arc::new(Panics::default());
    (Arc::clone(&panics), panics.into())
}

impl Panics {
    fn until_woken(&self, times: usize) {
        until("it is woken", || self.0.load(Ordering::Relaxed) >= times);
    }
}

#[test]
fn a_reply_to_a_waker_that_panics_takes_nothing_from_other_calls() {
    let pair = Pair::new();
    let request = text("hold");
    let (woken, waker) = panics();
    let mut cx = Context::from_waker(&waker);
    let mut first = pin!(pair.testing.obey(&request));
    let mut second = pair.testing.obey(&request);
    assert!(first.as_mut().poll(&mut cx).is_pending());
    second.start().unwrap();
    for _ in 0..2 {
        pair.held().1.send(&text("done"));
    }
    second.wait().unwrap();
    assert_eq!(pair.echo("hello"), "hello");
    assert!(first.as_mut().poll(&mut cx).is_ready());
    // Its time is over.
    let mut late = pair.testing.obey(&request);
    late.start().unwrap();
    let (_, reply) = pair.held();
    let mut late = pin!(late.timeout(SHORT));
    if late.as_mut().poll(&mut cx).is_pending() {
        woken.until_woken(2);
    }
    until("its caller learns it", || {
        late.as_mut().poll(&mut cx).is_ready()
    });
    drop(reply);
    pair.until_quiet();
    // The session ends.
    let mut first = pin!(pair.testing.obey(&request));
    let mut second = pair.testing.obey(&request);
    assert!(first.as_mut().poll(&mut cx).is_pending());
    second.start().unwrap();
    pair.channel.session().abort();
    let status = second.timeout(LONG).wait().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}

#[test]
fn a_task_whose_waker_panics_takes_nothing_from_its_session() {
    let (events, seen) = mpsc::channel();
    let tasks = Mutex::new(Vec::new());
    let (woken, waker) = panics();
    let spawn = move |mut task: BoxFuture| {
        // One that is late already is ready.
        let _ = task.as_mut().poll(&mut Context::from_waker(&waker));
        tasks.lock().unwrap().push(task);
    };
    let service = TestingAsyncServer::new(Awaiting(Mutex::new(events)), spawn);
    let router = Router::new().add_service(service);
    let settings = ChannelSettings::default();
    let pair = Pair::of(router, seen, Settings::default(), settings);
    let request = text("sleep");
    let alive = || {
        let other = OtherClient::new(pair.channel.clone());
        let status = other.echo(&request).timeout(LONG).wait().unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{status}");
    };
    // Cancelled, late, and at the end of the session.
    let mut call = pair.testing.obey(&request);
    call.start().unwrap();
    drop(call);
    woken.until_woken(1);
    alive();
    for _ in 0..3 {
        let mut late = pair.testing.obey(&request).timeout(SHORT);
        // Unless its time was over before it left.
        if late.start().is_ok() {
            assert!(late.wait().is_err());
        }
        alive();
    }
    let mut call = pair.testing.obey(&request);
    call.start().unwrap();
    alive();
    pair.channel.session().close();
    until("it is over", || {
        pair.server.sessions().stats().sessions == 0
    });
    assert_eq!(pair.server.sessions().stats().panics, 0);
}
