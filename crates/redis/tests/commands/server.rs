use crate::{both, pairs, said};
use embar_redis::prelude::*;
use embar_redis::resp::Value;
use embar_redis::{Client, cmd};
use embar_redis_servers::{Options, Server};
use std::collections::HashMap;
use std::time::SystemTime;

#[tokio::test]
async fn a_server_tells_about_itself() {
    both(async |c| {
        c.ping().await.unwrap();
        assert_eq!(c.echo::<String>("hi").await.unwrap(), "hi");
        let now = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let before = now();
        let (seconds, micros) = c.time().await.unwrap();
        // A server looks at its clock now and then.
        assert!((before - 1..=now()).contains(&seconds) && micros < 1_000_000);
        assert!(c.info().await.unwrap().contains("\r\nredis_version:7."));
        let some = c.info_of(["memory", "clients"]).await.unwrap();
        assert!(some.contains("used_memory:") && !some.contains("redis_version"));
        assert!(c.lastsave().await.unwrap() <= now());
        let role: Vec<Value> = c.role().await.unwrap();
        assert_eq!(role[0], Value::Bulk(b"master".to_vec()));
        assert!(c.command_count().await.unwrap() >= 240);
        assert_eq!(c.acl_whoami().await.unwrap(), "default");
    })
    .await;
}

#[tokio::test]
async fn a_server_is_configured() {
    both(async |c| {
        c.config_set([("slowlog-log-slower-than", "0"), ("slowlog-max-len", "5")])
            .await
            .unwrap();
        let got: HashMap<String, String> = c.config_get(["slowlog-max*", "port"]).await.unwrap();
        assert_eq!((got.len(), &*got["slowlog-max-len"]), (2, "5"));
        assert!(c.slowlog_len().await.unwrap() > 0);
        assert_eq!(c.slowlog_get::<Vec<Value>>(1).await.unwrap().len(), 1);
        c.config_set([("slowlog-log-slower-than", "-1")])
            .await
            .unwrap();
        c.slowlog_reset().await.unwrap();
        assert_eq!(c.slowlog_len().await.unwrap(), 0);
        c.config_resetstat().await.unwrap();
        assert!(
            c.info_of(["stats"])
                .await
                .unwrap()
                .contains("total_commands_processed:1\r\n")
        );
        assert!(said(c.config_set([("no-such", "1")]).await).contains("no-such"));
    })
    .await;
}

#[tokio::test]
async fn a_server_tells_about_keys() {
    both(async |c| {
        c.mset([("a", 1), ("b", 2)]).await.unwrap();
        assert_eq!(c.dbsize().await.unwrap(), 2);
        assert!(c.memory_usage("a").await.unwrap() > Some(0));
        assert_eq!(c.memory_usage("x").await.unwrap(), None);
        c.swapdb(0, 1).await.unwrap();
        assert_eq!(c.dbsize().await.unwrap(), 0);
        c.swapdb(0, 1).await.unwrap();
        c.flushdb().await.unwrap();
        assert_eq!(c.dbsize().await.unwrap(), 0);
        c.set("a", 1).await.unwrap();
        c.flushall().await.unwrap();
        assert!(!c.exists("a").await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn a_server_tells_about_its_clients() {
    let server = Server::start(&Options::default()).unwrap();
    let url = format!("redis://{}?client_name=us", server.address());
    let c = &Client::connect(&url).await.unwrap();
    let other = Client::connect(&format!("redis://{}", server.address()))
        .await
        .unwrap();
    assert_eq!(c.client_getname().await.unwrap().as_deref(), Some("us"));
    assert!(c.client_info().await.unwrap().contains(" name=us "));
    assert_eq!(c.client_list().await.unwrap().lines().count(), 2);
    let id = other.client_id().await.unwrap();
    assert_ne!(c.client_id().await.unwrap(), id);
    assert_eq!(c.client_kill([("ID", id)]).await.unwrap(), 1);
    c.client_pause(60_000, true).await.unwrap();
    c.client_unpause().await.unwrap();
    c.set("k", 1).await.unwrap();
}

#[tokio::test]
async fn messages_are_published() {
    both(async |c| {
        assert_eq!(c.publish("news", "hi").await.unwrap(), 0);
        assert_eq!(c.spublish("news", "hi").await.unwrap(), 0);
        assert!(c.pubsub_channels("*").await.unwrap().is_empty());
        let counts: Vec<(String, u64)> = c.pubsub_numsub(["news"]).await.unwrap();
        assert_eq!(counts, pairs([("news", 0)]));
    })
    .await;
}

#[tokio::test]
async fn any_command_is_sent() {
    both(async |c| {
        let set: bool = c
            .send(cmd("set").arg("k").arg(b"v\r\n").arg("EX").arg(100))
            .await
            .unwrap();
        assert!(set);
        let value: Vec<u8> = c.send(cmd("GET").key("k")).await.unwrap();
        assert_eq!(value, b"v\r\n");
        let words: Vec<String> = c
            .send(cmd("COMMAND").arg("GETKEYS").args(["GET", "k"]))
            .await
            .unwrap();
        assert_eq!(words, ["k"]);
        assert_eq!(
            c.send::<_, u8>(cmd("HSET").key("h").pairs([("a", 1), ("b", 2)]))
                .await
                .unwrap(),
            2
        );
        assert!(said(c.send::<_, ()>(cmd("NOPE").arg(1)).await).contains("unknown command 'NOPE'"));
    })
    .await;
}
