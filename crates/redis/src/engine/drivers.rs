//! The drivers that serve a client's connections: a thread, or tasks of a runtime.
//!
//! On a runtime of several threads there are several tasks, so that one sends to a node while another
//! receives from a second one. One driver serves all connections to a node.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;

use embar_mux::{Mux, MuxSettings};

use super::protocol::RedisProtocol;
use crate::endpoint::Endpoint;

/// Beyond so many tasks, each would have little to do at once.
#[cfg(feature = "tokio")]
const MAX_TASKS: usize = 4;

/// A client's drivers: at least one.
pub(crate) struct Drivers(Vec<Mux<RedisProtocol>>);

impl Drivers {
    /// One driver, on a thread of its own.
    pub fn on_thread(settings: &MuxSettings) -> io::Result<Self> {
        Ok(Self(vec![Mux::on_thread(settings)?]))
    }

    /// Tasks of the runtime of the calling thread, or else a thread.
    pub fn on_current_runtime(settings: &MuxSettings) -> io::Result<Self> {
        #[cfg(feature = "tokio")]
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let count = runtime.metrics().num_workers().clamp(1, MAX_TASKS);
            let muxes = (0..count).map(|_| Mux::on_tokio(settings, &runtime));
            return muxes.collect::<Result<_, _>>().map(Self);
        }
        Self::on_thread(settings)
    }

    /// The driver for connections to this server.
    pub fn of(&self, server: &Endpoint) -> &Mux<RedisProtocol> {
        let [first, _, ..] = &*self.0 else {
            return &self.0[0];
        };
        // Nodes on one host mostly have consecutive ports.
        let (host, port) = match server {
            Endpoint::Tcp { host, port } => (host.as_bytes(), u64::from(*port)),
            Endpoint::Unix(_) => return first,
        };
        let mut hasher = DefaultHasher::new();
        host.hash(&mut hasher);
        let number = hasher.finish().wrapping_add(port) % self.0.len() as u64;
        &self.0[number as usize]
    }

    /// Closes all connections, as [`Mux::close`] does.
    pub fn close(&self) {
        self.0.iter().for_each(Mux::close);
    }
}
