//! Opens connections that one caller has alone, for itself or from the pool.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use super::node_connection::{ConnWait, NodeConnection};
use super::pool::{Lease, Opened, take};
use super::shared::Shared;
use crate::endpoint::Endpoint;
use crate::error::Error;

/// A connection to a node for one command: an idle one, or a new one. First come, first served.
///
/// # Errors
/// When all are in use until the deadline; when connecting fails once.
pub(crate) async fn lease(
    shared: &Arc<Shared>,
    endpoint: &Endpoint,
    deadline: Instant,
) -> Result<Lease, Error> {
    let mut lease = take(&shared.pool, endpoint, deadline).await?;
    let known = shared.credentials.as_ref().map_or(0, |it| it.version());
    if !lease.is_usable(known) {
        lease.open_with(open(shared, endpoint, deadline, Tries::Once).await?);
    }
    Ok(lease)
}

/// How often to try to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tries {
    Once,
    UntilDeadline,
}

/// Opens a connection for one caller alone.
///
/// # Errors
/// When it is not open by the deadline, or connecting fails as often as `tries` allows.
pub(crate) async fn open(
    shared: &Arc<Shared>,
    endpoint: &Endpoint,
    deadline: Instant,
    tries: Tries,
) -> Result<Opened, Error> {
    let own = NodeConnection::dedicated(endpoint.clone(), shared);
    let (mut timer, mut wait) = (None, ConnWait::default());
    let conn = poll_fn(|cx: &mut Context<'_>| {
        let failed = tries == Tries::Once && own.failures() > 0;
        if !failed && let Poll::Ready(conn) = own.poll_open(&mut wait, cx) {
            return Poll::Ready(Ok(conn));
        }
        if failed || Instant::now() >= deadline {
            let why = own.last_failure();
            let why = why.map_or_else(|| "no connection in time".to_owned(), |why| why.to_string());
            return Poll::Ready(Err(Error::Unavailable { why }));
        }
        shared.schedule.wake_at(&mut timer, deadline, cx.waker());
        Poll::Pending
    });
    let conn = conn.await?;
    own.release();
    Ok(Opened {
        conn,
        credentials_version: own.credentials_version(),
    })
}
