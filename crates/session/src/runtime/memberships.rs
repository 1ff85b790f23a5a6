//! The broadcasts that one session is a member of.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::session_id::SessionId;

/// What a session may be a member of.
pub(super) trait Membership: Send + Sync {
    /// The session is over.
    fn forget(&self, id: SessionId);
}

/// By their numbers; `None` once the session is over.
pub(super) struct Memberships(Mutex<Option<HashMap<u64, Weak<dyn Membership>>>>);

impl Default for Memberships {
    fn default() -> Self {
        Self(Mutex::new(Some(HashMap::new())))
    }
}

impl Memberships {
    fn all(&self) -> MutexGuard<'_, Option<HashMap<u64, Weak<dyn Membership>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False: the session is over.
    pub(super) fn enter(&self, number: u64, membership: Weak<dyn Membership>) -> bool {
        let mut all = self.all();
        let Some(all) = all.as_mut() else {
            return false;
        };
        all.insert(number, membership);
        true
    }

    pub(super) fn remove(&self, number: u64) {
        if let Some(all) = self.all().as_mut() {
            all.remove(&number);
        }
    }

    /// The session is over: those it was a member of, and there will be no others.
    pub(super) fn end(&self) -> Vec<Arc<dyn Membership>> {
        let all = self.all().take().unwrap_or_default();
        all.into_values().filter_map(|it| it.upgrade()).collect()
    }
}
