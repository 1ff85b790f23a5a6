//! What broadcasts left to wait for room in the session's ring.

use std::mem;
use std::sync::{Arc, Weak};
use std::task::{Context, Wake};

use embar_frame::Protocol;

use super::SessionDriver;
use crate::runtime::shared::{Shared, request};

impl<P: Protocol> SessionDriver<P> {
    /// Commits what waits, as far as there is room, and waits for more.
    pub(super) fn commit_latest(&mut self) {
        let shared = &self.session.0;
        let wait = self
            .latest_room
            .get_or_insert_with(|| Box::new(shared.sender.ring().room_wait()));
        let mut retried = false;
        while let Some(bytes) = shared.latest.commit(&shared.sender) {
            let waker = Arc::new(Roomy(Arc::downgrade(shared))).into();
            let mut context = Context::from_waker(&waker);
            if wait.poll(bytes, &mut context).is_pending() {
                return;
            }
            // Others took the room that came meanwhile.
            if mem::replace(&mut retried, true) {
                return shared.request(request::LATEST);
            }
        }
        // Nobody else need wait behind it.
        wait.leave();
    }

    /// What waits needs more room than an answer does. First in line, it would keep the session from being read that a
    /// peer in the same plight waits for.
    pub(super) fn latest_gives_way(&mut self) {
        if let Some(wait) = &mut self.latest_room {
            wait.leave();
            self.latest_gave_way = self.session.0.latest.any();
        }
    }

    /// No answer waits for room any more, so what gave way to it does again.
    pub(super) fn latest_comes_back(&mut self) {
        if mem::take(&mut self.latest_gave_way) {
            self.commit_latest();
        }
    }
}

/// Has the worker commit what waits. Weak, because the ring that holds it is the session's.
struct Roomy(Weak<Shared>);

impl Wake for Roomy {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            shared.request(request::LATEST);
        }
    }
}
