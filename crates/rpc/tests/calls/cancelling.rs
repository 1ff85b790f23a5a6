//! Calls that their callers give up.

use embar_rpc::{ChannelSettings, Code};

use crate::support::proto::Text;
use crate::support::{Pair, number, text, until};

fn one_at_a_time() -> ChannelSettings {
    ChannelSettings::default().with(|settings| settings.max_in_flight = 1)
}

#[test]
fn the_server_learns_that_nobody_waits() {
    let pair = Pair::new();
    let request = text("hold");
    let mut call = pair.testing.obey(&request);
    call.start().unwrap();
    let (server_call, reply) = pair.held();
    assert!(!server_call.is_cancelled() && !reply.is_cancelled());
    drop(call);
    until("the server learns it", || server_call.is_cancelled());
    assert!(reply.is_cancelled());
    // Its slot is taken until the server is done with it.
    assert_eq!(pair.channel.stats().in_flight, 1);
    reply.send(&text("too late"));
    pair.until_quiet();
    let methods = pair.server.stats().methods();
    assert_eq!(methods[1].ended, [(Code::Cancelled, 1)]);
}

#[test]
fn a_late_reply_is_not_that_of_the_next_call() {
    let pair = Pair::with(|router| router, one_at_a_time());
    let (hold, echo) = (text("hold"), text("mine"));
    for _ in 0..50 {
        let mut given_up = pair.testing.obey(&hold);
        given_up.start().unwrap();
        let (_, reply) = pair.held();
        drop(given_up);
        let mut next = pair.testing.echo(&echo);
        next.start().unwrap();
        reply.send(&text("of another"));
        let reply: Text = next.wait().unwrap().to_message().unwrap();
        assert_eq!(reply.text, "mine");
    }
    pair.until_quiet();
}

#[test]
fn a_reply_that_nobody_took_frees_its_slot() {
    let pair = Pair::with(|router| router, one_at_a_time());
    let request = text("hello");
    for _ in 0..10 {
        let mut call = pair.testing.echo(&request);
        call.start().unwrap();
        until("it is answered", || {
            pair.server.stats().methods()[0].in_flight == 0
        });
        drop(call);
    }
    pair.until_quiet();
}

#[test]
fn a_stream_that_is_given_up_ends_on_the_server() {
    let pair = Pair::new();
    let request = number(0, 0);
    let mut items = pair.testing.count(&request);
    items.start().unwrap();
    let (call, mut sink) = pair.stream();
    sink.try_send(&number(1, 0)).unwrap();
    assert_eq!(
        items.wait_next().unwrap().unwrap().view().unwrap().number,
        1
    );
    drop(items);
    until("the server learns it", || call.is_cancelled());
    let status = sink.wait_send(&number(2, 0)).unwrap_err();
    assert_eq!(status.code(), Code::Cancelled);
    drop(sink);
    pair.until_quiet();
}

#[test]
fn who_waits_for_its_turn_leaves_it_to_the_next() {
    let pair = Pair::with(|router| router, one_at_a_time());
    let (hold, echo) = (text("hold"), text("hello"));
    let mut first = pair.testing.obey(&hold);
    first.start().unwrap();
    let (_, reply) = pair.held();
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let mut second = Box::pin(pair.testing.echo(&echo));
    assert!(second.as_mut().poll(&mut cx).is_pending());
    let third = std::thread::scope(|scope| {
        let third = scope.spawn(|| pair.echo("third"));
        until("both wait", || pair.channel.stats().waiting == 2);
        reply.send(&text("done"));
        first.wait().unwrap();
        // It is the turn of the second, which is not polled again.
        drop(second);
        third.join().unwrap()
    });
    assert_eq!(third, "third");
    pair.until_quiet();
}
