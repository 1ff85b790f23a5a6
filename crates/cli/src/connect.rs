//! Options that say where a cluster is.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use embar_client::{Transport, serve_profiles};
use embar_console::connect::{Connector, ReportingAdmin};
use embar_console::size::parse_duration;

use crate::context::Context;

/// Where `embar up` listens.
pub const DEFAULT_BOOTSTRAP: &str = "127.0.0.1:9400";

/// Where the cluster is.
#[derive(Args, Clone, Debug)]
pub struct ConnectArgs {
    /// Address of any broker of the cluster, or unix: and the path of its socket file; several with commas
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "EMBAR_BOOTSTRAP",
        default_value = DEFAULT_BOOTSTRAP
    )]
    pub bootstrap: String,
    /// How to connect to brokers: auto (shared memory or Unix sockets to those on this machine, else TCP), tcp, unix or
    /// shm (brokers without are left alone)
    #[arg(long, value_name = "HOW", default_value_t = Transport::Auto)]
    pub transport: Transport,
}

/// Where the cluster is, and how long it may take to answer.
#[derive(Args, Clone, Debug)]
pub struct AskArgs {
    /// Where it is.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// How long each answer may take
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    pub timeout: Duration,
}

/// Lets `embar diagnose --attach` and `embar top` see where the time of this process's clients goes.
pub fn tell_profiles(context: &Context) {
    if let Err(error) = serve_profiles() {
        context.note(format_args!(
            "other commands will not see the stages of this one: {error}"
        ));
    }
}

impl ConnectArgs {
    /// The way to the cluster.
    pub fn connector(&self, context: &Context) -> Connector {
        Connector::new(&self.bootstrap, context.work.progress.clone()).by(self.transport)
    }
}

impl AskArgs {
    /// A client for topics, status and profiles.
    pub fn admin(&self, context: &Context) -> Result<ReportingAdmin> {
        let connector = self.connect.connector(context);
        Ok(connector.admin_within(self.timeout)?)
    }
}
