//! Where a client connects to.

use embar_session::Address;
#[cfg(feature = "tls")]
use embar_session::TlsTarget;

/// The servers of one session, and what is said to them first.
#[derive(Clone)]
pub struct Target {
    pub(crate) addresses: Vec<Address>,
    pub(crate) greeting: Vec<u8>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<TlsTarget>,
}

impl Target {
    /// The server at this address.
    #[must_use]
    pub fn new(address: impl Into<Address>) -> Self {
        Self {
            addresses: vec![address.into()],
            greeting: Vec::new(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Another server, which is tried after those before it.
    #[must_use]
    pub fn or(mut self, address: impl Into<Address>) -> Self {
        self.addresses.push(address.into());
        self
    }

    /// The greeting for the server's handler, at most
    /// [`MAX_PROGRAM_GREETING_BYTES`](crate::MAX_PROGRAM_GREETING_BYTES).
    #[must_use]
    pub fn greeting(mut self, greeting: impl Into<Vec<u8>>) -> Self {
        self.greeting = greeting.into();
        self
    }

    /// Encrypted, and only to the server that `tls` names.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: TlsTarget) -> Self {
        self.tls = Some(tls);
        self
    }
}
