//! The crate's table of commands, compared with a server's.

use embar_redis::command::{Class, Command, Route};
use embar_redis::resp::Value;
use embar_redis::{Client, Cmd, Error, cmd};
use embar_redis_servers::{Options, Server};

/// A command as the server describes it: <https://redis.io/docs/latest/commands/command/>.
struct Description {
    /// With its subcommand, if it has one.
    name: Vec<String>,
    arity: i64,
    flags: Vec<String>,
    first_key: i64,
    last_key: i64,
    step: usize,
    tips: Vec<String>,
}

/// Later versions than 7.0 have tips for them.
const TIPPED_LATER: [&str; 6] = [
    "acl|deluser",
    "acl|load",
    "acl|save",
    "acl|setuser",
    "config|resetstat",
    "config|rewrite",
];

impl Description {
    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|it| it == flag)
    }

    fn has_tip(&self, tip: &str) -> bool {
        self.tips.iter().any(|it| it == tip)
    }

    /// Where it goes, as it has no key.
    fn route(&self) -> Route {
        let is_later = TIPPED_LATER.contains(&self.name.join("|").as_str());
        // What no shared connection carries goes where its own one leads.
        let is_refused = built(&self.name).refused().is_some();
        if self.has_tip("response_policy:special") || is_refused {
            Route::Any
        } else if self.has_tip("request_policy:all_nodes") || is_later {
            Route::AllNodes
        } else if self.has_tip("request_policy:all_shards") {
            Route::AllPrimaries
        } else {
            Route::Any
        }
    }

    /// Words of a call that route it although they are no keys: channels of a shard.
    fn channels(&self, call: &[String]) -> Vec<String> {
        let end = if self.last_key < 0 {
            call.len() as i64
        } else {
            0
        };
        let range = self.first_key..=self.last_key + end;
        range
            .step_by(self.step)
            .map(|at| call[at as usize].clone())
            .collect()
    }
}

fn string(value: &Value) -> String {
    match value {
        Value::Bulk(bytes) => String::from_utf8(bytes.clone()).expect("text"),
        Value::Simple(text) => text.clone(),
        other => panic!("no text: {other:?}"),
    }
}

fn strings(value: &Value) -> Vec<String> {
    match value {
        Value::Array(list) | Value::Set(list) => list.iter().map(string).collect(),
        other => panic!("no list: {other:?}"),
    }
}

fn number(value: &Value) -> i64 {
    match value {
        Value::Integer(number) => *number,
        other => panic!("no number: {other:?}"),
    }
}

/// Adds commands and subcommands to the list, without commands that only consist of subcommands.
fn describe(commands: &[Value], list: &mut Vec<Description>) {
    for command in commands {
        let Value::Array(parts) = command else {
            panic!("no command: {command:?}")
        };
        if let Some(Value::Array(subcommands)) = parts.get(9)
            && !subcommands.is_empty()
        {
            describe(subcommands, list);
            continue;
        }
        list.push(Description {
            name: string(&parts[0]).split('|').map(str::to_owned).collect(),
            arity: number(&parts[1]),
            flags: strings(&parts[2]),
            first_key: number(&parts[3]),
            last_key: number(&parts[4]),
            step: number(&parts[5]) as usize,
            tips: strings(&parts[7]),
        });
    }
}

/// Calls of commands whose keys are not always in the same places.
const CALLS: [&str; 40] = [
    "eval code 2 k1 k2 a1 a2",
    "eval_ro code 1 k1 a1",
    "evalsha sha 2 k1 k2 a1",
    "evalsha_ro sha 1 k1 a1",
    "fcall name 2 k1 k2 a1",
    "fcall_ro name 1 k1 a1",
    "blmpop 0 2 k1 k2 LEFT",
    "bzmpop 0 2 k1 k2 MIN",
    "lmpop 2 k1 k2 LEFT",
    "zmpop 2 k1 k2 MIN",
    "sintercard 2 k1 k2 LIMIT 1",
    "zdiff 2 k1 k2 WITHSCORES",
    "zdiffstore d 2 k1 k2",
    "zinter 2 k1 k2 WEIGHTS 1 2",
    "zintercard 2 k1 k2 LIMIT 1",
    "zinterstore d 2 k1 k2 WEIGHTS 1 2",
    "zunion 2 k1 k2 WITHSCORES",
    "zunionstore d 2 k1 k2 AGGREGATE MAX",
    "xread COUNT 1 STREAMS k1 k2 0 0",
    "xread streams k1 0",
    "xreadgroup GROUP g c COUNT 1 STREAMS k1 k2 0 0",
    "xreadgroup GROUP streams c STREAMS k1 k2 0 0",
    "georadius k 1 2 3 m",
    "georadius k 1 2 3 m ASC STORE d",
    "georadius k 1 2 3 m STOREDIST d",
    "georadiusbymember k m 3 m",
    "georadiusbymember k m 3 m COUNT 1 store d",
    "sort k",
    "sort k BY nosort LIMIT 0 1 STORE d",
    "sort k STORE d1 STORE d2",
    "sort_ro k BY nosort",
    "migrate host 1 k 0 10",
    "migrate host 1  0 10 COPY AUTH pw KEYS k1 k2 k3",
    "mset k1 v1 k2 v2 k3 v3",
    "msetnx k1 v1 k2 v2",
    "bitop AND d k1 k2 k3",
    "blpop k1 k2 k3 0",
    "xgroup create k g 0",
    "memory usage k SAMPLES 1",
    "pfmerge d k1 k2",
];

