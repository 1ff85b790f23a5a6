//! A single server that becomes a replica, while the name or the proxy that leads to it comes to lead to the server
//! that has taken over.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use embar_redis::commands::scripting::ScriptCommands;
use embar_redis::commands::strings::StringCommands;
use embar_redis::metrics::RetryCause;
use embar_redis::pubsub::{Event, Kind, Message};
use embar_redis::resp::ErrorKind;
use embar_redis::{Client, Config, Error, cmd};
use embar_redis_servers::{Options, Server};

use crate::support::{LONG, Load, endpoint, run, to, until};

/// An address that leads to one server or another, as a name does: connections stay where they are, and new ones go
/// to the server of that time.
struct Forwarder {
    address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
}

impl Forwarder {
    fn to(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let target = Arc::new(Mutex::new(server.address()));
        let current = Arc::clone(&target);
        // It lasts as long as the tests do.
        thread::spawn(move || {
            for client in listener.incoming() {
                let to = *current.lock().expect("no panic");
                if let (Ok(client), Ok(server)) = (client, TcpStream::connect(to)) {
                    let copies = [(&client, &server), (&server, &client)];
                    for (from, to) in copies.map(|(from, to)| (from.try_clone(), to.try_clone())) {
                        thread::spawn(|| forward(from, to));
                    }
                }
            }
        });
        Self { address, target }
    }

    fn lead_to(&self, server: &Server) {
        *self.target.lock().expect("no panic") = server.address();
    }

    fn config(&self) -> Config {
        let mut config = Config::standalone(endpoint(self.address));
        config.timeout = LONG;
        config
    }
}

