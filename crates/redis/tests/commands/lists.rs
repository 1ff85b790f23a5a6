use crate::{both, text, texts};
use embar_redis::prelude::*;

#[tokio::test]
async fn elements_go_in_and_out() {
    both(async |c| {
        assert_eq!(c.lpushx("l", "x").await.unwrap(), 0);
        assert_eq!(c.rpushx("l", "x").await.unwrap(), 0);
        assert_eq!(c.rpush("l", "b").await.unwrap(), 1);
        assert_eq!(c.lpush("l", "a").await.unwrap(), 2);
        assert_eq!(c.rpush_many("l", ["c", "d"]).await.unwrap(), 4);
        assert_eq!(c.lpush_many("l", ["1", "0"]).await.unwrap(), 6);
        assert_eq!(c.lpushx("l", "<").await.unwrap(), 7);
        assert_eq!(c.rpushx("l", ">").await.unwrap(), 8);
        assert_eq!(c.llen("l").await.unwrap(), 8);
        let all: Vec<String> = c.lrange("l", 0, -1).await.unwrap();
        assert_eq!(all, texts(["<", "0", "1", "a", "b", "c", "d", ">"]));
        assert_eq!(c.lpop::<String, _>("l").await.unwrap(), "<");
        assert_eq!(c.rpop::<String, _>("l").await.unwrap(), ">");
        assert_eq!(c.lpop_count::<Vec<u8>, _>("l", 2).await.unwrap(), [0, 1]);
        assert_eq!(
            c.rpop_count::<Vec<String>, _>("l", 2).await.unwrap(),
            texts(["d", "c"])
        );
        assert_eq!(c.lpop::<Option<String>, _>("none").await.unwrap(), None);
        assert_eq!(
            c.rpop_count::<Option<Vec<String>>, _>("none", 2)
                .await
                .unwrap(),
            None
        );
    })
    .await;
}

#[tokio::test]
async fn elements_are_changed_in_place() {
    both(async |c| {
        c.rpush_many("l", ["a", "b", "a", "c", "a"]).await.unwrap();
        assert_eq!(c.lindex::<String, _>("l", -2).await.unwrap(), "c");
        c.lset("l", 1, "B").await.unwrap();
        assert_eq!(c.linsert_before("l", "B", "<").await.unwrap(), 6);
        assert_eq!(c.linsert_after("l", "B", ">").await.unwrap(), 7);
        assert_eq!(c.linsert_after("l", "none", ">").await.unwrap(), -1);
        assert_eq!(c.lpos("l", "a").await.unwrap(), Some(0));
        assert_eq!(c.lpos("l", "none").await.unwrap(), None);
        let all: Vec<u64> = c
            .lpos_with("l", "a", LPosOptions::new().count(0))
            .await
            .unwrap();
        assert_eq!(all, [0, 4, 6]);
        let options = LPosOptions::new().rank(-2).max_len(4);
        assert_eq!(
            c.lpos_with::<Option<u64>>("l", "a", options).await.unwrap(),
            Some(4)
        );
        assert_eq!(c.lrem("l", -2, "a").await.unwrap(), 2);
        c.ltrim("l", 1, -2).await.unwrap();
        assert_eq!(
            c.lrange::<Vec<String>, _>("l", 0, -1).await.unwrap(),
            texts(["<", "B", ">"])
        );
    })
    .await;
}

#[tokio::test]
async fn elements_move_between_lists() {
    both(async |c| {
        c.rpush_many("a", [1, 2, 3]).await.unwrap();
        assert_eq!(
            c.lmove::<u8>("a", "b", Side::Left, Side::Right)
                .await
                .unwrap(),
            1
        );
        assert_eq!(c.rpoplpush::<u8>("a", "b").await.unwrap(), 3);
        assert_eq!(c.lrange::<Vec<i64>, _>("b", 0, -1).await.unwrap(), [3, 1]);
        let got: Option<(String, Vec<i64>)> =
            c.lmpop(["x", "b", "a"], Side::Right, 2).await.unwrap();
        assert_eq!(got, Some((text("b"), vec![1, 3])));
        let got: Option<(String, Vec<i64>)> = c.lmpop(["x"], Side::Left, 2).await.unwrap();
        assert_eq!(got, None);
    })
    .await;
}
