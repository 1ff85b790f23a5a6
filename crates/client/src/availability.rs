//! Makes the error that tells a user why no data broker serves the client: the cluster does not answer, brokers are
//! away, or they refuse.

use embar_wire::control::ErrorCode;

use crate::connection::ConnectionError;
use crate::directory::Directory;
use crate::error::ClientError;
use crate::peer::{Peer, Phase};

/// Why no broker can be used, as far as is known.
pub(crate) fn why_unavailable<'a>(
    directory: &Directory,
    peers: impl Iterator<Item = &'a Peer> + Clone,
) -> ClientError {
    if directory.cluster().is_none() {
        return directory.why_unknown();
    }
    // The others refuse a topic that they do not know, which says little when the head refuses it, or cannot be asked.
    if let Some(head) = directory.awaited_head() {
        return directory
            .refused()
            .unwrap_or_else(|| ClientError::Refused {
                code: ErrorCode::UnknownTopic,
                message: format!(
                    "no broker that answers knows topic {:?}, and only the head creates topics, {head}: try again when the head serves",
                    directory.topic()
                ),
            });
    }
    // A broker that answers with a refusal does answer.
    let refused = peers.clone().find_map(|peer| {
        let refusal = peer.last_refusal()?;
        Some(ClientError::Refused {
            code: refusal.code,
            message: format!("data broker {}: {}", peer.broker, refusal.message),
        })
    });
    let known = refused.or_else(|| directory.refused());
    known
        .or_else(|| unreachable(peers))
        .unwrap_or(ClientError::NoDataBrokers)
}

/// The brokers that do not answer, if there are any.
fn unreachable<'a>(peers: impl Iterator<Item = &'a Peer>) -> Option<ClientError> {
    // A broker to which the client wants no connection at the moment cannot fail to answer.
    let is_asked = |peer: &&Peer| matches!(peer.phase, Phase::Waiting(_) | Phase::Opening(_));
    let silent = peers.filter(|peer| is_asked(peer) || peer.last_error().is_some());
    let mut silent: Vec<&Peer> = silent.collect();
    // A publisher may have several connections to one broker.
    silent.sort_by_key(|peer| peer.broker);
    silent.dedup_by_key(|peer| peer.broker);
    let first = silent.first()?;
    let known = silent.iter().find_map(|peer| peer.last_error().cloned());
    let addresses: Vec<String> = silent.iter().map(|peer| peer.place()).collect();
    Some(ClientError::Unreachable {
        addresses: addresses.join(", "),
        source: known.unwrap_or_else(|| ConnectionError::Unfinished(first.reason())),
    })
}
