//! Pipelines while servers load, slots move, and nodes die: what each command's result says, compared
//! with what the servers did.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use embar_redis::command::{Class, Command, Fixed, Route};
use embar_redis::commands::Commands;
use embar_redis::commands::strings::StringCommands;
use embar_redis::config::{OnFull, Secret};
use embar_redis::metrics::RetryCause;
use embar_redis::pipeline::{Pipeline, Results};
use embar_redis::slot::slot;
use embar_redis::{Client, Error, cmd, prefix};
use embar_redis_servers::{Cluster, ClusterOptions, MoveState, Options, Server};

use crate::support::{Account, LONG, cluster, run, server, to, to_cluster, until};

/// A run that takes longer hangs: the time limits of its commands are shorter, or all is answered.
async fn ends(pipeline: &Pipeline<'_>) -> Results {
    let results = tokio::time::timeout(LONG, pipeline.run()).await;
    results.expect("the run ends")
}

/// How often a server was asked for a command and executed it, and how often it refused that.
fn calls(server: &Server, command: &str) -> (u64, u64) {
    let stats = server.command(&["INFO", "commandstats"]);
    let stats = stats.expect("it answers");
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
    let number = |name: &str| {
        let mut parts = line.into_iter().flat_map(|line| line.trim().split(','));
        let value = parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        value.map_or(0, |value| value.parse().expect("a number"))
    };
    (number("calls"), number("rejected_calls"))
}

/// So many hash tags of slots that a node serves, each of another slot.
fn tags(cluster: &Cluster, node: usize, count: usize) -> Vec<String> {
    let mut slots = Vec::new();
    let mut tags = Vec::new();
    for tag in (0..).map(|number| format!("{{tag{number}}}")) {
        let slot = slot(tag.as_bytes());
        if !slots.contains(&slot) && cluster.owner_of(slot).expect("it is served") == node {
            slots.push(slot);
            tags.push(tag);
        }
        if tags.len() == count {
            return tags;
        }
    }
    unreachable!("there are more hash tags than slots")
}

/// How many batches with writes were answered: each is one command for its connection.
fn batches(client: &Client) -> u64 {
    client.metrics().total().latency(Class::Write).count()
}

/// A server that can read its data again, slowly.
fn slow_loader() -> Arc<Server> {
    let options = Options {
        extra: vec![
            "--enable-debug-command yes".to_owned(),
            "--loading-process-events-interval-bytes 1024".to_owned(),
        ],
        ..Options::default()
    };
    Arc::new(Server::start(&options).expect("redis-server runs"))
}

/// Has the server load, for 20 s or until [`hurry`]. It answers clients meanwhile.
fn load(server: &Arc<Server>) -> JoinHandle<()> {
    let command = |words: &[&str]| server.command(words).expect("it is done");
    // After 2 KiB, which a key has, it looks at its clients.
    command(&["DEBUG", "POPULATE", "2000", "filler", "2048"]);
    command(&["CONFIG", "SET", "key-load-delay", "10000"]);
    let reloading = Arc::clone(server);
    let reloading = thread::spawn(move || {
        let done = reloading.command(&["DEBUG", "RELOAD"]);
        done.expect("it is loaded");
    });
    while server.command(&["GET", "key"]).is_ok() {
        thread::yield_now();
    }
    reloading
}

fn hurry(server: &Server) {
    let words = ["CONFIG", "SET", "key-load-delay", "0"];
    server.command(&words).expect("it is set");
}

