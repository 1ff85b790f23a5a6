//! A certificate for one run: the server's, and the only one that the client trusts.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use embar_session::TlsTarget;
use embar_session::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use embar_session::rustls::{ClientConfig, RootCertStore, ServerConfig};

/// Whom the certificate is for.
const SERVER_NAME: &str = "localhost";

/// Both ends of encrypted sessions.
pub(super) struct Encryption {
    pub(super) server: Arc<ServerConfig>,
    pub(super) client: TlsTarget,
}

impl Encryption {
    /// Makes a certificate that signs itself.
    pub(super) fn make() -> Result<Self> {
        let made = rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()]);
        let made = made.context("cannot make a certificate")?;
        let certificate = CertificateDer::from(made.cert.der().to_vec());
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der());
        let key = key.map_err(|why| anyhow::anyhow!("cannot read a new key: {why}"))?;
        let mut roots = RootCertStore::empty();
        roots
            .add(certificate.clone())
            .context("cannot trust a new certificate")?;
        let server = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .context("cannot use a new certificate")?;
        let client = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            server: Arc::new(server),
            client: TlsTarget::new(Arc::new(client), SERVER_NAME)?,
        })
    }
}
