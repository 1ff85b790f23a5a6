//! Both ends: a server that listens every way, and a client that connects so.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use embar_quic::{Connector, Listener};
use embar_session::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use embar_session::rustls::{ClientConfig, RootCertStore, ServerConfig};
use embar_session::{Address, Client, Handler, Peer, Server, Session, TlsTarget};
use rcgen::CertifiedKey;

const NAME: &str = "localhost";

/// A server with sessions by TCP and QUIC, one by TLS, and who connects to them.
pub(crate) struct Ends {
    plain: Server,
    encrypted: Server,
    listener: Listener,
    client: Client,
    connector: Connector,
    target: TlsTarget,
}

impl Ends {
    /// Starts all of them; `make` gives handlers to the servers' sessions.
    pub(crate) fn start<H: Handler>(
        make: impl Fn(&Peer) -> H + Send + Sync + Clone + 'static,
    ) -> Result<Self> {
        let CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(vec![NAME.to_owned()])?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)?;
        let config = Arc::new(config);
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone())?;
        let trusting = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();

        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let plain = Server::builder()
            .listen(Address::Tcp(any))
            .start(make.clone())?;
        let encrypted = Server::builder()
            .listen(Address::Tcp(any))
            .tls(Arc::clone(&config))
            .start(make)?;
        Ok(Self {
            listener: Listener::builder(any, config).start(&plain)?,
            plain,
            encrypted,
            client: Client::new()?,
            connector: Connector::new()?,
            target: TlsTarget::new(Arc::new(trusting), NAME)?,
        })
    }

    pub(crate) fn by_tcp(&self, handler: impl Handler) -> Result<Session> {
        Ok(self.client.connect(self.plain.address(), handler)?)
    }

    pub(crate) fn by_tls(&self, handler: impl Handler) -> Result<Session> {
        let address = self.encrypted.address();
        Ok(self.client.connect_tls(address, &self.target, handler)?)
    }

    pub(crate) fn by_quic(&self, handler: impl Handler) -> Result<Session> {
        let (client, address) = (&self.client, self.listener.address());
        Ok(self
            .connector
            .connect(client, address, &self.target, handler)?)
    }
}
