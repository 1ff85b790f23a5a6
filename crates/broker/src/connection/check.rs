//! The check of the payload that a connection receives: by the reactor while it copies, or by the shard afterwards.

use std::sync::{Mutex, MutexGuard, PoisonError};

use embar_transport::Witness;
use embar_wire::batch::BatchHeader;
use embar_wire::check::{Checked, PayloadCheck};
use embar_wire::error::DecodeError;

/// The check of one payload at a time. Reactor and shard are one thread, so nobody waits for it.
#[derive(Debug, Default)]
pub(crate) struct SharedCheck(Mutex<PayloadCheck>);

impl SharedCheck {
    fn lock(&self) -> MutexGuard<'_, PayloadCheck> {
        // What panicked in the middle ends the thread.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins with the payload of this batch.
    pub fn begin(&self, header: &BatchHeader) {
        self.lock().begin(header);
    }

    /// See [`PayloadCheck::end`].
    pub fn end(
        &self,
        header: &BatchHeader,
        payload: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) -> Result<Checked, DecodeError> {
        self.lock().end(header, payload)
    }
}

impl Witness for SharedCheck {
    fn see(&self, bytes: &[u8]) {
        self.lock().see(bytes);
    }
}
