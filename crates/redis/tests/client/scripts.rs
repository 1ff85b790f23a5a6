//! Scripts and functions that servers do not have yet.

use embar_redis::command::Route;
use embar_redis::config::ReadFrom;
use embar_redis::prelude::*;
use embar_redis::resp::{ServerError, Value};
use embar_redis::{Client, Error, cmd};
use embar_redis_servers::Server;

use crate::support::{cluster, run, server, to, to_cluster, until};

/// Keys of three nodes.
const KEYS: [&str; 3] = ["a", "b", "c"];

/// How often a server has executed a command.
fn calls(server: &Server, command: &str) -> u32 {
    let stats = server.command(&["INFO", "commandstats"]);
    let stats = stats.expect("it answers");
    let prefix = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
    line.map_or(0, |line| {
        let count = line.split(',').next().expect("a number");
        count.parse().expect("a number")
    })
}

#[test]
fn scripts_in_a_pipeline_have_their_results_and_others_run_once() {
    let cluster = cluster(3, 0);
    let all = |command: &str| -> u32 {
        let nodes = cluster.nodes().iter();
        nodes.map(|node| calls(node, command)).sum()
    };
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        let add = Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
        let fails = Script::new("return redis.error_reply('MINE is an error')");
        let mut pipeline = client.pipeline();
        let mut expected = Vec::new();
        for (number, key) in (0_i64..).zip(KEYS) {
            let other = format!("{{{key}}}other");
            let before = pipeline.incr(&other);
            let added = add.key(key).arg(number).in_pipeline::<i64>(&mut pipeline);
            let failed = fails.key(key).in_pipeline::<i64>(&mut pipeline);
            let after = pipeline.incr(&other);
            expected.push((before, added, failed, after));
        }
        assert_eq!(pipeline.len(), 12);
        let results = pipeline.run().await;
        assert_eq!(results.len(), 12);
        for (number, (before, added, failed, after)) in (0_i64..).zip(expected) {
            assert_eq!(results.take(before), Ok(1));
            assert_eq!(results.take(added), Ok(number));
            assert_eq!(results.take(after), Ok(2));
            let error = results.take(failed).expect_err("it fails");
            assert!(error.to_string().contains("MINE"), "{error}");
        }
        assert_eq!((all("eval"), all("evalsha")), (6, 6));
        // The servers know them now.
        let results = pipeline.run().await;
        assert_eq!(results.read::<i64>(1), Ok(0));
        assert_eq!(results.read::<i64>(5), Ok(2));
        assert_eq!((all("eval"), all("evalsha")), (6, 12));
        pipeline.clear();
        assert!(pipeline.run().await.is_empty());
    });
}

#[test]
fn a_script_in_a_transaction_is_executed_although_the_server_does_not_know_it() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let add = Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
        let mut transaction = client.transaction();
        let before = transaction.incr("n");
        let added = add.key("n").arg(5).in_transaction::<i64>(&mut transaction);
        let after = transaction.incr("n");
        let results = transaction.run().await.expect("it is executed");
        assert_eq!(results.take(before), Ok(1));
        assert_eq!(results.take(added), Ok(6));
        assert_eq!(results.take(after), Ok(7));
    });
}

#[test]
fn scripts_and_functions_that_only_read_go_to_replicas() {
    let cluster = cluster(3, 3);
    let mut config = to_cluster(&cluster);
    config.read_from = ReadFrom::Replica;
    run(async {
        let client = Client::with(config).await.expect("it connects");
        client.set("a", 7).await.expect("it is set");
        let library = "#!lua name=lib\nredis.register_function{\
            function_name='read', flags={'no-writes'},\
            callback=function(keys) return redis.call('GET', keys[1]) end}";
        client
            .send::<_, String>(cmd("FUNCTION").arg("LOAD").arg(library).to(Route::of("a")))
            .await
            .expect("it is loaded");
        let read = Script::new("return redis.call('GET', KEYS[1])").read_only();
        let function = Function::new("read", library).read_only();
        // A replica lags behind its primary.
        until("the replica has the value", async || {
            read.key("a").run::<Option<u32>>(&client).await == Ok(Some(7))
        })
        .await;
        until("the replica has the function", async || {
            function.key("a").run::<Option<u32>>(&client).await == Ok(Some(7))
        })
        .await;
        for command in ["evalsha_ro", "eval_ro", "fcall_ro"] {
            assert!(
                cluster
                    .masters()
                    .iter()
                    .all(|node| calls(node, command) == 0)
            );
            assert!(
                cluster
                    .replicas()
                    .iter()
                    .any(|node| calls(node, command) > 0)
            );
        }
        let writes = Script::new("return redis.call('SET', KEYS[1], 1)").read_only();
        let error = writes.key("a").run::<()>(&client).await;
        let error = error.expect_err("it must not write");
        assert!(!error.may_have_executed(), "{error}");
    });
}

#[test]
fn a_function_is_loaded_where_it_is_missing() {
    let cluster = cluster(3, 0);
    let library = "#!lua name=lib\nredis.register_function('add', \
        function(keys, args) return redis.call('INCRBY', keys[1] or '{a}n', args[1]) end)";
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        let add = Function::new("add", library);
        let call = async |key| add.key(key).arg(1).run::<i64>(&client).await;
        // Several at a time meet at each node.
        let (first, second, third) = (call("a"), call("a"), call("a"));
        let (first, second, third) = tokio::join!(first, second, third);
        let sum = [first, second, third].map(|it| it.expect("it is called"));
        assert_eq!(sum.iter().sum::<i64>(), 1 + 2 + 3);
        let executed: u32 = cluster
            .nodes()
            .iter()
            .map(|node| calls(node, "incrby"))
            .sum();
        assert_eq!(executed, 3);
        // Without a key it goes to any node.
        let size =
            "#!lua name=size\nredis.register_function('size', function(keys) return #keys end)";
        let size = Function::new("size", size);
        for _ in 0..6 {
            assert_eq!(size.call().run::<i64>(&client).await, Ok(0));
        }
        // A library of this name that has another function is left as it is.
        let other = Function::new("other", library.replace("'add'", "'other'"));
        let error = other.key("a").run::<i64>(&client).await;
        let Err(Error::Server(error)) = error else {
            panic!("{error:?}");
        };
        assert_eq!(error.text, "ERR Function not found");
        assert_eq!(call("a").await, Ok(4));
    });
}

#[test]
fn a_missing_script_or_function_is_noticed_whatever_the_caller_wants() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let script = Script::new("return 7");
        let result = script.call().run::<Value>(&client).await;
        assert_eq!(result, Ok(Value::Integer(7)));
        let library = "#!lua name=lib\nredis.register_function('f', function() return 9 end)";
        let function = Function::new("f", library);
        let result = function
            .call()
            .run::<Result<u8, ServerError>>(&client)
            .await;
        assert_eq!(result, Ok(Ok(9)));
    });
}

#[test]
fn a_thread_calls_scripts_and_functions() {
    let server = server();
    let client = Client::with_blocking(to(&server)).expect("it connects");
    let script = Script::new("return 7");
    assert_eq!(script.call().wait(&client), Ok(7));
    let library = "#!lua name=lib\nredis.register_function('f', function() return 9 end)";
    let function = Function::new("f", library);
    assert_eq!(function.call().wait(&client), Ok(9));
    assert_eq!(function.call().wait(&client), Ok(9));
}
