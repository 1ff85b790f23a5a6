//! rustis: one network task for each client, which writes to and reads from all nodes.
//!
//! Settings: its defaults are for throughput already (TCP_NODELAY, waves of 48 messages, no timeout for commands).

use super::Client;
use ::rustis::client::Client as Inner;
use ::rustis::commands::StringCommands;
use serde_bytes::{ByteBuf, Bytes};

/// See <https://docs.rs/rustis>.
#[derive(Clone)]
pub struct Rustis(Inner);

impl Client for Rustis {
    type Value = ByteBuf;

    async fn connect(seeds: &[String]) -> anyhow::Result<Self> {
        let url = format!("redis+cluster://{}", seeds.join(","));
        Ok(Self(Inner::connect(url).await?))
    }

    async fn set(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        Ok(self.0.set(Bytes::new(key), Bytes::new(value)).await?)
    }

    async fn get(&mut self, key: &[u8]) -> anyhow::Result<Option<ByteBuf>> {
        Ok(self.0.get(Bytes::new(key)).await?)
    }
}
