//! Clients that connect with their first command, from a configuration or the environment; and what they say of themselves.

use std::process::Command;
use std::time::Duration;

use embar_redis::commands::keys::KeyCommands;
use embar_redis::commands::server::ServerCommands;
use embar_redis::commands::strings::StringCommands;
use embar_redis::config::{Endpoint, ProtocolVersion, Secret};
use embar_redis::resp::ErrorKind;
use embar_redis::{Client, Config, Error, Request};
use embar_redis_servers::{Cluster, ClusterOptions, Options, Server};

use crate::support::{LONG, cluster, endpoint, run, server, to, to_cluster};

fn lazy(mut config: Config) -> Client {
    config.timeout = LONG;
    Client::with_lazy(config).expect("it makes sense")
}

#[test]
fn the_first_command_connects() {
    let mut server = server();
    run(async {
        server.kill();
        let client = lazy(to(&server));
        server.restart().expect("it starts again");
        assert_eq!(
            client.metrics().total().connects,
            0,
            "nobody wanted anything"
        );
        client.set("key", 1).await.expect("it connects");
        let url = format!("redis://{}", endpoint(server.address()));
        let client = Client::connect_lazy(&url).expect("it is a URL");
        assert_eq!(client.get::<u32, _>("key").await, Ok(1));
        let error = Client::connect_lazy("redis://").expect_err("it names no host");
        assert!(matches!(error, Error::Config(_)), "{error:?}");
    });
}

#[test]
fn the_first_command_reads_the_topology() {
    let cluster = cluster(3, 0);
    run(async {
        let client = || lazy(to_cluster(&cluster));
        client().set("key", 1).await.expect("it connects");
        client().ping().await.expect("it goes to all nodes");
        assert_eq!(client().dbsize().await, Ok(1));
        let found = client().scan(None).collect().await;
        assert_eq!(found, Ok(vec![b"key".to_vec()]));
        let keys: Vec<String> = client().keys("*").await.expect("it goes to all nodes");
        assert_eq!(keys, ["key"]);
        assert_eq!(client().get_all(["key"]).await, Ok(vec![1]));
        let client = client();
        let mut transaction = client.transaction();
        let value = transaction.get::<u32, _>("key");
        let results = transaction.run().await.expect("it connects");
        assert_eq!(results.take(value), Ok(1));
    });
}

