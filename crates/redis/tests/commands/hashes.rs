use crate::{both, pairs, sorted, text, texts};
use embar_redis::prelude::*;
use std::collections::HashMap;

#[tokio::test]
async fn fields_are_set_and_read() {
    both(async |c| {
        assert_eq!(c.hset("h", "a", 1).await.unwrap(), 1);
        assert_eq!(c.hset("h", "a", 2).await.unwrap(), 0);
        assert_eq!(
            c.hset_many("h", [("b", "x"), ("c", "yz")]).await.unwrap(),
            2
        );
        assert!(!c.hsetnx("h", "a", 3).await.unwrap());
        assert_eq!(c.hget::<i64, _, _>("h", "a").await.unwrap(), 2);
        assert_eq!(
            c.hget::<Option<i64>, _, _>("h", "none").await.unwrap(),
            None
        );
        let some: Vec<Option<String>> = c.hmget("h", ["c", "none"]).await.unwrap();
        assert_eq!(some, [Some(text("yz")), None]);
        let all: HashMap<String, String> = c.hgetall("h").await.unwrap();
        assert_eq!(
            all,
            HashMap::from([("a", "2"), ("b", "x"), ("c", "yz")].map(|(f, v)| (text(f), text(v))))
        );
        assert_eq!(sorted(c.hkeys("h").await.unwrap()), texts(["a", "b", "c"]));
        assert_eq!(sorted(c.hvals("h").await.unwrap()), texts(["2", "x", "yz"]));
        assert_eq!(c.hlen("h").await.unwrap(), 3);
        assert_eq!(c.hstrlen("h", "c").await.unwrap(), 2);
        assert_eq!(c.hdel("h", "b").await.unwrap(), 1);
        assert!(!c.hexists("h", "b").await.unwrap());
        assert!(c.hexists("h", "a").await.unwrap());
        assert_eq!(c.hincrby("h", "a", 5).await.unwrap(), 7);
        assert_eq!(c.hincrbyfloat("h", "a", -0.25).await.unwrap(), 6.75);
        assert_eq!(c.hdel_many("h", ["a", "b", "c"]).await.unwrap(), 2);
    })
    .await;
}

#[tokio::test]
async fn fields_come_by_chance_and_by_scan() {
    both(async |c| {
        assert_eq!(c.hrandfield::<Option<String>, _>("h").await.unwrap(), None);
        c.hset_many("h", [("a1", 1), ("a2", 2), ("b", 3)])
            .await
            .unwrap();
        let field: String = c.hrandfield("h").await.unwrap();
        assert!(c.hexists("h", field).await.unwrap());
        let fields: Vec<String> = c.hrandfield_count("h", 9).await.unwrap();
        assert_eq!(sorted(fields), texts(["a1", "a2", "b"]));
        let mut fields: Vec<(String, u8)> = c.hrandfield_with_values("h", 9).await.unwrap();
        fields.sort();
        assert_eq!(fields, pairs([("a1", 1), ("a2", 2), ("b", 3)]));
        let options = ScanOptions::new().pattern("a*").count(100);
        let (next, mut some): (u64, Vec<(String, u8)>) = c.hscan("h", 0, options).await.unwrap();
        some.sort();
        assert_eq!((next, some), (0, pairs([("a1", 1), ("a2", 2)])));
    })
    .await;
}
