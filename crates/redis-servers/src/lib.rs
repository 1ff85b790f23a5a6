//! Real Redis servers for tests and benches: a test starts and stops single servers and whole clusters.
//!
//! Each [`Server`] is a `redis-server` process without persistence that listens on 127.0.0.1 and has a
//! folder of its own. Dropping the value ends the process. `setpriv --pdeathsig KILL` of util-linux ends
//! it as well when the process that started it dies in any other way.
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
//! [`Sentinels`] are a primary with replicas and the sentinels that watch over them.
//!
//! Servers can also run on hosts of a [`Net`], a network that loses packets when a test says so.
//!
//! The crate skips nothing when a program is missing: the error names the package that contains it. It
//! knows nothing of the Redis client that it helps to test.
#![forbid(unsafe_code)]

mod cluster;
mod control;
mod error;
mod net;
mod ports;
mod process;
mod sentinels;
mod server;

pub use cluster::{Cluster, ClusterOptions, MoveState};
pub use error::{CommandError, StartError, WaitError};
pub use net::{Host, Lost, Net, NetError};
pub use sentinels::{MASTER_NAME, SentinelOptions, Sentinels};
pub use server::{Options, Server, TlsFiles};
