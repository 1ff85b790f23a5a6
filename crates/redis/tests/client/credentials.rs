//! Credentials that change while a client runs.

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use embar_redis::command::Route;
use embar_redis::commands::strings::StringCommands;
use embar_redis::config::ProtocolVersion;
use embar_redis::credentials::{Credentials, CredentialsProvider};
use embar_redis::pubsub::{Event, Kind};
use embar_redis::{Client, Config, Error, cmd};
use embar_redis_servers::Server;

use crate::support::{LONG, cluster, run, server, to, to_cluster, until};

/// What a provider gives next, and how often it was asked.
#[derive(Clone)]
struct Vault {
    next: Arc<Mutex<Result<Credentials, &'static str>>>,
    asked: Arc<AtomicU32>,
}

impl Vault {
    fn new(user: &str) -> Self {
        Self {
            next: Arc::new(Mutex::new(Ok(of(user)))),
            asked: Arc::default(),
        }
    }

    fn put(&self, next: Result<Credentials, &'static str>) {
        *self.next.lock().expect("no panic") = next;
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }

    fn provider(&self) -> CredentialsProvider {
        let vault = self.clone();
        CredentialsProvider::new(move || {
            vault.asked.fetch_add(1, Ordering::Relaxed);
            let next = vault.next.lock().expect("no panic").clone();
            async move {
                // As one that asks a service: it needs the runtime's clock.
                tokio::time::sleep(Duration::from_millis(1)).await;
                next
            }
        })
    }
}

/// Users have their names as passwords.
fn of(user: &str) -> Credentials {
    Credentials::new(Some(user), user)
}

fn add_users(server: &Server) {
    for user in ["one", "two"] {
        let rules = [
            "ACL",
            "SETUSER",
            user,
            "on",
            &format!(">{user}"),
            "~*",
            "&*",
            "+@all",
        ];
        server.command(&rules).expect("it answers");
    }
}

fn with(mut config: Config, vault: &Vault) -> Config {
    config.credentials = Some(vault.provider());
    config.client_name = Some("app".to_owned());
    config.timeout = LONG;
    config
}

/// The users of the client's connections to a server.
fn users(server: &Server) -> Vec<String> {
    let list = server.command(&["CLIENT", "LIST"]).expect("it answers");
    let lines = list.lines().filter(|line| line.contains(" name=app "));
    let user = |line: &str| {
        let user = line.split(' ').find_map(|word| word.strip_prefix("user="));
        user.expect("a user").to_owned()
    };
    lines.map(user).collect()
}

async fn until_all_are(server: &Server, user: &str, count: usize) {
    until("all connections have the user", async || {
        users(server) == vec![user; count]
    })
    .await;
}

#[test]
fn new_credentials_go_to_all_living_connections() {
    for protocol in [ProtocolVersion::Resp3, ProtocolVersion::Resp2] {
        let server = server();
        add_users(&server);
        run(async {
            let vault = Vault::new("one");
            let mut config = with(to(&server), &vault);
            config.protocol = protocol;
            config.mux_per_node = 2;
            let client = Client::with(config).await.expect("it connects");
            client.set("a", 1).await.expect("it is set");
            client.set("b", 1).await.expect("both connections are used");
            let dedicated = client.dedicated(Route::of("list")).await.expect("it opens");
            let mut subscriber = client.subscriber(10);
            let subscribed = subscriber.subscribe(Kind::Channel, "news").await;
            subscribed.expect("it is subscribed");
            until_all_are(&server, "one", 4).await;
            vault.put(Ok(of("two")));
            client.renew_credentials();
            until_all_are(&server, "two", 4).await;
            let subscribers = || server.command(&["PUBSUB", "NUMSUB", "news"]);
            until("it is subscribed", async || {
                subscribers().expect("it answers").contains('1')
            })
            .await;
            let heard = server.command(&["PUBLISH", "news", "hello"]);
            assert_eq!(heard.expect("it answers"), "1");
            let mut event = subscriber.next().await.expect("there is one");
            if protocol == ProtocolVersion::Resp2 {
                // Servers take no `AUTH` there.
                assert_eq!(event, Event::Interrupted);
                event = subscriber.next().await.expect("there is one");
            }
            assert!(matches!(event, Event::Message(_)), "{event:?}");
            // Further subscriptions are told apart from it.
            let subscribed = subscriber.subscribe(Kind::Channel, "more").await;
            subscribed.expect("it is subscribed");
            let pong: String = dedicated.send(cmd("PING")).await.expect("it answers");
            assert_eq!(pong, "PONG");
        });
    }
}