#[test]
fn a_pipeline_waits_as_a_whole_while_its_server_loads() {
    let server = slow_loader();
    run(async {
        let mut config = to(&server);
        config.timeout = 2 * LONG;
        let client = Client::with(config.clone()).await.expect("it connects");
        // Pauses that last until the time is over.
        config.timeout = Duration::from_secs(1);
        config.retries.backoff_min = LONG;
        config.retries.backoff_max = LONG;
        let impatient = Client::with(config).await.expect("it connects");
        let increments = |pipeline: &mut Pipeline<'_>| {
            for number in 0..1_000 {
                let _by_index = pipeline.incr(format!("counter{number}"));
            }
        };
        let loading = load(&server);
        let mut pipeline = impatient.pipeline();
        increments(&mut pipeline);
        // The time of all is over at once, and each error is the server's.
        let results = ends(&pipeline).await;
        for index in 0..1_000 {
            let error = results.read::<i64>(index).expect_err("it loads");
            assert!(matches!(error, Error::Server(_)), "{error}");
            assert!(error.to_string().contains("LOADING"), "{error}");
        }
        let mut pipeline = client.pipeline();
        increments(&mut pipeline);
        let third = async {
            until("all are sent for the third time", async || {
                client.metrics().retries(RetryCause::Loading) >= 3_000
            })
            .await;
            hurry(&server);
        };
        let (results, ()) = tokio::join!(ends(&pipeline), third);
        for index in 0..1_000 {
            assert_eq!(results.read::<i64>(index), Ok(1), "{index}");
        }
        loading.join().expect("it loaded");
        let (executed, refused) = calls(&server, "incr");
        let sent_again = [&client, &impatient].map(|client| {
            let metrics = client.metrics();
            metrics.retries(RetryCause::Loading)
        });
        assert_eq!((executed, refused), (1_000, sent_again.iter().sum()));
    });
}

#[test]
fn commands_of_many_slots_that_have_moved_go_once_more_together() {
    let cluster = cluster(3, 0);
    run(async {
        let tags = tags(&cluster, 0, 50);
        let user = |rules: &[&str]| {
            for node in cluster.nodes() {
                let rules = [&["ACL", "SETUSER", "app"], rules].concat();
                node.command(&rules).expect("it is set");
            }
        };
        user(&["on", ">secret", "~*", "+@all"]);
        let mut config = to_cluster(&cluster);
        config.username = Some("app".to_owned());
        config.password = Some(Secret::new("secret"));
        let client = Client::with(config).await.expect("it connects");
        // From now on it learns what moves by MOVED alone.
        user(&["-cluster"]);
        for tag in &tags {
            let slot = slot(tag.as_bytes());
            cluster
                .move_slot(slot, 0, 1, MoveState::Done)
                .expect("it moves");
        }
        let mut pipeline = client.pipeline();
        // Those of a slot lie far apart, and each increments the counter of its slot.
        for _ in 0..20 {
            for tag in &tags {
                let _by_index = pipeline.incr(tag);
            }
        }
        until("the client's own PING is counted", async || {
            batches(&client) >= 1
        })
        .await;
        let pauses = || RetryCause::ALL.map(|cause| client.metrics().retries(cause));
        let (before, paused) = (batches(&client), pauses());
        let results = ends(&pipeline).await;
        for index in 0..1_000 {
            let turn = index / tags.len();
            // Their order stays.
            assert_eq!(results.read::<i64>(index), Ok(turn as i64 + 1), "{index}");
        }
        assert_eq!(calls(&cluster.nodes()[0], "incr"), (0, 1_000));
        assert_eq!(calls(&cluster.nodes()[1], "incr"), (1_000, 0));
        assert_eq!(client.metrics().moved, 1_000);
        // To either node. A caller may have its reply a moment before it is counted.
        until("both are counted", async || batches(&client) - before >= 2).await;
        assert_eq!(batches(&client) - before, 2);
        assert_eq!(pauses(), paused, "it follows them at once");
    });
}

#[test]
fn nodes_that_send_commands_in_circles_are_asked_with_pauses() {
    let cluster = cluster(3, 0);
    run(async {
        let mut config = to_cluster(&cluster);
        config.timeout = 2 * LONG;
        config.retries.max_redirects = 5;
        let impatient = Client::with(config.clone()).await.expect("it connects");
        config.retries.max_redirects = u32::MAX;
        let client = Client::with(config).await.expect("it connects");
        let slot = slot(b"{tag}");
        let from = cluster.owner_of(slot).expect("it is served");
        let to = (from + 1) % 3;
        let give = |by: usize| {
            let slot = slot.to_string();
            let words = ["CLUSTER", "SETSLOT", &slot, "NODE", cluster.node_id(to)];
            cluster.nodes()[by].command(&words).expect("it is done");
        };
        // The new owner does not know yet, and says that the old one has it.
        give(from);
        let increments = |pipeline: &mut Pipeline<'_>| {
            for _ in 0..100 {
                let _by_index = pipeline.incr("{tag}");
            }
        };
        let mut pipeline = impatient.pipeline();
        increments(&mut pipeline);
        let results = ends(&pipeline).await;
        for index in 0..100 {
            let error = results.read::<i64>(index).expect_err("nobody has it");
            assert!(error.to_string().contains("MOVED"), "{error}");
        }
        let metrics = impatient.metrics();
        // It follows five redirects, the first three at once, and takes the sixth for the answer.
        assert_eq!(metrics.moved, 500);
        assert_eq!(metrics.retries(RetryCause::Redirects), 200);
        let mut pipeline = client.pipeline();
        increments(&mut pipeline);
        let agree = async {
            until("it has paused", async || {
                client.metrics().retries(RetryCause::Redirects) >= 200
            })
            .await;
            give(to);
        };
        let (results, ()) = tokio::join!(ends(&pipeline), agree);
        for index in 0..100 {
            let count = results.read::<usize>(index);
            assert_eq!(count, Ok(index + 1), "in their order");
        }
    });
}

