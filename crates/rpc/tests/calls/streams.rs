//! Replies that are streams.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use embar_rpc::session::Settings;
use embar_rpc::{ChannelSettings, Code, Router, SinkError, Status};
use futures_core::Stream;

use crate::support::proto::TestingServer;
use crate::support::{Pair, number, obedient, until};

fn few() -> ChannelSettings {
    ChannelSettings::default().with(|settings| {
        settings.stream_items = 4;
        settings.stream_bytes = 1000;
    })
}

#[test]
fn items_come_in_order_and_then_the_end() {
    let pair = Pair::new();
    let request = number(5000, 50);
    let mut items = pair.testing.count(&request);
    for index in 1..=5000 {
        let item = items.wait_next().unwrap().unwrap().to_message().unwrap();
        assert_eq!((item.number, item.data.len()), (index, 50));
    }
    assert!(items.wait_next().is_none());
    pair.until_quiet();
    assert_eq!(pair.server.stats().methods()[2].ended, [(Code::Ok, 1)]);
}

#[test]
fn a_server_sends_no_more_than_its_caller_takes() {
    let pair = Pair::with(|router| router, few());
    let request = number(0, 0);
    let mut items = pair.testing.count(&request);
    items.start().unwrap();
    let (_, mut sink) = pair.stream();
    let mut sent = 0;
    let mut fill = |sink: &mut embar_rpc::Sink<_>| {
        loop {
            match sink.try_send(&number(sent + 1, 0)) {
                Ok(()) => sent += 1,
                Err(SinkError::Full) => return sent,
                Err(SinkError::Failed(status)) => panic!("{status}"),
                Err(_) => panic!("another error"),
            }
        }
    };
    assert_eq!(fill(&mut sink), 4);
    for index in 1..=4 {
        let item = items.wait_next().unwrap().unwrap();
        assert_eq!(item.view().unwrap().number, index);
    }
    until("it may send four more", || fill(&mut sink) == 8);
    // The bytes are a limit as well: one item goes beyond them.
    (0..4).for_each(|_| drop(items.wait_next().unwrap().unwrap()));
    let mut large = 0;
    until("it may send again", || {
        large += u64::from(sink.try_send(&number(9, 2000)).is_ok());
        large == 1
    });
    assert!(matches!(
        sink.try_send(&number(10, 0)),
        Err(SinkError::Full)
    ));
    sink.finish(Err(Status::data_loss("no more")));
    assert_eq!(
        items.wait_next().unwrap().unwrap().view().unwrap().number,
        9
    );
    let status = items.wait_next().unwrap().unwrap_err();
    assert_eq!(status, Status::data_loss("no more"));
    assert!(items.wait_next().is_none());
    pair.until_quiet();
}

#[test]
fn a_slow_consumer_holds_up_nobody_else() {
    let pair = Pair::with(|router| router, few());
    let request = number(300, 100);
    let mut slow = pair.testing.count(&request);
    slow.start().unwrap();
    let fast = number(300, 100);
    let mut fast = pair.testing.count(&fast);
    for index in 1..=300 {
        let item = fast.wait_next().unwrap().unwrap();
        assert_eq!(item.view().unwrap().number, index);
        drop(item);
        assert_eq!(pair.echo("others go on"), "others go on");
    }
    assert!(fast.wait_next().is_none());
    for index in 1..=300 {
        let item = slow.wait_next().unwrap().unwrap();
        assert_eq!(item.view().unwrap().number, index);
    }
    assert!(slow.wait_next().is_none());
    pair.until_quiet();
}

#[test]
fn items_that_nobody_takes_make_room_for_others() {
    let sessions = Settings::default().with(|settings| {
        settings.recv_ring_bytes = 16 << 10;
        settings.send_ring_bytes = 16 << 10;
        settings.session.max_kept_bytes = 4 << 10;
    });
    let settings = ChannelSettings::default().with(|settings| settings.stream_bytes = 8 << 10);
    let (service, events) = obedient();
    let router = Router::new().add_service(TestingServer::new(service));
    let pair = Pair::of(router, events, sessions, settings);
    let request = number(100, 500);
    let mut streams: Vec<_> = (0..10).map(|_| pair.testing.count(&request)).collect();
    for items in &mut streams {
        items.start().unwrap();
    }
    // More than the ring holds wait to be taken, and calls go on.
    for _ in 0..100 {
        assert_eq!(pair.echo("others go on"), "others go on");
    }
    for mut items in streams {
        for index in 1..=100 {
            let item = items.wait_next().unwrap().unwrap();
            assert_eq!(item.view().unwrap().number, index);
            assert_eq!(item.view().unwrap().data, [7; 500]);
        }
        assert!(items.wait_next().is_none());
    }
    pair.until_quiet();
}

#[test]
fn a_stream_can_be_polled_as_one() {
    let pair = Pair::new();
    let request = number(0, 0);
    let mut items = pair.testing.count(&request);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut items).poll_next(&mut cx).is_pending());
    let (_, mut sink) = pair.stream();
    sink.try_send(&number(1, 0)).unwrap();
    sink.finish(Ok(()));
    let mut seen = Vec::new();
    until("it is over", || {
        match Pin::new(&mut items).poll_next(&mut cx) {
            Poll::Pending => false,
            Poll::Ready(Some(item)) => {
                seen.push(item.unwrap().view().unwrap().number);
                false
            }
            Poll::Ready(None) => true,
        }
    });
    assert_eq!(seen, [1]);
    pair.until_quiet();
}

#[test]
fn an_item_that_is_too_long_is_not_sent_and_the_stream_goes_on() {
    let pair = Pair::new();
    let request = number(0, 0);
    let mut items = pair.testing.count(&request);
    items.start().unwrap();
    let (_, mut sink) = pair.stream();
    let error = sink.try_send(&number(1, 1 << 20)).unwrap_err();
    assert!(matches!(error, SinkError::Failed(status) if status.code() == Code::ResourceExhausted));
    sink.try_send(&number(2, 0)).unwrap();
    drop(sink);
    assert_eq!(
        items.wait_next().unwrap().unwrap().view().unwrap().number,
        2
    );
    let status = items.wait_next().unwrap().unwrap_err();
    assert!(status.text().contains("without an answer"), "{status}");
    pair.until_quiet();
}

#[test]
fn a_full_ring_makes_a_stream_wait() {
    let sessions = Settings::default().with(|settings| {
        settings.recv_ring_bytes = 16 << 10;
        settings.send_ring_bytes = 16 << 10;
    });
    let settings = ChannelSettings::default().with(|settings| {
        settings.stream_bytes = 1 << 20;
        settings.stream_items = 1000;
    });
    let (service, events) = obedient();
    let router = Router::new().add_service(TestingServer::new(service));
    let pair = Pair::of(router, events, sessions, settings);
    let request = number(500, 3000);
    let mut streams: Vec<_> = (0..3).map(|_| pair.testing.count(&request)).collect();
    for items in &mut streams {
        items.start().unwrap();
    }
    for mut items in streams {
        for index in 1..=500 {
            let item = items.wait_next().unwrap().unwrap();
            assert_eq!(item.view().unwrap().number, index);
        }
        assert!(items.wait_next().is_none());
    }
    pair.until_quiet();
}
