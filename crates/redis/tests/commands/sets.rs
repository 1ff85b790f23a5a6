use crate::{both, sorted, texts};
use embar_redis::prelude::*;
use std::collections::BTreeSet;

#[tokio::test]
async fn members_come_and_go() {
    both(async |c| {
        assert_eq!(c.sadd("s", "a").await.unwrap(), 1);
        assert_eq!(c.sadd_many("s", ["a", "b", "c"]).await.unwrap(), 2);
        assert!(c.sismember("s", "b").await.unwrap());
        assert_eq!(c.smismember("s", ["a", "x"]).await.unwrap(), [true, false]);
        assert_eq!(c.scard("s").await.unwrap(), 3);
        let all: BTreeSet<String> = c.smembers("s").await.unwrap();
        assert_eq!(all, BTreeSet::from(["a", "b", "c"].map(str::to_owned)));
        let one: String = c.srandmember("s").await.unwrap();
        assert!(all.contains(&one));
        assert_eq!(
            c.srandmember_count::<Vec<String>, _>("s", -7)
                .await
                .unwrap()
                .len(),
            7
        );
        assert!(c.smove("s", "t", "a").await.unwrap());
        assert!(!c.smove("s", "t", "a").await.unwrap());
        assert_eq!(c.spop::<String, _>("t").await.unwrap(), "a");
        assert_eq!(c.srem("s", "b").await.unwrap(), 1);
        assert_eq!(
            c.spop_count::<Vec<String>, _>("s", 5).await.unwrap(),
            texts(["c"])
        );
        assert_eq!(c.srem_many("s", ["b", "c"]).await.unwrap(), 0);
        assert_eq!(c.spop::<Option<String>, _>("s").await.unwrap(), None);
    })
    .await;
}

#[tokio::test]
async fn sets_are_combined() {
    both(async |c| {
        c.sadd_many("a", [1, 2, 3]).await.unwrap();
        c.sadd_many("b", [2, 3, 4]).await.unwrap();
        let list = async |key: &str| sorted(c.smembers(key).await.unwrap());
        assert_eq!(
            sorted(c.sinter(["a", "b"]).await.unwrap()),
            texts(["2", "3"])
        );
        assert_eq!(
            sorted(c.sunion(["a", "b"]).await.unwrap()),
            texts(["1", "2", "3", "4"])
        );
        assert_eq!(
            c.sdiff::<Vec<String>>(["a", "b"]).await.unwrap(),
            texts(["1"])
        );
        assert_eq!(c.sinterstore("d", ["a", "b"]).await.unwrap(), 2);
        assert_eq!(list("d").await, texts(["2", "3"]));
        assert_eq!(c.sunionstore("d", ["a", "b"]).await.unwrap(), 4);
        assert_eq!(list("d").await, texts(["1", "2", "3", "4"]));
        assert_eq!(c.sdiffstore("d", ["b", "a"]).await.unwrap(), 1);
        assert_eq!(list("d").await, texts(["4"]));
        assert_eq!(c.sintercard(["a", "b"], 0).await.unwrap(), 2);
        assert_eq!(c.sintercard(["a", "b"], 1).await.unwrap(), 1);
        let (next, some): (u64, Vec<String>) = c
            .sscan("a", 0, ScanOptions::new().pattern("[12]"))
            .await
            .unwrap();
        assert_eq!((next, sorted(some)), (0, texts(["1", "2"])));
    })
    .await;
}
