//! Stands for `rules.rs` where the feature `tls` is off.

use embar_transport::tls::{TlsError, TlsTarget};

use super::Tls;
use crate::config::{ConfigError, Endpoint};

/// Nothing is encrypted.
#[derive(Debug)]
pub(crate) enum Encryption {}

impl Encryption {
    pub fn new(_: &Tls) -> Result<Self, String> {
        Err(ConfigError::TlsFeature.to_string())
    }

    pub fn target(&self, _: &Endpoint) -> Result<TlsTarget, TlsError> {
        match *self {}
    }
}
