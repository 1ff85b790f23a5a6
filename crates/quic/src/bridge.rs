//! Carries one session: its bytes between a QUIC stream and the socket that the session has, its datagrams between the
//! connection and the session's link.
//!
//! Back-pressure passes through: who does not take bytes at one end fills the socket or the stream's window, and then nothing is
//! read at the other. A peer that takes nothing at all loses the connection after a while, as by TCP, where the kernel sees to that.
//!
//! Each direction ends by itself. When both have, the connection is closed; when the connection is lost, the session learns why.

use std::future::{pending, poll_fn};
use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use embar_session::{CloseReason, Closed, DatagramLink, Settings, Side};
use quinn::{Connection, ReadError, RecvStream, SendDatagramError, SendStream, WriteError};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::ends::{closed, code_of, end_of};
use crate::thread::within;

/// Bytes read from a session at once.
const READ_BYTES: usize = 16 << 10;
/// With less room than that, there is new memory to read into.
const LEAST_READ_BYTES: usize = 2 << 10;
/// Bytes read from a stream at once.
const CHUNK_BYTES: usize = 64 << 10;
/// What a session has beside its `linger`, after its end, until its last bytes have arrived.
const GRACE: Duration = Duration::from_secs(1);

/// The shortest time that a peer may take nothing, as with TCP.
const LEAST_UNACKNOWLEDGED: Duration = Duration::from_secs(1);

/// How long a carrier waits for what.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    /// For the peer to take any of what waits for it; zero: for ever.
    pub unacknowledged: Duration,
    /// For the peer's end of a session that is ending.
    pub linger: Duration,
    /// For the path to take a datagram; zero: for ever.
    pub max_wait: Duration,
}

impl Times {
    pub(crate) fn of(settings: &Settings) -> Self {
        let unacknowledged = settings.sockets.unacknowledged_timeout;
        Self {
            unacknowledged: unacknowledged
                .map_or(Duration::ZERO, |most| most.max(LEAST_UNACKNOWLEDGED)),
            linger: settings.session.linger,
            max_wait: settings.datagrams.max_wait,
        }
    }
}

/// Carries a session until it, or the connection, is over.
pub(crate) async fn carry(
    connection: &Connection,
    (send, receive): (SendStream, RecvStream),
    socket: UnixStream,
    link: &DatagramLink,
    times: Times,
) {
    link.set_max_bytes(connection.max_datagram_size());
    let (from_session, to_session) = socket.into_split();
    let (silent, taken) = (Notify::new(), Notify::new());
    let rest = times.linger.saturating_mul(2).saturating_add(GRACE);
    // It owns the socket, and goes last: the session is to find the reason when its stream ends.
    let mut stream = pin!(async {
        tokio::join!(
            outward(
                &from_session,
                send,
                connection,
                link,
                &silent,
                times.unacknowledged
            ),
            inward(receive, to_session, link, &taken)
        )
    });
    let mut late = pin!(async {
        tokio::select! {
            () = poll_fn(|cx| link.poll_over(cx)) => {}
            () = silent.notified() => {}
        }
        sleep(rest).await;
    });
    tokio::select! {
        biased;
        _ = &mut stream => {}
        () = &mut late => {}
        error = connection.closed() => {
            link.lost(end_of(&error));
            // What came is acknowledged, so the session gets all of it, as it would by TCP: but one that takes nothing is to learn that it is
            // over, too.
            let stuck = async { while timeout(rest, taken.notified()).await.is_ok() {} };
            tokio::select! {
                _ = &mut stream => {}
                () = &mut late => {}
                () = stuck => {}
            }
        }
        () = send_datagrams(connection, link, times.max_wait) => {}
        () = receive_datagrams(connection, link) => {}
    }
    connection.close(0u32.into(), b"");
}

/// Closes a connection that carries no session, and says why.
pub(crate) fn close(connection: &Connection, reason: CloseReason, text: &str) {
    connection.close(code_of(reason), text.as_bytes());
}

