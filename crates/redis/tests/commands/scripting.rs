use crate::{both, said, texts};
use embar_redis::prelude::*;
use embar_redis::resp::Value;
use std::collections::HashMap;

const NONE: [&str; 0] = [];
const ECHO: &str = "return {KEYS[1], ARGV[1]}";
const LIBRARY: &str = "#!lua name=lib
redis.register_function('put', function(keys, args) return redis.call('SET', keys[1], args[1]) end)
redis.register_function{function_name='size', callback=function(keys) return #keys end, flags={'no-writes'}}";

#[tokio::test]
async fn scripts_are_evaluated() {
    both(async |c| {
        assert_eq!(
            c.eval::<Vec<String>>(ECHO, ["k"], ["a", "b"])
                .await
                .unwrap(),
            texts(["k", "a"])
        );
        assert_eq!(c.eval_ro::<u8>("return 7", NONE, NONE).await.unwrap(), 7);
        let script = Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1]) + #KEYS");
        assert_eq!(c.script_exists([script.sha1()]).await.unwrap(), [false]);
        assert_eq!(
            script
                .key("{n}")
                .key("n")
                .arg(5)
                .run::<i64>(&c)
                .await
                .unwrap(),
            7
        );
        assert_eq!(c.script_exists([script.sha1()]).await.unwrap(), [true]);
        assert_eq!(
            script.call().key("n").arg(5).run::<i64>(&c).await.unwrap(),
            6
        );
        let sha1 = c.script_load(ECHO).await.unwrap();
        assert_eq!(sha1, Script::new(ECHO).sha1());
        assert_eq!(
            c.evalsha::<Vec<String>>(&sha1, ["k"], [1]).await.unwrap(),
            texts(["k", "1"])
        );
        assert_eq!(
            c.evalsha_ro::<Vec<String>>(&sha1, ["k"], [1])
                .await
                .unwrap(),
            texts(["k", "1"])
        );
        c.script_flush().await.unwrap();
        assert!(said(c.evalsha::<()>(sha1, ["k"], [1]).await).starts_with("NOSCRIPT"));
        assert!(said(c.script_kill().await).starts_with("NOTBUSY"));
        assert!(said(script.key("n").arg("x").run::<i64>(&c).await).contains("not an integer"));
        assert_eq!(Script::new(ECHO).code(), ECHO);
    })
    .await;
}

#[tokio::test]
async fn functions_are_called() {
    both(async |c| {
        assert_eq!(c.function_load(LIBRARY, false).await.unwrap(), "lib");
        assert!(said(c.function_load(LIBRARY, false).await).contains("already exists"));
        c.function_load(LIBRARY, true).await.unwrap();
        assert_eq!(c.fcall::<String>("put", ["k"], ["v"]).await.unwrap(), "OK");
        assert_eq!(c.get::<String, _>("k").await.unwrap(), "v");
        assert_eq!(
            c.fcall_ro::<u8>("size", ["{k}", "k"], NONE).await.unwrap(),
            2
        );
        let libraries: Vec<HashMap<String, Value>> = c.function_list().await.unwrap();
        assert_eq!(libraries[0]["library_name"], Value::Bulk(b"lib".to_vec()));
        let dump: Vec<u8> = c.function_dump().await.unwrap();
        c.function_delete("lib").await.unwrap();
        assert_eq!(c.function_list::<Vec<Value>>().await.unwrap(), []);
        c.function_restore(&dump, false).await.unwrap();
        c.function_restore(&dump, true).await.unwrap();
        assert_eq!(c.fcall_ro::<u8>("size", NONE, NONE).await.unwrap(), 0);
        let stats: HashMap<String, Value> = c.function_stats().await.unwrap();
        assert_eq!(stats["running_script"], Value::Null);
        c.function_flush().await.unwrap();
        assert!(said(c.fcall::<()>("put", ["k"], ["v"]).await).contains("Function not found"));
        assert!(said(c.function_kill().await).starts_with("NOTBUSY"));
    })
    .await;
}
