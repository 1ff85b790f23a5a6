use embar_redis::command::{Command, Route};
use embar_redis::prelude::*;
use embar_redis::resp::Value;
use embar_redis::slot::slot;
use embar_redis::{Client, Error, cmd};
use std::time::{Duration, Instant};

use embar_redis_servers::{Cluster, ClusterOptions, Options, Server};

/// Tags whose slots lie at the three masters.
const TAGS: [&str; 3] = ["b", "c", "a"];

#[tokio::test]
async fn commands_go_where_their_keys_are() {
    let cluster = Cluster::start(&ClusterOptions::default()).unwrap();
    let seed = cluster.seeds()[0];
    let client = Client::connect(&format!("redis-cluster://{seed}"))
        .await
        .unwrap();
    let owners = TAGS.map(|tag| cluster.owner_of(slot(tag.as_bytes())).unwrap());
    assert_eq!(owners, [0, 1, 2]);
    for tag in TAGS {
        of_one_slot(&client, tag).await;
    }
    of_several_slots(&client).await;
    of_one_node(&client, &cluster).await;
    for node in cluster.nodes() {
        let errors = node.command(&["INFO", "errorstats"]).unwrap();
        assert!(
            !errors.contains("MOVED") && !errors.contains("CROSSSLOT"),
            "{errors}"
        );
    }
}

async fn of_one_slot(c: &Client, tag: &str) {
    let key = |name: &str| format!("{{{tag}}}{name}");
    c.mset([(key("1"), 1), (key("2"), 2)]).await.unwrap();
    assert_eq!(
        c.mget::<Vec<i64>>([key("1"), key("2")]).await.unwrap(),
        [1, 2]
    );
    let code = "return redis.call('GET', KEYS[2]) + ARGV[1]";
    assert_eq!(
        c.eval::<i64>(code, [key("1"), key("2")], [40])
            .await
            .unwrap(),
        42
    );
    let script = Script::new(code);
    assert_eq!(
        script
            .key(key("1"))
            .key(key("2"))
            .arg(5)
            .run::<i64>(c)
            .await
            .unwrap(),
        7
    );
    let eval = cmd("EVAL")
        .arg(code)
        .arg(2)
        .arg(key("1"))
        .arg(key("2"))
        .arg(1);
    assert_eq!(c.send::<_, i64>(eval).await.unwrap(), 3);
    c.sadd_many(key("s"), [1, 2]).await.unwrap();
    assert_eq!(c.sunionstore(key("d"), [key("s")]).await.unwrap(), 2);
    c.zadd(key("z"), 1.0, "m").await.unwrap();
    assert_eq!(
        c.zunionstore(key("d"), [key("z")], ZCombine::new())
            .await
            .unwrap(),
        1
    );
    c.xadd(key("x"), "1-0", [("f", "v")]).await.unwrap();
    c.xgroup_create(key("x"), "g", 0, false).await.unwrap();
    type Read = Vec<(String, Vec<(String, Vec<(String, String)>)>)>;
    let read: Read = c.xread([(key("x"), "0")], None).await.unwrap();
    assert_eq!(
        (read[0].0.as_str(), read[0].1.len()),
        (key("x").as_str(), 1)
    );
    let streams = [(key("x"), ">")];
    let read: Read = c
        .xreadgroup("g", "c", streams, XReadGroupOptions::new())
        .await
        .unwrap();
    assert_eq!(read[0].1.len(), 1);
    let xread = cmd("XREAD")
        .args(["COUNT", "1", "STREAMS"])
        .arg(key("x"))
        .arg(0);
    assert_eq!(c.send::<_, Read>(xread).await.unwrap().len(), 1);
    assert_eq!(c.object_refcount(key("x")).await.unwrap(), Some(1));
    c.rename(key("1"), key("3")).await.unwrap();
    assert_eq!(c.del_many([key("1"), key("2"), key("3")]).await.unwrap(), 2);
    assert_eq!(c.spublish(key("channel"), "m").await.unwrap(), 0);
}

