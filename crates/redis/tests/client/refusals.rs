//! Servers that refuse to be connected to: at once if that lasts, and later on as long as a command has time.

use std::time::Duration;

use embar_redis::commands::strings::StringCommands;
use embar_redis::config::{ProtocolVersion, Secret};
use embar_redis::resp::ErrorKind;
use embar_redis::{Client, Config, Error};
use embar_redis_servers::{Options, Server};

use crate::support::{LONG, cluster, run, server, to, to_cluster, until};

/// Connects with more time than the test has.
async fn refused(mut config: Config) -> ErrorKind {
    config.timeout = 2 * LONG;
    let connecting = tokio::time::timeout(LONG, Client::with(config));
    match connecting.await.expect("it does not wait") {
        Err(Error::Server(error)) => error.kind,
        other => panic!("the server's word is wanted, not {other:?}"),
    }
}

#[test]
fn a_refusal_that_lasts_ends_connecting_at_once_with_the_servers_word() {
    let options = Options {
        password: Some("secret".to_owned()),
        ..Options::default()
    };
    let server = Server::start(&options).expect("redis-server runs");
    run(async {
        for protocol in [ProtocolVersion::Resp2, ProtocolVersion::Resp3] {
            let with = |password: Option<&str>| {
                let mut config = to(&server);
                config.protocol = protocol;
                config.password = password.map(Secret::new);
                config
            };
            assert_eq!(refused(with(Some("guess"))).await, ErrorKind::WrongPass);
            assert_eq!(refused(with(None)).await, ErrorKind::NoAuth);
            let mut no_such_database = with(Some("secret"));
            no_such_database.database = 1000;
            assert_eq!(refused(no_such_database).await, ErrorKind::Other);
        }
    });
}

#[test]
fn one_node_of_a_cluster_that_refuses_is_not_all_of_them() {
    let cluster = cluster(3, 0);
    let set_user = |node: &Server, password: &str| {
        let password = format!(">{password}");
        let user = [
            "ACL", "SETUSER", "app", "on", "~*", "&*", "+@all", &password,
        ];
        node.command(&user).expect("it answers");
    };
    let with_user = || {
        let mut config = to_cluster(&cluster);
        config.username = Some("app".to_owned());
        config.password = Some(Secret::new("right"));
        config
    };
    run(async {
        // No node knows the user.
        assert_eq!(refused(with_user()).await, ErrorKind::WrongPass);
        // The first seeds refuse, and the last one does not.
        set_user(&cluster.nodes()[2], "right");
        let mut config = with_user();
        config.timeout = LONG;
        let last = config.seeds.len() - 1;
        let key = (0..100)
            .map(|number| format!("key-{number}"))
            .find(|key| {
                let slot = embar_redis::slot::slot(key.as_bytes());
                cluster.owner_of(slot).ok() == Some(last)
            })
            .expect("each node has some of so many keys");
        // It knows by the last one who serves what, and that one serves it.
        let client = Client::with(config).await;
        let client = client.expect("a node of the cluster accepts it");
        client.set(&key, 1).await.expect("it is set");
        for node in cluster.nodes() {
            set_user(node, "right");
        }
        for number in 0..100 {
            let key = format!("key-{number}");
            client.set(&key, 1).await.expect("all accept it now");
        }
    });
}

#[test]
fn a_password_that_changes_later_on_costs_time_and_no_command() {
    let server = server();
    let set_password = |password: &str| {
        let password = format!(">{password}");
        let user = [
            "ACL",
            "SETUSER",
            "app",
            "on",
            "~*",
            "+@all",
            "resetpass",
            &password,
        ];
        server.command(&user).expect("it answers");
    };
    set_password("right");
    run(async {
        let mut config = to(&server);
        config.username = Some("app".to_owned());
        config.password = Some(Secret::new("right"));
        config.timeout = LONG;
        let client = Client::with(config).await.expect("it connects");
        client.set("key", 1).await.expect("it is set");
        set_password("other");
        server
            .command(&["CLIENT", "KILL", "USER", "app"])
            .expect("it answers");
        let short = client
            .get::<u32, _>("key")
            .timeout(Duration::from_millis(50))
            .await;
        let error = short.expect_err("it is refused");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains("WRONGPASS"), "{error}");
        let waiting = {
            let client = client.clone();
            tokio::spawn(async move { client.get::<u32, _>("key").await })
        };
        until("connecting fails", async || {
            client.metrics().total().connects_failed > 3
        })
        .await;
        set_password("right");
        assert_eq!(waiting.await.expect("no panic"), Ok(1));
    });
}
