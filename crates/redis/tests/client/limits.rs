//! Limits of the configuration hold on connections of each kind.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use embar_redis::command::Route;
use embar_redis::commands::strings::StringCommands;
use embar_redis::pubsub::{Event, Kind};
use embar_redis::{Client, CloseReason, Error, cmd};

use crate::support::{LONG, run, server, to};

#[test]
fn no_connection_takes_a_reply_that_is_too_long() {
    let server = server();
    run(async {
        let all = Client::with(to(&server)).await.expect("it connects");
        all.set("long", "x".repeat(2000)).await.expect("it is set");
        let mut config = to(&server);
        config.max_reply_bytes = 1000;
        let client = Client::with(config).await.expect("it connects");
        let too_long = |read: Result<String, Error>| {
            let Err(Error::UnknownOutcome(CloseReason::BadReply(why))) = read else {
                panic!("it is too long: {read:?}");
            };
            assert!(why.contains("max_reply_bytes"), "{why}");
        };
        too_long(client.get("long").await);
        client.set("short", 1).await.expect("others go on");
        let own = client.dedicated(Route::Any).await.expect("it connects");
        assert_eq!(own.get::<u8, _>("short").await, Ok(1));
        too_long(own.get("long").await);

        let mut subscriber = client.subscriber(10);
        let subscribed = subscriber.subscribe(Kind::Channel, "news").await;
        subscribed.expect("it is confirmed");
        let publish = cmd("PUBLISH").key("news").arg("x".repeat(2000));
        assert_eq!(all.send::<_, u32>(publish).await, Ok(1));
        let event = tokio::time::timeout(LONG, subscriber.next()).await;
        let event = event.expect("the connection ends").expect("it is open");
        assert_eq!(event, Event::Interrupted);
    });
}

#[test]
fn a_dedicated_connection_takes_a_thousand_commands_at_once_in_their_order() {
    const COMMANDS: usize = 1000;
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let own = client.dedicated(Route::Any).await.expect("it connects");
        let mut requests: Vec<_> = (0..COMMANDS).map(|_| own.incr("counter")).collect();
        let mut values = vec![None; COMMANDS];
        // All at once.
        let all = poll_fn(|cx| {
            for (request, value) in requests.iter_mut().zip(&mut values) {
                if value.is_none()
                    && let Poll::Ready(outcome) = Pin::new(request).poll(cx)
                {
                    *value = Some(outcome.expect("it is executed"));
                }
            }
            match values.iter().all(Option::is_some) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        let all = tokio::time::timeout(LONG, all).await;
        all.expect("all are answered");
        let in_order = (1..=COMMANDS as i64).map(Some);
        assert!(values.into_iter().eq(in_order), "in their order");
    });
}
