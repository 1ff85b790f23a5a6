//! What found no room in a session's ring: ends of calls, which must not be lost. They wait here, and
//! leave as the ring has room; there is a limit.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use embar_session::{SendError, Session};

use crate::room_watch::RoomWatch;

/// Frames that wait.
#[derive(Default)]
pub(super) struct Outbox {
    queue: Mutex<Queue>,
    watch: RoomWatch,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<(u16, Vec<u8>)>,
    bytes: usize,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a frame wait for room. False: too much waits already.
    pub(super) fn push(&self, session: &Session, id: u16, content: Vec<u8>, limit: usize) -> bool {
        let bytes = content.len();
        let mut queue = self.lock();
        if queue.bytes.saturating_add(bytes) > limit {
            return false;
        }
        queue.bytes += bytes;
        queue.frames.push_back((id, content));
        drop(queue);
        self.watch.watch(session, bytes);
        true
    }

    /// Sends what there is room for. From the session's handler, when it is woken.
    pub(super) fn flush(&self, session: &Session) {
        self.watch.woken();
        let mut queue = self.lock();
        while let Some((id, content)) = queue.frames.front() {
            let bytes = content.len();
            match session.try_reserve(*id, bytes) {
                Ok(mut packet) => {
                    packet.copy_from_slice(content);
                    packet.commit();
                }
                Err(SendError::Full) => {
                    drop(queue);
                    return self.watch.watch(session, bytes);
                }
                // The session is over.
                Err(_) => {}
            }
            queue.frames.pop_front();
            queue.bytes -= bytes;
        }
    }
}
