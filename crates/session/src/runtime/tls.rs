//! Encrypted sessions, by [`rustls`]: the feature `tls`.
//!
//! A server gets an `Arc<rustls::ServerConfig>` ([`ServerBuilder::tls`](super::ServerBuilder::tls)),
//! a client an `Arc<rustls::ClientConfig>` and the name that the server's certificate must have
//! ([`TlsTarget`]). All else is as without: handlers, sessions and limits do not know. What clients
//! must prove is set in the server's configuration (`with_client_cert_verifier`).
//!
//! What is different:
//! - Ciphertext is received into a buffer of its own, and what was in it is written to where the
//!   core, or a body, wants it; what is to be sent is encrypted into another buffer. So payloads are
//!   copied, and rustls allocates for each record.
//! - All writing is the worker's: other threads append and wake it.
//! - The counts of bytes are those of the session, without what encryption adds.
//! - A connection that ends without the sign of its end (`close_notify`) is
//!   [`TlsTruncated`](crate::CloseReason::TlsTruncated); one that the peer closed in good order was
//!   announced by CLOSE, which cannot be forged.
//! - A connection has one handshake. TLS 1.2 lets peers ask for another one (renegotiation): the first time they are told no
//!   (`no_renegotiation`) and the session goes on, and the second time it ends with [`Tls`](crate::CloseReason::Tls). TLS 1.3 has no
//!   renegotiation.
//!
//! ```no_run
//! use std::sync::Arc;
//! use embar_session::{Address, Client, Flow, Handler, Message, Server, Session, TlsTarget, rustls};
//! use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
//!
//! struct Quiet;
//! impl Handler for Quiet {
//!     fn message(&mut self, _: &Session, _: Message<'_>) -> Flow { Flow::Continue }
//! }
//!
//! let address: Address = "0.0.0.0:7443".parse()?;
//! let chain = CertificateDer::pem_file_iter("server.pem")?.collect::<Result<_, _>>()?;
//! let key = PrivateKeyDer::from_pem_file("server.key")?;
//! let config = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
//! let server = Server::builder().listen(address).tls(Arc::new(config)).start(|_peer| Quiet)?;
//!
//! let mut roots = rustls::RootCertStore::empty();
//! roots.add(CertificateDer::from_pem_file("ca.pem")?)?;
//! let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
//! let target = TlsTarget::new(Arc::new(config), "game.example.org")?;
//! let address: Address = "game.example.org:7443".parse()?;
//! let session = Client::new()?.connect_tls(address, &target, Quiet)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use embar_transport::tls::{ServerNameError, TlsTarget};