/// What the session sends, until it ends and all of it has arrived.
async fn outward(
    from: &OwnedReadHalf,
    mut to: SendStream,
    connection: &Connection,
    link: &DatagramLink,
    silent: &Notify,
    patience: Duration,
) {
    let mut bytes = BytesMut::new();
    loop {
        let read = match from.readable().await {
            Ok(()) => {
                if bytes.capacity() < LEAST_READ_BYTES {
                    bytes.reserve(READ_BYTES);
                }
                from.try_read_buf(&mut bytes)
            }
            Err(error) => Err(error),
        };
        match read {
            Ok(1..) => {
                match write(&mut to, bytes.split().freeze(), patience).await {
                    Some(Ok(())) => {}
                    Some(Err(WriteError::ConnectionLost(error))) => {
                        return link.lost(end_of(&error));
                    }
                    // It wants nothing more. What it said before may still come.
                    Some(Err(_)) => {
                        link.lost(cut());
                        break;
                    }
                    None => {
                        link.lost(takes_nothing());
                        let text = "it took nothing for too long";
                        return close(connection, CloseReason::Full, text);
                    }
                }
                // The path may take longer ones by now.
                link.set_max_bytes(connection.max_datagram_size());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The session is gone, in good order or not.
            Ok(0) | Err(_) => break,
        }
    }
    silent.notify_one();
    // Stopped or finished already: the peer wants nothing more.
    let _ = to.finish();
    let _ = to.stopped().await;
}

/// `None`: the peer took none of it for as long as `patience`.
async fn write(
    to: &mut SendStream,
    bytes: Bytes,
    patience: Duration,
) -> Option<Result<(), WriteError>> {
    let mut left = [bytes];
    while !left[0].is_empty() {
        if let Err(error) = within(patience, to.write_chunks(&mut left)).await? {
            return Some(Err(error));
        }
    }
    Some(Ok(()))
}

/// What the peer sends, until it ends or the session takes no more. Tells whenever the session has `taken` some.
async fn inward(mut from: RecvStream, mut to: OwnedWriteHalf, link: &DatagramLink, taken: &Notify) {
    loop {
        match from.read_chunk(CHUNK_BYTES, true).await {
            Ok(Some(mut chunk)) => {
                while !chunk.bytes.is_empty() {
                    if to.write_buf(&mut chunk.bytes).await.is_err() {
                        let _ = from.stop(0u32.into());
                        return;
                    }
                    taken.notify_one();
                }
            }
            Ok(None) => return,
            // Before the session's stream ends.
            Err(error) => return link.lost(of_read(&error)),
        }
    }
}

fn of_read(error: &ReadError) -> Closed {
    match error {
        ReadError::ConnectionLost(error) => end_of(error),
        _ => cut(),
    }
}

/// What the kernel says of TCP.
fn takes_nothing() -> Closed {
    let reason = CloseReason::Io(io::ErrorKind::TimedOut);
    closed(Side::Network, reason, "the peer took nothing for too long")
}

/// The peer ended the stream without the word of its session.
fn cut() -> Closed {
    closed(
        Side::Network,
        CloseReason::Disconnected,
        "the peer cut the stream",
    )
}

/// Hands on what the session has, one after the other, as the path has room. What waits meanwhile does so in the session's link,
/// where newer ones take the place of older ones. Never ends.
async fn send_datagrams(connection: &Connection, link: &DatagramLink, max_wait: Duration) {
    while let Some(datagram) = poll_fn(|cx| link.poll_next(cx)).await {
        let sent = within(max_wait, connection.send_datagram_wait(datagram.into()));
        match sent.await {
            Some(Ok(())) => {}
            Some(Err(SendDatagramError::ConnectionLost(_))) => break,
            Some(Err(_)) | None => link.not_sent(),
        }
        link.set_max_bytes(connection.max_datagram_size());
    }
    pending().await
}

/// Never ends.
async fn receive_datagrams(connection: &Connection, link: &DatagramLink) {
    while let Ok(datagram) = connection.read_datagram().await {
        link.deliver(&datagram);
    }
    pending().await
}
