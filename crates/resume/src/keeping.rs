//! What a keeper and the connections of its sessions share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use embar_session::Peer;

use crate::kept::Seat;
use crate::schedule::{Schedule, after, must_not_block};
use crate::settings::KeeperSettings;
use crate::state::{End, WhyFresh};
use crate::suspended_bytes::SuspendedBytes;
use crate::table::{ServerKept, ServerSide, Suspended, Table};
use crate::waiting::Whose;

pub(crate) struct Keeping {
    pub(crate) settings: KeeperSettings,
    pub(crate) schedule: Arc<Schedule>,
    table: Mutex<Table>,
    /// A session is over.
    left: Condvar,
    suspended_bytes: Arc<SuspendedBytes>,
    draining: AtomicBool,
}

impl Keeping {
    pub(crate) fn new(settings: KeeperSettings) -> Self {
        Self {
            suspended_bytes: Arc::new(SuspendedBytes::new(settings.max_suspended_bytes)),
            settings,
            schedule: Arc::default(),
            table: Mutex::default(),
            left: Condvar::new(),
            draining: AtomicBool::new(false),
        }
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub(crate) fn suspended_bytes(&self) -> usize {
        self.suspended_bytes.used()
    }

    /// The session has no connection: it waits for one.
    pub(crate) fn suspend(&self, kept: &ServerKept, seat: &mut Seat<ServerSide>, peer: &Peer) {
        let id = kept.session.id();
        let whose = Whose::of(peer, id);
        let now = Instant::now();
        let until = after(now, self.settings.resume_window);
        let mut table = self.table();
        let place = table.suspend(id, whose);
        let many = table.suspended() > self.settings.max_suspended;
        drop(table);
        seat.own.suspended = Some(Suspended {
            place,
            until,
            whose,
        });
        kept.link().count_in(&self.suspended_bytes);
        let too_much = many || self.suspended_bytes.excess() > 0;
        self.schedule.by(id, if too_much { now } else { until });
    }

    /// The session gets a connection, or is over.
    pub(crate) fn unsuspend(&self, kept: &ServerKept, seat: &mut Seat<ServerSide>) {
        if let Some(suspended) = seat.own.suspended.take() {
            self.table().unsuspend(suspended.place, suspended.whose);
            kept.link().count_nowhere();
        }
    }

    pub(crate) fn end(&self, kept: &ServerKept, seat: &mut Seat<ServerSide>, why: End) {
        let gone = match why {
            End::Expired => WhyFresh::Expired,
            End::Evicted => WhyFresh::Evicted,
            _ => WhyFresh::Ended,
        };
        self.unsuspend(kept, seat);
        kept.end(seat, why);
        self.table().remove(kept.session.id(), seat.own.name, gone);
        self.left.notify_all();
    }

    /// The time for which a session is in the schedule is there.
    pub(crate) fn look_at(&self, id: u64) {
        let kept = self.table().get(id);
        if let Some(kept) = kept {
            self.look(&kept);
        }
        self.evict();
    }

    fn look(&self, kept: &ServerKept) {
        let mut seat = kept.seat();
        let seat = &mut *seat;
        let link = kept.link();
        let outlook = link.outlook();
        let now = Instant::now();
        if outlook.is_connected {
            if outlook.is_late(now) {
                link.cut();
            }
        } else if let Some(end) = outlook.end(now) {
            return self.end(kept, seat, end);
        } else if seat.own.suspended.is_some_and(|it| it.until <= now) {
            return self.end(kept, seat, End::Expired);
        }
        let until = seat.own.suspended.map(|it| it.until);
        let next = [until, outlook.close_by].into_iter().flatten();
        if let Some(at) = next.filter(|at| *at > now).min() {
            self.schedule.by(link.id, at);
        }
    }

    fn evict(&self) {
        while let Some((place, kept)) = self.first_of_too_many() {
            self.evict_one(place, &kept);
        }
        loop {
            let excess = self.suspended_bytes.excess();
            let first = match excess {
                0 => return,
                _ => self.table().first_with_bytes(excess),
            };
            if first.is_empty() {
                return;
            }
            for (place, kept) in first {
                // Others may have given bytes back meanwhile.
                if self.suspended_bytes.excess() > 0 {
                    self.evict_one(place, &kept);
                }
            }
        }
    }

    fn first_of_too_many(&self) -> Option<(u64, Arc<ServerKept>)> {
        let table = self.table();
        let many = table.suspended() > self.settings.max_suspended;
        many.then(|| table.first_to_go()).flatten()
    }

    fn evict_one(&self, place: u64, kept: &ServerKept) {
        let mut seat = kept.seat();
        // Else it has a connection by now.
        if seat.own.suspended.is_some_and(|it| it.place == place) {
            self.end(kept, &mut seat, End::Evicted);
        }
    }

    /// Sends every client away, and waits until they are gone. Returns how many are left.
    pub(crate) fn drain(&self, timeout: Duration) -> usize {
        self.draining.store(true, Ordering::Release);
        let all = self.table().all();
        for kept in all {
            kept.link().say_goodbye();
        }
        let table = self.table();
        if must_not_block() {
            return table.len();
        }
        let waits = |table: &mut Table| table.len() > 0;
        let waited = self.left.wait_timeout_while(table, timeout, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.len()
    }

    /// Whoever comes is served again.
    pub(crate) fn reopen(&self) {
        self.draining.store(false, Ordering::Release);
    }

    /// Ends every session.
    pub(crate) fn stop(&self) {
        self.draining.store(true, Ordering::Release);
        let all = self.table().all();
        for kept in all {
            let mut seat = kept.seat();
            self.end(&kept, &mut seat, End::Stopped);
        }
    }
}
