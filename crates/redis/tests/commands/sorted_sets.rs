use crate::{both, pairs, text, texts};
use embar_redis::prelude::*;

const ABC: [(f64, &str); 3] = [(1.0, "a"), (2.0, "b"), (3.5, "c")];

#[tokio::test]
async fn members_have_scores_and_ranks() {
    both(async |c| {
        assert_eq!(c.zadd("z", 1.0, "a").await.unwrap(), 1);
        assert_eq!(c.zadd_many("z", ABC).await.unwrap(), 2);
        assert_eq!(c.zscore("z", "c").await.unwrap(), Some(3.5));
        assert_eq!(c.zscore("z", "x").await.unwrap(), None);
        assert_eq!(c.zmscore("z", ["x", "b"]).await.unwrap(), [None, Some(2.0)]);
        assert_eq!(c.zrank("z", "c").await.unwrap(), Some(2));
        assert_eq!(c.zrevrank("z", "c").await.unwrap(), Some(0));
        assert_eq!(c.zrevrank("z", "x").await.unwrap(), None);
        assert_eq!(c.zcard("z").await.unwrap(), 3);
        assert_eq!(c.zcount("z", "(1", 3.5).await.unwrap(), 2);
        assert_eq!(c.zcount("z", f64::NEG_INFINITY, "+inf").await.unwrap(), 3);
        assert_eq!(c.zincrby("z", -0.5, "c").await.unwrap(), 3.0);
        assert_eq!(c.zrem("z", "a").await.unwrap(), 1);
        assert_eq!(c.zrem_many("z", ["a", "b", "c"]).await.unwrap(), 2);
    })
    .await;
}

#[tokio::test]
async fn scores_are_added_under_conditions() {
    both(async |c| {
        let options = ZAddOptions::new;
        c.zadd_many("z", ABC).await.unwrap();
        let changed = c
            .zadd_with(
                "z",
                [(9.0, "a"), (9.0, "d")],
                options().if_absent().changed(),
            )
            .await;
        assert_eq!(changed.unwrap(), 1);
        let added = c
            .zadd_with("z", [(7.0, "a"), (9.0, "e")], options().if_present())
            .await;
        assert_eq!(added.unwrap(), 0);
        let greater = options().if_greater().changed();
        assert_eq!(
            c.zadd_with("z", [(6.0, "a"), (6.0, "b")], greater)
                .await
                .unwrap(),
            1
        );
        assert_eq!(
            c.zmscore("z", ["a", "b", "e"]).await.unwrap(),
            [Some(7.0), Some(6.0), None]
        );
        let less = options().if_less();
        assert_eq!(c.zadd_incr("z", 1.0, "a", less).await.unwrap(), None);
        assert_eq!(c.zadd_incr("z", -1.0, "a", less).await.unwrap(), Some(6.0));
    })
    .await;
}

#[tokio::test]
async fn ranges_are_read_in_every_way() {
    both(async |c| {
        let options = ZRangeOptions::new;
        c.zadd_many("z", ABC).await.unwrap();
        assert_eq!(
            c.zrange::<Vec<String>, _>("z", 1, -1).await.unwrap(),
            texts(["b", "c"])
        );
        let rows: Vec<(String, f64)> = c
            .zrange_with("z", 0, 1, options().reverse().scores())
            .await
            .unwrap();
        assert_eq!(rows, pairs([("c", 3.5), ("b", 2.0)]));
        let by_score = options().by_score().limit(1, 5);
        let some: Vec<String> = c.zrange_with("z", "-inf", "(3.5", by_score).await.unwrap();
        assert_eq!(some, texts(["b"]));
        c.zadd_many("l", [(0.0, "a"), (0.0, "b"), (0.0, "c")])
            .await
            .unwrap();
        let some: Vec<String> = c
            .zrange_with("l", "(a", "+", options().by_lex())
            .await
            .unwrap();
        assert_eq!(some, texts(["b", "c"]));
        assert_eq!(c.zlexcount("l", "-", "[b").await.unwrap(), 2);
        assert_eq!(
            c.zrangestore("d", "z", 2, "+inf", options().by_score())
                .await
                .unwrap(),
            2
        );
        assert_eq!(
            c.zrange::<Vec<String>, _>("d", 0, -1).await.unwrap(),
            texts(["b", "c"])
        );
        assert_eq!(c.zremrangebylex("l", "[a", "(b").await.unwrap(), 1);
        assert_eq!(c.zremrangebyrank("l", 0, 0).await.unwrap(), 1);
        assert_eq!(c.zremrangebyscore("l", 0, 0).await.unwrap(), 1);
    })
    .await;
}

