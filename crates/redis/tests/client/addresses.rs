//! Clusters whose nodes announce addresses that this machine does not reach, as behind a NAT.

use std::time::Duration;

use embar_redis::commands::strings::StringCommands;
use embar_redis::config::{AddressMap, Endpoint};
use embar_redis::slot::slot;
use embar_redis::{Client, Config, Error};
use embar_redis_servers::{Cluster, ClusterOptions, MoveState};

use crate::support::{LONG, endpoint, run, to_cluster};

/// No name server knows it.
const FOREIGN: &str = "redis.invalid";

fn foreign_cluster() -> Cluster {
    let announced = format!("--cluster-announce-hostname {FOREIGN}");
    let preferred = "--cluster-preferred-endpoint-type hostname".to_owned();
    let options = ClusterOptions {
        extra: vec![announced, preferred],
        ..ClusterOptions::default()
    };
    Cluster::start(&options).expect("redis-server runs")
}

async fn works_everywhere(cluster: &Cluster, client: &Client) {
    let keys: Vec<_> = (0..50).map(|number| format!("key-{number}")).collect();
    let pairs = keys.iter().map(|key| (key, 1));
    client.set_all(pairs).await.expect("they are set");
    // Redirects name such addresses, too.
    let slot = slot(b"key-0");
    let from = cluster.owner_of(slot).expect("it is served");
    for (step, to) in [(MoveState::KeysMoved, 1), (MoveState::Done, 2)] {
        let to = (from + to) % 3;
        cluster.move_slot(slot, from, to, step).expect("it moves");
        assert_eq!(client.get::<u32, _>("key-0").await, Ok(1), "{step:?}");
        if step == MoveState::KeysMoved {
            cluster.finish_move(slot, from, to).expect("it ends");
            cluster
                .move_slot(slot, to, from, MoveState::Done)
                .expect("it moves back");
        }
    }
    let nodes = client.nodes();
    assert_eq!(nodes.len(), 3, "{nodes:?}");
    assert!(
        nodes.iter().all(|node| node.address.starts_with(FOREIGN)),
        "{nodes:?}"
    );
}

#[test]
fn nodes_are_reached_where_the_map_says() {
    let cluster = foreign_cluster();
    run(async {
        let mut config = to_cluster(&cluster);
        config.timeout = Duration::from_millis(500);
        let lost = Client::with(config.clone()).await;
        assert!(matches!(lost, Err(Error::Unavailable { .. })), "{lost:?}");
        config.timeout = LONG;
        let to_this_machine = |announced: &Endpoint| match announced {
            Endpoint::Tcp { host, port } if host == FOREIGN => Endpoint::tcp("127.0.0.1", *port),
            other => other.clone(),
        };
        config.address_map = Some(AddressMap::function(to_this_machine));
        let client = Client::with(config).await.expect("it connects");
        works_everywhere(&cluster, &client).await;
    });
}

#[test]
fn a_url_may_have_the_map_as_a_table() {
    let cluster = foreign_cluster();
    run(async {
        let entry =
            |address: std::net::SocketAddr| format!("{FOREIGN}:{}={address}", address.port());
        let table: Vec<_> = cluster.seeds().into_iter().map(entry).collect();
        let seed = endpoint(cluster.seeds()[0]);
        let url = format!(
            "redis-cluster://{seed}?timeout=60s&address_map={}",
            table.join(",")
        );
        let config = Config::from_url(&url).expect("it is one");
        let client = Client::with(config).await.expect("it connects");
        works_everywhere(&cluster, &client).await;
    });
}
