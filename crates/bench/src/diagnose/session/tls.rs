//! Both ends of encrypted sessions in one process.

use std::sync::Arc;

use anyhow::Result;
use embar_session::TlsTarget;
use embar_session::rustls::ServerConfig;

use crate::session::certificate;

/// Both ends of encrypted sessions.
pub(super) struct Encryption {
    pub(super) server: Arc<ServerConfig>,
    pub(super) client: TlsTarget,
}

impl Encryption {
    /// Makes a certificate that signs itself.
    pub(super) fn make() -> Result<Self> {
        let (server, certificate) = certificate::make()?;
        Ok(Self {
            server,
            client: certificate::trusting(&certificate)?,
        })
    }
}
