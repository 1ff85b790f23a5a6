//! Writes every key once, so that reads find something.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use embar_console::context::Context;
use embar_redis::Client;
use embar_redis::commands::strings::StringCommands;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::work::{Mix, OperationStream, Shape};

/// Tasks that write.
const LOADERS: u64 = 128;

/// How often progress is shown.
const GLANCE: Duration = Duration::from_millis(50);

/// Writes all keys of `shape`, over what was there.
pub fn load(client: &Client, shape: &Shape, runtime: &Runtime, context: &Context) -> Result<()> {
    let key_bytes = (shape.key_size + shape.value_size) as u64;
    let total = shape.keyspace.saturating_mul(key_bytes);
    let bar = context.bar("loading keys", total);
    let written = Arc::new(AtomicU64::new(0));
    let loaders = LOADERS.min(shape.keyspace);
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for loader in 0..loaders {
            tasks.spawn(write(
                client.clone(),
                *shape,
                loader,
                loaders,
                Arc::clone(&written),
            ));
        }
        loop {
            context.interrupt.check()?;
            bar.set(written.load(Ordering::Relaxed) * key_bytes);
            match timeout(GLANCE, tasks.join_next()).await {
                Err(_not_yet) => {}
                Ok(None) => return Ok(()),
                Ok(Some(ended)) => ended
                    .context("a task that loads keys panicked")?
                    .context("cannot load the keys")?,
            }
        }
    })
}

async fn write(
    client: Client,
    shape: Shape,
    first: u64,
    step: u64,
    written: Arc<AtomicU64>,
) -> Result<(), embar_redis::Error> {
    let mut stream = OperationStream::new(&shape, Mix::WRITES, first);
    let mut number = Some(first);
    while let Some(key) = number.filter(|key| *key < shape.keyspace) {
        stream.take(key);
        client.set(stream.key(), stream.value()).await?;
        written.fetch_add(1, Ordering::Relaxed);
        number = key.checked_add(step);
    }
    Ok(())
}
