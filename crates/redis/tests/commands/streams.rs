use crate::checked::Checked;
use crate::{both, pairs, text, texts};
use embar_redis::prelude::*;
use embar_redis::resp::Value;
use std::collections::HashMap;
use std::time::Duration;

type Entries = Vec<(String, Vec<(String, String)>)>;

fn entries<const N: usize>(ids: [&str; N]) -> Entries {
    let entry = |id: &str| (text(id), pairs([("f", text(id))]));
    ids.iter().map(|id| entry(id)).collect()
}

async fn fill(c: Checked<'_>, key: &str) {
    for id in ["1-0", "2-0", "3-0"] {
        assert_eq!(c.xadd(key, id, [("f", id)]).await.unwrap(), id);
    }
}

#[tokio::test]
async fn entries_are_added_and_read() {
    both(async |c| {
        fill(c, "s").await;
        assert_eq!(c.xlen("s").await.unwrap(), 3);
        let all: Entries = c.xrange("s", "-", "+").await.unwrap();
        assert_eq!(all, entries(["1-0", "2-0", "3-0"]));
        assert_eq!(
            c.xrange_count::<Entries>("s", "(1-0", "+", 1)
                .await
                .unwrap(),
            entries(["2-0"])
        );
        assert_eq!(
            c.xrevrange::<Entries, _, _, _>("s", 2, 1).await.unwrap(),
            entries(["2-0", "1-0"])
        );
        assert_eq!(
            c.xrevrange_count::<Entries>("s", "+", "-", 1)
                .await
                .unwrap(),
            entries(["3-0"])
        );
        c.xadd("t", "9-0", [("f", "9-0")]).await.unwrap();
        let read: Vec<(String, Entries)> =
            c.xread([("s", "1"), ("t", "0")], Some(1)).await.unwrap();
        assert_eq!(
            read,
            pairs([("s", entries(["2-0"])), ("t", entries(["9-0"]))])
        );
        assert_eq!(
            c.xread::<Option<Value>>([("s", "3")], None).await.unwrap(),
            None
        );
        assert_eq!(c.xdel("s", ["1-0", "7-0"]).await.unwrap(), 1);
        c.xsetid("s", "8-0").await.unwrap();
        let info: HashMap<String, Value> = c.xinfo_stream("s").await.unwrap();
        assert_eq!(info["last-generated-id"], Value::Bulk(b"8-0".to_vec()));
        let info: HashMap<String, Value> = c.xinfo_stream_full("s", 1).await.unwrap();
        assert_eq!(info["groups"], Value::Array(Vec::new()));
    })
    .await;
}

#[tokio::test]
async fn streams_are_trimmed() {
    both(async |c| {
        let options = XAddOptions::new().if_present();
        assert_eq!(
            c.xadd_with("s", options, "*", [("f", 1)]).await.unwrap(),
            None
        );
        fill(c, "s").await;
        let options = options.trim(Trim::max_len(2));
        assert_eq!(
            c.xadd_with("s", options, "4-0", [("f", "4-0")])
                .await
                .unwrap(),
            Some(text("4-0"))
        );
        assert_eq!(
            c.xrange::<Entries, _, _, _>("s", "-", "+").await.unwrap(),
            entries(["3-0", "4-0"])
        );
        assert_eq!(c.xtrim("s", Trim::min_id("4")).await.unwrap(), 1);
        c.xadd("s", "5-0", [("f", 5)]).await.unwrap();
        // So few are not worth the work.
        let about = Trim::max_len(1).about().limit(10);
        assert_eq!(c.xtrim("s", about).await.unwrap(), 0);
        assert_eq!(c.xtrim("s", Trim::max_len(1)).await.unwrap(), 1);
    })
    .await;
}

