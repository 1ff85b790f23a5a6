//! What an error says about the data: whether the server may have changed something before it failed.

use embar_redis::command::Route;
use embar_redis::commands::Commands;
use embar_redis::commands::lists::ListCommands;
use embar_redis::commands::scripting::ScriptCommands;
use embar_redis::commands::strings::StringCommands;
use embar_redis::resp::ErrorKind;
use embar_redis::script::Script;
use embar_redis::{Client, Error, cmd};

use crate::support::{run, server, to};

/// Counts in the second key, and then fails, as the first one is no number.
const FAILS_MIDWAY: &str = "redis.call('INCR', KEYS[2]) return redis.call('INCR', KEYS[1])";
const NONE: [&str; 0] = [];
const KEYS: [&str; 2] = ["{k}text", "{k}count"];

/// The error of a command, in each of the ways to send it, and whether it may have been executed: they agree.
async fn answer(client: &Client, command: &embar_redis::Cmd) -> Error {
    let single = client.send::<_, i64>(command).await;
    let single = single.expect_err("it fails");
    let mut pipeline = client.pipeline();
    let key = (&mut pipeline).execute::<_, i64>(command);
    let piped = pipeline.run().await.take(key).expect_err("it fails");
    let mut transaction = client.transaction();
    let key = (&mut transaction).execute::<_, i64>(command);
    if let Ok(results) = transaction.run().await {
        let queued = results.take(key).expect_err("it fails");
        assert_eq!(queued.may_have_executed(), single.may_have_executed());
    }
    let own = client.dedicated(Route::Any).await.expect("it connects");
    let alone = own.send::<_, i64>(command).await.expect_err("it fails");
    for other in [&piped, &alone] {
        assert_eq!(other, &single);
    }
    single
}

#[test]
fn a_script_that_wrote_before_it_failed_may_have_executed() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        client.set(KEYS[0], "text").await.expect("it is set");
        let eval = cmd("EVAL")
            .arg(FAILS_MIDWAY)
            .arg(2)
            .arg(KEYS[0])
            .arg(KEYS[1]);
        let error = answer(&client, &eval).await;
        assert!(error.may_have_executed(), "{error}");
        assert_eq!(client.get::<u32, _>(KEYS[1]).await, Ok(4));
        let error = client.eval::<i64>(FAILS_MIDWAY, KEYS, NONE).await;
        assert!(error.expect_err("it fails").may_have_executed());

        // As a script that the server does not know yet, and as one that it does.
        let script = Script::new(format!("{FAILS_MIDWAY} + 0"));
        for _ in 0..2 {
            let call = script.key(KEYS[0]).key(KEYS[1]);
            let error = call.run::<i64>(&client).await.expect_err("it fails");
            assert!(error.may_have_executed(), "{error}");
        }

        let library = format!(
            "#!lua name=lib\nredis.register_function('f', function(KEYS) {FAILS_MIDWAY} end)"
        );
        client
            .function_load(library, false)
            .await
            .expect("it loads");
        let fcall = cmd("FCALL").arg("f").arg(2).arg(KEYS[0]).arg(KEYS[1]);
        let error = answer(&client, &fcall).await;
        assert!(error.may_have_executed(), "{error}");
        assert_eq!(client.get::<u32, _>(KEYS[1]).await, Ok(11));
    });
}

#[test]
fn what_was_refused_before_it_ran_has_not_executed() {
    let server = server();
    let ask = |words: &[&str]| server.command(words).expect("it answers");
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        client.set(KEYS[0], "text").await.expect("it is set");
        let writes = || {
            cmd("EVAL")
                .arg("return redis.call('SET', KEYS[1], 1)")
                .arg(1)
                .arg("k")
        };
        let unknown = "0".repeat(40);
        let plain = [
            (cmd("LPUSH").arg(KEYS[0]).arg(1), ErrorKind::WrongType),
            (cmd("INCR").arg(KEYS[0]), ErrorKind::Other),
            (cmd("EVALSHA").arg(unknown).arg(0), ErrorKind::NoScript),
            (cmd("EVAL").arg("return (").arg(0), ErrorKind::Other),
            (cmd("NONESUCH").arg(1), ErrorKind::UnknownCommand),
        ];
        for (command, kind) in plain {
            let error = answer(&client, &command).await;
            assert!(!error.may_have_executed(), "{error}");
            assert!(
                matches!(&error, Error::Server(error) if error.kind == kind),
                "{error}"
            );
        }
        let error = client.lpush(KEYS[0], "1").await.expect_err("it is a text");
        assert!(!error.may_have_executed(), "{error}");

        // What the server checks only before the first write of a script.
        for (set, unset, kind) in [
            (["min-replicas-to-write", "1"], "0", ErrorKind::NoReplicas),
            (["maxmemory", "1"], "0", ErrorKind::OutOfMemory),
        ] {
            ask(&["CONFIG", "SET", set[0], set[1]]);
            let error = answer(&client, &writes()).await;
            ask(&["CONFIG", "SET", set[0], unset]);
            assert!(!error.may_have_executed(), "{error}");
            assert!(
                matches!(&error, Error::Server(error) if error.kind == kind),
                "{error}"
            );
        }
        assert_eq!(client.get::<Option<u32>, _>("k").await, Ok(None));

        // The same word for the command and for one inside of the script, after a write.
        ask(&["ACL", "SETUSER", "default", "-eval"]);
        let error = client
            .send::<_, i64>(writes())
            .await
            .expect_err("it may not");
        assert!(!error.may_have_executed(), "{error}");
        ask(&["ACL", "SETUSER", "default", "+eval", "-incr"]);
        let text = "redis.call('SET', KEYS[1], 1) return redis.call('INCR', KEYS[1])";
        let error = client.eval::<i64>(text, ["k"], NONE).await;
        let error = error.expect_err("INCR is not allowed");
        assert!(error.may_have_executed(), "{error}");
        assert_eq!(client.get::<Option<u32>, _>("k").await, Ok(Some(1)));
    });
}
