//! The slots of one channel, and what its callers and its session do to them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use embar_session::{Closed, Farewell, SendError, Session};
use embar_transport::waiters::{Outworn, Place, WakeBatch, wake};

use super::settings::{ChannelSettings, ChannelStats};
use super::slot::Slot;
use super::turns::{Turn, Turns};
use crate::Status;
use crate::outgoing::{Nothing, Outgoing};
use crate::protocol::{CallNumber, Credit, CreditFrame, frame};
use crate::room_watch::RoomWatch;

/// What the handles of a channel share with the handler of its session.
pub(super) struct Table {
    pub(super) settings: ChannelSettings,
    session: OnceLock<Session>,
    slots: Box<[Mutex<Slot>]>,
    turns: Mutex<Turns>,
    /// Why the session ended.
    ended: OnceLock<String>,
    /// What the server said that asks its clients to leave.
    farewell: Mutex<Option<Farewell>>,
    /// It did.
    leaving: AtomicBool,
    watch: RoomWatch,
    pub(super) calls: AtomicU64,
    pub(super) strays: AtomicU64,
    open_slots: AtomicU64,
}

impl Table {
    pub(super) fn new(settings: ChannelSettings) -> Arc<Self> {
        let count = settings.in_flight();
        Arc::new(Self {
            turns: Mutex::new(Turns::new(settings.max_waiting)),
            settings,
            session: OnceLock::new(),
            slots: (0..count).map(|_| Mutex::default()).collect(),
            ended: OnceLock::new(),
            farewell: Mutex::default(),
            leaving: AtomicBool::new(false),
            watch: RoomWatch::default(),
            calls: AtomicU64::new(0),
            strays: AtomicU64::new(0),
            open_slots: AtomicU64::new(0),
        })
    }

    /// The session opened, and the server takes so many calls.
    pub(super) fn open(&self, session: &Session, max_in_flight: u32) {
        if self.session.set(session.clone()).is_ok() {
            let count = max_in_flight.min(self.settings.in_flight());
            self.open_slots.store(count.into(), Ordering::Relaxed);
            self.turns().open(count);
            // Whoever opened it may have given it up.
            self.close_if_left();
        }
    }

    /// The session; none before it opened.
    pub(super) fn session(&self) -> Option<&Session> {
        self.session.get()
    }

