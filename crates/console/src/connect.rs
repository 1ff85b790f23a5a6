//! How commands reach a cluster.

use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use embar_client::Admin;

use crate::size::parse_duration;
use crate::waiting::Narrator;

/// How long an answer may take where nothing else is said.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

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

/// Where the cluster is, and how long it may take to answer.
#[derive(Args, Clone, Debug)]
pub struct AskArgs {
    #[command(flatten)]
    /// Where it is.
    pub connect: ConnectArgs,
    /// How long each answer may take
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    pub timeout: Duration,
}

/// Asks a cluster, and says whom it waits for.
pub struct Asker {
    /// Goes first: the client's end waits for its last request.
    _narrator: Narrator,
    admin: Admin,
}

impl Deref for Asker {
    type Target = Admin;

    fn deref(&self) -> &Admin {
        &self.admin
    }
}

impl ConnectArgs {
    /// A cluster that this process started.
    pub fn to(address: SocketAddr) -> Self {
        Self {
            bootstrap: address.to_string(),
        }
    }

    /// A client for topics, status and profiles.
    pub fn admin(&self) -> Result<Asker> {
        self.admin_within(ANSWER_WITHIN)
    }

    /// As [`ConnectArgs::admin`]; each request may take so long.
    pub fn admin_within(&self, limit: Duration) -> Result<Asker> {
        let admin = Admin::connect(&self.bootstrap)?.timeout(limit);
        Ok(Asker {
            _narrator: Narrator::start(&admin.lookout(), None),
            admin,
        })
    }
}

impl AskArgs {
    /// A client for topics, status and profiles.
    pub fn admin(&self) -> Result<Asker> {
        self.connect.admin_within(self.timeout)
    }
}
