//! Real Redis servers for tests and benches: single ones and whole clusters, started and stopped
//! by the test itself.
//!
//! Each [`Server`] is a `redis-server` process with a folder of its own, without persistence, that
//! listens on 127.0.0.1. It is gone when its value is dropped, and also when the process that
//! started it dies in any other way: `setpriv --pdeathsig KILL` of util-linux sees to that.
//!
//! ```no_run
//! use embar_redis_servers::{Cluster, ClusterOptions, Options, Server};
//!
//! let server = Server::start(&Options::default())?;
//! server.command(&["SET", "key", "value"])?;
//!
//! let cluster = Cluster::start(&ClusterOptions { masters: 5, ..ClusterOptions::default() })?;
//! println!("{:?}", cluster.seeds());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! They can also run on hosts of a network of their own, which loses packets when it is told to: [`Net`].
//!
//! Nothing here is skipped when a program is missing: the error says which package brings it.
#![forbid(unsafe_code)]

mod cluster;
mod control;
mod error;
mod net;
mod ports;
mod process;
mod server;

pub use cluster::{Cluster, ClusterOptions, MoveState};
pub use error::{CommandError, StartError, WaitError};
pub use net::{Host, Lost, Net, NetError};
pub use server::{Options, Server, TlsFiles};
