//! Takes the place of `rules.rs` where the feature `tls` is off: refuses to encrypt.

use embar_mux::{TlsError, TlsTarget};

use super::{Tls, TlsConfigError};
use crate::address_map::Destination;

/// Without the feature there is no encryption, and no value of this type.
#[derive(Debug)]
pub(crate) enum Encryption {}

impl Encryption {
    pub fn new(_: &Tls) -> Result<Self, String> {
        Err(TlsConfigError::FeatureOff.to_string())
    }

    pub fn target(&self, _: &Destination) -> Result<TlsTarget, TlsError> {
        match *self {}
    }
}
