//! The sessions of one keeper: by the names in their tokens, and those without a connection by their age.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use crate::kept::Kept;
use crate::state::WhyFresh;
use crate::token::{Name, Tokens};
use crate::waiting::{Waiting, Whose};

/// Of so many sessions that are over a keeper knows why.
const GONE: usize = 1024;

/// What a server keeps of a session beside its handler.
pub(crate) struct ServerSide {
    pub(crate) name: Name,
    pub(crate) tokens: Tokens,
    /// The client's latest attempt to connect; 0: it does not say.
    pub(crate) attempt: u64,
    /// While it has no connection.
    pub(crate) suspended: Option<Suspended>,
}

#[derive(Clone, Copy)]
pub(crate) struct Suspended {
    /// Its place among those that wait.
    pub(crate) place: u64,
    pub(crate) until: Instant,
    pub(crate) whose: Whose,
}

pub(crate) type ServerKept = Kept<ServerSide>;

#[derive(Default)]
pub(crate) struct Table {
    by_name: HashMap<Name, Arc<ServerKept>>,
    by_id: HashMap<u64, Arc<ServerKept>>,
    suspended: Waiting,
    gone: HashMap<Name, WhyFresh>,
    gone_order: VecDeque<Name>,
}

impl Table {
    pub(crate) fn enter(&mut self, name: Name, kept: &Arc<ServerKept>) {
        self.by_name.insert(name, Arc::clone(kept));
        self.by_id.insert(kept.session.id(), Arc::clone(kept));
    }

    /// # Errors
    /// Why there is none.
    pub(crate) fn find(&self, name: &Name) -> Result<Arc<ServerKept>, WhyFresh> {
        let gone = || self.gone.get(name).copied().unwrap_or(WhyFresh::Unknown);
        self.by_name.get(name).cloned().ok_or_else(gone)
    }

    pub(crate) fn get(&self, id: u64) -> Option<Arc<ServerKept>> {
        self.by_id.get(&id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<ServerKept>> {
        self.by_id.values().cloned().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn suspend(&mut self, id: u64, whose: Whose) -> u64 {
        self.suspended.enter(id, whose)
    }

    pub(crate) fn unsuspend(&mut self, place: u64, whose: Whose) {
        self.suspended.leave(place, whose);
    }

    pub(crate) fn suspended(&self) -> usize {
        self.suspended.len()
    }

    /// The one that goes first for the number of them, and its place.
    pub(crate) fn first_to_go(&self) -> Option<(u64, Arc<ServerKept>)> {
        let (place, id) = self.suspended.first_to_go()?;
        Some((place, self.get(id)?))
    }

    /// Those that go for the bytes in them until `excess` are gone, and their places.
    pub(crate) fn first_with_bytes(&self, excess: usize) -> Vec<(u64, Arc<ServerKept>)> {
        let bytes = |id| {
            let kept = self.by_id.get(&id);
            kept.map_or(0, |kept| kept.link().suspended_bytes())
        };
        let first = self.suspended.first_with(bytes, excess);
        let found = |(place, id)| Some((place, self.get(id)?));
        first.into_iter().filter_map(found).collect()
    }

    pub(crate) fn remove(&mut self, id: u64, name: Name, why: WhyFresh) {
        self.by_id.remove(&id);
        if self.by_name.remove(&name).is_none() {
            return;
        }
        self.gone.insert(name, why);
        self.gone_order.push_back(name);
        if self.gone_order.len() > GONE
            && let Some(oldest) = self.gone_order.pop_front()
        {
            self.gone.remove(&oldest);
        }
    }
}
