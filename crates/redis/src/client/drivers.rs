//! Who serves a client's connections: a thread, or tasks of a runtime.
//!
//! Tasks are several if the runtime has several threads, so that writing to one node and reading
//! from another happen at the same time. All connections to a node are served by the same one.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;

use embar_mux::{Mux, MuxSettings};

use super::speak::Speaker;
use crate::config::Endpoint;

/// More tasks than this would each have little to do at once.
#[cfg(feature = "tokio")]
const MOST_TASKS: usize = 4;

/// See the module. Never empty.
pub(crate) struct Drivers(Vec<Mux<Speaker>>);

impl Drivers {
    /// A thread.
    pub fn on_thread(settings: &MuxSettings) -> io::Result<Self> {
        Ok(Self(vec![Mux::on_thread(settings)?]))
    }

    /// Tasks of the runtime that this is called on, or else a thread.
    pub fn here(settings: &MuxSettings) -> io::Result<Self> {
        #[cfg(feature = "tokio")]
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let count = runtime.metrics().num_workers().clamp(1, MOST_TASKS);
            let muxes = (0..count).map(|_| Mux::on_tokio(settings, &runtime));
            return muxes.collect::<Result<_, _>>().map(Self);
        }
        Self::on_thread(settings)
    }

    /// The one for connections to this server.
    pub fn of(&self, server: &Endpoint) -> &Mux<Speaker> {
        let [first, _, ..] = &*self.0 else {
            return &self.0[0];
        };
        // Nodes on one host mostly have ports in a row.
        let (host, port) = match server {
            Endpoint::Tcp { host, port } => (host.as_bytes(), u64::from(*port)),
            Endpoint::Unix(_) => return first,
        };
        let mut hasher = DefaultHasher::new();
        host.hash(&mut hasher);
        let number = hasher.finish().wrapping_add(port) % self.0.len() as u64;
        &self.0[number as usize]
    }

    /// See [`Mux::close`].
    pub fn close(&self) {
        self.0.iter().for_each(Mux::close);
    }
}