#[tokio::test]
async fn groups_share_a_stream() {
    both(async |c| {
        c.xgroup_create("s", "g", "$", true).await.unwrap();
        fill(c, "s").await;
        assert!(c.xgroup_createconsumer("s", "g", "ann").await.unwrap());
        let options = XReadGroupOptions::new;
        let read: Vec<(String, Entries)> = c
            .xreadgroup("g", "ann", [("s", ">")], options().count(2))
            .await
            .unwrap();
        assert_eq!(read, pairs([("s", entries(["1-0", "2-0"]))]));
        let read: Vec<(String, Entries)> = c
            .xreadgroup("g", "bob", [("s", ">")], options().no_ack())
            .await
            .unwrap();
        assert_eq!(read, pairs([("s", entries(["3-0"]))]));
        assert_eq!(c.xack("s", "g", ["1-0", "3-0"]).await.unwrap(), 1);
        type Summary = (u64, String, String, Vec<(String, u64)>);
        let pending: Summary = c.xpending("s", "g").await.unwrap();
        assert_eq!(pending, (1, text("2-0"), text("2-0"), pairs([("ann", 1)])));
        let options = XPendingOptions::new(10)
            .consumer("ann")
            .min_idle(Duration::ZERO);
        let rows: Vec<(String, String, u64, u64)> =
            c.xpending_range("s", "g", "-", "+", options).await.unwrap();
        assert_eq!(
            (rows.len(), &*rows[0].0, &*rows[0].1, rows[0].3),
            (1, "2-0", "ann", 1)
        );
        let groups: Vec<HashMap<String, Value>> = c.xinfo_groups("s").await.unwrap();
        assert_eq!(groups[0]["pending"], Value::Integer(1));
        let consumers: Vec<HashMap<String, Value>> = c.xinfo_consumers("s", "g").await.unwrap();
        assert_eq!(consumers.len(), 2);
        assert_eq!(c.xgroup_delconsumer("s", "g", "ann").await.unwrap(), 1);
        c.xgroup_setid("s", "g", "0").await.unwrap();
        assert!(c.xgroup_destroy("s", "g").await.unwrap());
        assert!(!c.xgroup_destroy("s", "g").await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn entries_are_given_to_others() {
    both(async |c| {
        fill(c, "s").await;
        c.xgroup_create("s", "g", 0, false).await.unwrap();
        c.xreadgroup::<()>("g", "ann", [("s", ">")], XReadGroupOptions::new().count(2))
            .await
            .unwrap();
        let now = Duration::ZERO;
        let claimed: Entries = c
            .xclaim("s", "g", "bob", now, ["1-0"], XClaimOptions::new())
            .await
            .unwrap();
        assert_eq!(claimed, entries(["1-0"]));
        let options = XClaimOptions::new()
            .force()
            .just_id()
            .retry_count(7)
            .idle(Duration::from_secs(60));
        let claimed: Vec<String> = c
            .xclaim("s", "g", "bob", now, ["3-0"], options)
            .await
            .unwrap();
        assert_eq!(claimed, texts(["3-0"]));
        let options = XPendingOptions::new(9).min_idle(Duration::from_secs(50));
        let rows: Vec<(String, String, u64, u64)> =
            c.xpending_range("s", "g", "-", "+", options).await.unwrap();
        assert_eq!(
            (rows.len(), &*rows[0].0, &*rows[0].1, rows[0].3),
            (1, "3-0", "bob", 7)
        );
        let options = XClaimOptions::new().time_millis(1);
        c.xclaim::<()>("s", "g", "bob", now, ["2-0"], options)
            .await
            .unwrap();
        let a_year = Duration::from_secs(365 * 86_400);
        let options = XPendingOptions::new(9).min_idle(a_year);
        let rows: Vec<(String, String, u64, u64)> =
            c.xpending_range("s", "g", "-", "+", options).await.unwrap();
        assert_eq!((rows.len(), &*rows[0].0), (1, "2-0"));
        let (next, got, gone): (String, Entries, Vec<String>) =
            c.xautoclaim("s", "g", "eve", now, "0", 2).await.unwrap();
        assert_eq!(
            (&*next, got, gone),
            ("3-0", entries(["1-0", "2-0"]), vec![])
        );
        let (next, got, _gone): (String, Vec<String>, Vec<String>) = c
            .xautoclaim_justid("s", "g", "eve", now, next, 9)
            .await
            .unwrap();
        assert_eq!((&*next, got), ("0-0", texts(["3-0"])));
    })
    .await;
}