#[test]
fn keys_of_a_slot_that_is_on_its_way_are_asked_for_together() {
    let cluster = cluster(3, 0);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        let slot = slot(b"{tag}");
        let from = cluster.owner_of(slot).expect("it is served");
        let to = (from + 1) % 3;
        let keys: Vec<String> = (0..300).map(|number| format!("{{tag}}{number}")).collect();
        client
            .set_all(keys.iter().zip(0_u32..))
            .await
            .expect("they are set");
        cluster.begin_move(slot, from, to).expect("it begins");
        // Every third has moved.
        for key in keys.iter().step_by(3) {
            cluster
                .move_key(key.as_bytes(), from, to)
                .expect("the key moves");
        }
        let other = (0..)
            .map(|number| format!("other{number}"))
            .find(|key| {
                cluster
                    .owner_of(embar_redis::slot::slot(key.as_bytes()))
                    .ok()
                    == Some(to)
            })
            .expect("a key is there");
        // Both nodes are connected, and all so far is counted, as is the client's own PING.
        client.set(&other, 0).await.expect("it is set");
        until("both are counted", async || batches(&client) >= 3).await;
        let mut pipeline = client.pipeline();
        for key in &keys {
            let _by_index = pipeline.incr(key);
            let _by_index = pipeline.incr(&other);
        }
        let before = batches(&client);
        let results = ends(&pipeline).await;
        for number in 0..300 {
            assert_eq!(results.read::<usize>(2 * number), Ok(number + 1));
            assert_eq!(results.read::<usize>(2 * number + 1), Ok(number + 1));
        }
        assert_eq!(client.metrics().asked, 100);
        assert_eq!(calls(&cluster.nodes()[to], "asking"), (100, 0));
        // One to each node, and then the keys that have moved.
        until("all are counted", async || batches(&client) - before >= 3).await;
        assert_eq!(batches(&client) - before, 3);
        // Some keys are here and some there, so the node says TRYAGAIN until all have moved.
        let mut pipeline = client.pipeline();
        for pair in keys[..200].chunks(2) {
            let both = cmd("MGET").key(&pair[0]).key(&pair[1]);
            let _by_index = pipeline.execute::<_, Vec<u32>>(both);
        }
        let finish = async {
            until("it was sent again", async || {
                client.metrics().retries(RetryCause::TryAgain) >= 100
            })
            .await;
            cluster.move_keys(slot, from, to).expect("they move");
            cluster.finish_move(slot, from, to).expect("it moves");
        };
        let (results, ()) = tokio::join!(ends(&pipeline), finish);
        for index in 0..100 {
            let expected = vec![2 * index as u32 + 1, 2 * index as u32 + 2];
            assert_eq!(results.read::<Vec<u32>>(index), Ok(expected));
        }
    });
}

#[test]
fn what_was_answered_before_a_connection_broke_is_not_lost() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let mut pipeline = client.pipeline();
        let first = pipeline.incr("first");
        // The server answers, and closes the connection: it does not look at what is behind.
        let kill = cmd("CLIENT")
            .arg("KILL")
            .arg("TYPE")
            .arg("normal")
            .arg("SKIPME")
            .arg("no");
        let killed = pipeline.execute::<_, u32>(kill);
        let read = pipeline.get::<u32, _>("first");
        let second = pipeline.incr("second");
        let read_again = pipeline.get::<Option<u32>, _>("second");
        let results = ends(&pipeline).await;
        assert_eq!(results.take(first), Ok(1));
        assert_eq!(results.take(killed), Ok(1));
        // The client sends reads again, and no writes.
        assert_eq!(results.take(read), Ok(1));
        let unknown = results.take(second);
        assert!(
            matches!(unknown, Err(Error::UnknownOutcome(_))),
            "{unknown:?}"
        );
        assert_eq!(results.take(read_again), Ok(None));
        assert_eq!(client.metrics().unknown_outcomes, 1);
    });
}

