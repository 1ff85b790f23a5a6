//! Calls whose time is over.

use std::time::Duration;

use embar_rpc::{ChannelSettings, Code, MetadataError, Owned, PendingCall, SinkError};

use crate::support::proto::{TestingClient, Text};
use crate::support::{Event, LONG, Pair, block_on, number, text, until};

/// Soon over.
const SHORT: Duration = Duration::from_millis(20);

/// A call of `hold` or `sleep` with a short time, whose request has left. On a busy machine its time may be over before that.
fn soon_late<'a>(pair: &'a Pair, request: &'a Text) -> PendingCall<Owned<'a, Text>, Text> {
    loop {
        let mut call = pair.testing.obey(request).timeout(SHORT);
        match call.start() {
            Ok(()) => return call,
            Err(status) => assert_eq!(status.code(), Code::DeadlineExceeded),
        }
    }
}

#[test]
fn a_thread_and_a_task_wait_no_longer_than_they_want() {
    let pair = Pair::new();
    let request = text("hold");
    for task in [false, true] {
        let call = soon_late(&pair, &request);
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
    for calls in 1.. {
        let call = soon_late(&pair, &request);
        // Nobody polls it, so the client does not end it; the server does.
        until("the server ends it", || {
            let obey = &pair.server.stats().methods()[1];
            obey.calls == calls && obey.in_flight == 0
        });
        let status = call.wait().unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        // Unless its time was over before its method began.
        if let Ok(Event::Dropped) = pair.events.lock().unwrap().try_recv() {
            break;
        }
    }
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
fn a_call_that_was_started_can_still_get_a_timeout() {
    let pair = Pair::new();
    let (request, count) = (text("hold"), number(0, 0));
    for task in [false, true] {
        let mut call = pair.testing.obey(&request);
        call.start().unwrap();
        let (_, reply) = pair.held();
        let call = call.timeout(SHORT);
        let status = match task {
            false => call.wait().unwrap_err(),
            true => block_on(call).unwrap_err(),
        };
        assert_eq!(status.code(), Code::DeadlineExceeded);
        until("the server knows", || reply.is_cancelled());
        let mut items = pair.testing.count(&count);
        items.start().unwrap();
        let (_, sink) = pair.stream();
        let mut items = items.timeout(SHORT);
        let next = match task {
            false => items.wait_next(),
            true => block_on(items.next()),
        };
        assert_eq!(next.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
        until("the server knows", || sink.is_cancelled());
    }
    pair.until_quiet();
}

#[test]
fn metadata_comes_before_the_start() {
    let pair = Pair::new();
    let (request, count) = (text("hold"), number(3, 0));
    let mut call = pair.testing.obey(&request);
    call.start().unwrap();
    let late = call.metadata("token", "late");
    assert_eq!(late.err(), Some(MetadataError::Started));
    drop(pair.held());
    let mut items = pair.testing.count(&count);
    items.start().unwrap();
    let late = items.metadata("token", "late");
    assert_eq!(late.err(), Some(MetadataError::Started));
    pair.until_quiet();
}

#[test]
fn a_stream_has_a_deadline_too() {
    let pair = Pair::new();
    let request = number(0, 0);
    for task in [false, true] {
        let mut items = loop {
            let mut items = pair.testing.count(&request).timeout(SHORT);
            if items.start().is_ok() {
                break items;
            }
        };
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
