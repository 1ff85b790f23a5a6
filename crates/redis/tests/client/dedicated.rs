//! Connections for one caller alone.

use std::time::Duration;

use embar_redis::cmd;
use embar_redis::command::Route;
use embar_redis::commands::strings::StringCommands;
use embar_redis::{Client, Error};

use crate::support::{cluster, run, server, to, to_cluster, until};

#[test]
fn a_blocking_command_delays_no_other_caller() {
    let server = server();
    let mut config = to(&server);
    config.timeout = Duration::from_secs(1);
    config.dead_after = Duration::from_secs(1);
    run(async {
        let client = Client::with(config).await.expect("it connects");
        let refused = client.send::<_, ()>(cmd("BLPOP").key("list").arg(0)).await;
        assert!(
            matches!(refused, Err(Error::NotShared { .. })),
            "{refused:?}"
        );
        let mut pipeline = client.pipeline();
        let blocks = pipeline_send(&mut pipeline);
        assert!(matches!(
            pipeline.run().await.take(blocks),
            Err(Error::NotShared { .. })
        ));

        let own = client
            .dedicated(Route::of("list"))
            .await
            .expect("it connects");
        let mut waiting = tokio::spawn(async move {
            own.send::<_, (String, u32)>(cmd("BLPOP").key("list").arg(0))
                .await
        });
        // Longer than other commands may take, and other connections be silent.
        let early = tokio::time::timeout(Duration::from_millis(2500), &mut waiting).await;
        assert!(early.is_err(), "it waits: {early:?}");
        client.set("key", 1).await.expect("others go on");
        let _len: u32 = client
            .send(cmd("RPUSH").key("list").arg(7))
            .await
            .expect("it is pushed");
        let popped = waiting.await.expect("no panic");
        assert_eq!(popped, Ok(("list".to_owned(), 7)));
    });
}

fn pipeline_send(
    pipeline: &mut embar_redis::pipeline::Pipeline<'_>,
) -> embar_redis::pipeline::ResultKey<()> {
    use embar_redis::commands::Commands;
    pipeline.execute(cmd("BLPOP").key("list").arg(0))
}

#[test]
fn a_transaction_is_not_executed_when_a_watched_key_has_changed() {
    let cluster = cluster(3, 0);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        client.set("stock", 5).await.expect("it is set");
        let own = client
            .dedicated(Route::of("stock"))
            .await
            .expect("it connects");
        let mut attempts = 0;
        loop {
            attempts += 1;
            let _watched: () = own
                .send(cmd("WATCH").key("stock"))
                .await
                .expect("it watches");
            let left: i64 = own.get("stock").await.expect("it is there");
            if attempts == 1 {
                client
                    .set("stock", 3)
                    .await
                    .expect("another client is faster");
            }
            let mut transaction = client.transaction();
            let sold = transaction.set("stock", left - 1);
            if let Some(results) = own.run(&transaction).await.expect("it answers") {
                assert_eq!(results.take(sold), Ok(()));
                break;
            }
        }
        assert_eq!(attempts, 2);
        assert_eq!(client.get::<i64, _>("stock").await, Ok(2));
    });
}

#[test]
fn dropping_closes_it_and_it_does_not_reconnect() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let connections = async || {
            let list = server.command(&["CLIENT", "LIST", "TYPE", "normal"]);
            list.expect("it answers").lines().count()
        };
        let own = client.dedicated(Route::Any).await.expect("it connects");
        own.set("key", 1).await.expect("it is set");
        let with = connections().await;
        drop(own);
        until("it is closed", async || connections().await < with).await;
        let own = client.dedicated(Route::Any).await.expect("it connects");
        own.set("key", 1).await.expect("it is set");
        server
            .command(&["CLIENT", "KILL", "TYPE", "normal"])
            .expect("it answers");
        until("it is over", async || {
            own.get::<u8, _>("key").await.is_err()
        })
        .await;
        let error = own
            .get::<u8, _>("key")
            .await
            .expect_err("its state is lost");
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    });
}
