use crate::{both, said, text, texts};
use embar_redis::prelude::*;
use embar_redis_servers::{Options, Server};

#[tokio::test]
async fn values_are_set_and_read() {
    both(async |c| {
        assert_eq!(c.get::<Option<String>, _>("k").await.unwrap(), None);
        c.set("k", "value").await.unwrap();
        assert_eq!(c.get::<Vec<u8>, _>("k").await.unwrap(), b"value");
        assert!(!c.setnx("k", 1).await.unwrap());
        assert!(c.setnx("new", 1).await.unwrap());
        assert_eq!(c.strlen("k").await.unwrap(), 5);
        assert_eq!(c.append("k", "s").await.unwrap(), 6);
        assert_eq!(c.getrange::<String, _>("k", 1, -2).await.unwrap(), "alue");
        assert_eq!(c.setrange("k", 1, "ie").await.unwrap(), 6);
        assert_eq!(c.getset::<String, _, _>("k", "x").await.unwrap(), "vieues");
        assert_eq!(c.getdel::<String, _>("k").await.unwrap(), "x");
        assert_eq!(c.getdel::<Option<String>, _>("k").await.unwrap(), None);
    })
    .await;
}

#[tokio::test]
async fn values_expire() {
    both(async |c| {
        c.setex("k", 100, "v").await.unwrap();
        assert!((99..=100).contains(&c.ttl("k").await.unwrap()));
        c.psetex("k", 5000, "v").await.unwrap();
        assert!((1..=5000).contains(&c.pttl("k").await.unwrap()));
        let value: String = c.getex("k", Expiry::Seconds(50)).await.unwrap();
        assert_eq!(value, "v");
        assert!((49..=50).contains(&c.ttl("k").await.unwrap()));
        let _value: String = c
            .getex("k", Expiry::AtMillis(9_999_999_999_999))
            .await
            .unwrap();
        assert_eq!(c.pexpiretime("k").await.unwrap(), 9_999_999_999_999);
        let value: String = c.getex_persist("k").await.unwrap();
        assert_eq!((value, c.ttl("k").await.unwrap()), (text("v"), -1));
    })
    .await;
}

#[tokio::test]
async fn set_has_options() {
    both(async |c| {
        let options = SetOptions::new()
            .if_absent()
            .expiry(Expiry::AtSeconds(9_999_999_999));
        let set: Option<()> = c.set_with("k", 1, options).await.unwrap();
        assert!(set.is_some());
        assert_eq!(c.expiretime("k").await.unwrap(), 9_999_999_999);
        let set: Option<()> = c.set_with("k", 2, options).await.unwrap();
        assert!(set.is_none());
        let options = SetOptions::new().if_present().keep_ttl().old();
        let old: Option<i64> = c.set_with("k", 3, options).await.unwrap();
        assert_eq!(old, Some(1));
        assert_eq!(c.expiretime("k").await.unwrap(), 9_999_999_999);
        let options = SetOptions::new().expiry(Expiry::Millis(70_000));
        c.set_with::<()>("k", 4, options).await.unwrap();
        assert!((60..=70).contains(&c.ttl("k").await.unwrap()));
        let wrong = SetOptions::new().keep_ttl().expiry(Expiry::Seconds(1));
        assert_eq!(
            said(c.set_with::<()>("k", 4, wrong).await),
            "ERR syntax error"
        );
    })
    .await;
}

#[tokio::test]
async fn numbers_are_counted() {
    both(async |c| {
        assert_eq!(c.incr("n").await.unwrap(), 1);
        assert_eq!(c.incrby("n", -11).await.unwrap(), -10);
        assert_eq!(c.decr("n").await.unwrap(), -11);
        assert_eq!(c.decrby("n", 9).await.unwrap(), -20);
        assert_eq!(c.incrbyfloat("n", 0.5).await.unwrap(), -19.5);
        let refused = said(c.incr("n").await);
        assert_eq!(refused, "ERR value is not an integer or out of range");
    })
    .await;
}

#[tokio::test]
async fn several_at_once() {
    both(async |c| {
        c.mset([("a", "ohmytext"), ("b", "mynewtext")])
            .await
            .unwrap();
        let values: Vec<Option<String>> = c.mget(["b", "none", "a"]).await.unwrap();
        assert_eq!(
            values,
            [Some(text("mynewtext")), None, Some(text("ohmytext"))]
        );
        assert!(!c.msetnx([("c", 1), ("a", 2)]).await.unwrap());
        assert!(c.msetnx([(text("c"), 1), (text("d"), 2)]).await.unwrap());
        assert_eq!(c.mget::<Vec<u8>>(["c", "d"]).await.unwrap(), [1, 2]);
        assert_eq!(c.lcs::<String>("a", "b").await.unwrap(), "mytext");
        assert_eq!(c.lcs_len("a", "b").await.unwrap(), 6);
        let values: Vec<String> = c.mget(vec!["a"]).await.unwrap();
        assert_eq!(values, texts(["ohmytext"]));
    })
    .await;
}

#[test]
fn threads_wait() {
    let server = Server::start(&Options::default()).unwrap();
    let url = format!("redis://{}", server.address());
    let config = embar_redis::Config::from_url(&url).unwrap();
    let c = embar_redis::Client::with_blocking(config).unwrap();
    c.set("k", 7).wait().unwrap();
    assert_eq!(c.get::<u8, _>("k").wait().unwrap(), 7);
    let sum: i64 = Script::new("return KEYS[1] + ARGV[1]")
        .key("5")
        .arg(6)
        .wait(&c)
        .unwrap();
    assert_eq!(sum, 11);
    assert_eq!(
        c.mget::<Vec<Option<u8>>>(["k", "x"]).wait().unwrap(),
        [Some(7), None]
    );
}
