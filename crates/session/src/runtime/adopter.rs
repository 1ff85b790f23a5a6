//! Connections that somebody else accepted.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use embar_transport::{Peer, Stream, socket};

use super::arrivals::{Counted, Newcomer};
use super::datagrams::{DatagramLink, UnclaimedLink};
use super::dealer::Dealer;
use super::mailbox::Command;
use super::refusal::Refusal;
use super::registry::Registry;
use super::settings::Settings;

/// Why a server does not take a connection that somebody else accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// The server accepts nothing more ([`Server::stop_accepting`](crate::Server::stop_accepting)), or has ended.
    #[error("the server accepts nothing more: hand the connection to one that does")]
    Ended,
    /// The server does not want it.
    #[error("the server does not take the connection: {0}")]
    Refused(Refusal),
    /// The options of the server's sockets cannot be set on it.
    #[error("the connection is of no use: {0}; check that it is connected")]
    Socket(#[from] io::Error),
}

/// Gives a server connections that its own listeners did not accept; made by
/// [`Server::adopter`](crate::Server::adopter). Cheap to clone; usable from every thread.
#[derive(Clone)]
pub struct Adopter {
    registry: Arc<Registry>,
    dealer: Arc<Dealer>,
}

impl Adopter {
    pub(super) fn new(registry: &Arc<Registry>, dealer: &Arc<Dealer>) -> Self {
        Self {
            registry: Arc::clone(registry),
            dealer: Arc::clone(dealer),
        }
    }

    /// Has the server take a connected stream, as if it had accepted it from `peer`: the accept
    /// filter is asked, here on the caller's thread, the limits of
    /// [`Admission`](crate::Admission) count it under `peer`, its HELLO is waited for, and where the
    /// server speaks TLS, so must this connection. The options of
    /// [`Settings::sockets`](crate::Settings::sockets) are set on it. Returns at once; what becomes
    /// of it later is told as of any other connection.
    ///
    /// # Errors
    /// [`AdoptError`]; the connection is closed then.
    pub fn adopt(&self, stream: impl Into<Stream>, peer: Peer) -> Result<(), AdoptError> {
        let stream = stream.into();
        let group = &self.registry.group;
        if !self.dealer.adopts() {
            return Err(AdoptError::Ended);
        }
        if !self.wants(&peer) {
            return Err(AdoptError::Refused(Refusal::Filtered));
        }
        let sockets = group.settings.sockets_in_use();
        if let Stream::Tcp(stream) = &stream {
            socket::apply(stream, &sockets)?;
        }
        socket::apply_accepted(&stream, &sockets)?;
        self.deal(stream, peer, None)
    }

    /// Has the server take a connection with `peer` that somebody else carries, for instance by QUIC: bytes through `stream`,
    /// datagrams through `link`. Otherwise as [`Adopter::adopt`], but the filter is not asked, as
    /// [`Adopter::wants`] is for that, and the connection is not encrypted once more where the server wants TLS. When the
    /// carrier gives the connection up, it says why ([`DatagramLink::lost`]) and drops its end of the stream.
    ///
    /// # Errors
    /// [`AdoptError::Ended`].
    pub fn adopt_carried(
        &self,
        stream: UnixStream,
        peer: Peer,
        link: &DatagramLink,
    ) -> Result<(), AdoptError> {
        // Dropped, it tells the carrier.
        let link = UnclaimedLink::new(link);
        if !self.dealer.adopts() {
            return Err(AdoptError::Ended);
        }
        self.deal(Stream::Unix(stream), peer, Some(link))
    }

    fn deal(
        &self,
        stream: Stream,
        peer: Peer,
        link: Option<UnclaimedLink>,
    ) -> Result<(), AdoptError> {
        let newcomer = Newcomer {
            stream,
            peer,
            link,
            introduction: false,
            counted: Counted::new(&self.registry.group),
        };
        let dealt = self.dealer.deal(Command::Adopt(newcomer));
        dealt.map_err(|_| AdoptError::Ended)?;
        self.registry.group.counters.adopted.add(1);
        Ok(())
    }

    /// What the server was made with: who carries connections keeps to the same limits.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.registry.group.settings
    }

    /// Whether the server wants a connection of `peer`
    /// ([`ServerBuilder::accept_if`](crate::ServerBuilder::accept_if)). A no counts as a refusal.
    #[must_use]
    pub fn wants(&self, peer: &Peer) -> bool {
        let wanted = self.registry.accepts(peer);
        if !wanted {
            self.count(Refusal::Filtered);
        }
        wanted
    }

    /// Counts a connection that was refused before the server saw it.
    pub fn count(&self, refusal: Refusal) {
        self.registry.group.counters.refusals.count(refusal);
    }
}

impl fmt::Debug for Adopter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Adopter")
    }
}
