//! Ours: callers encode into the send ring of the connection to the node, and one task for all connections writes,
//! reads and wakes.
//!
//! Settings: its defaults. Values are taken as `Vec<u8>`, which are copied out of the read buffer.

use super::Client;
use anyhow::Context;
use embar_redis::pipeline::Pipeline;
use embar_redis::prelude::*;

/// See `crates/redis`.
#[derive(Clone)]
pub struct Embar(embar_redis::Client);

impl Embar {
    /// An empty pipeline, for keys of any nodes.
    pub fn pipeline(&self) -> Pipeline<'_> {
        self.0.pipeline()
    }
}

impl Client for Embar {
    type Value = Vec<u8>;

    async fn connect(seeds: &[String]) -> anyhow::Result<Self> {
        let url = format!("redis-cluster://{}", seeds.join(","));
        let client = embar_redis::Client::connect(&url).await;
        Ok(Self(
            client.with_context(|| format!("connecting to {url}"))?,
        ))
    }

    async fn set(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        Ok(self.0.set(key, value).await?)
    }

    async fn get(&mut self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(self.0.get(key).await?)
    }
}
