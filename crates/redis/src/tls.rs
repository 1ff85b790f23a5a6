//! Encrypted connections: which servers to trust, and how this client proves who it is.
//!
//! ```no_run
//! use embar_redis::Config;
//! use embar_redis::tls::Tls;
//!
//! let mut tls = Tls::default();
//! tls.ca_files = vec!["ca.pem".into()];
//! let mut config = Config::default();
//! config.tls = Some(tls);
//! // The same as a URL:
//! let url = "rediss://127.0.0.1:6379?tls_ca_file=ca.pem";
//! ```
//!
//! It takes the feature `tls`, which is off by default because it needs a C compiler. By default an
//! authority that this machine trusts must have signed a server's certificate (on Debian, the package
//! `ca-certificates` and what the administrator added): so an administrator decides in one place which
//! authorities the programs of a machine trust.
//!
//! In a cluster each node needs a certificate for the host by which the cluster announces it: an IP
//! address, unless `cluster-announce-hostname` and `cluster-preferred-endpoint-type hostname` are set.
//! [`Tls::server_name`] is for certificates that have one name for all nodes.
//!
//! The client reads the files when it starts. Connections to Unix sockets cannot be encrypted.

use std::path::PathBuf;

pub use embar_mux::{TlsError, TlsFault};
use thiserror::Error;

#[cfg_attr(not(feature = "tls"), path = "tls/absent.rs")]
mod rules;

pub(crate) use rules::Encryption;
#[cfg(feature = "tls")]
pub use rules::Rules;

/// How the client encrypts connections. By default it trusts the authorities that this machine trusts,
/// and shows no certificate of its own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Tls {
    /// Files (PEM) with the authorities that sign certificates of servers. If there are any, the client
    /// trusts no other authority.
    pub ca_files: Vec<PathBuf>,
    /// The file (PEM) with the certificate that this client shows, and the certificates between it and
    /// its authority. It needs a key.
    pub cert_file: Option<PathBuf>,
    /// The file (PEM) with the private key of that certificate, not encrypted.
    pub key_file: Option<PathBuf>,
    /// The name that the client asks servers for, and that their certificates must have. `None`: the host
    /// to which the client connects.
    pub server_name: Option<String>,
    /// Accepts any certificate. For tests only: an attacker between this client and its server can read
    /// and change everything.
    pub danger_accept_any_certificate: bool,
    /// A configuration of rustls, which replaces all of the above but the name.
    #[cfg(feature = "tls")]
    pub rules: Option<Rules>,
}

impl Tls {
    /// Checks that the settings make sense together.
    pub(crate) fn check(&self) -> Result<(), TlsConfigError> {
        if cfg!(not(feature = "tls")) {
            return Err(TlsConfigError::FeatureOff);
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            return Err(TlsConfigError::CertificateWithoutKey);
        }
        #[cfg(feature = "tls")]
        if self.rules.is_some() {
            let others = Self {
                server_name: None,
                rules: None,
                ..self.clone()
            };
            if others != Self::default() {
                return Err(TlsConfigError::RulesAndSettings);
            }
        }
        Ok(())
    }
}

/// Settings of encryption that make no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TlsConfigError {
    /// The crate was built without encryption.
    #[error("encrypted connections take the feature `tls` of embar-redis, which is off")]
    FeatureOff,
    /// A certificate and its key need each other.
    #[error(
        "a client's certificate takes its key, and a key its certificate; give both (tls_cert_file and tls_key_file), or none of them"
    )]
    CertificateWithoutKey,
    /// Rules replace the other settings.
    #[error(
        "rules of rustls decide about certificates; leave files and danger_accept_any_certificate out"
    )]
    RulesAndSettings,
}

/// Explains why there is no connection, and what to do.
pub(crate) fn explain(error: &TlsError, encrypted: bool) -> String {
    let what_to_do = match error.fault {
        TlsFault::UnknownIssuer => {
            "name a file with the authority that signed the server's certificate (tls_ca_file)"
        }
        TlsFault::WrongName => {
            "connect by a name that the server's certificate has as a subjectAltName, or say which \
             one it has (tls_server_name)"
        }
        TlsFault::OutOfDate => "renew the server's certificate, or set this machine's clock",
        TlsFault::BadCertificate => {
            "give the server a certificate of version 3 that is not an authority's own and has its \
             names as subjectAltName"
        }
        TlsFault::Refused => {
            "name a certificate that an authority of the server's has signed (tls_cert_file and \
             tls_key_file)"
        }
        TlsFault::NoAgreement => {
            "it may want a certificate (tls_cert_file and tls_key_file), or other versions of TLS"
        }
        TlsFault::NotTls | TlsFault::Unanswered => {
            "if this port is not for TLS, use another one, or redis://"
        }
        TlsFault::Cut if encrypted => {
            "it may have too many clients, want a certificate (tls_cert_file and tls_key_file), or \
             not speak TLS on this port (redis://)"
        }
        TlsFault::Cut => "if this port is for TLS, use rediss://",
        _ => return error.text.clone(),
    };
    format!("{}; {what_to_do}", error.text)
}

/// Whether the next attempt will fail for the same reason, however soon it comes.
pub(crate) fn is_lasting(error: &TlsError) -> bool {
    !matches!(
        error.fault,
        TlsFault::Unanswered | TlsFault::Cut | TlsFault::PeerAlert | TlsFault::Other
    )
}
