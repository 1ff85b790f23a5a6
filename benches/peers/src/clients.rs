//! The clients, each with the settings its documentation or its own benches recommend for throughput.

mod embar;
mod fred;
mod redis_rs;
mod rustis;

pub use self::embar::Embar;
pub use self::fred::Fred;
pub use self::redis_rs::RedisRs;
pub use self::rustis::Rustis;

use std::future::Future;

/// What all of them can do. A clone shares the connections.
pub trait Client: Clone + Send + 'static {
    /// A value as this client hands it over with the least copying.
    type Value: AsRef<[u8]> + Send;

    /// Connects to a cluster, of which some nodes are `host:port`.
    fn connect(seeds: &[String]) -> impl Future<Output = anyhow::Result<Self>> + Send;

    /// SET
    fn set(&mut self, key: &[u8], value: &[u8]) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// GET
    fn get(
        &mut self,
        key: &[u8],
    ) -> impl Future<Output = anyhow::Result<Option<Self::Value>>> + Send;
}
