//! Servers that accept `MULTI` and refuse `EXEC`.

use std::time::Duration;

use embar_redis::commands::strings::StringCommands;
use embar_redis::{Client, Error};
use embar_redis_servers::{Options, Server};

use crate::support::{Load, run, server, to, until};

/// A server that does not know `EXEC`: it leaves each transaction open.
fn without_exec() -> Server {
    let rename = ["--rename-command", "EXEC", ""];
    let options = Options {
        extra: rename.map(str::to_owned).to_vec(),
        ..Options::default()
    };
    Server::start(&options).expect("redis-server runs")
}

/// What the server has, by a connection of its own.
fn stored(server: &Server, key: &str) -> String {
    let value = server.command(&["GET", key]).expect("it answers");
    value.trim().to_owned()
}

#[test]
fn a_transaction_that_the_server_does_not_end_affects_no_other_caller() {
    let server = without_exec();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let mut transaction = client.transaction();
        let _unused = transaction.set("key", "of the transaction");
        let error = transaction.run().await.expect_err("there is no EXEC");
        assert!(matches!(error, Error::Server(_)), "{error:?}");
        assert!(!error.may_have_executed(), "{error}");
        client.set("key", "of another").await.expect("it is set");
        assert_eq!(stored(&server, "key"), "of another");
        // Also while others use the connection.
        let load = Load::start(&client, 8);
        for _ in 0..10 {
            load.goes_on(20).await;
            let error = transaction.run().await.expect_err("there is no EXEC");
            assert!(!matches!(error, Error::WrongType(_)), "{error:?}");
        }
        load.goes_on(20).await;
        load.settle(&client, 0).await;
    });
}

#[test]
fn an_open_transaction_is_noticed_although_its_caller_has_given_up() {
    let server = without_exec();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let before = client.metrics().total().connects;
        let mut transaction = client.transaction();
        let _unused = transaction.set("key", "of the transaction");
        server.pause();
        let gone = tokio::time::timeout(Duration::from_millis(50), transaction.run()).await;
        assert!(gone.is_err(), "the server says nothing: {gone:?}");
        server.resume();
        until("there is another connection", async || {
            let _either = client.set("other", 1).await;
            client.metrics().total().connects > before
        })
        .await;
        client.set("key", "of another").await.expect("it is set");
        assert_eq!(stored(&server, "key"), "of another");
    });
}

#[test]
fn a_user_who_may_begin_but_not_execute_gets_an_error_and_others_do_not() {
    let server = server();
    let rules = ["ACL", "SETUSER", "default", "-exec"];
    server.command(&rules).expect("it is set");
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let before = client.metrics().total().connects;
        let mut transaction = client.transaction();
        let _unused = transaction.set("key", "of the transaction");
        let error = transaction.run().await.expect_err("it may not");
        assert!(!error.may_have_executed(), "{error}");
        assert!(error.to_string().contains("exec"), "{error}");
        client.set("key", "of another").await.expect("it is set");
        assert_eq!(stored(&server, "key"), "of another");
        // This server ends the transaction by itself, so the connection stays.
        assert_eq!(client.metrics().total().connects, before);
    });
}