async fn of_several_slots(c: &Client) {
    let crossed = |error: Error| assert_eq!(error, Error::CrossSlot);
    c.mset([("a", 1), ("b", 2), ("c", 3)]).await.unwrap();
    let values = c.mget::<Vec<Option<i64>>>(["c", "none", "a", "b", "c"]);
    let wanted = [Some(3), None, Some(1), Some(2), Some(3)];
    assert_eq!(values.await.unwrap(), wanted);
    let value = c.send::<_, Vec<i64>>(cmd("mget").args(["b", "a"]));
    assert_eq!(value.await.unwrap(), [2, 1]);
    assert_eq!(c.exists_many(["a", "b", "none", "a"]).await.unwrap(), 3);
    assert_eq!(c.touch(["a", "c", "none"]).await.unwrap(), 2);
    assert_eq!(c.unlink_many(["a", "none"]).await.unwrap(), 1);
    assert_eq!(c.del_many(["a", "b", "c"]).await.unwrap(), 2);
    let mut pipeline = c.pipeline();
    let mget = pipeline.mget::<Value>(["a", "b"]);
    let dbsize = pipeline.dbsize();
    let results = pipeline.run().await;
    crossed(results.take(mget).unwrap_err());
    assert_eq!(results.take(dbsize), Err(Error::SeveralNodes));
    crossed(c.msetnx([("a", 1), ("b", 2)]).await.unwrap_err());
    crossed(c.rename("a", "b").await.unwrap_err());
    crossed(
        c.eval::<Value>("return 1", ["a", "b"], [1])
            .await
            .unwrap_err(),
    );
    crossed(
        c.xread::<Value>([("a", 0), ("b", 0)], None)
            .await
            .unwrap_err(),
    );
    crossed(c.sinterstore("a", ["a", "b"]).await.unwrap_err());
    let script = Script::new("return 1");
    crossed(script.key("a").key("b").run::<Value>(c).await.unwrap_err());
    crossed(
        c.send::<_, Value>(cmd("BITOP").args(["AND", "a", "b"]))
            .await
            .unwrap_err(),
    );
}

async fn of_one_node(c: &Client, cluster: &Cluster) {
    let code = "#!lua name=lib\nredis.register_function('f', function() return 9 end)";
    for (tag, node) in TAGS.into_iter().zip(cluster.nodes()) {
        let load = cmd("FUNCTION").args(["LOAD", code]).to(Route::of(tag));
        assert_eq!(c.send::<_, String>(load).await.unwrap(), "lib");
        assert!(node.command(&["FUNCTION", "LIST"]).unwrap().contains("lib"));
        assert_eq!(c.fcall::<u8>("f", [tag], [0]).await.unwrap(), 9);
    }
}

