//! Who wrote something and knows it reads nothing older from the cache, however the client wrote, and whatever is on
//! its way.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use embar_redis::command::Route;
use embar_redis::commands::blocking::BlockingCommands;
use embar_redis::commands::keys::KeyCommands;
use embar_redis::commands::strings::StringCommands;
use embar_redis::config::{Endpoint, Tracking};
use embar_redis::script::Script;
use embar_redis::{Client, Config, cmd};

use crate::caching::{LONG_AGE, cache, with_cache};
use crate::support::{LONG, cluster, run, server, to, to_cluster};

/// A server that answers `GET` with how often it was written to, `OK` to all that writes, and reports changes only behind
/// the reply to the next command, as one may whose reply and report are cut apart by the network.
fn slow_to_report() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it has one");
    let written = Arc::new(AtomicU64::new(0));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, written) = (stream.expect("a connection"), Arc::clone(&written));
            thread::spawn(move || serve(stream, &written));
        }
    });
    address
}

fn serve(mut stream: TcpStream, written: &AtomicU64) {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    let mut report = false;
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..count]);
        let mut answer = String::new();
        while let Some((words, len)) = command(&bytes) {
            bytes.drain(..len);
            let changed = match words[0].to_uppercase().as_str() {
                "HELLO" => {
                    answer += "%1\r\n$5\r\nproto\r\n:3\r\n";
                    false
                }
                "GET" => {
                    answer += &format!(":{}\r\n", written.load(Ordering::SeqCst));
                    false
                }
                "PTTL" => {
                    answer += ":-1\r\n";
                    false
                }
                "CLIENT" | "MULTI" => {
                    answer += "+OK\r\n";
                    false
                }
                "PING" => {
                    answer += "+PONG\r\n";
                    false
                }
                "EXEC" => {
                    answer += "*1\r\n+OK\r\n";
                    true
                }
                "SET" if answer.ends_with("+OK\r\n") && bytes.starts_with(b"*1\r\n$4\r\nEXEC") => {
                    answer += "+QUEUED\r\n";
                    false
                }
                _ => {
                    answer += "+OK\r\n";
                    true
                }
            };
            if std::mem::replace(&mut report, changed) {
                answer += ">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nkey\r\n";
            }
            written.fetch_add(u64::from(changed), Ordering::SeqCst);
        }
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// The words of the first command, if all of it is here, and its length.
fn command(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split_inclusive("\r\n");
    let mut line = || lines.next().filter(|line| line.ends_with("\r\n"));
    let count = line()?;
    let mut len = count.len();
    let mut words = Vec::new();
    for _ in 0..count[1..].trim().parse().ok()? {
        let (head, word) = (line()?, line()?);
        len += head.len() + word.len();
        words.push(word.trim().to_owned());
    }
    Some((words, len))
}

#[test]
fn a_report_that_comes_late_makes_no_caller_read_what_it_has_overwritten() {
    let address = slow_to_report();
    run(async {
        let place = Endpoint::tcp(address.ip().to_string(), address.port());
        let config = with_cache(Config::standalone(place));
        let client = Client::with(config).await.expect("it connects");
        let cached = client.cached(LONG_AGE);
        let mut written = 0;
        let mut reads = async |how: &str| {
            let value = cached.get::<u64, _>("key").await;
            assert_eq!(value, Ok(written), "{how}");
            written += 1;
        };
        reads("first").await;
        client.set("key", 1).await.expect("it is set");
        reads("SET").await;
        let mut pipeline = client.pipeline();
        let _set = pipeline.set("key", 1);
        let _results = pipeline.run().await;
        reads("pipeline").await;
        let mut transaction = client.transaction();
        let _set = transaction.set("key", 1);
        transaction.run().await.expect("it is executed");
        reads("transaction").await;
        let script = Script::new("return redis.call('SET', KEYS[1], 1)");
        let called: Result<(), _> = script.call().key("key").run(&client).await;
        called.expect("it is executed");
        reads("script").await;
        let module = cmd("MODULE.SET").key("key").arg(1);
        client.send::<_, ()>(module).await.expect("it is executed");
        reads("command of a module").await;
        client
            .send::<_, ()>(cmd("FLUSHDB"))
            .await
            .expect("it answers");
        reads("FLUSHDB").await;
        let own = client
            .dedicated(Route::of("key"))
            .await
            .expect("it connects");
        own.set("key", 1).await.expect("it is set");
        reads("dedicated connection").await;
        let popped = client.blpop::<()>(["key"], LONG);
        popped.await.expect("it answers");
        reads("command that blocks").await;
        assert_eq!(cache(&client).hits, 0);
        let again = cached.get::<u64, _>("key").await;
        assert_eq!(again, Ok(written - 1));
        assert_eq!(cache(&client).hits, 1, "without a write it is there");
    });
}

