//! Several commands at once.

use embar_redis::command::{Class, Command, Fixed, Route};
use embar_redis::commands::Commands;
use embar_redis::commands::strings::StringCommands;
use embar_redis::slot::slot;
use embar_redis::{Client, Error, cmd, prefix};
use embar_redis_servers::MoveState;

use crate::support::{cluster, run, server, to, to_cluster, until};

#[test]
fn each_command_of_a_pipeline_has_its_own_result() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let mut pipeline = client.pipeline();
        let set = pipeline.set("text", "abc");
        let text = pipeline.get::<String, _>("text");
        let wrong = pipeline.incr("text");
        let counter = pipeline.incr("counter");
        let absent = pipeline.get::<Option<u8>, _>("absent");
        let results = pipeline.run().await;
        assert_eq!(results.len(), 5);
        assert_eq!(results.take(set), Ok(()));
        assert_eq!(results.take(text).as_deref(), Ok("abc"));
        assert!(matches!(results.take(wrong), Err(Error::Server(_))));
        assert_eq!(results.take(counter), Ok(1));
        assert_eq!(results.take(absent), Ok(None));
        let again = pipeline.run().await;
        assert_eq!(again.read::<i64>(3), Ok(2));
        pipeline.clear();
        assert!(pipeline.run().await.is_empty());
    });
    let client = Client::with_blocking(to(&server)).expect("it connects");
    let mut pipeline = client.pipeline();
    let counter = pipeline.incr("counter");
    assert_eq!(pipeline.run_blocking().take(counter), Ok(3));
}

#[test]
fn a_pipeline_spans_a_cluster_while_its_slots_move() {
    let cluster = cluster(3, 0);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        let keys: Vec<String> = (0..100).map(|number| format!("key{number}")).collect();
        let slot = slot(b"key0");
        let from = cluster.owner_of(slot).expect("it is served");
        let to = (from + 1) % 3;
        for step in [None, Some(MoveState::Migrating), Some(MoveState::Done)] {
            if let Some(step) = step {
                cluster.move_slot(slot, from, to, step).expect("it moves");
            }
            let mut pipeline = client.pipeline();
            let sets: Vec<_> = keys.iter().map(|key| pipeline.set(key, key)).collect();
            let results = pipeline.run().await;
            for set in sets {
                assert_eq!(results.take(set), Ok(()), "{step:?}");
            }
            let mut pipeline = client.pipeline();
            for key in &keys {
                let _by_index = pipeline.get::<String, _>(key);
            }
            let results = pipeline.run().await;
            for (index, key) in keys.iter().enumerate() {
                assert_eq!(results.read::<String>(index).as_ref(), Ok(key), "{step:?}");
            }
        }
    });
}

#[test]
fn a_command_that_cannot_be_sent_does_not_stop_the_others() {
    let cluster = cluster(3, 0);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        let mut pipeline = client.pipeline();
        let across = pipeline.execute::<_, Vec<Option<String>>>(cmd("MGET").key("a").key("b"));
        let sets: Vec<_> = ["a", "b", "c", "d", "e"]
            .map(|key| pipeline.set(key, key))
            .into();
        let results = pipeline.run().await;
        assert_eq!(results.take(across), Err(Error::CrossSlot));
        assert!(sets.into_iter().all(|set| results.take(set) == Ok(())));
    });
}

#[test]
fn a_pipeline_larger_than_the_ring_works() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let value = "x".repeat(1_000);
        let mut pipeline = client.pipeline();
        for number in 0..2_000 {
            let _by_index = pipeline.set(format!("key{number}"), &value);
        }
        let results = pipeline.run().await;
        assert!((0..2_000).all(|index| results.read::<()>(index) == Ok(())));
        assert_eq!(client.get::<String, _>("key1999").await, Ok(value));
    });
}

#[test]
fn a_transaction_is_executed_as_a_whole_or_not_at_all() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let mut transaction = client.transaction();
        let set = transaction.set("counter", 10);
        let counter = transaction.incr("counter");
        let wrong = transaction.get::<Vec<String>, _>("counter");
        let results = transaction.run().await.expect("it is executed");
        assert_eq!(results.take(set), Ok(()));
        assert_eq!(results.take(counter), Ok(11));
        let wrong = results.take(wrong);
        assert!(matches!(wrong, Err(Error::WrongType(_))), "{wrong:?}");
        let nothing = client
            .transaction()
            .run()
            .await
            .expect("there is nothing to do");
        assert!(nothing.is_empty());
        // The server refuses it before anything runs.
        server
            .command(&["CONFIG", "SET", "maxmemory", "1"])
            .expect("it is set");
        let mut transaction = client.transaction();
        let _set = transaction.set("counter", 20);
        let error = transaction.run().await.expect_err("there is no memory");
        assert!(!error.may_have_executed(), "{error}");
        server
            .command(&["CONFIG", "SET", "maxmemory", "0"])
            .expect("it is set");
        assert_eq!(client.get::<u32, _>("counter").await, Ok(11));
    });
}

