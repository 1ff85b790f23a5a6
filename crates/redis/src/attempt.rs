//! What the attempts of single commands and of many have in common.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use embar_mux::{Call, Connection, SubmitError, Turn};
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};

use crate::command::Class;
use crate::config::OnFull;
use crate::engine::NodeConnection;
use crate::metrics::RetryCause;
use crate::resp::ErrorKind;

/// Goes before a command that the client sends to the node to which its slot is moving.
pub(crate) const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// How many redirects of one command the client follows without a pause.
pub(crate) const PROMPT_REDIRECTS: u32 = 3;

/// Where a redirect leads.
#[derive(Clone)]
pub(crate) struct Target {
    pub connection: Arc<NodeConnection>,
    /// It was `ASK`: `ASKING` goes before the command, and the slot's route stays.
    pub asking: bool,
}

/// Whether a subscriber of `tracing` wants each command. If not, this costs an instruction or two.
#[inline]
pub(crate) fn is_traced() -> bool {
    STATIC_MAX_LEVEL >= LevelFilter::TRACE && LevelFilter::current() >= LevelFilter::TRACE
}

/// Submits a command of so many bytes and replies, which `fill` writes. If the connection has no room
/// for it, it waits for its turn or is refused.
#[inline]
pub(crate) fn submit(
    (conn, turn, on_full): (&Connection, &mut Turn, OnFull),
    cx: &mut Context<'_>,
    (len, replies, class): (usize, u32, Class),
    timeout: Option<Duration>,
    mut fill: impl FnMut(&mut [u8]),
) -> Poll<Result<Call, SubmitError>> {
    let class = class as u8;
    match on_full {
        OnFull::Wait => conn.poll_submit(turn, cx, len, replies, class, timeout, &mut fill),
        OnFull::Refuse => {
            let waker = Some(cx.waker().clone());
            Poll::Ready(conn.submit(len, replies, class, timeout, waker, fill))
        }
    }
}

/// Why a server did not execute a command.
pub(crate) fn cause(kind: &ErrorKind) -> RetryCause {
    match kind {
        ErrorKind::TryAgain => RetryCause::TryAgain,
        ErrorKind::ClusterDown => RetryCause::ClusterDown,
        ErrorKind::Loading => RetryCause::Loading,
        ErrorKind::MasterDown => RetryCause::MasterDown,
        ErrorKind::ReadOnly => RetryCause::ReadOnly,
        ErrorKind::Moved { .. } | ErrorKind::Ask { .. } => RetryCause::Redirects,
        _ => RetryCause::ReconnectOn,
    }
}
