#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod address_map;
mod attempt;
pub mod blocking;
mod cache_config;
pub mod caching;
pub mod client;
pub mod cmd;
pub mod command;
pub mod commands;
pub mod config;
pub mod consumer;
pub mod credentials;
pub mod dedicated;
mod endpoint;
mod engine;
pub mod env;
pub mod error;
mod fan_out;
pub mod function;
mod many_slots;
mod merge;
pub mod metrics;
pub mod pipeline;
pub mod prelude;
#[cfg(feature = "prometheus")]
pub mod prometheus;
pub mod pubsub;
mod pubsub_event;
mod request;
pub mod resp;
mod runs;
mod scan;
mod scratch;
pub mod script;
mod secret;
pub mod slot;
pub mod tls;
pub mod topology;
pub mod url;

pub use client::Client;
pub use cmd::{Cmd, cmd};
pub use config::Config;
pub use embar_mux::CloseReason;
pub use endpoint::Endpoint;
pub use engine::NodeInfo;
pub use error::Error;
pub use futures_core::Stream;
pub use request::{IntoBuffer, Request};
#[cfg(feature = "tls")]
pub use rustls;
pub use scan::{ElementScan, Scan};
