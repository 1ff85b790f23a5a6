//! Encrypted connections: whom to trust, and how this client proves who it is.
//!
//! ```no_run
//! use embar_redis::Config;
//! use embar_redis::tls::Tls;
//!
//! let config = Config {
//!     tls: Some(Tls {
//!         ca_files: vec!["ca.pem".into()],
//!         ..Tls::default()
//!     }),
//!     ..Config::default()
//! };
//! # let _ = config;
//! // The same as a URL:
//! let url = "rediss://127.0.0.1:6379?tls_ca_file=ca.pem";
//! ```
//!
//! It takes the feature `tls`, which is not on by default because it needs a C compiler. By default a
//! server's certificate must be signed by an authority that this machine trusts (on Debian, the
//! package `ca-certificates` and what its administrator added): servers of one's own have
//! certificates of one's own, and machines are told whom to trust in one place.
//!
//! In a cluster each node must have a certificate for the host by which the cluster announces it:
//! an IP address unless `cluster-announce-hostname` and `cluster-preferred-endpoint-type hostname`
//! are set. [`Tls::server_name`] is for certificates that have one name for all nodes.
//!
//! Files are read when the client is made. Connections to Unix sockets cannot be encrypted.

use std::path::PathBuf;

use embar_transport::tls::{TlsError, TlsFault};

use crate::config::ConfigError;

#[cfg_attr(not(feature = "tls"), path = "tls/absent.rs")]
mod rules;

pub(crate) use rules::Encryption;
#[cfg(feature = "tls")]
pub use rules::Rules;

/// How connections are encrypted. By default to servers that this machine trusts, and without a
/// certificate of this client's own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    /// Files (PEM) with the authorities that sign certificates of servers. If there are any, no other
    /// authority is trusted.
    pub ca_files: Vec<PathBuf>,
    /// The file (PEM) with the certificate that this client shows, and those between it and its
    /// authority. It needs a key.
    pub cert_file: Option<PathBuf>,
    /// The file (PEM) with the private key of that certificate, not encrypted.
    pub key_file: Option<PathBuf>,
    /// The name that certificates of servers must have, and that servers are asked for. `None`: the
    /// host by which each one is reached.
    pub server_name: Option<String>,
    /// Believe everybody to be the server. For tests only: who is between this client and its server
    /// can read and change everything.
    pub danger_accept_any_certificate: bool,
    /// Everything but the name by the rules of rustls, instead of all of the above.
    #[cfg(feature = "tls")]
    pub rules: Option<Rules>,
}

impl Tls {
    /// Whether everything in it can be meant.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if cfg!(not(feature = "tls")) {
            return Err(ConfigError::TlsFeature);
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            return Err(ConfigError::CertificateWithoutKey);
        }
        #[cfg(feature = "tls")]
        if self.rules.is_some() {
            let others = Self {
                server_name: None,
                rules: None,
                ..self.clone()
            };
            if others != Self::default() {
                return Err(ConfigError::TlsTwice);
            }
        }
        Ok(())
    }
}

/// Why there is no connection, and what to do.
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

/// Whether it will be the same at the next attempt, however soon.
pub(crate) fn lasts(error: &TlsError) -> bool {
    !matches!(
        error.fault,
        TlsFault::Unanswered | TlsFault::Cut | TlsFault::PeerAlert | TlsFault::Other
    )
}
