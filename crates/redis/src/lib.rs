//! A Redis client for one server or a cluster that lets many callers share few connections.
//!
//! ```no_run
//! use embar_redis::{Client, commands::prelude::*};
//! # async fn example() -> Result<(), embar_redis::Error> {
//! let client = Client::connect("redis-cluster://127.0.0.1:7000").await?; // or redis://127.0.0.1
//! client.set("greeting", "hello").await?;
//! let greeting: String = client.get("greeting").await?;
//! # Ok(())
//! # }
//! ```
//!
//! | you want | see |
//! | --- | --- |
//! | typed commands | [`commands`] |
//! | any other command | [`cmd()`] |
//! | keys of all nodes | [`Client::scan`], [`Client::get_all`], [`Client::set_all`], [`Client::del_all`] |
//! | several at once | [`Client::pipeline`], [`Client::transaction`] |
//! | commands that block, `WATCH` | [`Client::dedicated`] |
//! | messages | [`Client::subscriber`] |
//! | what it does, as numbers | [`Client::metrics`], and for Prometheus [`client::metrics::Exporter`] |
//! | no executor | [`Client::with_blocking`], [`Request::wait`] |
//! | encrypted connections | [`tls`] |
//! | everything that can be set | [`Config`], and as a URL [`Config::from_url`] |
//!
//! # What is sent again, and what is not
//!
//! | what happened | reads | everything else |
//! | --- | --- | --- |
//! | it was never written to a socket in full | sent again | sent again |
//! | `MOVED`, `ASK`, `TRYAGAIN`, `CLUSTERDOWN`, `LOADING`, `READONLY`, `MASTERDOWN` | sent again | sent again: the server did not execute it |
//! | the connection broke after it was written | sent again | [`Error::UnknownOutcome`], unless [`Request::repeatable`] or `retry_writes` |
//! | no reply in time | [`Error::TimedOut`] | [`Error::TimedOut`] |
//!
//! A command ends within its timeout, however often it is sent: again at growing and random distances.
//! [`Error::may_have_executed`] tells apart what was certainly not executed. A write is not
//! repeated by itself even if it could be, because a `SET` that is done twice can overwrite what
//! somebody else has written in between.
//!
//! A node that fails holds up only commands for its own slots. Those without a key go to nodes that
//! are connected, in turn.
#![forbid(unsafe_code)]

mod across;
pub mod client;
pub mod cmd;
pub mod command;
pub mod commands;
pub mod config;
pub mod dedicated;
pub mod error;
pub mod pipeline;
pub mod pubsub;
pub mod resp;
pub mod slot;
pub mod tls;
pub mod topology;
pub mod url;

pub use across::Scan;
pub use client::{Client, Request};
pub use cmd::{Cmd, cmd};
pub use config::Config;
pub use error::Error;
#[cfg(feature = "tls")]
pub use rustls;