#[test]
fn a_run_takes_one_time_limit_when_a_node_is_gone_and_the_others_answer() {
    let mut cluster = cluster(3, 0);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        let dead = 1;
        let keys: Vec<String> = (0..1_000).map(|number| format!("key{number}")).collect();
        client
            .set_all(keys.iter().zip(0_u32..))
            .await
            .expect("they are set");
        let mut pipeline = client.pipeline().timeout(Duration::from_secs(2));
        let is_write = |index: usize| index.is_multiple_of(10);
        for (index, key) in keys.iter().enumerate() {
            if is_write(index) {
                let _by_index = pipeline.set(key, index as u32);
            } else {
                let _by_index = pipeline.get::<u32, _>(key);
            }
        }
        // The node has the commands, and does not answer them.
        cluster.nodes()[dead].pause();
        let kill = async {
            until("the others have answered", async || {
                client.metrics().total().stats.in_flight == 1
            })
            .await;
            cluster.kill(dead);
        };
        let (results, ()) = tokio::join!(ends(&pipeline), kill);
        let mut failed = 0;
        for (index, key) in keys.iter().enumerate() {
            if owner_when_whole(key) != dead {
                match is_write(index) {
                    true => assert_eq!(results.read::<()>(index), Ok(()), "{key}"),
                    false => assert_eq!(results.read::<usize>(index), Ok(index), "{key}"),
                }
                continue;
            }
            failed += 1;
            let error = results.view(index).map(|view| format!("{view:?}"));
            match (is_write(index), error) {
                // The node had it, and nobody knows more.
                (true, Err(Error::UnknownOutcome(_))) => {}
                // Nobody takes it; after a while the other nodes say so.
                (false, Err(Error::Unavailable { .. })) => {}
                (false, Err(Error::Server(error))) if error.text.contains("CLUSTERDOWN") => {}
                (_, other) => panic!("{key}: {other:?}"),
            }
        }
        assert!(failed > 200, "{failed}");
    });
}

/// The node that serves a key in a cluster of three masters.
fn owner_when_whole(key: &str) -> usize {
    usize::from(slot(key.as_bytes())) * 3 / 16_384
}

