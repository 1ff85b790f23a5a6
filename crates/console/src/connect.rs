//! Connects commands to a cluster. While such a client waits, it reports on the command's [`Progress`] for what.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use embar_client::{Admin, AdminError, Transport, WaitProbe};

use crate::progress::Progress;
use crate::waiting::WaitReporter;

/// How long an answer may take where the caller sets no limit.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Makes clients of one cluster whose waits are reported.
#[derive(Clone)]
pub struct Connector {
    bootstrap: String,
    transport: Transport,
    progress: Arc<dyn Progress>,
}

/// A client for topics, status and profiles, which reports what it waits for.
pub struct ReportingAdmin {
    /// Dropped before the client, whose drop waits for its last request: nothing reports that wait.
    _reporter: WaitReporter,
    admin: Admin,
}

impl Deref for ReportingAdmin {
    type Target = Admin;

    fn deref(&self) -> &Admin {
        &self.admin
    }
}

impl Connector {
    /// `bootstrap` is the address of any broker, or several with commas.
    pub fn new(bootstrap: impl Into<String>, progress: Arc<dyn Progress>) -> Self {
        Self {
            bootstrap: bootstrap.into(),
            transport: Transport::Auto,
            progress,
        }
    }

    /// Connects by this transport.
    #[must_use]
    pub fn by(self, transport: Transport) -> Self {
        Self { transport, ..self }
    }

    /// To the broker at `address`.
    pub fn to(address: SocketAddr, progress: Arc<dyn Progress>) -> Self {
        Self::new(address.to_string(), progress)
    }

    /// Addresses of brokers.
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// By which transport its clients connect to brokers.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// A client whose requests may take 5 s each.
    pub fn admin(&self) -> Result<ReportingAdmin, AdminError> {
        self.admin_within(ANSWER_WITHIN)
    }

    /// A client whose requests may take `limit` each.
    pub fn admin_within(&self, limit: Duration) -> Result<ReportingAdmin, AdminError> {
        let admin = Admin::connect(&self.bootstrap)?;
        let admin = admin.timeout(limit).transport(self.transport);
        Ok(ReportingAdmin {
            _reporter: self.report_waits(&admin.wait_probe(), None),
            admin,
        })
    }

    /// Reports what the client of `probe` waits for, until the reporter is dropped. Whoever waits gives up once nothing
    /// has come for `limit`, if not sooner.
    pub fn report_waits(&self, probe: &WaitProbe, limit: Option<Duration>) -> WaitReporter {
        WaitReporter::start(probe, limit, &self.progress)
    }
}