#[test]
fn a_subscriber_connects_anew_for_credentials_that_it_has_no_room_for() {
    let server = server();
    add_users(&server);
    let token = "x".repeat(5_000);
    let user = ["ACL", "SETUSER", "two", &format!(">{token}")];
    server.command(&user).expect("it answers");
    run(async {
        let vault = Vault::new("one");
        let mut config = with(to(&server), &vault);
        config.ring_bytes = 4096;
        let client = Client::with(config).await.expect("it connects");
        let mut subscriber = client.subscriber(10);
        let subscribed = subscriber.subscribe(Kind::Channel, "news").await;
        subscribed.expect("it is subscribed");
        vault.put(Ok(Credentials::new(Some("two"), token)));
        client.renew_credentials();
        until_all_are(&server, "two", 2).await;
        let event = subscriber.next().await;
        assert_eq!(event, Ok(Event::Interrupted));
    });
}

#[test]
fn new_credentials_go_to_all_nodes_and_callers_notice_nothing() {
    let cluster = cluster(3, 0);
    cluster.nodes().iter().for_each(add_users);
    run(async {
        let vault = Vault::new("one");
        let client = Client::with(with(to_cluster(&cluster), &vault)).await;
        let client = client.expect("it connects");
        let keys: Vec<_> = (0..100).map(|number| format!("key-{number}")).collect();
        let pairs = keys.iter().map(|key| (key, 1));
        client.set_all(pairs).await.expect("they are set");
        let caller = {
            let (client, keys) = (client.clone(), keys.clone());
            tokio::spawn(async move {
                for turn in 0.. {
                    let key = &keys[turn % keys.len()];
                    if client.incr(key).await.expect("it goes on") > 100 {
                        return;
                    }
                }
            })
        };
        for user in ["two", "one", "two"] {
            vault.put(Ok(of(user)));
            client.renew_credentials();
            for node in cluster.nodes() {
                until_all_are(node, user, 1).await;
            }
        }
        caller.await.expect("no command fails");
    });
}

#[test]
fn a_dedicated_connection_is_told_between_what_it_does() {
    let server = server();
    add_users(&server);
    run(async {
        let vault = Vault::new("one");
        let client = Client::with(with(to(&server), &vault)).await;
        let client = client.expect("it connects");
        let dedicated = client.dedicated(Route::of("list")).await.expect("it opens");
        let own = client.dedicated(Route::of("list")).await.expect("it opens");
        let auth = cmd("AUTH").arg("two").arg("two");
        own.send::<_, ()>(auth).await.expect("it is the caller's");
        // It blocks, and then it is in a transaction.
        let popped = dedicated.send::<_, Option<(String, String)>>(cmd("BLPOP").key("list").arg(0));
        let mut popped = Box::pin(popped);
        let blocked = tokio::time::timeout(Duration::from_millis(1), &mut popped).await;
        assert!(blocked.is_err());
        let of_client = async |user: &str| {
            until("the client's own have the user", async || {
                let all = users(&server);
                all.iter().filter(|name| *name == user).count() == 2
            })
            .await;
        };
        vault.put(Ok(of("two")));
        client.renew_credentials();
        // The shared one and that of the caller; the other one is blocked.
        of_client("two").await;
        let push = server.command(&["RPUSH", "list", "element"]);
        push.expect("it answers");
        let (key, element) = popped.await.expect("it is popped").expect("an element");
        assert_eq!((key.as_str(), element.as_str()), ("list", "element"));
        until_all_are(&server, "two", 3).await;
        dedicated
            .send::<_, ()>(cmd("MULTI"))
            .await
            .expect("it begins");
        vault.put(Ok(of("one")));
        client.renew_credentials();
        until("the shared one is told", async || {
            users(&server).contains(&"one".to_owned())
        })
        .await;
        let queued: String = dedicated
            .send(cmd("SET").key("a").arg(1))
            .await
            .expect("it is queued");
        assert_eq!(queued, "QUEUED");
        let results: Vec<String> = dedicated.send(cmd("EXEC")).await.expect("it is executed");
        assert_eq!(results, ["OK"]);
        let user: String = dedicated
            .send(cmd("ACL").arg("WHOAMI"))
            .await
            .expect("it answers");
        assert_eq!(user, "one");
        let user: String = own
            .send(cmd("ACL").arg("WHOAMI"))
            .await
            .expect("it answers");
        assert_eq!(user, "two", "the caller said so");
    });
}