/// Passes on what comes, until one of both ends.
fn forward(from: io::Result<TcpStream>, to: io::Result<TcpStream>) {
    let (mut from, mut to) = (from.expect("a socket"), to.expect("a socket"));
    to.set_nodelay(true).expect("a socket");
    let _ended = io::copy(&mut from, &mut to);
    // The other thread ends, too.
    let _closed = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// A server and its replica, which has all of its data.
pub async fn primary_and_replica() -> (Server, Server) {
    let start = || Server::start(&Options::default()).expect("redis-server runs");
    let (primary, replica) = (start(), start());
    replicate(&replica, &primary).await;
    (primary, replica)
}

pub async fn replicate(replica: &Server, primary: &Server) {
    let port = primary.port().to_string();
    replica
        .command(&["REPLICAOF", "127.0.0.1", &port])
        .expect("it answers");
    until("the replica has all data", async || {
        says(replica, "replication", "master_link_status:up")
    })
    .await;
}

pub fn says(server: &Server, section: &str, line: &str) -> bool {
    let info = server.command(&["INFO", section]).expect("it answers");
    info.lines().any(|found| found.trim() == line)
}

/// The replica takes over, without a loss.
pub async fn swap_roles(primary: &Server, replica: &Server) {
    let port = replica.port().to_string();
    // The primary learns a little later than the replica itself that the replica has all data.
    until("the primary accepts it", async || {
        let failover = ["FAILOVER", "TO", "127.0.0.1", &port];
        primary.command(&failover).is_ok()
    })
    .await;
    until("the roles are swapped", async || {
        says(primary, "replication", "role:slave") && says(replica, "replication", "role:master")
    })
    .await;
}

#[test]
fn writes_go_on_at_the_server_that_took_over_and_each_is_executed_once() {
    run(async {
        let (first, second) = primary_and_replica().await;
        let name = Forwarder::to(&first);
        let client = Client::with(name.config()).await.expect("it connects");
        let load = Load::start(&client, 32);
        load.goes_on(300).await;
        for (from, to) in [(&first, &second), (&second, &first)] {
            let left = client.metrics().total().left;
            swap_roles(from, to).await;
            until(
                "the client looks whether the name leads elsewhere",
                async || client.metrics().total().left > left,
            )
            .await;
            name.lead_to(to);
            load.goes_on(300).await;
            until("the link is up", async || {
                says(from, "replication", "master_link_status:up")
            })
            .await;
        }
        let sum = load.settle(&client, 0).await;
        assert_eq!((sum.unknown, sum.not_done), (0, 0), "{sum:?}");
        assert!(client.metrics().retries(RetryCause::ReadOnly) > 0);
    });
}

#[test]
fn pipelines_and_transactions_go_on_at_the_server_that_took_over() {
    run(async {
        let (mut primary, mut replica) = primary_and_replica().await;
        let name = Forwarder::to(&primary);
        let client = Client::with(name.config()).await.expect("it connects");
        let mut pipeline = client.pipeline();
        let mut transaction = client.transaction();
        let mut counted = Vec::new();
        for _ in 0..100 {
            let _read = pipeline.get::<Option<u32>, _>("other");
            counted.push((pipeline.incr("piped"), transaction.incr("queued")));
        }
        for turn in 0..2 {
            swap_roles(&primary, &replica).await;
            name.lead_to(&replica);
            if turn == 0 {
                let results = pipeline.run().await;
                for (number, (piped, _)) in (1..).zip(&counted) {
                    assert_eq!(
                        results.read(2 * number as usize - 1),
                        Ok(number),
                        "{piped:?}"
                    );
                }
            } else {
                let results = transaction.run().await.expect("it is executed");
                for (number, (_, queued)) in (1..).zip(&counted) {
                    assert_eq!(results.read(number as usize - 1), Ok(number), "{queued:?}");
                }
            }
            assert_eq!(client.metrics().total().left, turn + 1);
            (primary, replica) = (replica, primary);
            until("the old primary follows the new one", async || {
                says(&replica, "replication", "master_link_status:up")
            })
            .await;
        }
        assert_eq!(client.get::<u32, _>("piped").await, Ok(100));
        assert_eq!(client.get::<u32, _>("queued").await, Ok(100));
    });
}

#[test]
fn a_slow_reply_comes_on_the_connection_that_was_left() {
    run(async {
        let (first, second) = primary_and_replica().await;
        let name = Forwarder::to(&first);
        let client = Client::with(name.config()).await.expect("it connects");
        client
            .set("key", "x".repeat(1 << 20))
            .await
            .expect("it is set");
        swap_roles(&first, &second).await;
        name.lead_to(&second);
        // Reads that are in flight when the write is refused: their replies take long.
        let mut reading = Vec::new();
        for _ in 0..64 {
            let client = client.clone();
            reading.push(tokio::spawn(
                async move { client.get::<String, _>("key").await },
            ));
        }
        assert_eq!(client.incr("count").await, Ok(1));
        for read in reading {
            let value = read.await.expect("no panic").expect("it comes");
            assert_eq!(value.len(), 1 << 20);
        }
        let total = client.metrics().total();
        assert_eq!((total.left, total.connects), (1, 2));
        assert_eq!(client.metrics().retries(RetryCause::Unknown), 0);
        // Nobody needs the old connection any more.
        until("the old connection is closed", async || {
            let list = first
                .command(&["CLIENT", "LIST", "TYPE", "NORMAL"])
                .expect("it answers");
            !list.lines().any(|line| line.contains(" addr=127.0.0.1:"))
        })
        .await;
    });
}

#[test]
fn a_server_that_stays_a_replica_is_dialled_with_growing_pauses_however_many_ask() {
    run(async {
        let (_primary, replica) = primary_and_replica().await;
        let mut config = to(&replica);
        config.timeout = LONG;
        let client = Client::with(config).await.expect("it connects");
        let received = || {
            let stats = replica.command(&["INFO", "stats"]).expect("it answers");
            let count = stats
                .lines()
                .find_map(|line| line.strip_prefix("total_connections_received:"));
            count
                .and_then(|count| count.trim().parse::<u64>().ok())
                .expect("it counts")
        };
        let (before, began) = (received(), Instant::now());
        let writers: Vec<_> = (0..64)
            .map(|number| {
                let client = client.clone();
                tokio::spawn(async move { client.set(format!("key-{number}"), 1).await })
            })
            .collect();
        until("it is dialled often enough for long pauses", async || {
            client.metrics().total().left > 12
        })
        .await;
        // This question is a connection, too.
        let dialled = received() - before - 1;
        // Seven pauses from 2.5 ms on grow to at least 250 ms.
        let most = 9 + began.elapsed().as_millis() as u64 / 250;
        assert!(
            dialled <= most,
            "{dialled} connections, and at most {most} are allowed"
        );
        assert!(
            client.metrics().retries(RetryCause::ReadOnly) > 64,
            "all of them asked"
        );
        // It becomes a primary after all.
        replica
            .command(&["REPLICAOF", "NO", "ONE"])
            .expect("it answers");
        for writer in writers {
            assert_eq!(writer.await.expect("no panic"), Ok(()));
        }
    });
}

#[test]
fn subscribers_stay_where_they_are_and_receive_what_is_published_at_the_new_primary() {
    run(async {
        let (first, second) = primary_and_replica().await;
        let name = Forwarder::to(&first);
        let client = Client::with(name.config()).await.expect("it connects");
        let mut subscriber = client.subscriber(10);
        for kind in [Kind::Channel, Kind::Sharded] {
            subscriber
                .subscribe(kind, "news")
                .await
                .expect("it is confirmed");
        }
        swap_roles(&first, &second).await;
        name.lead_to(&second);
        client.set("key", 1).await.expect("it is set");
        assert_eq!(client.metrics().total().left, 1);
        until("the old primary follows the new one", async || {
            says(&first, "replication", "master_link_status:up")
        })
        .await;
        for (command, kind) in [("PUBLISH", Kind::Channel), ("SPUBLISH", Kind::Sharded)] {
            let publish = cmd(command).key("news").arg(command);
            let received_by: u32 = client.send(publish).await.expect("it is published");
            assert_eq!(received_by, 0, "no subscriber is at the new primary");
            let event = tokio::time::timeout(LONG, subscriber.next()).await;
            let wanted = Event::Message(Message {
                kind,
                channel: "news".into(),
                pattern: None,
                payload: command.into(),
            });
            assert_eq!(event.expect("it comes"), Ok(wanted));
        }
    });
}

#[test]
fn the_errors_that_make_it_connect_again_can_be_chosen() {
    let server = Server::start(&Options::default()).expect("redis-server runs");
    let set = |name: &str, value: &str| {
        server
            .command(&["CONFIG", "SET", name, value])
            .expect("it answers");
    };
    run(async {
        let with = async |words: Option<&[&str]>| {
            let mut config = to(&server);
            let words = words.map(|words| words.iter().map(|&word| word.to_owned()).collect());
            config.reconnect_on = words;
            config.timeout = LONG;
            Client::with(config).await.expect("it connects")
        };
        let left = |client: &Client| client.metrics().total().left;

        // An error that comes before execution: the command goes to the next connection.
        set("min-replicas-to-write", "1");
        let usual = with(None).await;
        let error = usual.set("key", 1).await.expect_err("it has no replica");
        assert!(matches!(&error, Error::Server(error) if error.kind == ErrorKind::NoReplicas));
        assert_eq!(left(&usual), 0);
        let chosen = with(Some(&["NOREPLICAS", "MYPROXY"])).await;
        let setting = {
            let client = chosen.clone();
            tokio::spawn(async move { client.set("key", 2).await })
        };
        until("it connects again", async || left(&chosen) > 1).await;
        assert!(chosen.metrics().retries(RetryCause::ReconnectOn) > 1);
        set("min-replicas-to-write", "0");
        assert_eq!(setting.await.expect("no panic"), Ok(()));

        // A word of the user's, after a write: the caller gets the error, and others the new connection.
        let before = left(&chosen);
        let script = "redis.call('INCR', KEYS[1]) return redis.error_reply('MYPROXY is gone')";
        until(
            "it connects again, as the last time is long ago",
            async || {
                let error = chosen.eval::<()>(script, ["count"], [""; 0]).await;
                let error = error.expect_err("it says so");
                assert!(error.to_string().contains("MYPROXY") && error.may_have_executed());
                left(&chosen) > before
            },
        )
        .await;
        assert_eq!(chosen.get::<u32, _>("key").await, Ok(2));

        // None at all.
        server
            .command(&["REPLICAOF", "127.0.0.1", "1"])
            .expect("it answers");
        let never = with(Some(&[])).await;
        let short = Duration::from_millis(200);
        let error = never
            .set("key", 3)
            .timeout(short)
            .await
            .expect_err("it is a replica");
        assert!(error.to_string().contains("READONLY"), "{error}");
        assert_eq!(left(&never), 0);
        let usual = with(None).await;
        let error = usual
            .set("key", 3)
            .timeout(short)
            .await
            .expect_err("it is a replica");
        assert!(error.to_string().contains("READONLY"), "{error}");
        assert!(left(&usual) > 0);
    });
}
