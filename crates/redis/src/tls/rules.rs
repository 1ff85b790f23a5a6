//! Makes the configuration of rustls that a client encrypts with, from the client's settings and
//! the files that they name; or takes one that the program made.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use embar_mux::{TlsError, TlsFault, TlsTarget};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::Tls;
use crate::address_map::Destination;
use crate::endpoint::Endpoint;

/// A configuration of rustls that the program made. Two are equal if they are the same object.
#[derive(Clone)]
pub struct Rules(Arc<ClientConfig>);

impl From<Arc<ClientConfig>> for Rules {
    fn from(config: Arc<ClientConfig>) -> Self {
        Self(config)
    }
}

impl PartialEq for Rules {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Rules {}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rules(..)")
    }
}

/// Encrypts connections to any server of a client.
pub(crate) struct Encryption {
    config: Arc<ClientConfig>,
    name: Option<String>,
}

impl Encryption {
    /// Reads the files that `tls` names.
    pub fn new(tls: &Tls) -> Result<Self, String> {
        let config = match &tls.rules {
            Some(Rules(config)) => Arc::clone(config),
            None => Arc::new(config(tls)?),
        };
        let encryption = Self {
            config,
            name: tls.server_name.clone(),
        };
        if let Some(name) = &encryption.name {
            encryption
                .to(name)
                .map_err(|error| format!("tls_server_name: {error}"))?;
        }
        Ok(encryption)
    }

    /// How to encrypt a connection to this server.
    pub fn target(&self, server: &Destination) -> Result<TlsTarget, TlsError> {
        let host = match &server.endpoint {
            Endpoint::Tcp { host, .. } => host,
            // `Config::check` refuses Unix sockets, and nodes never announce one.
            Endpoint::Unix(_) => "localhost",
        };
        let name = server.tls_name.as_deref().or(self.name.as_deref());
        let name = name.unwrap_or(host);
        self.to(name)
            .map_err(|error| TlsError::new(TlsFault::WrongName, error))
    }

    fn to(&self, name: &str) -> Result<TlsTarget, impl fmt::Display> {
        TlsTarget::new(Arc::clone(&self.config), name)
    }
}

fn config(tls: &Tls) -> Result<ClientConfig, String> {
    // The builder's own default panics when the program has several libraries of cryptography.
    let provider = CryptoProvider::get_default()
        .cloned()
        .unwrap_or_else(|| Arc::new(aws_lc_rs::default_provider()));
    let cannot = |error: rustls::Error| format!("cannot encrypt connections: {error}");
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(cannot)?;
    let verifier: Arc<dyn ServerCertVerifier> = if tls.danger_accept_any_certificate {
        Arc::new(AcceptAny(provider))
    } else {
        let roots = Arc::new(roots(&tls.ca_files)?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        verifier.map_err(|error| format!("cannot check certificates: {error}"))?
    };
    let builder = builder
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let (Some(cert_file), Some(key_file)) = (&tls.cert_file, &tls.key_file) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(cert_file)?;
    let key = PrivateKeyDer::from_pem_file(key_file)
        .map_err(|error| unreadable("private key", key_file, &error))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => format!(
                "the key in {} is not that of the certificate in {}",
                key_file.display(),
                cert_file.display()
            ),
            error => format!("{} cannot be used: {error}", key_file.display()),
        })
}

/// The trusted authorities.
fn roots(files: &[PathBuf]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for file in files {
        for certificate in certificates(file)? {
            let added = roots.add(certificate);
            added.map_err(|error| format!("a certificate in {}: {error}", file.display()))?;
        }
    }
    if files.is_empty() {
        let found = rustls_native_certs::load_native_certs();
        // Some certificates of the system may not be readable.
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let why = found.errors.first().map(ToString::to_string);
            return Err(format!(
                "this machine trusts no authority{}; install its ca-certificates, or name a file \
                 (tls_ca_file)",
                why.map_or_else(String::new, |why| format!(" ({why})"))
            ));
        }
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let certificates: Vec<_> = read.map_err(|error| unreadable("certificate", file, &error))?;
    match certificates.is_empty() {
        true => Err(format!("{} has no certificate in PEM form", file.display())),
        false => Ok(certificates),
    }
}

fn unreadable(what: &str, file: &Path, error: &dyn fmt::Display) -> String {
    format!("cannot read a {what} from {}: {error}", file.display())
}

/// Accepts every certificate, but checks that the server has its key.
#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
