//! A certificate for one run: the server's, and the only one that its clients trust.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use embar_session::TlsTarget;
use embar_session::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use embar_session::rustls::{ClientConfig, RootCertStore, ServerConfig};

/// Whom the certificate is for.
const SERVER_NAME: &str = "localhost";

/// Makes a certificate that signs itself: a server's configuration with it, and the certificate for clients.
pub fn make() -> Result<(Arc<ServerConfig>, Vec<u8>)> {
    let made = rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()]);
    let made = made.context("cannot make a certificate")?;
    let certificate = made.cert.der().to_vec();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der());
    let key = key.map_err(|why| anyhow::anyhow!("cannot read a new key: {why}"))?;
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(certificate.clone())], key)
        .context("cannot use a new certificate")?;
    Ok((Arc::new(server), certificate))
}

/// What a client needs that trusts nothing but this certificate.
pub fn trusting(certificate: &[u8]) -> Result<TlsTarget> {
    Ok(TlsTarget::new(client_config(certificate)?, SERVER_NAME)?)
}

/// The first bytes that such a client sends: its ClientHello.
pub fn client_hello(certificate: &[u8]) -> Result<Vec<u8>> {
    let name = SERVER_NAME.try_into().context("the name of a server")?;
    let config = client_config(certificate)?;
    let mut client = embar_session::rustls::ClientConnection::new(config, name)?;
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes)?;
    Ok(bytes)
}

fn client_config(certificate: &[u8]) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from(certificate.to_vec()))
        .context("cannot trust a new certificate")?;
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
