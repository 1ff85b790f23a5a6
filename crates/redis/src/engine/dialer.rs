//! Opens connections: resolves the name, picks the driver, and encrypts.

use std::io::ErrorKind;
use std::sync::Arc;

use embar_mux::{Address, CloseReason, Connection, ConnectionLimits, TlsError, TlsFault};

use super::drivers::Drivers;
use super::protocol::RedisProtocol;
use super::resolver::{Resolver, resolve};
use crate::address_map::{AddressMap, Destination};
use crate::endpoint::Endpoint;
use crate::tls::Encryption;

/// Opens connections to any server.
pub(crate) struct Dialer {
    drivers: Arc<Drivers>,
    encryption: Option<Encryption>,
    map: Option<AddressMap>,
    resolver: Arc<Resolver>,
}

impl Dialer {
    /// `map` says where to connect to what a node announces.
    pub fn new(drivers: Drivers, encryption: Option<Encryption>, map: Option<AddressMap>) -> Self {
        Self {
            drivers: Arc::new(drivers),
            encryption,
            map,
            resolver: Arc::default(),
        }
    }

    /// Another one that encrypts otherwise, and shares everything else.
    pub fn with_encryption(&self, encryption: Option<Encryption>) -> Self {
        Self {
            drivers: Arc::clone(&self.drivers),
            encryption,
            map: self.map.clone(),
            resolver: Arc::clone(&self.resolver),
        }
    }

    /// Runs a job that calls [`Dialer::open`] for this endpoint: here if that does not block, or else
    /// on a thread.
    pub fn run(&self, endpoint: &Endpoint, job: impl FnOnce() + Send + 'static) {
        self.resolver.run(&self.destination(endpoint).endpoint, job);
    }

    /// Where to connect to it.
    fn destination(&self, endpoint: &Endpoint) -> Destination {
        match &self.map {
            Some(map) => map.destination(endpoint),
            None => endpoint.clone().into(),
        }
    }

    /// Begins to connect. A host with several addresses gets another one at each attempt. Blocks while
    /// it resolves the host's name.
    pub fn open(
        &self,
        endpoint: &Endpoint,
        attempt: u32,
        limits: ConnectionLimits,
        protocol: RedisProtocol,
    ) -> Result<Connection, CloseReason> {
        let destination = self.destination(endpoint);
        let address = address(&destination.endpoint, attempt)?;
        let mux = self.drivers.of(endpoint);
        let opened = match &self.encryption {
            None => mux.open(address, limits, protocol),
            Some(encryption) => {
                let target = encryption.target(&destination).map_err(CloseReason::Tls)?;
                mux.open_tls(address, &target, limits, protocol)
            }
        };
        opened.map_err(|error| match error.kind() {
            ErrorKind::Other => CloseReason::Tls(TlsError::new(TlsFault::Other, error)),
            kind => CloseReason::Unreachable(kind),
        })
    }

    /// Closes all connections.
    pub fn close(&self) {
        self.drivers.close();
    }
}

fn address(endpoint: &Endpoint, attempt: u32) -> Result<Address, CloseReason> {
    match endpoint {
        Endpoint::Unix(path) => Ok(Address::Unix(path.clone())),
        Endpoint::Tcp { host, port } => {
            let found = resolve(host, *port);
            let found = found.map_err(|error| CloseReason::Unreachable(error.kind()))?;
            let chosen = found.get(attempt as usize % found.len().max(1));
            chosen
                .map(|address| Address::from(*address))
                .ok_or(CloseReason::Unreachable(ErrorKind::NotFound))
        }
    }
}
