//! Commands that block, on connections of a pool.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use embar_redis::config::ProtocolVersion;
use embar_redis::prelude::*;
use embar_redis::resp::{ErrorKind, Value};
use embar_redis::slot::slot;
use embar_redis::{Client, Error, cmd};
use embar_redis_servers::{MoveState, Server};

use crate::support::{LONG, cluster, run, server, to, to_cluster, until};

/// A short wait, of which nothing depends.
const SHORT: Duration = Duration::from_millis(20);

/// How many clients of a server wait in a command.
fn blocked(server: &Server) -> usize {
    let info = server.command(&["INFO", "clients"]).expect("it answers");
    let line = info
        .lines()
        .find_map(|it| it.strip_prefix("blocked_clients:"));
    line.expect("it is there").trim().parse().expect("a number")
}

/// How many connections a server has.
fn connections(server: &Server) -> usize {
    let list = server.command(&["CLIENT", "LIST", "TYPE", "normal"]);
    list.expect("it answers").lines().count()
}

/// The server's number for the connection whose last command this is.
fn id_of(server: &Server, command: &str) -> Option<String> {
    let list = server.command(&["CLIENT", "LIST"]).expect("it answers");
    let its_last = format!("cmd={command} ");
    let line = list.lines().find(|line| line.contains(&its_last))?;
    let id = line.split(' ').find_map(|it| it.strip_prefix("id="));
    id.map(str::to_owned)
}

async fn is_blocked(server: &Server, callers: usize) {
    until("callers wait at the server", async || {
        blocked(server) == callers
    })
    .await;
}