async fn cluster_with_replicas() -> (Cluster, Client) {
    let options = ClusterOptions {
        replicas: 1,
        ..ClusterOptions::default()
    };
    let cluster = Cluster::start(&options).unwrap();
    let url = format!("redis-cluster://{}", cluster.seeds()[0]);
    let began = Instant::now();
    loop {
        let client = Client::connect(&url).await.unwrap();
        // A replica may be told of a little later than it is there.
        if client.nodes().len() == 6 {
            return (cluster, client);
        }
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{:?}",
            client.nodes()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn commands_about_all_keys_go_to_all_primaries() {
    let (cluster, c) = cluster_with_replicas().await;
    let keys: Vec<String> = (0..100).map(|number| format!("key-{number}")).collect();
    c.mset(keys.iter().map(|key| (key, 1))).await.unwrap();
    assert_eq!(c.dbsize().await.unwrap(), 100);
    let mut found: Vec<String> = c.keys("key-*").await.unwrap();
    found.sort();
    let mut wanted = keys.clone();
    wanted.sort();
    assert_eq!(found, wanted);
    assert!(c.randomkey::<Option<String>>().await.unwrap().is_some());
    c.ping().await.unwrap();
    let times: Vec<u64> = c
        .send(cmd("LASTSAVE").to(Route::AllPrimaries))
        .await
        .unwrap();
    assert_eq!(times.len(), 3);
    let code = "#!lua name=lib\nredis.register_function('f', function() return 9 end)";
    assert_eq!(c.function_load(code, true).await.unwrap(), "lib");
    for tag in TAGS {
        assert_eq!(c.fcall::<u8>("f", [tag], [0]).await.unwrap(), 9);
    }
    let error = c.script_kill().await.unwrap_err();
    assert!(!error.may_have_executed(), "{error}");
    let Error::OnSomeNodes {
        failed: 3, of: 3, ..
    } = error
    else {
        panic!("{error}")
    };
    // One of the three refuses.
    let refuses = &cluster.nodes()[1];
    let rules = ["ACL", "SETUSER", "default", "-flushall"];
    refuses.command(&rules).unwrap();
    let error = c.flushall().await.unwrap_err();
    assert!(error.may_have_executed(), "{error}");
    let Error::OnSomeNodes {
        failed: 1,
        of: 3,
        node,
        error,
        ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!(*node, refuses.address().to_string());
    assert!(matches!(&**error, Error::Server(_)), "{error}");
    let left = c.dbsize().await.unwrap();
    assert_eq!(
        refuses.command(&["DBSIZE"]).unwrap().trim(),
        left.to_string()
    );
    c.flushdb().await.unwrap();
    assert_eq!(c.dbsize().await.unwrap(), 0);
}

#[tokio::test]
async fn commands_about_all_servers_go_to_replicas_too() {
    let (cluster, c) = cluster_with_replicas().await;
    c.config_set([("slowlog-max-len", 77)]).await.unwrap();
    for node in cluster.nodes() {
        let told = node.command(&["CONFIG", "GET", "slowlog-max-len"]).unwrap();
        assert!(told.contains("77"), "{told}");
    }
    let nodes = c.nodes();
    assert_eq!(nodes.len(), 6);
    assert_eq!(
        nodes.iter().map(|node| u32::from(node.slots)).sum::<u32>(),
        16384
    );
    let one = nodes.iter().find(|node| node.slots > 0).unwrap();
    for node in &nodes {
        let info = cmd("INFO").arg("server").to(Route::Node(node.id));
        let info: String = c.send(info).await.unwrap();
        let port = node.address.rsplit_once(':').unwrap().1;
        assert!(info.contains(&format!("tcp_port:{port}\r\n")), "{info}");
    }
    let script = Script::new("return 7");
    let load = cmd("SCRIPT").arg("LOAD").arg(script.code());
    let load = load.to(Route::Node(one.id));
    let sha1: String = c.send(load).await.unwrap();
    assert_eq!(
        c.script_exists([&sha1]).await.unwrap(),
        [false],
        "not everywhere"
    );
    assert_eq!(c.script_load(script.code()).await.unwrap(), sha1);
    assert_eq!(
        c.script_exists([&sha1, "none"]).await.unwrap(),
        [true, false]
    );
    for node in cluster.nodes() {
        let told = node.command(&["SCRIPT", "EXISTS", &sha1]).unwrap();
        assert_eq!(told.trim(), "1");
    }
}

#[tokio::test]
async fn one_server_takes_keys_of_all_slots() {
    let server = Server::start(&Options::default()).unwrap();
    let c = &Client::connect(&format!("redis://{}", server.address()))
        .await
        .unwrap();
    let mget = cmd("MGET").keys(["a", "b"]);
    assert_eq!(mget.route(), Route::CrossSlot);
    c.mset([("a", 1), ("b", 2)]).await.unwrap();
    assert_eq!(c.send::<_, Vec<i64>>(mget).await.unwrap(), [1, 2]);
}