#[test]
fn commands_that_wait_for_a_dead_node_go_where_its_slots_go() {
    let options = ClusterOptions {
        // Nobody calls the node failed, so it stays a part of the cluster.
        node_timeout_ms: 600_000,
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start(&options).expect("redis-server runs");
    run(async {
        let mut config = to_cluster(&cluster);
        config.timeout = 2 * LONG;
        let client = Client::with(config).await.expect("it connects");
        let tags = tags(&cluster, 0, 10);
        let mut pipeline = client.pipeline();
        for _ in 0..10 {
            for tag in &tags {
                let _by_index = pipeline.incr(tag);
            }
        }
        cluster.kill(0);
        // The outcome of a write would be unknown that goes out before the client notices.
        until("the connection is over", async || {
            let read = client.get::<Option<u32>, _>(&tags[0]);
            let _unanswered = read.timeout(Duration::from_millis(20)).await;
            client.metrics().total().connects_failed > 0
        })
        .await;
        let move_slots = async {
            until("they wait for the node", async || {
                client.metrics().total().connects_failed > 2
            })
            .await;
            for (number, tag) in tags.iter().enumerate() {
                let slot = slot(tag.as_bytes()).to_string();
                let owner = cluster.node_id(1 + number % 2);
                for node in &cluster.nodes()[1..] {
                    let words = ["CLUSTER", "SETSLOT", &slot, "NODE", owner];
                    node.command(&words).expect("it is set");
                }
            }
        };
        let (results, ()) = tokio::join!(ends(&pipeline), move_slots);
        for index in 0..100 {
            let turn = index / tags.len();
            assert_eq!(results.read::<usize>(index), Ok(turn + 1), "{index}");
        }
    });
}

#[test]
fn a_run_has_its_own_time_limit() {
    let server = server();
    run(async {
        let mut config = to(&server);
        config.timeout = 2 * LONG;
        config.dead_after = 2 * LONG;
        let client = Client::with(config).await.expect("it connects");
        let short = Duration::from_millis(50);
        let mut pipeline = client.pipeline().timeout(short);
        let (read, write) = (pipeline.get::<u32, _>("a"), pipeline.incr("a"));
        let mut transaction = client.transaction().timeout(short);
        let _counter = transaction.incr("b");
        let own = client.dedicated(Route::Any).await.expect("it connects");
        server.pause();
        let results = ends(&pipeline).await;
        assert_eq!(results.take(read), Err(Error::TimedOut));
        assert_eq!(results.take(write), Err(Error::TimedOut));
        let outcome = tokio::time::timeout(LONG, transaction.run()).await;
        assert_eq!(outcome.expect("it ends").map(drop), Err(Error::TimedOut));
        let outcome = tokio::time::timeout(LONG, own.run(&transaction)).await;
        assert_eq!(outcome.expect("it ends").map(drop), Err(Error::TimedOut));
        server.resume();
        // They were on their way.
        until("all were executed", async || {
            let counters = client.get_all::<Option<u32>, _>(["a", "b"]).await;
            counters == Ok(vec![Some(1), Some(2)])
        })
        .await;
    });
}

#[test]
fn pipelines_through_a_failover_repeat_reads_and_account_for_each_increment() {
    const KEYS: usize = 60;
    const LOOPS: usize = 8;
    let mut cluster = cluster(3, 1);
    run(async {
        let mut config = to_cluster(&cluster);
        config.timeout = LONG;
        let client = Client::with(config).await.expect("it connects");
        let key = |of: usize, number: usize| format!("counter-{of}-{number}");
        let done = AtomicU64::new(0);
        let has_failed_over = AtomicU64::new(0);
        let one = async |of: usize| {
            let mut accounts = [Account::default(); KEYS];
            let mut pipeline = client.pipeline();
            for number in 0..KEYS {
                let _by_index = pipeline.incr(key(of, number));
                let _by_index = pipeline.get::<Option<i64>, _>(key(of, number));
            }
            while has_failed_over.load(Ordering::Relaxed) == 0 {
                let results = ends(&pipeline).await;
                for (number, account) in accounts.iter_mut().enumerate() {
                    match results.read::<i64>(2 * number) {
                        Ok(value) => {
                            account.done += 1;
                            account.highest = value;
                        }
                        Err(error) if error.may_have_executed() => account.unknown += 1,
                        Err(_) => account.not_done += 1,
                    }
                    let read = results.read::<Option<i64>>(2 * number + 1);
                    read.expect("a node answers reads, in the end");
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            accounts
        };
        let goes_on = async |runs: u64| {
            let goal = done.load(Ordering::Relaxed) + runs;
            until("pipelines run", async || {
                done.load(Ordering::Relaxed) >= goal
            })
            .await;
        };
        let fail_over = async {
            goes_on(20).await;
            // The node has commands of all, and does not answer them.
            cluster.nodes()[0].pause();
            until("all wait for it", async || {
                client.metrics().total().stats.in_flight == LOOPS as u64
            })
            .await;
            cluster.kill(0);
            // Each waits for the new primary.
            goes_on(2 * LOOPS as u64).await;
            has_failed_over.store(1, Ordering::Relaxed);
        };
        let [a, b, c, d, e, f, g, h] = std::array::from_fn(one);
        let (a, b, c, d, e, f, g, h, ()) = tokio::join!(a, b, c, d, e, f, g, h, fail_over);
        let (mut unknown, mut lost) = (0, 0);
        for (of, accounts) in [a, b, c, d, e, f, g, h].iter().enumerate() {
            for (number, account) in accounts.iter().enumerate() {
                let value = client.get::<Option<u64>, _>(key(of, number)).await;
                let value = value.expect("it can be read").unwrap_or(0);
                assert!(
                    value <= account.done + account.unknown,
                    "{value}: something was done twice: {account:?}"
                );
                unknown += account.unknown;
                lost += account.done.saturating_sub(value);
            }
        }
        assert!(unknown > 0, "the commands were on their way");
        // The server loses what it acknowledged and had not passed on to its replica: of each caller
        // the last run.
        assert!(lost <= (KEYS * LOOPS) as u64, "{lost}");
        assert_eq!(client.metrics().unknown_outcomes, unknown);
    });
}

#[test]
fn replies_that_are_too_large_together_come_in_smaller_batches() {
    let server = server();
    run(async {
        let mut config = to(&server);
        config.max_reply_bytes = 20_000;
        let client = Client::with(config).await.expect("it connects");
        let keys: Vec<String> = (0..500).map(|number| format!("key{number}")).collect();
        let value = "v".repeat(1_000);
        client
            .set_all(keys.iter().map(|key| (key, &value)))
            .await
            .expect("they are set");
        let values = client.get_all::<String, _>(&keys).await;
        assert!(values.is_ok_and(|values| values.iter().all(|found| *found == value)));
        // The server sends little in vain, as what does not fit comes in batches that do.
        let received = client.metrics().total().stats.bytes_received;
        assert!((500_000..2_000_000).contains(&received), "{received}");
        // The replies to writes cannot come again.
        let mut pipeline = client.pipeline();
        for key in &keys[..100] {
            let _by_index = pipeline.execute::<_, String>(cmd("GETDEL").key(key));
        }
        let results = ends(&pipeline).await;
        let max = 20_000;
        let fit = (0..100).take_while(|index| results.read::<String>(*index).is_ok());
        let fit = fit.count();
        assert!((10..20).contains(&fit), "{fit}");
        for index in fit..100 {
            let error = results.read::<String>(index);
            assert_eq!(error, Err(Error::ReplyTooLarge { max }));
        }
        let left = client.get_all::<Option<String>, _>(&keys[..100]).await;
        assert_eq!(left, Ok(vec![None; 100]), "the server executed all");
    });
}

#[test]
fn a_pipeline_of_many_batches_keeps_its_order_and_finds_room() {
    let server = server();
    run(async {
        for (on_full, max_in_flight) in
            [(OnFull::Wait, 1), (OnFull::Wait, 4096), (OnFull::Refuse, 4)]
        {
            let mut config = to(&server);
            config.on_full = on_full;
            config.max_in_flight = max_in_flight;
            config.ring_bytes = 4096;
            let client = Client::with(config).await.expect("it connects");
            client.set("counter", 0).await.expect("it is set");
            let mut pipeline = client.pipeline();
            for _ in 0..10_000 {
                let _by_index = pipeline.incr("counter");
            }
            let results = ends(&pipeline).await;
            for index in 0..10_000 {
                let count = results.read::<usize>(index);
                assert_eq!(count, Ok(index + 1), "{on_full:?} {max_in_flight}");
            }
        }
    });
}

/// What any node can execute, although it is a write.
fn publish() -> Fixed<(&'static str, &'static str)> {
    let words = ("channel", "message");
    Fixed::new(prefix!(3, 7, "PUBLISH"), words, Route::Any, Class::Write)
}

#[test]
fn commands_without_a_key_do_not_wait_for_a_dead_node() {
    let mut cluster = cluster(3, 0);
    run(async {
        let mut config = to_cluster(&cluster);
        config.timeout = Duration::from_millis(500);
        let client = Client::with(config).await.expect("it connects");
        let dead = owner_when_whole("key0");
        client.set("key0", 1).await.expect("it is set");
        cluster.kill(dead);
        let live = (1..)
            .map(|number| format!("key{number}"))
            .find(|key| owner_when_whole(key) != dead)
            .expect("a key is elsewhere");
        client.set(&live, 1).await.expect("it is set");
        until("the connection is over", async || {
            let error = client.incr("key0").await;
            error.is_err_and(|error| !error.may_have_executed())
        })
        .await;
        assert_eq!(publish().replies(), 1);
        let mut pipeline = client.pipeline();
        let gone = pipeline.incr("key0");
        let published = pipeline.execute::<_, u32>(publish());
        let other = pipeline.get::<u32, _>(&live);
        let results = ends(&pipeline).await;
        let error = results.take(gone).expect_err("its node is gone");
        assert!(!error.may_have_executed(), "{error}");
        assert_eq!(results.take(published), Ok(0));
        let _answered = results.take(other);
    });
}
