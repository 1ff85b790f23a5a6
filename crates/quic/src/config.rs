//! How QUIC is set up for sessions.

use std::sync::Arc;
use std::time::Duration;

use embar_session::rustls::{self, ClientConfig, ServerConfig};
use embar_session::{Settings, TlsTarget};
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
    let idle = settings.session.idle_timeout;
    let idle = idle.max(embar_session::MIN_IDLE_TIMEOUT.min(idle * 1_000_000));
    let keep_alive = match idle {
        Duration::ZERO => KEEP_ALIVE,
        idle => KEEP_ALIVE.min(idle / 3),
    };
    let timeout = (!idle.is_zero()).then(|| idle.saturating_mul(3) / 2);
    config
        .max_idle_timeout(timeout.and_then(|idle| IdleTimeout::try_from(idle).ok()))
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

fn window(ring: usize) -> VarInt {
    let bytes = u32::try_from(ring.max(LEAST_WINDOW_BYTES)).unwrap_or(u32::MAX);
    VarInt::from_u32(bytes)
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
