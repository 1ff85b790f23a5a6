//! redis-rs: one task routes all commands of a `ClusterConnection` to multiplexed connections, one per node.
//!
//! Settings: TCP_NODELAY on (it is off by default). Cluster connections have no timeout for commands by default, so no
//! timer runs for them.

use super::Client;
use redis::AsyncCommands;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::TcpSettings;

/// See <https://docs.rs/redis>.
#[derive(Clone)]
pub struct RedisRs(ClusterConnection);

impl Client for RedisRs {
    type Value = Vec<u8>;

    async fn connect(seeds: &[String]) -> anyhow::Result<Self> {
        let urls = seeds.iter().map(|seed| format!("redis://{seed}/"));
        let client = ClusterClient::builder(urls)
            .tcp_settings(TcpSettings::default().set_nodelay(true))
            .build()?;
        Ok(Self(client.get_async_connection().await?))
    }

    async fn set(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        Ok(self.0.set(key, value).await?)
    }

    async fn get(&mut self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(self.0.get(key).await?)
    }
}