/// The server's word; it comes long before the command's time is over.
async fn refusal<C, R>(request: Request<'_, C, R>) -> ErrorKind
where
    C: embar_redis::command::Command + Unpin,
    R: embar_redis::resp::FromReply + std::fmt::Debug,
{
    let request = request.timeout(2 * LONG);
    match tokio::time::timeout(LONG, request)
        .await
        .expect("it does not wait")
    {
        Err(Error::Server(error)) => error.kind,
        other => panic!("the server's word is wanted, not {other:?}"),
    }
}

#[test]
fn a_refusal_that_lasts_ends_the_first_command_at_once() {
    let password = || Some("secret".to_owned());
    let server = Server::start(&Options {
        password: password(),
        ..Options::default()
    });
    let server = server.expect("redis-server runs");
    let cluster = Cluster::start(&ClusterOptions {
        password: password(),
        ..ClusterOptions::default()
    });
    let cluster = cluster.expect("redis-server runs");
    run(async {
        for config in [to(&server), to_cluster(&cluster)] {
            let mut config = config;
            config.password = Some(Secret::new("guess"));
            let client = lazy(config.clone());
            assert_eq!(refusal(client.set("key", 1)).await, ErrorKind::WrongPass);
            assert_eq!(refusal(client.set("key", 1)).await, ErrorKind::WrongPass);
            let client = lazy(config.clone());
            let mut pipeline = client.pipeline().timeout(2 * LONG);
            let value = pipeline.get::<u32, _>("key");
            let results = tokio::time::timeout(LONG, pipeline.run()).await;
            let results = results.expect("it does not wait");
            let error = results.take(value).expect_err("it is refused");
            assert!(error.to_string().contains("WRONGPASS"), "{error}");
            assert_eq!(
                refusal(lazy(config.clone()).dbsize()).await,
                ErrorKind::WrongPass
            );
            config.password = Some(Secret::new("secret"));
            lazy(config).set("key", 1).await.expect("it is right");
        }
    });
}

#[test]
fn without_a_server_the_first_command_says_why() {
    let mut server = server();
    server.kill();
    run(async {
        for config in [to(&server), Config::cluster([endpoint(server.address())])] {
            let client = lazy(config);
            let set = client
                .set("key", 1)
                .timeout(Duration::from_millis(300))
                .await;
            let Err(Error::Unavailable { why }) = set else {
                panic!("there is no server: {set:?}");
            };
            assert!(why.contains("connection refused"), "{why}");
        }
    });
}

#[test]
fn the_environment_names_the_server() {
    let server = server();
    let child = |url: Option<String>| {
        let mut child = Command::new(std::env::current_exe().expect("it runs"));
        child.args([
            "lazy::child_of_the_environment",
            "--exact",
            "--ignored",
            "--nocapture",
        ]);
        child
            .env_remove("REDIS_URL")
            .envs(url.map(|url| ("REDIS_URL", url)));
        let output = child.output().expect("it runs");
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (done, output) = child(Some(format!("redis://{}", endpoint(server.address()))));
    assert!(done, "{output}");
    let value = server.command(&["GET", "child"]);
    assert_eq!(value.expect("it answers"), "was here");
    let (done, output) = child(None);
    assert!(!done && output.contains("REDIS_URL is not set"), "{output}");
}

#[test]
#[ignore = "the test of the environment runs it in a process of its own"]
fn child_of_the_environment() {
    let config = Config::from_env().unwrap_or_else(|error| panic!("{error}"));
    let client = Client::with_blocking(config).expect("it connects");
    client.set("child", "was here").wait().expect("it is set");
}

#[test]
fn a_server_is_told_the_library_if_it_wants_to_know() {
    for protocol in [ProtocolVersion::Resp2, ProtocolVersion::Resp3] {
        let server = server();
        run(async {
            let mut config = to(&server);
            config.protocol = protocol;
            let info = server.command(&["INFO"]).expect("it answers");
            let version = info
                .lines()
                .find_map(|line| line.strip_prefix("redis_version:"));
            let mut numbers = version
                .expect("it has one")
                .split('.')
                .map(str::parse::<u32>);
            let mut number = || numbers.next().expect("a number").expect("a number");
            let knows = (number(), number()) >= (7, 2);
            let refusals = || {
                let stats = server.command(&["INFO", "errorstats"]);
                stats.expect("it answers").contains("errorstat_ERR:")
            };
            let mut silent = config.clone();
            (silent.lib_name, silent.lib_version) = (None, None);
            let client = Client::with(silent).await.expect("it connects");
            client.ping().await.expect("it answers");
            assert!(!refusals());
            let client = Client::with(config.clone()).await.expect("it connects");
            let list = client.client_list().await.expect("it answers");
            let told = format!("lib-name=embar-redis lib-ver={}", env!("CARGO_PKG_VERSION"));
            assert_eq!(list.contains(&told), knows, "{list}");
            // An older server has refused, and serves all the same.
            assert_eq!(refusals(), !knows);
            let user = [
                "ACL", "SETUSER", "app", "on", ">word", "~*", "+@all", "-client",
            ];
            server.command(&user).expect("it answers");
            config.username = Some("app".to_owned());
            config.password = Some(Secret::new("word"));
            let client = Client::with(config).await.expect("it connects");
            client
                .set("key", 1)
                .await
                .expect("the user is forbidden only that");
        });
    }
}

#[test]
fn a_socket_takes_the_spellings_of_others() {
    let options = Options {
        password: Some("a+b".to_owned()),
        ..Options::default()
    };
    let server = Server::start(&options).expect("redis-server runs");
    let path = server.unix_socket();
    let path = path.to_str().expect("a text");
    run(async {
        for url in [
            format!("unix:{path}?pass=a%2Bb&db=2"),
            format!("unix://{path}?user=default&pass=a%2Bb&db=2&protocol=3"),
            format!("redis+unix://{path}?pass=a%2Bb&db=2&protocol=2"),
            format!("valkey+unix://:a+b@{path}?database=2"),
            format!("valkey://:a%2Bb@{}/2", endpoint(server.address())),
            format!(
                "Redis://:a%2Bb@{}/2/?protocol=resp3",
                endpoint(server.address())
            ),
        ] {
            let config = Config::from_url(&url).unwrap_or_else(|error| panic!("{url}: {error}"));
            if url.contains("unix") {
                assert!(matches!(config.seeds[..], [Endpoint::Unix(_)]), "{url}");
            }
            let client = Client::with(config)
                .await
                .unwrap_or_else(|error| panic!("{url}: {error}"));
            client.incr("connects").await.expect("it answers");
        }
        let client = Client::connect_lazy(&format!("unix:{path}?pass=a%2Bb&db=2"));
        let client = client.expect("it makes sense");
        assert_eq!(client.get::<u32, _>("connects").await, Ok(6));
    });
}
