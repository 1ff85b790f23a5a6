use crate::{both, said, sorted, text, texts};
use embar_redis::prelude::*;

const FAR: u64 = 9_999_999_999;

#[tokio::test]
async fn keys_are_counted_and_deleted() {
    both(async |c| {
        c.mset([("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)])
            .await
            .unwrap();
        assert!(c.exists("a").await.unwrap());
        assert_eq!(c.exists_many(["a", "a", "x"]).await.unwrap(), 2);
        assert_eq!(c.touch(["a", "x"]).await.unwrap(), 1);
        assert_eq!(c.del("a").await.unwrap(), 1);
        assert_eq!(c.del_many(["a", "b"]).await.unwrap(), 1);
        assert_eq!(c.unlink("c").await.unwrap(), 1);
        assert_eq!(c.unlink_many(["c", "d"]).await.unwrap(), 1);
        assert_eq!(
            c.randomkey::<Option<String>>().await.unwrap(),
            Some(text("e"))
        );
        c.set("f", 6).await.unwrap();
        assert_eq!(sorted(c.keys("?").await.unwrap()), texts(["e", "f"]));
        assert!(!c.exists("a").await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn keys_expire() {
    both(async |c| {
        c.set("k", 1).await.unwrap();
        assert_eq!(
            (c.ttl("k").await.unwrap(), c.pttl("x").await.unwrap()),
            (-1, -2)
        );
        assert!(c.expire("k", 100).await.unwrap());
        assert!((99..=100).contains(&c.ttl("k").await.unwrap()));
        assert!(!c.expire_if("k", 200, ExpireIf::Never).await.unwrap());
        assert!(c.expire_if("k", 200, ExpireIf::Later).await.unwrap());
        assert!(c.pexpire("k", 90_000).await.unwrap());
        assert!((80_000..=90_000).contains(&c.pttl("k").await.unwrap()));
        assert!(c.pexpire_if("k", 80_000, ExpireIf::Sooner).await.unwrap());
        assert!(c.expireat("k", FAR).await.unwrap());
        assert_eq!(c.expiretime("k").await.unwrap(), FAR as i64);
        assert!(!c.expireat_if("k", FAR - 1, ExpireIf::Later).await.unwrap());
        assert!(c.pexpireat("k", FAR * 1000 + 1).await.unwrap());
        assert_eq!(c.pexpiretime("k").await.unwrap(), FAR as i64 * 1000 + 1);
        assert!(c.persist("k").await.unwrap());
        assert!(!c.persist("k").await.unwrap());
        assert!(
            !c.pexpireat_if("k", FAR * 1000, ExpireIf::Expires)
                .await
                .unwrap()
        );
        assert!(!c.expire("x", 100).await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn keys_are_renamed_and_copied() {
    both(async |c| {
        c.set("a", 1).await.unwrap();
        c.rename("a", "b").await.unwrap();
        assert_eq!(said(c.rename("a", "b").await), "ERR no such key");
        c.set("a", 2).await.unwrap();
        assert!(!c.renamenx("a", "b").await.unwrap());
        assert!(c.renamenx("a", "c").await.unwrap());
        assert!(!c.copy("b", "c", CopyOptions::new()).await.unwrap());
        assert!(
            c.copy("b", "c", CopyOptions::new().replace())
                .await
                .unwrap()
        );
        assert_eq!(c.get::<u8, _>("c").await.unwrap(), 1);
        assert!(
            c.copy("b", "b", CopyOptions::new().database(1))
                .await
                .unwrap()
        );
        assert!(!c.move_to("b", 1).await.unwrap());
        assert!(c.move_to("c", 1).await.unwrap());
        assert_eq!(c.exists_many(["b", "c"]).await.unwrap(), 1);
    })
    .await;
}

#[tokio::test]
async fn values_are_dumped_and_looked_at() {
    both(async |c| {
        c.rpush_many("l", [1, 2]).await.unwrap();
        assert_eq!(c.type_of("l").await.unwrap(), "list");
        assert_eq!(c.type_of("x").await.unwrap(), "none");
        let dump: Vec<u8> = c.dump("l").await.unwrap();
        c.restore("m", 0, &dump, RestoreOptions::new())
            .await
            .unwrap();
        assert!(said(c.restore("m", 0, &dump, RestoreOptions::new()).await).starts_with("BUSYKEY"));
        let options = RestoreOptions::new().replace().absolute().idle_seconds(500);
        c.restore("m", FAR * 1000, dump, options).await.unwrap();
        assert_eq!(c.expiretime("m").await.unwrap(), FAR as i64);
        assert!(c.object_idletime("m").await.unwrap() >= Some(500));
        assert_eq!(c.lrange::<Vec<i64>, _>("m", 0, -1).await.unwrap(), [1, 2]);
        assert_eq!(
            c.object_encoding("m").await.unwrap(),
            Some(text("quicklist"))
        );
        assert_eq!(c.object_refcount("m").await.unwrap(), Some(1));
        assert_eq!(c.object_refcount("x").await.unwrap(), None);
        assert!(said(c.object_freq("m").await).contains("LFU"));
        c.config_set([("maxmemory-policy", "allkeys-lfu")])
            .await
            .unwrap();
        let dump: Vec<u8> = c.dump("l").await.unwrap();
        c.restore("f", 0, dump, RestoreOptions::new().frequency(99))
            .await
            .unwrap();
        assert!(c.object_freq("f").await.unwrap() >= Some(90));
        c.config_set([("maxmemory-policy", "noeviction")])
            .await
            .unwrap();
    })
    .await;
}

#[tokio::test]
async fn elements_are_sorted() {
    both(async |c| {
        c.rpush_many("l", [3, 1, 20]).await.unwrap();
        c.mset([("w3", 1), ("w1", 2), ("w20", 3)]).await.unwrap();
        let options = SortOptions::new;
        assert_eq!(
            c.sort::<Vec<i64>>("l", options().descending())
                .await
                .unwrap(),
            [20, 3, 1]
        );
        let some: Vec<i64> = c
            .sort_ro("l", options().alphabetic().limit(1, 1))
            .await
            .unwrap();
        assert_eq!(some, [20]);
        let by_weight = options().by("w*").get(&["#", "w*"]);
        assert_eq!(
            c.sort::<Vec<i64>>("l", by_weight).await.unwrap(),
            [3, 1, 1, 2, 20, 3]
        );
        assert_eq!(c.sort_store("l", options(), "d").await.unwrap(), 3);
        assert_eq!(
            c.lrange::<Vec<i64>, _>("d", 0, -1).await.unwrap(),
            [1, 3, 20]
        );
    })
    .await;
}
