//! The connection that a session has at the time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use embar_session::{Room, SendError, Session};

use crate::wire::{Control, MAX_CONTROL_BYTES};

/// What a frame takes in a ring beside its content, and more.
const FRAME_BYTES: usize = 16;

/// A connection that is open.
pub(super) struct Connection {
    pub(super) session: Session,
    /// Room of its ring that all leave free: without it no message of the peer is delivered.
    reply_room: usize,
    waker: Waker,
    /// The wait for room; while there is one, messages wait.
    pub(super) room: Option<Room>,
    /// It was asked for the last acknowledgement.
    pub(super) asked: bool,
}

/// Wakes a connection's handler.
struct WakeHandler(Session);

impl Wake for WakeHandler {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake_after(Duration::ZERO);
    }
}

impl Connection {
    pub(super) fn new(session: &Session) -> Self {
        Self {
            session: session.clone(),
            reply_room: session.reply_room(),
            waker: Arc::new(WakeHandler(session.clone())).into(),
            room: None,
            asked: false,
        }
    }

    /// Whether `len` bytes fit; if not, the handler is woken when they may.
    fn has_room(&mut self, len: usize) -> bool {
        loop {
            if self.session.has_room(len) {
                return true;
            }
            if self.room.is_some() {
                // Whatever waits needs as much as a control message, at least.
                return false;
            }
            let mut room = self.session.room(len);
            let mut context = Context::from_waker(&self.waker);
            match Pin::new(&mut room).poll(&mut context) {
                Poll::Ready(Ok(())) => {}
                // Its handler hears of the end.
                Poll::Ready(Err(_)) => return false,
                Poll::Pending => {
                    self.room = Some(room);
                    return false;
                }
            }
        }
    }

    /// Sends by `send` what leaves `free` bytes of the ring and takes `len`.
    ///
    /// # Errors
    /// Those of `send`. After [`SendError::Full`] the handler is woken when there may be room.
    fn send(
        &mut self,
        len: usize,
        free: usize,
        mut send: impl FnMut(&Session) -> Result<(), SendError>,
    ) -> Result<(), SendError> {
        while self.has_room(len + free) {
            match send(&self.session) {
                // Another thread was faster, and there may be room again: nobody would say so.
                Err(SendError::Full) => {}
                done => return done,
            }
        }
        Err(SendError::Full)
    }

    /// Sends a message. There is room for a control message after it.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub(super) fn give(&mut self, id: u16, content: &[u8]) -> Result<(), SendError> {
        let free = self.reply_room + MAX_CONTROL_BYTES + 2 * FRAME_BYTES;
        let fill = |to: &mut [u8]| to.copy_from_slice(content);
        let len = content.len();
        self.send(len, free, |session| session.send_with(id, len, fill))
    }

    /// Sends a control message, or has the handler woken to try again.
    pub(super) fn say(&mut self, control: Control) -> bool {
        let free = self.reply_room;
        let said = self.send(MAX_CONTROL_BYTES, free, |session| control.send_on(session));
        said.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use embar_session::{Address, Client, Flow, Handler, Message, Server};

    use super::*;

    struct Silent;

    impl Handler for Silent {
        fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
            Flow::Continue
        }
    }

    struct Wakes(Sender<()>);

    impl Handler for Wakes {
        fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
            Flow::Continue
        }

        fn woken(&mut self, _: &Session) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn what_finds_the_ring_full_for_a_moment_is_sent_or_the_handler_is_woken() {
        let address: Address = "127.0.0.1:0".parse().unwrap();
        let server = Server::builder().listen(address).start(|_| Silent).unwrap();
        let client = Client::new().unwrap();
        let (wakes, woken) = channel();
        let session = client.connect(server.address(), Wakes(wakes)).unwrap();
        let mut connection = Connection::new(&session);
        let mut times = 0;
        let sent = connection.send(10, 0, |_| {
            times += 1;
            if times < 3 {
                return Err(SendError::Full);
            }
            Ok(())
        });
        assert_eq!((sent, times), (Ok(()), 3));
        // All of the ring, as long as this is not dropped.
        let whole = session.reserve(1, 60_000).unwrap();
        let more: Vec<_> = std::iter::from_fn(|| session.try_reserve(1, 60_000).ok()).collect();
        let sent = connection.send(60_000, 0, |_| unreachable!("there is no room"));
        assert_eq!(sent, Err(SendError::Full));
        drop((whole, more));
        let long = std::time::Duration::from_secs(60);
        assert_eq!(woken.recv_timeout(long), Ok(()));
    }
}