#[tokio::test]
async fn members_are_taken_by_score_and_by_chance() {
    both(async |c| {
        c.zadd_many("z", ABC).await.unwrap();
        let member: String = c.zrandmember("z").await.unwrap();
        assert!(c.zscore("z", member).await.unwrap().is_some());
        assert_eq!(
            c.zrandmember_count::<Vec<String>, _>("z", -5)
                .await
                .unwrap()
                .len(),
            5
        );
        let mut rows: Vec<(String, f64)> = c.zrandmember_with_scores("z", 3).await.unwrap();
        rows.sort_by(|a, b| a.1.total_cmp(&b.1));
        assert_eq!(rows, pairs([("a", 1.0), ("b", 2.0), ("c", 3.5)]));
        let (next, some): (u64, Vec<(String, f64)>) = c
            .zscan("z", 0, ScanOptions::new().pattern("b"))
            .await
            .unwrap();
        assert_eq!((next, some), (0, pairs([("b", 2.0)])));
        let low: Vec<(String, f64)> = c.zpopmin("z", 1).await.unwrap();
        assert_eq!(low, pairs([("a", 1.0)]));
        let high: Vec<(String, f64)> = c.zpopmax("z", 1).await.unwrap();
        assert_eq!(high, pairs([("c", 3.5)]));
        let got: Option<(String, Vec<(String, f64)>)> =
            c.zmpop(["x", "z"], Extreme::Max, 9).await.unwrap();
        assert_eq!(got, Some((text("z"), pairs([("b", 2.0)]))));
        let got: Option<(String, Vec<(String, f64)>)> =
            c.zmpop(["x", "z"], Extreme::Min, 9).await.unwrap();
        assert_eq!(got, None);
    })
    .await;
}

#[tokio::test]
async fn sets_are_combined() {
    both(async |c| {
        let how = ZCombine::new;
        let keys = ["a", "b"];
        c.zadd_many("a", [(1.0, "x"), (2.0, "y")]).await.unwrap();
        c.zadd_many("b", [(5.0, "y"), (6.0, "z")]).await.unwrap();
        let rows: Vec<(String, f64)> = c.zunion(keys, how().scores()).await.unwrap();
        assert_eq!(rows, pairs([("x", 1.0), ("z", 6.0), ("y", 7.0)]));
        let weighted = how()
            .weights(&[10.0, 1.0])
            .aggregate(Aggregate::Max)
            .scores();
        let rows: Vec<(String, f64)> = c.zinter(keys, weighted).await.unwrap();
        assert_eq!(rows, pairs([("y", 20.0)]));
        assert_eq!(
            c.zunionstore("d", keys, how().aggregate(Aggregate::Min))
                .await
                .unwrap(),
            3
        );
        assert_eq!(c.zscore("d", "y").await.unwrap(), Some(2.0));
        assert_eq!(c.zinterstore("d", keys, how()).await.unwrap(), 1);
        assert_eq!(c.zscore("d", "y").await.unwrap(), Some(7.0));
        assert_eq!(c.zdiff::<Vec<String>>(keys).await.unwrap(), texts(["x"]));
        let rows: Vec<(String, f64)> = c.zdiff_with_scores(keys).await.unwrap();
        assert_eq!(rows, pairs([("x", 1.0)]));
        assert_eq!(c.zdiffstore("d", ["b", "a"]).await.unwrap(), 1);
        assert_eq!(c.zscore("d", "z").await.unwrap(), Some(6.0));
        assert_eq!(c.zintercard(keys, 0).await.unwrap(), 1);
    })
    .await;
}
