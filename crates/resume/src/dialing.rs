//! What a connector and the connections of its sessions share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use embar_session::{Address, Closed, Side};

use crate::farewell::end_of;
use crate::kept::{Kept, Seat};
use crate::plan::Plan;
use crate::schedule::Schedule;
use crate::settings::ConnectorSettings;
use crate::state::End;
use crate::wire::Hello;

pub(crate) type ClientKept = Kept<Plan>;

pub(crate) struct Dialing {
    pub(crate) settings: ConnectorSettings,
    pub(crate) schedule: Arc<Schedule>,
    /// `None` when it has stopped.
    sessions: Mutex<Option<HashMap<u64, Arc<ClientKept>>>>,
}

/// A connection that is to be made.
pub(crate) struct Attempt {
    pub(crate) kept: Arc<ClientKept>,
    pub(crate) generation: u64,
    pub(crate) address: Address,
    pub(crate) hello: Vec<u8>,
}

impl Dialing {
    pub(crate) fn new(settings: ConnectorSettings) -> Self {
        Self {
            settings,
            schedule: Arc::default(),
            sessions: Mutex::new(Some(HashMap::new())),
        }
    }

    fn sessions(&self) -> MutexGuard<'_, Option<HashMap<u64, Arc<ClientKept>>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session begins.
    pub(crate) fn enter(&self, kept: &Arc<ClientKept>) {
        let id = kept.session.id();
        let mut seat = kept.seat();
        kept.link().stands(seat.own.state());
        let mut sessions = self.sessions();
        if let Some(sessions) = &mut *sessions {
            sessions.insert(id, Arc::clone(kept));
            self.schedule.by(id, Instant::now());
        } else {
            drop(sessions);
            kept.end(&mut seat, End::Stopped);
        }
    }

    pub(crate) fn end(&self, kept: &ClientKept, seat: &mut Seat<Plan>, why: End) {
        kept.end(seat, why);
        if let Some(sessions) = &mut *self.sessions() {
            sessions.remove(&kept.session.id());
        }
    }

    /// The time for which a session is in the schedule is there: what to connect to, if that is it.
    pub(crate) fn look_at(&self, id: u64) -> Option<Attempt> {
        let kept = self.sessions().as_ref()?.get(&id).cloned()?;
        let mut guard = kept.seat();
        let seat = &mut *guard;
        seat.handler.as_ref()?;
        let link = kept.link();
        let outlook = link.outlook();
        let now = Instant::now();
        if outlook.is_connected {
            if outlook.is_late(now) {
                link.cut();
            }
        } else if let Some(end) = outlook.end(now) {
            self.end(&kept, seat, end);
            return None;
        }
        let is_due = seat.own.connect_at.is_some_and(|at| at <= now);
        let attempt = is_due.then(|| {
            let stay = self.settings.stay;
            let address = seat.own.begin(link.take_next_address(), stay, now);
            seat.generation += 1;
            link.begin(seat.generation);
            link.stands(seat.own.state());
            let token = seat.own.token.map(|token| token.to_bytes());
            let hello = Hello {
                token: token.as_ref().map(|token| token.as_slice()),
                received: seat.inbox.number(),
                keeps: self.settings.replay.keeps(),
                greeting: &seat.own.target.greeting,
                attempt: seat.generation,
            };
            (seat.generation, address, hello.to_bytes())
        });
        let next = [seat.own.connect_at, outlook.close_by];
        if let Some(at) = next.into_iter().flatten().filter(|at| *at > now).min() {
            self.schedule.by(id, at);
        }
        drop(guard);
        let (generation, address, hello) = attempt?;
        Some(Attempt {
            kept,
            generation,
            address,
            hello,
        })
    }

    /// A connection, or the attempt to make one, has ended; `was_sent_away`: the server took no session.
    pub(crate) fn lost(
        &self,
        kept: &Arc<ClientKept>,
        generation: u64,
        why: &Closed,
        was_sent_away: bool,
    ) {
        let mut seat = kept.seat();
        let seat = &mut *seat;
        if seat.generation != generation || seat.handler.is_none() {
            return;
        }
        let link = kept.link();
        link.lost(generation);
        let outlook = link.outlook();
        let goes_on = was_sent_away || seat.own.moved;
        let done = outlook.is_done();
        let mut end = outlook.kill.or_else(|| kept.panicked());
        end = end.or_else(|| end_of(why).filter(|_| !goes_on));
        if end.is_none() && done {
            end = Some(End::Finished { by: Side::Local });
        }
        let now = Instant::now();
        if end.is_none() {
            if std::mem::take(&mut seat.live) {
                seat.own.lost(&self.settings, now);
                link.stands(seat.own.state());
                if !kept.call(seat, |handler, session| handler.suspended(session, why)) {
                    end = Some(End::Panicked);
                }
            }
            if end.is_none() && !seat.own.retry(&self.settings, now) {
                end = Some(End::GaveUp(why.clone()));
            }
        }
        if let Some(end) = end {
            return self.end(kept, seat, end);
        }
        if let Some(at) = seat.own.connect_at {
            self.schedule.by(kept.session.id(), at);
        }
    }

    /// Ends every session.
    pub(crate) fn stop(&self) {
        let all = self.sessions().take().unwrap_or_default();
        for kept in all.into_values() {
            let mut seat = kept.seat();
            self.end(&kept, &mut seat, End::Stopped);
        }
    }
}
