//! How long the application waits for batches.

use std::sync::{Arc, Mutex, PoisonError};

use embar_meter::profile::Start;
use embar_meter::{Profile, Recorder};

use crate::profile::subscriber::WAIT_FOR_BATCH;

/// Times the waits of whoever reads: from finding no batch until there is one, or until it gives up.
#[derive(Debug)]
pub(super) struct Starved {
    /// Nobody locks it: a subscriber is `Sync`, which a recorder is not.
    recorder: Mutex<Recorder>,
    since: Option<Start>,
}

impl Starved {
    pub(super) fn new(profile: &Arc<Profile>) -> Self {
        Self {
            recorder: Mutex::new(profile.recorder()),
            since: None,
        }
    }

    /// There is no batch.
    pub(super) fn begins(&mut self) {
        if self.since.is_none() {
            self.since = Some(self.recorder().start());
        }
    }

    /// There is one, or nobody waits any more.
    pub(super) fn ends(&mut self) {
        if let Some(since) = self.since.take() {
            self.recorder().stop(WAIT_FOR_BATCH, since);
        }
    }

    fn recorder(&mut self) -> &mut Recorder {
        self.recorder
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
