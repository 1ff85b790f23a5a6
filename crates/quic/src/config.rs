//! How QUIC is set up for sessions.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use embar_session::rustls::server::{ClientHello, ResolvesServerCert};
use embar_session::rustls::sign::CertifiedKey;
use embar_session::rustls::{self, ClientConfig, ServerConfig};
use embar_session::{MIN_IDLE_TIMEOUT, Settings, TlsTarget};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{IdleTimeout, TransportConfig, VarInt};

/// The protocol's name in the handshake, unless the configuration has names of its own (RFC 7301).
const ALPN: &[u8] = b"embar-session";

/// Bytes of datagrams that quinn holds in each direction: few, because those that wait in a session's link are the ones that make
/// room for newer ones. One of the longest fits when it is to be sent.
const SEND_DATAGRAM_BYTES: usize = 2 << 10;
const RECEIVE_DATAGRAM_BYTES: usize = 64 << 10;

/// Least bytes that may be on their way in a stream.
const LEAST_WINDOW_BYTES: usize = 64 << 10;

/// The longest time between two signs of life, so that networks in between do not forget the path.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// A rustls configuration that is of no use for QUIC.
#[derive(Debug, thiserror::Error)]
#[error(
    "the TLS configuration is of no use for QUIC ({0}): it must allow TLS 1.3 and the cipher suite TLS13_AES_128_GCM_SHA256"
)]
pub struct TlsConfigError(String);

/// What both ends use. The session notices silence before QUIC does, and QUIC keeps the path alive, also while the peer
/// does not read: so QUIC's timeout means that the network is gone, and does not end what the session would keep.
pub(crate) fn transport(settings: &Settings) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    let (keep_alive, silence) = silence(settings.session.idle_timeout);
    config
        .max_idle_timeout(silence.and_then(|most| IdleTimeout::try_from(most).ok()))
        .keep_alive_interval(Some(keep_alive))
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(window(settings.recv_ring_bytes))
        .receive_window(window(settings.recv_ring_bytes))
        .send_window(window(settings.send_ring_bytes).into_inner())
        .datagram_receive_buffer_size(Some(RECEIVE_DATAGRAM_BYTES))
        .datagram_send_buffer_size(SEND_DATAGRAM_BYTES);
    Arc::new(config)
}

/// How often to say something, and how much silence is the end, beside sessions that end after `idle`; zero stands for never.
fn silence(idle: Duration) -> (Duration, Option<Duration>) {
    if idle.is_zero() {
        return (KEEP_ALIVE, None);
    }
    let idle = idle.max(MIN_IDLE_TIMEOUT);
    (
        KEEP_ALIVE.min(idle / 3),
        Some(idle.saturating_add(idle / 2)),
    )
}

fn window(ring: usize) -> VarInt {
    let bytes = u32::try_from(ring.max(LEAST_WINDOW_BYTES)).unwrap_or(u32::MAX);
    VarInt::from_u32(bytes)
}

/// The server's own code says which certificate a peer gets. quinn asks it under a lock of all connections, so a panic there
/// would be the end of them all: this way it is a peer that gets none.
#[derive(Debug)]
struct Calm(Arc<dyn ResolvesServerCert>);

impl ResolvesServerCert for Calm {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let resolved = catch_unwind(AssertUnwindSafe(|| self.0.resolve(hello)));
        resolved.unwrap_or_else(|_| {
            tracing::error!("a panic in the handshake with a peer: it gets no certificate");
            None
        })
    }

    fn only_raw_public_keys(&self) -> bool {
        self.0.only_raw_public_keys()
    }
}

/// # Errors
/// When the configuration is of no use.
pub(crate) fn server(
    tls: &ServerConfig,
    transport: Arc<TransportConfig>,
) -> Result<quinn::ServerConfig, TlsConfigError> {
    let mut tls = tls.clone();
    // A first flight that may be repeated by anybody is none for messages that are to arrive once.
    tls.max_early_data_size = 0;
    if tls.alpn_protocols.is_empty() {
        tls.alpn_protocols.push(ALPN.to_vec());
    }
    tls.cert_resolver = Arc::new(Calm(Arc::clone(&tls.cert_resolver)));
    let tls = Arc::new(tls);
    // quinn would panic at the first connection.
    let version = rustls::quic::Version::V1;
    rustls::quic::ServerConnection::new(Arc::clone(&tls), version, Vec::new())
        .map_err(|error| TlsConfigError(error.to_string()))?;
    let crypto = QuicServerConfig::try_from(tls);
    let crypto = crypto.map_err(|error| TlsConfigError(error.to_string()))?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(transport).migration(true);
    Ok(config)
}

/// # Errors
/// When the configuration is of no use.
pub(crate) fn client(
    target: &TlsTarget,
    transport: Arc<TransportConfig>,
) -> Result<quinn::ClientConfig, TlsConfigError> {
    let mut tls = ClientConfig::clone(target.config());
    tls.enable_early_data = false;
    if tls.alpn_protocols.is_empty() {
        tls.alpn_protocols.push(ALPN.to_vec());
    }
    let tls = Arc::new(tls);
    // As above.
    let (version, name) = (rustls::quic::Version::V1, target.name().clone());
    rustls::quic::ClientConnection::new(Arc::clone(&tls), version, name, Vec::new())
        .map_err(|error| TlsConfigError(error.to_string()))?;
    let crypto = QuicClientConfig::try_from(tls);
    let crypto = crypto.map_err(|error| TlsConfigError(error.to_string()))?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(transport);
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quic_is_more_patient_than_the_session() {
        let ms = Duration::from_millis;
        assert_eq!(silence(ms(60_000)), (KEEP_ALIVE, Some(ms(90_000))));
        assert_eq!(silence(ms(10)), (MIN_IDLE_TIMEOUT / 3, Some(ms(1500))));
        assert_eq!(silence(Duration::ZERO), (KEEP_ALIVE, None));
        assert_eq!(silence(Duration::MAX).1, Some(Duration::MAX));
    }
}
