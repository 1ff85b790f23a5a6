//! Methods that are futures.

use embar_rpc::{Code, Router};

use crate::support::proto::{TestingAsyncServer, TestingClient};
use crate::support::{Awaiting, Event, LONG, Pair, block_on, number, text};

#[test]
fn async_methods_answer_on_their_executor() {
    let pair = Pair::awaiting();
    assert_eq!(pair.echo("hello"), "hello");
    assert_eq!(pair.error("fail").code(), Code::NotFound);
    pair.until_quiet();
}

#[test]
fn async_methods_that_panic_end_their_calls_alone() {
    let pair = Pair::awaiting();
    let status = pair.error("panic");
    assert_eq!(status.code(), Code::Internal);
    assert_eq!(status.text(), "the method panicked");
    let request = number(0, 0);
    let status = pair.testing.count(&request).wait_next().unwrap();
    assert_eq!(status.unwrap_err().text(), "the method panicked");
    pair.until_quiet();
}

#[test]
fn who_gives_a_call_up_has_its_future_dropped() {
    let pair = Pair::awaiting();
    let request = text("sleep");
    let mut call = pair.testing.obey(&request);
    call.start().unwrap();
    // Its method runs by the time that this comes back.
    pair.echo("hello");
    drop(call);
    assert!(matches!(pair.event(), Event::Dropped));
    pair.until_quiet();
    let methods = pair.server.stats().methods();
    assert_eq!(methods[1].ended, [(Code::Cancelled, 1)]);
}

#[test]
fn a_session_that_ends_drops_the_futures_of_its_calls() {
    let pair = Pair::awaiting();
    let request = text("sleep");
    let mut call = pair.testing.obey(&request);
    call.start().unwrap();
    // Its method runs by the time that this comes back.
    pair.echo("hello");
    pair.channel.session().abort();
    assert!(matches!(pair.event(), Event::Dropped));
    assert_eq!(call.wait().unwrap_err().code(), Code::Unavailable);
}

#[test]
fn async_streams_wait_for_their_callers() {
    let pair = Pair::awaiting();
    let request = number(1000, 100);
    block_on(async {
        let mut items = pair.testing.count(&request);
        for index in 1..=1000 {
            let item = items.next().await.unwrap().unwrap();
            assert_eq!(item.view().unwrap().number, index);
        }
        assert!(items.next().await.is_none());
        assert!(items.next().await.is_none(), "it stays over");
    });
    assert!(matches!(pair.event(), Event::Dropped));
    // This one waits for its caller when it is given up.
    let mut items = pair.testing.count(&request);
    items.wait_next().unwrap().unwrap();
    drop(items);
    assert!(matches!(pair.event(), Event::Dropped));
    pair.until_quiet();
}

#[test]
fn an_executor_that_takes_nothing_fails_the_calls() {
    let (events, seen) = std::sync::mpsc::channel();
    let service = Awaiting(std::sync::Mutex::new(events));
    let service = TestingAsyncServer::new(service, drop);
    let router = Router::new().add_service(service);
    let pair = Pair::of(router, seen, Default::default(), Default::default());
    let testing = TestingClient::new(pair.channel.with_timeout(LONG));
    let request = text("hello");
    let status = testing.echo(&request).wait().unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert!(status.text().contains("without an answer"), "{status}");
}