/// A call of a command with as many arguments as it needs, and one or two more if it may have them.
fn calls(of: &Description) -> Vec<Vec<String>> {
    let given = CALLS.map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    let given: Vec<_> = given
        .into_iter()
        .filter(|call| call.starts_with(&of.name))
        .collect();
    if !given.is_empty() {
        return given;
    }
    assert!(
        !of.has("movablekeys"),
        "a call of {:?} is missing in this test",
        of.name
    );
    let least = of.arity.unsigned_abs() as usize;
    let most = if of.arity < 0 { least + 2 } else { least };
    let call = |words: usize| {
        let mut call = of.name.clone();
        call.extend((call.len()..words).map(|at| format!("word{at}")));
        call
    };
    (least..=most).map(call).collect()
}

fn built(call: &[String]) -> Cmd {
    cmd(&call[0]).args(&call[1..])
}

/// The command must go where exactly these keys lead.
fn check_route(call: &[String], keys: &[String]) {
    let is_key = |word: &String| keys.contains(word);
    let together: Vec<String> = call
        .iter()
        .map(|word| {
            if is_key(word) {
                format!("{{tag}}{word}")
            } else {
                word.clone()
            }
        })
        .collect();
    assert_eq!(built(&together).route(), Route::of("tag"), "{together:?}");
    if keys.len() < 2 {
        return;
    }
    for apart in (0..call.len()).filter(|at| is_key(&call[*at])) {
        let mut call = together.clone();
        call[apart] = "elsewhere".to_owned();
        assert_eq!(built(&call).route(), Route::CrossSlot, "{call:?}");
    }
}

#[tokio::test]
async fn all_commands_are_known_as_the_server_knows_them() {
    let server = Server::start(&Options::default()).unwrap();
    let client = Client::connect(&format!("redis://{}", server.address()))
        .await
        .unwrap();
    let commands: Vec<Value> = client.send(cmd("COMMAND")).await.unwrap();
    let mut all = Vec::new();
    describe(&commands, &mut all);
    assert!(all.len() > 300, "subcommands too, {}", all.len());
    for command in &all {
        let class = if command.has("readonly") {
            Class::Read
        } else {
            Class::Write
        };
        for call in calls(command) {
            assert_eq!(built(&call).class(), class, "{call:?}");
            if command.first_key == 0 && !command.has("movablekeys") {
                assert_eq!(built(&call).route(), command.route(), "{call:?}");
                continue;
            }
            let getkeys = cmd("COMMAND").arg("GETKEYS").args(&call);
            match client.send::<_, Vec<String>>(getkeys).await {
                Ok(keys) => check_route(&call, &keys),
                Err(Error::Server(error)) if error.text.contains("no key arguments") => {
                    check_route(&call, &command.channels(&call));
                }
                // There are too few words for one.
                Err(Error::Server(_)) if call.len() == 1 => {
                    assert_eq!(built(&call).route(), Route::Any, "{call:?}");
                }
                Err(error) => panic!("{call:?}: {error}"),
            }
        }
        check_refused(command);
        if command.first_key != 0 {
            // All or nothing cannot be done in parts.
            let splits =
                command.has_tip("request_policy:multi_shard") && command.name != ["msetnx"];
            let words = ["a", "b", "c", "d"].map(str::to_owned);
            let apart = built(&[&command.name[..], &words].concat());
            assert_eq!(apart.fan_out().is_some(), splits, "{apart:?}");
        }
    }
}

/// What blocks, or changes the connection, does not go over one that is shared.
fn check_refused(command: &Description) {
    let refused = built(&command.name).refused().is_some();
    let name = command.name.join(" ");
    let by_option = ["xread", "xreadgroup"].contains(&name.as_str());
    let subscribes = name.ends_with("subscribe");
    if (command.has("blocking") && !by_option) || subscribes {
        assert!(refused, "{name}");
    }
    if command.has("readonly") || (command.has("write") && !command.has("blocking")) {
        assert!(!refused, "{name}");
    }
}