#[test]
fn a_transaction_follows_its_slot_and_has_only_one() {
    let cluster = cluster(3, 0);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        let mut transaction = client.transaction();
        let (_one, _two) = (transaction.incr("a"), transaction.incr("b"));
        assert_eq!(transaction.run().await.map(|_| ()), Err(Error::CrossSlot));
        let mut transaction = client.transaction();
        let (one, two) = (transaction.incr("{t}a"), transaction.incr("{t}b"));
        let results = transaction.run().await.expect("it is executed");
        assert_eq!((results.take(one), results.take(two)), (Ok(1), Ok(1)));
        let slot = slot(b"{t}");
        let from = cluster.owner_of(slot).expect("it is served");
        let move_it = |step| cluster.move_slot(slot, from, (from + 1) % 3, step);
        move_it(MoveState::Done).expect("it moves");
        let results = transaction.run().await.expect("it is executed");
        assert_eq!(results.read::<i64>(0), Ok(2));
        until("the new owner is known", async || {
            let results = transaction.run().await;
            results.is_ok_and(|results| results.read::<i64>(1).is_ok())
        })
        .await;
    });
}

/// Two increments of a key in one command.
struct Twice(&'static str);

impl Twice {
    fn once(&self) -> Fixed<(&str,)> {
        let route = Route::of(self.0);
        Fixed::new(prefix!(2, 4, "INCR"), (self.0,), route, Class::Write)
    }
}

impl Command for Twice {
    fn encoded_len(&self) -> usize {
        2 * self.once().encoded_len()
    }

    fn encode(&self, out: &mut [u8]) {
        let (first, second) = out.split_at_mut(self.once().encoded_len());
        self.once().encode(first);
        self.once().encode(second);
    }

    fn route(&self) -> Route {
        Route::of(self.0)
    }

    fn class(&self) -> Class {
        Class::Write
    }

    fn replies(&self) -> u32 {
        2
    }
}

#[test]
fn commands_that_are_several_shift_no_other_result() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let mut transaction = client.transaction();
        let twice = transaction.execute::<_, u32>(Twice("a"));
        let text = transaction.set("text", "abc");
        let again = transaction.execute::<_, u32>(Twice("a"));
        let found = transaction.get::<String, _>("text");
        let results = transaction.run().await.expect("it is executed");
        assert_eq!(results.len(), 4);
        // A command of several results has the first of them.
        assert_eq!(results.take(twice), Ok(1));
        assert_eq!(results.take(text), Ok(()));
        assert_eq!(results.take(again), Ok(3));
        assert_eq!(results.take(found).as_deref(), Ok("abc"));
        let own = client.dedicated(Route::Any).await.expect("it connects");
        let results = own.run(&transaction).await.expect("it is executed");
        let results = results.expect("nothing is watched");
        assert_eq!(results.read::<u32>(2), Ok(7));
        assert_eq!(results.read::<String>(3).as_deref(), Ok("abc"));
        let mut pipeline = client.pipeline();
        let twice = pipeline.execute::<_, u32>(Twice("b"));
        let found = pipeline.get::<String, _>("text");
        let results = pipeline.run().await;
        assert_eq!(results.take(twice), Ok(1));
        assert_eq!(results.take(found).as_deref(), Ok("abc"));
    });
}

#[test]
fn a_transaction_whose_commands_ran_one_by_one_is_reported_as_not_atomic() {
    let server = server();
    let allow = |rules: &[&str]| {
        let rules = [&["ACL", "SETUSER", "default"], rules].concat();
        server.command(&rules).expect("it is set");
    };
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let mut transaction = client.transaction();
        let _counter = transaction.incr("counter");
        allow(&["-multi"]);
        let error = transaction.run().await.expect_err("it is none");
        assert!(error.may_have_executed(), "{error}");
        assert!(matches!(error, Error::NotAtomic(_)), "{error:?}");
        assert!(error.to_string().contains("MULTI"), "{error}");
        assert_eq!(client.get::<u32, _>("counter").await, Ok(1));
        // The user may execute nothing of it, so the server executed nothing.
        allow(&["-multi", "-incr"]);
        let error = transaction.run().await.expect_err("it is none");
        assert!(!error.may_have_executed(), "{error}");
        assert_eq!(client.get::<u32, _>("counter").await, Ok(1));
        allow(&["+@all"]);
        let results = transaction.run().await.expect("it is executed");
        assert_eq!(results.read::<u32>(0), Ok(2));
    });
}

#[test]
fn commands_without_a_key_go_along_with_the_others_of_a_pipeline() {
    let cluster = cluster(3, 0);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        for _ in 0..10 {
            let mut pipeline = client.pipeline();
            let ping = pipeline.execute::<_, String>(cmd("PING"));
            let sets = ["a", "b", "c", "d", "e"].map(|key| pipeline.set(key, key));
            let pong = pipeline.execute::<_, String>(cmd("PING"));
            let results = pipeline.run().await;
            assert_eq!(results.take(ping).as_deref(), Ok("PONG"));
            assert_eq!(results.take(pong).as_deref(), Ok("PONG"));
            assert!(sets.into_iter().all(|set| results.take(set) == Ok(())));
        }
    });
}