/// Callers increment counters and read them through the cache, all at the same time.
async fn increments(client: &Client, others: &Client, tracking: &str) {
    const COUNTERS: usize = 3;
    const ROUNDS: u64 = 150;
    let known: Arc<[AtomicU64; COUNTERS]> = Arc::default();
    let is_over = Arc::new(AtomicBool::new(false));
    let key = |counter: usize| format!("counter-{counter}");
    let readers: Vec<_> = (0..6)
        .map(|number| {
            let (client, known, is_over) = (client.clone(), known.clone(), is_over.clone());
            tokio::spawn(async move {
                let counter = number % COUNTERS;
                let mut reads = 0_u64;
                while !is_over.load(Ordering::SeqCst) || reads < ROUNDS {
                    let floor = known[counter].load(Ordering::SeqCst);
                    let cached = client.cached(LONG_AGE);
                    let value: Option<u64> = cached.get(key(counter)).await.expect("it answers");
                    let value = value.unwrap_or(0);
                    assert!(value >= floor, "it read {value}, and {floor} was known");
                    // Who begins from now on has seen it, too.
                    known[counter].fetch_max(value, Ordering::SeqCst);
                    reads += 1;
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let writers: Vec<_> = (0..COUNTERS)
        .map(|counter| {
            let (client, others, known) = (client.clone(), others.clone(), known.clone());
            tokio::spawn(async move {
                for round in 0..ROUNDS {
                    let value: i64 = client.incr(key(counter)).await.expect("it answers");
                    known[counter].fetch_max(value.cast_unsigned(), Ordering::SeqCst);
                    if round % 3 == 0 {
                        others.incr(key(counter)).await.expect("it answers");
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.expect("no panic");
    }
    is_over.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.expect("it read nothing older");
    }
    let metrics = cache(client);
    assert!(metrics.hits > 0, "{tracking}: {metrics:?}");
    for counter in 0..COUNTERS {
        let last = client.get::<u64, _>(key(counter)).await;
        assert_eq!(last, Ok(ROUNDS + ROUNDS.div_ceil(3)));
        let cached = client.cached(LONG_AGE).get::<u64, _>(key(counter)).await;
        // The reports of the other client's writes came before the reply.
        assert_eq!(cached, last);
    }
}

#[test]
fn a_value_that_grows_is_never_read_smaller_than_it_was_known() {
    let server = server();
    for (name, tracking) in [
        ("opt-in", Tracking::OptIn),
        ("all", Tracking::All),
        ("prefixes", Tracking::Prefixes(Vec::new())),
    ] {
        server.command(&["FLUSHALL"]).expect("it answers");
        run(async {
            let mut config = with_cache(to(&server));
            config.cache.as_mut().expect("it is there").tracking = tracking;
            let client = Client::with(config).await.expect("it connects");
            let others = Client::with(to(&server)).await.expect("it connects");
            increments(&client, &others, name).await;
        });
    }
}

#[test]
fn nor_in_a_cluster_with_several_connections_to_a_node() {
    let cluster = cluster(3, 0);
    run(async {
        let mut config = with_cache(to_cluster(&cluster));
        config.mux_per_node = 2;
        let client = Client::with(config).await.expect("it connects");
        let others = Client::with(to_cluster(&cluster)).await;
        increments(&client, &others.expect("it connects"), "cluster").await;
        // Keys of several nodes, in parts.
        let keys = ["a", "b", "c", "d"];
        let cached = client.cached(LONG_AGE);
        for round in 0..20 {
            let pairs = keys.map(|key| (key, round));
            client.mset(pairs).await.expect("they are set");
            let values = cached.mget::<u64, _>(keys).await;
            assert_eq!(values, Ok(vec![round; 4]));
        }
        client.del_many(keys).await.expect("they are deleted");
        let values = cached.mget::<Option<u64>, _>(keys).await;
        assert_eq!(values, Ok(vec![None; 4]));
    });
}