    pub(super) fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot with this number, if there is one.
    pub(super) fn slot(&self, index: u32) -> Option<MutexGuard<'_, Slot>> {
        let slot = self.slots.get(index as usize)?;
        Some(slot.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn each_slot(&self) -> impl Iterator<Item = (u32, MutexGuard<'_, Slot>)> {
        (0..).map_while(|index| Some((index, self.slot(index)?)))
    }

    /// A slot for a new call; none while the caller has to wait.
    pub(super) fn take(
        &self,
        place: &mut Option<Place>,
        waker: Option<&Waker>,
    ) -> Result<Option<u32>, Status> {
        if let Some(status) = self.refusal() {
            self.leave(place);
            return Err(status);
        }
        // Before the lock, as both run anybody's code.
        let mut outworn = Outworn::default();
        let waker = waker.cloned();
        let turn = self.turns().take(place, waker, &mut outworn);
        match turn {
            // The server may have said goodbye meanwhile, and whoever heard it has seen this slot free.
            Turn::Slot(slot) => match self.refusal() {
                Some(status) => {
                    self.give_back(slot);
                    Err(status)
                }
                None => Ok(Some(slot)),
            },
            // Who joins while the session ends is woken by that, or finds it out here.
            Turn::Waits => match self.refusal() {
                Some(status) => {
                    self.leave(place);
                    Err(status)
                }
                None => Ok(None),
            },
            Turn::Refused => Err(Status::resource_exhausted(
                "all calls that the channel may have in flight are, and too many wait: \
                 raise max_in_flight or max_waiting, or call less",
            )
            .unsent()),
        }
    }

    /// Why no call begins any more.
    fn refusal(&self) -> Option<Status> {
        if let Some(why) = self.ended.get() {
            return Some(never_sent(why));
        }
        // Relaxed: who waits is woken after it, and who has a slot has used the lock of the turns since.
        match self.leaving.load(Ordering::Relaxed) {
            true => self.farewell().as_ref().map(left),
            false => None,
        }
    }

    /// What the server said that asks its clients to leave, if it did.
    pub(super) fn farewell(&self) -> Option<Farewell> {
        let farewell = self.farewell.lock();
        farewell.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The server asks its clients to leave: no call begins any more, and those in flight come to their ends.
    pub(super) fn leave_server(&self, farewell: Farewell) {
        let stored = self.farewell.lock();
        *stored.unwrap_or_else(PoisonError::into_inner) = Some(farewell);
        self.leaving.store(true, Ordering::Relaxed);
        self.wake_all_waiting();
        self.close_if_left();
    }

    /// Closes the session of a channel that leaves, once it has no call in flight.
    fn close_if_left(&self) {
        // Behind a use of the lock: of this and the end of the last call one sees the other.
        let free = self.turns().free() as u64;
        if self.leaving.load(Ordering::Relaxed)
            && free == self.open_slots.load(Ordering::Relaxed)
            && let Some(session) = self.session()
        {
            session.close();
        }
    }

    /// Who waited at `place` does so no more.
    pub(super) fn leave(&self, place: &mut Option<Place>) {
        if place.is_some() {
            let mut outworn = Outworn::default();
            self.turns().leave(place, &mut outworn);
            drop(outworn);
            self.wake_waiting();
        }
    }

    fn wake_waiting(&self) {
        let mut batch = WakeBatch::default();
        loop {
            self.turns().wake(&mut batch);
            if !batch.wake() {
                return;
            }
        }
    }

    fn wake_all_waiting(&self) {
        let all = self.turns().wake_all();
        all.wake();
    }

    /// Begins a call in a slot that was taken.
    pub(super) fn begin(&self, slot: u32, credit: Option<Credit>) -> Result<CallNumber, Status> {
        let Some(mut locked) = self.slot(slot) else {
            return Err(Status::internal("there is no such slot").unsent());
        };
        // With the lock: the end of the session is not yet here, or passes by this slot later.
        if let Some(why) = self.ended.get() {
            return Err(never_sent(why));
        }
        let generation = locked.open(credit);
        Ok(CallNumber { slot, generation })
    }

    /// The call's request did not leave.
    pub(super) fn not_sent(&self, call: CallNumber) {
        let waker = self.slot(call.slot).and_then(|mut slot| slot.unsent());
        // Its destructor is anybody's code.
        drop(waker);
        self.give_back(call.slot);
    }

    /// A slot is free.
    pub(super) fn give_back(&self, slot: u32) {
        let mut batch = WakeBatch::default();
        let mut turns = self.turns();
        turns.give_back(slot);
        turns.wake(&mut batch);
        drop(turns);
        if batch.wake() {
            self.wake_waiting();
        }
        if self.leaving.load(Ordering::Relaxed) {
            self.close_if_left();
        }
    }

    /// The caller of a call that was sent is gone.
    pub(super) fn give_up(&self, call: CallNumber) {
        let Some(mut slot) = self.slot(call.slot) else {
            return;
        };
        let waker = slot.waker.take();
        let free = slot.give_up();
        drop(slot);
        // Its destructor is anybody's code.
        drop(waker);
        match free {
            true => self.give_back(call.slot),
            false => self.cancel(call),
        }
    }

    /// Tells the server that nobody waits any more.
    pub(super) fn cancel(&self, call: CallNumber) {
        if self.post(frame::CANCEL, &call.to_bytes()) {
            return;
        }
        if let Some(mut slot) = self.slot(call.slot)
            && slot.under_way() == Some(call.generation)
        {
            slot.cancel_due = true;
            drop(slot);
            self.when_room();
        }
    }

    /// Grants the server more items.
    pub(super) fn grant(&self, call: CallNumber, credit: Credit) {
        let grant = CreditFrame { call, credit };
        if self.post(frame::CREDIT, &grant.to_bytes()) {
            return;
        }
        if let Some(mut slot) = self.slot(call.slot) {
            slot.not_granted(call.generation, credit);
            drop(slot);
            self.when_room();
        }
    }

    /// False: there is no room for it now.
    fn post(&self, id: u16, content: &[u8]) -> bool {
        let sent = self
            .session()
            .map(|session| Nothing.try_send(session, id, &[content]));
        // A session that is over needs no word any more.
        !matches!(sent, Some(Err(SendError::Full)))
    }

    fn when_room(&self) {
        if let Some(session) = self.session() {
            self.watch.watch(session, 64);
        }
    }

    /// The session's timer: ends waits that are over, and sends what found no room.
    pub(super) fn woken(&self, session: &Session) {
        self.watch.woken();
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for (index, mut slot) in self.each_slot() {
            match slot.deadline {
                Some(deadline) if deadline <= now => {
                    slot.deadline = None;
                    let waker = slot.waker.take();
                    let due = due(&mut slot, index);
                    drop(slot);
                    waker.into_iter().for_each(wake);
                    self.send_due(due);
                    continue;
                }
                Some(deadline) => next = Some(next.map_or(deadline, |next| next.min(deadline))),
                None => {}
            }
            let due = due(&mut slot, index);
            drop(slot);
            self.send_due(due);
        }
        let mut turns = self.turns();
        match turns.next_deadline {
            Some(deadline) if deadline <= now => {
                turns.next_deadline = None;
                drop(turns);
                // Those whose time is not over wait on, and say so again.
                self.wake_all_waiting();
            }
            Some(deadline) => next = Some(next.map_or(deadline, |next| next.min(deadline))),
            None => {}
        }
        if let Some(next) = next {
            session.wake_after(next.saturating_duration_since(now));
        }
    }

    fn send_due(&self, (cancel, credit): Due) {
        if let Some(call) = cancel {
            self.cancel(call);
        }
        if let Some((call, credit)) = credit {
            self.grant(call, credit);
        }
    }

    /// Has the callers woken that wait for a slot, when `left` is over.
    pub(super) fn wake_waiting_at(&self, deadline: Instant, left: Duration) {
        let mut turns = self.turns();
        let nearer = turns.next_deadline.is_none_or(|next| deadline < next);
        if nearer {
            turns.next_deadline = Some(deadline);
        }
        drop(turns);
        if let Some(session) = self.session().filter(|_| nearer) {
            session.wake_after(left);
        }
    }

    /// The session is over: nothing comes any more.
    pub(super) fn end(&self, why: &Closed) {
        let why = why.to_string();
        let status = Status::unavailable(format!(
            "the session ended before the reply: {why}. The method may have run, or may still run"
        ));
        // Before the slots are looked at: who begins a call later sees it.
        let _ = self.ended.set(why);
        for (index, mut slot) in self.each_slot() {
            let (free, waker) = slot.lost(&status);
            drop(slot);
            waker.into_iter().for_each(wake);
            if free {
                self.give_back(index);
            }
        }
        self.wake_all_waiting();
    }

    /// Copies what lies in the ring and nobody took yet; whether there was something.
    pub(super) fn copy_kept(&self) -> bool {
        self.each_slot()
            .map(|(_, mut slot)| slot.copy_kept())
            .fold(false, |any, copied| any | copied)
    }

    pub(super) fn stats(&self) -> ChannelStats {
        let turns = self.turns();
        let slots = self.open_slots.load(Ordering::Relaxed);
        ChannelStats {
            calls: self.calls.load(Ordering::Relaxed),
            in_flight: slots.saturating_sub(turns.free() as u64),
            max_in_flight: slots,
            waiting: turns.waiting() as u64,
            strays: self.strays.load(Ordering::Relaxed),
        }
    }
}

/// What a slot has left to send.
type Due = (Option<CallNumber>, Option<(CallNumber, Credit)>);

fn due(slot: &mut Slot, index: u32) -> Due {
    let Some(generation) = slot.under_way() else {
        return (None, None);
    };
    let call = CallNumber {
        slot: index,
        generation,
    };
    let cancel = std::mem::take(&mut slot.cancel_due).then_some(call);
    let credit = slot.credit_due.then(|| (call, slot.grant()));
    (cancel, credit)
}

/// The status of calls on a channel whose server asks its clients to leave.
fn left(farewell: &Farewell) -> Status {
    let reason = match farewell.text.as_str() {
        "" => String::new(),
        text => format!(" ({text})"),
    };
    let elsewhere = match &farewell.redirect {
        None => "elsewhere".to_owned(),
        Some(address) => format!("to {address}, as it says"),
    };
    Status::unavailable(format!(
        "the server asks its clients to leave{reason}. The request was not sent: connect {elsewhere}, and call again"
    ))
    .unsent()
}

fn never_sent(why: &str) -> Status {
    Status::unavailable(format!(
        "the session is over: {why}. The request was not sent: connect again, and call again"
    ))
    .unsent()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn who_gets_a_slot_of_a_channel_that_leaves_gives_it_back() {
        for _ in 0..200 {
            let table = Table::new(ChannelSettings::default());
            table.turns().open(1);
            let turns = table.turns();
            thread::scope(|scope| {
                let taken = scope.spawn(|| table.take(&mut None, None));
                // It has found nothing that speaks against a call, most of the time, and waits for the lock.
                (0..100).for_each(|_| thread::yield_now());
                *table.farewell.lock().unwrap() = Some(Farewell::default());
                table.leaving.store(true, Ordering::Relaxed);
                drop(turns);
                let refused = taken.join().unwrap().unwrap_err();
                assert!(!refused.may_have_run(), "{refused}");
            });
            assert_eq!(table.turns().free(), 1);
        }
    }
}
