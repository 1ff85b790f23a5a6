//! Calls whose time is over.

use std::time::Duration;

use embar_rpc::{ChannelSettings, Code, SinkError};

use crate::support::proto::TestingClient;
use crate::support::{LONG, Pair, block_on, number, text, until};

/// Soon over.
const SHORT: Duration = Duration::from_millis(20);

#[test]
fn a_thread_and_a_task_wait_no_longer_than_they_want() {
    let pair = Pair::new();
    let request = text("hold");
    for task in [false, true] {
        let call = pair.testing.obey(&request).timeout(SHORT);
        let status = match task {
            false => call.wait().unwrap_err(),
            true => block_on(call).unwrap_err(),
        };
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert!(status.may_have_run());
        let (call, reply) = pair.held();
        until("the server knows", || reply.is_cancelled());
        assert!(call.is_cancelled() && call.time_left().unwrap() <= SHORT);
        reply.send(&text("too late"));
    }
    pair.until_quiet();
}

#[test]
fn the_server_sees_what_is_left() {
    let pair = Pair::new();
    let request = text("time");
    let left = |testing: &TestingClient, timeout: Option<Duration>| {
        let call = testing.obey(&request);
        let call = match timeout {
            Some(timeout) => call.timeout(timeout),
            None => call,
        };
        let reply = call.wait().unwrap().to_message().unwrap();
        Duration::from_millis(reply.text.parse().unwrap())
    };
    assert_eq!(left(&pair.testing, None), Duration::ZERO);
    let given = left(&pair.testing, Some(LONG));
    assert!(given <= LONG && given > LONG / 2, "{given:?}");
    // As the handle says.
    let patient = TestingClient::new(pair.channel.with_timeout(2 * LONG));
    assert!(left(&patient, None) > LONG);
    let endless = Duration::MAX;
    assert_eq!(left(&pair.testing, Some(endless)), Duration::ZERO);
}

#[test]
fn the_channel_has_a_timeout_for_all() {
    let settings = ChannelSettings::default().with(|settings| settings.timeout = Some(SHORT));
    let pair = Pair::with(|router| router, settings);
    let status = pair.testing.obey(&text("hold")).wait().unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[test]
fn the_server_gives_up_by_itself() {
    let pair = Pair::awaiting();
    let request = text("sleep");
    let mut call = pair.testing.obey(&request).timeout(SHORT);
    call.start().unwrap();
    // Nobody polls it, so the client does not end it; the server does.
    let dropped = pair.event();
    assert!(matches!(dropped, crate::support::Event::Dropped));
    let status = call.wait().unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    pair.until_quiet();
}

#[test]
fn who_waits_for_its_turn_has_its_time_as_well() {
    let settings = ChannelSettings::default().with(|settings| settings.max_in_flight = 1);
    let pair = Pair::with(|router| router, settings);
    let (hold, echo) = (text("hold"), text("hello"));
    let mut first = pair.testing.obey(&hold);
    first.start().unwrap();
    let (_, reply) = pair.held();
    let longer = std::thread::scope(|scope| {
        let longer = scope.spawn(|| block_on(pair.testing.echo(&echo).timeout(LONG)));
        until("one waits", || pair.channel.stats().waiting == 1);
        for task in [false, true] {
            let call = pair.testing.echo(&echo).timeout(SHORT);
            let status = match task {
                false => call.wait().unwrap_err(),
                true => block_on(call).unwrap_err(),
            };
            assert_eq!(status.code(), Code::DeadlineExceeded);
            assert!(!status.may_have_run());
        }
        reply.send(&text("done"));
        first.wait().unwrap();
        longer.join().unwrap()
    });
    longer.unwrap();
    pair.until_quiet();
}

#[test]
fn a_stream_has_a_deadline_too() {
    let pair = Pair::new();
    let request = number(0, 0);
    for task in [false, true] {
        let mut items = pair.testing.count(&request).timeout(SHORT);
        let next = match task {
            false => items.wait_next(),
            true => block_on(items.next()),
        };
        let status = next.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert!(items.wait_next().is_none());
        let (_, mut sink) = pair.stream();
        until("the server knows", || {
            let sent = sink.try_send(&number(1, 0));
            matches!(sent, Err(SinkError::Failed(_)))
        });
        assert!(sink.is_cancelled());
    }
    pair.until_quiet();
}
