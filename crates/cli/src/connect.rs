//! How commands reach a cluster.

use std::net::SocketAddr;

use anyhow::Result;
use clap::Args;
use embar_client::Admin;

/// Where the cluster is.
#[derive(Args, Clone, Debug)]
pub struct ConnectArgs {
    /// Address of any broker of the cluster; several with commas
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "EMBAR_BOOTSTRAP",
        default_value = "127.0.0.1:9400"
    )]
    pub bootstrap: String,
}

impl ConnectArgs {
    /// A cluster that this process started.
    pub fn to(address: SocketAddr) -> Self {
        Self {
            bootstrap: address.to_string(),
        }
    }

    /// A client for topics, status and profiles.
    pub fn admin(&self) -> Result<Admin> {
        Ok(Admin::connect(&self.bootstrap)?)
    }
}
