//! fred: one router task for each client, and a reader task for each connection.
//!
//! Settings: TCP_NODELAY on, no timeout for commands (its default), RESP2 (its default). Values are taken as `Bytes`,
//! which share the read buffer.

use super::Client;
use ::fred::bytes::Bytes;
use ::fred::prelude::{
    Builder, Client as Inner, ClientLike, Config, KeysInterface, Server, ServerConfig, TcpConfig,
};
use anyhow::Context;

/// See <https://docs.rs/fred>.
#[derive(Clone)]
pub struct Fred(Inner);

impl Client for Fred {
    type Value = Bytes;

    async fn connect(seeds: &[String]) -> anyhow::Result<Self> {
        let server = |seed: &String| {
            let (host, port) = seed.rsplit_once(':').context("a seed is host:port")?;
            anyhow::Ok(Server::new(host, port.parse()?))
        };
        let hosts = seeds.iter().map(server).collect::<Result<_, _>>()?;
        let config = Config {
            server: ServerConfig::Clustered {
                hosts,
                policy: Default::default(),
            },
            ..Config::default()
        };
        let client = Builder::from_config(config)
            .with_connection_config(|connection| {
                connection.tcp = TcpConfig {
                    nodelay: Some(true),
                    ..TcpConfig::default()
                };
            })
            .build()?;
        client.init().await?;
        Ok(Self(client))
    }

    async fn set(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        let value = Bytes::copy_from_slice(value);
        Ok(self.0.set(key, value, None, None, false).await?)
    }

    async fn get(&mut self, key: &[u8]) -> anyhow::Result<Option<Bytes>> {
        Ok(self.0.get(key).await?)
    }
}