#[test]
fn credentials_that_are_refused_leave_living_connections_as_they_are() {
    let server = server();
    add_users(&server);
    run(async {
        let vault = Vault::new("one");
        let client = Client::with(with(to(&server), &vault)).await;
        let client = client.expect("it connects");
        let subscriber = client.subscriber(10);
        let subscribed = subscriber.subscribe(Kind::Channel, "news").await;
        subscribed.expect("it is subscribed");
        vault.put(Ok(Credentials::new(Some("two"), "wrong")));
        client.renew_credentials();
        // Once at the beginning, once now, and again as they were refused.
        until("the provider is asked again", async || vault.asked() > 4).await;
        client.set("key", 1).await.expect("it goes on");
        assert_eq!(users(&server), ["one"; 2]);
        // As soon as the server knows them, they are taken.
        let user = ["ACL", "SETUSER", "two", ">wrong"];
        server.command(&user).expect("it answers");
        until_all_are(&server, "two", 2).await;
    });
}

#[test]
fn a_password_that_has_changed_is_asked_for() {
    let server = server();
    add_users(&server);
    run(async {
        let vault = Vault::new("one");
        let client = Client::with(with(to(&server), &vault)).await;
        let client = client.expect("it connects");
        let change = ["ACL", "SETUSER", "one", "resetpass", ">new"];
        server.command(&change).expect("it answers");
        vault.put(Ok(Credentials::new(Some("one"), "new")));
        assert_eq!(vault.asked(), 1);
        let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
        server.command(&kill).expect("it answers");
        client
            .set("key", 1)
            .repeatable()
            .await
            .expect("it connects with the new one");
        assert!(vault.asked() > 1);
    });
}

#[test]
fn credentials_are_renewed_in_time_and_what_the_provider_cannot_do_is_bounded() {
    let server = server();
    add_users(&server);
    run(async {
        let vault = Vault::new("one");
        vault.put(Ok(of("one").renew_after(Duration::ZERO)));
        let client = Client::with(with(to(&server), &vault)).await;
        let client = client.expect("it connects");
        until("it is asked in time", async || vault.asked() > 2).await;
        vault.put(Err("the vault is locked"));
        let asked = vault.asked();
        until("it is asked although it fails", async || {
            vault.asked() > asked + 1
        })
        .await;
        // What it gave is good for new connections.
        let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
        server.command(&kill).expect("it answers");
        client.set("key", 1).repeatable().await.expect("it goes on");
        assert_eq!(users(&server), ["one"]);
    });
}

async fn panics() -> Result<Credentials, String> {
    panic!("on purpose")
}

#[test]
fn without_credentials_connecting_fails_with_the_providers_word() {
    let server = server();
    run(async {
        let connect = async |provider: CredentialsProvider| {
            let mut config = to(&server);
            config.credentials = Some(provider);
            config.timeout = Duration::from_millis(500);
            config.connect_timeout = Duration::from_millis(100);
            let begin = Instant::now();
            let error = Client::with(config).await.expect_err("there are none");
            assert!(begin.elapsed() < LONG);
            match error {
                Error::Unavailable { why } => why,
                other => panic!("{other:?}"),
            }
        };
        let fails = || async { Err::<Credentials, _>("the vault is locked") };
        let why = connect(CredentialsProvider::new(fails)).await;
        assert!(why.contains("the vault is locked"), "{why}");
        let hangs = || pending::<Result<Credentials, String>>();
        let why = connect(CredentialsProvider::new(hangs)).await;
        assert!(why.contains("connect_timeout"), "{why}");
        let why = connect(CredentialsProvider::new(panics)).await;
        assert!(why.contains("panicked"), "{why}");
    });
}