/// Lets a request take its place, or begin to wait.
async fn begin(request: &mut (impl Future + Unpin)) {
    poll_fn(|cx| {
        assert!(Pin::new(&mut *request).poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

type Popped = Option<(String, u32)>;

#[test]
fn many_callers_on_few_connections_take_each_element_once() {
    const ELEMENTS: u32 = 2_000;
    let server = server();
    let mut config = to(&server);
    (config.max_blocking, config.timeout) = (4, LONG);
    run(async {
        let client = Client::with(config).await.expect("it connects");
        let all_pushed = Arc::new(AtomicBool::new(false));
        let pop = |_| {
            let (client, all_pushed) = (client.clone(), Arc::clone(&all_pushed));
            tokio::spawn(async move {
                let mut popped = Vec::new();
                loop {
                    let were_pushed = all_pushed.load(Ordering::SeqCst);
                    match client.blpop::<(String, u32)>(["a", "b"], SHORT).await {
                        Ok(Some((_, element))) => popped.push(element),
                        Ok(None) if were_pushed => return popped,
                        Ok(None) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        };
        let callers: Vec<_> = (0..32).map(pop).collect();
        for chunk in (0..ELEMENTS).collect::<Vec<_>>().chunks(50) {
            let list = if chunk[0] % 100 == 0 { "a" } else { "b" };
            client.rpush_many(list, chunk).await.expect("it is pushed");
        }
        // The shared one, the pool's, and the one that asks.
        assert!(connections(&server) <= 1 + 4 + 1);
        all_pushed.store(true, Ordering::SeqCst);
        let mut popped = Vec::new();
        for caller in callers {
            popped.extend(caller.await.expect("no panic"));
        }
        popped.sort_unstable();
        assert_eq!(popped, (0..ELEMENTS).collect::<Vec<_>>());
    });
}

#[test]
fn at_the_bound_callers_wait_for_their_turn() {
    let server = server();
    let mut config = to(&server);
    (config.max_blocking, config.timeout) = (1, LONG);
    run(async {
        let client = Client::with(config).await.expect("it connects");
        let waiting = client.clone();
        let first =
            tokio::spawn(async move { waiting.blpop::<(String, u32)>(["a"], Duration::MAX).await });
        is_blocked(&server, 1).await;
        let mut second = client.blpop::<(String, u32)>(["b"], Duration::MAX);
        let mut gives_up = client.blpop::<(String, u32)>(["b"], Duration::MAX);
        let mut third = client.blpop::<(String, u32)>(["b"], Duration::MAX);
        begin(&mut second).await;
        begin(&mut gives_up).await;
        begin(&mut third).await;
        client.rpush_many("b", [1, 2]).await.expect("it is pushed");
        drop(gives_up);
        client.rpush("a", 0).await.expect("it is pushed");
        assert_eq!(first.await.expect("no panic"), Ok(Some(("a".into(), 0))));
        assert_eq!(second.await, Ok(Some(("b".into(), 1))));
        assert_eq!(third.await, Ok(Some(("b".into(), 2))));
    });
}

#[test]
fn a_caller_that_finds_no_place_in_time_learns_what_to_do() {
    let server = server();
    let mut config = to(&server);
    (config.max_blocking, config.timeout) = (1, Duration::from_millis(300));
    run(async {
        let client = Client::with(config).await.expect("it connects");
        let waiting = client.clone();
        let first =
            tokio::spawn(async move { waiting.blpop::<(String, u32)>(["a"], Duration::MAX).await });
        is_blocked(&server, 1).await;
        let refused = client.blpop::<(String, u32)>(["b"], LONG).await;
        let error = refused.expect_err("all are in use");
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("max_blocking"), "{error}");
        assert!(!error.may_have_executed());
        client
            .send::<_, ()>(cmd("RPUSH").key("a").arg(7))
            .await
            .expect("others go on");
        assert_eq!(first.await.expect("no panic"), Ok(Some(("a".into(), 7))));
    });
}

#[test]
fn the_next_caller_gets_nothing_of_one_that_gave_up() {
    let server = server();
    let mut config = to(&server);
    (config.max_blocking, config.timeout) = (1, LONG);
    run(async {
        let client = Client::with(config).await.expect("it connects");
        {
            let mut gives_up = client.blpop::<(String, u32)>(["a"], Duration::MAX);
            begin(&mut gives_up).await;
            let blocked = async || {
                // It goes on connecting while it is polled.
                let poll = poll_fn(|cx| Poll::Ready(Pin::new(&mut gives_up).poll(cx).is_pending()));
                assert!(poll.await);
                blocked(&server) == 1
            };
            until("it waits at the server", blocked).await;
        }
        is_blocked(&server, 0).await;
        let waiting = client.clone();
        let next =
            tokio::spawn(async move { waiting.blpop::<(String, u32)>(["b"], Duration::MAX).await });
        is_blocked(&server, 1).await;
        client.rpush("a", 1).await.expect("it is pushed");
        client.rpush("b", 2).await.expect("it is pushed");
        assert_eq!(next.await.expect("no panic"), Ok(Some(("b".into(), 2))));
        assert_eq!(client.llen("a").await, Ok(1), "nobody has taken it");
    });
}

#[test]
fn connections_are_used_again_until_they_are_idle_for_long() {
    let server = server();
    let mut config = to(&server);
    config.blocking_idle = Duration::from_secs(1);
    run(async {
        let client = Client::with(config).await.expect("it connects");
        let without = connections(&server);
        let mut used = BTreeSet::new();
        for number in 0..20 {
            client.rpush("a", number).await.expect("it is pushed");
            let popped: Popped = client.blpop(["a"], LONG).await.expect("it answers");
            assert_eq!(popped, Some(("a".into(), number)));
            used.extend(id_of(&server, "blpop"));
            client.set("text", "x").await.expect("it is set");
            // An error is a whole reply, too.
            let error = client
                .bzpopmin::<(String, String, f64)>(["text"], LONG)
                .await;
            let error = error.expect_err("it is no sorted set");
            assert!(!error.may_have_executed(), "{error}");
            used.extend(id_of(&server, "bzpopmin"));
        }
        assert_eq!(used.len(), 1, "{used:?}");
        until("it is closed", async || connections(&server) == without).await;
        // The next one finds none, and opens one.
        client.rpush("a", 1).await.expect("it is pushed");
        let popped: Popped = client.blpop(["a"], LONG).await.expect("it answers");
        assert_eq!(popped, Some(("a".into(), 1)));
    });
}

#[test]
fn a_connection_that_broke_while_it_was_idle_serves_nobody() {
    let server = server();
    let config = to(&server);
    run(async {
        let client = Client::with(config).await.expect("it connects");
        for number in 0..3 {
            client.rpush("a", number).await.expect("it is pushed");
            let popped: Popped = client.blpop(["a"], LONG).await.expect("it answers");
            assert_eq!(popped, Some(("a".into(), number)));
            let kill = ["CLIENT", "KILL", "TYPE", "normal"];
            server.command(&kill).expect("it answers");
            // The client has noticed by the time that it has connected again.
            until("it has connected again", async || {
                client.ping().await.is_ok()
            })
            .await;
        }
    });
}

#[test]
fn when_the_server_dies_reads_go_on_and_the_outcome_of_others_is_unknown() {
    let mut server = server();
    let mut config = to(&server);
    config.timeout = LONG;
    run(async {
        let client = Client::with(config).await.expect("it connects");
        let waiting = client.clone();
        let pop =
            tokio::spawn(async move { waiting.blpop::<(String, u32)>(["a"], Duration::MAX).await });
        let waiting = client.clone();
        let read = tokio::spawn(async move {
            let streams = [("stream", "0-0")];
            type Entries = Vec<(String, Vec<(String, Vec<(String, u32)>)>)>;
            waiting
                .xread_blocking::<Entries>(streams, Some(1), Duration::MAX)
                .await
        });
        is_blocked(&server, 2).await;
        server.kill();
        let popped = pop.await.expect("no panic");
        assert!(
            matches!(popped, Err(Error::UnknownOutcome(_))),
            "{popped:?}"
        );
        server.restart().expect("it starts");
        is_blocked(&server, 1).await;
        client
            .xadd("stream", "7-7", [("field", 1)])
            .await
            .expect("it is added");
        let entries = read.await.expect("no panic").expect("it goes on");
        let entry = ("7-7".to_owned(), vec![("field".to_owned(), 1)]);
        assert_eq!(entries, Some(vec![("stream".to_owned(), vec![entry])]));
    });
}

#[test]
fn a_server_that_is_asked_to_end_the_wait_is_believed() {
    let server = server();
    let config = to(&server);
    run(async {
        let client = Client::with(config).await.expect("it connects");
        let waiting = client.clone();
        let pop =
            tokio::spawn(async move { waiting.blpop::<(String, u32)>(["a"], Duration::MAX).await });
        is_blocked(&server, 1).await;
        let id = id_of(&server, "blpop").expect("it waits");
        let unblock = ["CLIENT", "UNBLOCK", &id, "ERROR"];
        server.command(&unblock).expect("it answers");
        let popped = pop.await.expect("no panic");
        let Err(Error::Server(error)) = popped else {
            panic!("{popped:?}");
        };
        assert_eq!(error.kind, ErrorKind::Unblocked);
        assert!(!error.may_have_executed());
    });
}

#[test]
fn a_command_goes_on_at_the_node_to_which_its_slot_moves() {
    let cluster = cluster(3, 0);
    let (key, other) = ("list", 1);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        let from = cluster.owner_of(slot(key.as_bytes())).expect("it answers");
        let to = (from + other) % 3;
        let waiting = client.clone();
        let pop =
            tokio::spawn(async move { waiting.blpop::<(String, u32)>([key], Duration::MAX).await });
        is_blocked(&cluster.nodes()[from], 1).await;
        let moved = cluster.move_slot(slot(key.as_bytes()), from, to, MoveState::Done);
        moved.expect("it moves");
        is_blocked(&cluster.nodes()[to], 1).await;
        assert_eq!(blocked(&cluster.nodes()[from]), 0);
        client.rpush(key, 7).await.expect("it is pushed");
        assert_eq!(pop.await.expect("no panic"), Ok(Some((key.into(), 7))));
        assert!(client.metrics().moved > 0);
    });
}

#[test]
fn a_command_waits_at_the_node_to_which_its_slot_is_moving() {
    let cluster = cluster(3, 0);
    let key = "list";
    run(async {
        let client = Client::with(to_cluster(&cluster)).await;
        let client = client.expect("it connects");
        let from = cluster.owner_of(slot(key.as_bytes())).expect("it answers");
        let to = (from + 1) % 3;
        let moves = cluster.move_slot(slot(key.as_bytes()), from, to, MoveState::Migrating);
        moves.expect("it begins to move");
        let waiting = client.clone();
        let pop = tokio::spawn(async move {
            let pop = waiting.blpop::<(String, u32)>([key], Duration::MAX);
            pop.await
        });
        is_blocked(&cluster.nodes()[to], 1).await;
        client.rpush(key, 7).await.expect("it is pushed");
        assert_eq!(pop.await.expect("no panic"), Ok(Some((key.into(), 7))));
        assert!(client.metrics().asked > 0);
    });
}

#[test]
fn a_command_goes_on_at_the_replica_that_takes_over() {
    let cluster = cluster(3, 3);
    let key = "list";
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        let old = cluster.owner_of(slot(key.as_bytes())).expect("it answers");
        let new = cluster.replicas().iter().position(|replica| {
            let role = replica.command(&["ROLE"]).expect("it answers");
            role.contains(&cluster.nodes()[old].port().to_string())
        });
        let new = &cluster.replicas()[new.expect("it has a replica")];
        let waiting = client.clone();
        let pop =
            tokio::spawn(async move { waiting.blpop::<(String, u32)>([key], Duration::MAX).await });
        is_blocked(&cluster.nodes()[old], 1).await;
        until("the replica takes over", async || {
            // It refuses once it has taken over.
            let _asked = new.command(&["CLUSTER", "FAILOVER"]);
            let role = new.command(&["ROLE"]).expect("it answers");
            role.contains("master")
        })
        .await;
        is_blocked(new, 1).await;
        client.rpush(key, 7).await.expect("it is pushed");
        assert_eq!(pop.await.expect("no panic"), Ok(Some((key.into(), 7))));
    });
}

#[test]
fn a_read_leaves_a_node_that_hangs_when_another_has_taken_over() {
    let cluster = cluster(3, 3);
    let key = "stream";
    let mut config = to_cluster(&cluster);
    config.timeout = LONG;
    config.dead_after = Duration::from_millis(300);
    config.refresh_interval = Duration::from_millis(300);
    run(async {
        let client = Client::with(config).await.expect("it connects");
        let old = cluster.owner_of(slot(key.as_bytes())).expect("it answers");
        let port = cluster.nodes()[old].port().to_string();
        let role = |node: &Server| node.command(&["ROLE"]).expect("it answers");
        let new = cluster
            .replicas()
            .iter()
            .find(|it| role(it).contains(&port));
        let new = new.expect("it has a replica");
        let waiting = client.clone();
        let read = tokio::spawn(async move {
            let streams = [(key, "0-0")];
            let read = waiting.xread_blocking::<Value>(streams, None, Duration::MAX);
            read.await
        });
        is_blocked(&cluster.nodes()[old], 1).await;
        // Its kernel goes on to acknowledge.
        cluster.nodes()[old].pause();
        let takeover = ["CLUSTER", "FAILOVER", "TAKEOVER"];
        new.command(&takeover).expect("it answers");
        is_blocked(new, 1).await;
        let added = client.xadd(key, "7-7", [("field", 1)]).await;
        added.expect("it is added");
        let entries = read.await.expect("no panic").expect("it goes on");
        assert!(entries.is_some());
    });
}

/// All commands, on the pool or on a connection of its own.
macro_rules! each_command {
    ($client:expr, $blocks:expr) => {{
        let (client, blocks): (&Client, _) = ($client, $blocks);
        let pushed = async |list: &str, elements: &[u32]| {
            client
                .rpush_many(list, elements)
                .await
                .expect("it is pushed");
        };
        let none = blocks.blpop::<(String, u32)>(["{k}a"], SHORT).await;
        assert_eq!(none, Ok(None));
        pushed("{k}a", &[1, 2, 3, 4, 5]).await;
        let keys = ["{k}none", "{k}a"];
        let first = blocks.blpop::<(String, u32)>(keys, LONG).await;
        assert_eq!(first, Ok(Some(("{k}a".into(), 1))));
        let last = blocks.brpop::<(String, u32)>(keys, LONG).await;
        assert_eq!(last, Ok(Some(("{k}a".into(), 5))));
        let (left, right) = (Side::Left, Side::Right);
        let moved = blocks
            .blmove::<u32>("{k}a", "{k}b", left, right, LONG)
            .await;
        assert_eq!(moved, Ok(Some(2)));
        let none = blocks
            .blmove::<u32>("{k}none", "{k}b", left, right, SHORT)
            .await;
        assert_eq!(none, Ok(None));
        let several = blocks
            .blmpop::<(String, Vec<u32>)>(keys, left, 9, LONG)
            .await;
        assert_eq!(several, Ok(Some(("{k}a".into(), vec![3, 4]))));
        let none = blocks
            .blmpop::<(String, Vec<u32>)>(keys, left, 9, SHORT)
            .await;
        assert_eq!(none, Ok(None));

        let none = blocks
            .bzpopmin::<(String, String, f64)>(["{k}z"], SHORT)
            .await;
        assert_eq!(none, Ok(None));
        let members = [(1.0, "a"), (2.0, "b"), (3.0, "c"), (4.0, "d")];
        client
            .zadd_many("{k}z", members)
            .await
            .expect("it is added");
        let lowest = blocks
            .bzpopmin::<(String, String, f64)>(["{k}z"], LONG)
            .await;
        assert_eq!(lowest, Ok(Some(("{k}z".into(), "a".into(), 1.0))));
        let highest = blocks
            .bzpopmax::<(String, String, f64)>(["{k}z"], LONG)
            .await;
        assert_eq!(highest, Ok(Some(("{k}z".into(), "d".into(), 4.0))));
        type Members = (String, Vec<(String, f64)>);
        let several = blocks
            .bzmpop::<Members>(["{k}z"], Extreme::Max, 9, LONG)
            .await;
        let members = vec![("c".to_owned(), 3.0), ("b".to_owned(), 2.0)];
        assert_eq!(several, Ok(Some(("{k}z".into(), members))));

        type Entries = Vec<(String, Vec<(String, Vec<(String, u32)>)>)>;
        let entry = |id: &str| (id.to_owned(), vec![("field".to_owned(), 1)]);
        let of = |ids: &[&str]| {
            let entries = ids.iter().map(|id| entry(id)).collect();
            Ok(Some(vec![("{k}s".to_owned(), entries)]))
        };
        client
            .xgroup_create("{k}s", "group", "0", true)
            .await
            .expect("it is made");
        let streams = [("{k}s", "0-0"), ("{k}none", "0-0")];
        let none = blocks
            .xread_blocking::<Entries>(streams, Some(2), SHORT)
            .await;
        assert_eq!(none, Ok(None));
        for id in ["1-0", "2-0", "3-0"] {
            client
                .xadd("{k}s", id, [("field", 1)])
                .await
                .expect("it is added");
        }
        let read = blocks
            .xread_blocking::<Entries>(streams, Some(2), LONG)
            .await;
        assert_eq!(read, of(&["1-0", "2-0"]));
        let options = XReadGroupOptions::new().count(2);
        let new = [("{k}s", ">")];
        let read = blocks
            .xreadgroup_blocking::<Entries>("group", "me", new, options, LONG)
            .await;
        assert_eq!(read, of(&["1-0", "2-0"]));
        let read = blocks
            .xreadgroup_blocking::<Entries>("group", "me", new, options, LONG)
            .await;
        assert_eq!(read, of(&["3-0"]));
        let read = blocks
            .xreadgroup_blocking::<Entries>("group", "me", new, options, SHORT)
            .await;
        assert_eq!(read, Ok(None));
        client
            .del_many(["{k}a", "{k}b", "{k}s"])
            .await
            .expect("they are gone");
    }};
}

#[test]
fn each_command_gives_what_there_is_or_nothing() {
    let cluster = cluster(3, 0);
    for protocol in [ProtocolVersion::Resp2, ProtocolVersion::Resp3] {
        let mut config = to_cluster(&cluster);
        config.protocol = protocol;
        run(async {
            let client = Client::with(config).await.expect("it connects");
            each_command!(&client, &client);
            let own = client
                .dedicated(embar_redis::command::Route::of("{k}a"))
                .await;
            let own = own.expect("it connects");
            each_command!(&client, &own);
            let several = client.blpop::<(String, u32)>(["a", "b"], SHORT).await;
            assert_eq!(several, Err(Error::CrossSlot));
        });
    }
}

#[test]
fn a_thread_waits_without_an_executor() {
    let server = server();
    let client = Client::with_blocking(to(&server)).expect("it connects");
    let waiting = client.clone();
    let pop =
        std::thread::spawn(move || waiting.brpop::<(String, u32)>(["a"], Duration::MAX).wait());
    client.rpush("a", 7).wait().expect("it is pushed");
    assert_eq!(pop.join().expect("no panic"), Ok(Some(("a".into(), 7))));
}

#[test]
fn a_caller_waits_until_replicas_have_what_it_wrote() {
    let (server, replica) = (server(), server());
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let own = client.dedicated(embar_redis::command::Route::Any).await;
        let own = own.expect("it connects");
        own.set("key", 1).await.expect("it is set");
        assert_eq!(own.replicated(1, SHORT).await, Ok(0), "there is none");
        let port = server.port().to_string();
        let replicate = ["REPLICAOF", "127.0.0.1", &port];
        replica.command(&replicate).expect("it answers");
        own.set("key", 2).await.expect("it is set");
        assert_eq!(own.replicated(1, LONG).await, Ok(1));
        let found = replica.command(&["GET", "key"]).expect("it answers");
        assert_eq!(found.trim(), "2");
    });
}
