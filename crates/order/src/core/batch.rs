//! The core's decisions on batches: places a batch, holds it until its predecessor comes, or refuses it. Places held
//! batches when their turn has come, and fences sessions.

use embar_fabric::{NoticeKind, PbrRecord};
use embar_memory::canary::{Canary, injected};

use super::Core;
use crate::action::{Action, Arrival, Outcome};
use crate::chains::Chain;
use crate::protocol::Admission;
use crate::session::Session;

impl Core {
    #[inline]
    pub(super) fn batch(&mut self, arrival: &Arrival, out: &mut Vec<Action>) {
        if let Err(outcome) = self.admit(arrival, out) {
            self.notify(arrival.source, outcome, out);
        }
    }

    #[inline]
    fn admit(&mut self, arrival: &Arrival, out: &mut Vec<Action>) -> Result<(), Outcome> {
        let record = &arrival.record;
        // No number comes after the last one.
        if record.count == 0 || record.sequence == u64::MAX {
            return Err(Outcome::only(NoticeKind::Malformed));
        }
        let unknown = || Outcome::only(NoticeKind::UnknownSession);
        let session = self.sessions.get_mut(record.session).ok_or_else(unknown)?;
        let chain = self.chains.at_mut(session.chain);
        owns(session, chain.as_deref(), record)?;
        let chain = chain.expect("a session's chain stays as long as the session");
        if record.session_epoch != session.epoch || session.fenced {
            return Err(over(session, chain, record));
        }
        session.active = self.clock.now();
        let window = self.limits.window;
        match chain
            .protocol
            .admit(&session.progress, record.sequence, window)
        {
            Admission::Place => {
                let base = chain
                    .claim(record.count)
                    .ok_or(Outcome::only(NoticeKind::Malformed))?;
                chain.protocol.place(&mut session.progress, record.sequence);
                self.figures.placed += 1;
                out.push(Action::Place {
                    arrival: *arrival,
                    base,
                });
                if session.held > 0 {
                    self.place_held(record.session, record.sequence, out);
                }
                Ok(())
            }
            Admission::Hold => {
                // No session takes the last room from the others.
                let kept = session.held >= self.held.room() && !injected(Canary::HeldReserve);
                if kept || self.held.room() == 0 {
                    return Err(Outcome::only(NoticeKind::HeldFull));
                }
                self.held.insert(arrival);
                session.held += 1;
                if session.held == 1 {
                    self.gaps.begin(record.session, self.clock.now());
                }
                Ok(())
            }
            Admission::Duplicate => Err(Outcome::only(NoticeKind::Duplicate)),
            Admission::BeyondWindow => Err(Outcome::only(NoticeKind::BeyondWindow)),
        }
    }

    /// Number `placed` of a session that holds batches was placed: the batches that waited for it are, too.
    fn place_held(&mut self, place: u32, mut placed: u64, out: &mut Vec<Action>) {
        loop {
            while let Some(other) = self.take_held(place, placed) {
                self.notify(other.source, Outcome::only(NoticeKind::Duplicate), out);
            }
            let expected = self.sessions.at(place).progress.mark;
            let Some(arrival) = self.take_held(place, expected) else {
                break;
            };
            let session = self.sessions.at(place);
            let chain = self.chains.at_mut(session.chain);
            let chain = chain.expect("a session's chain stays as long as the session");
            let Some(base) = chain.claim(arrival.record.count) else {
                self.notify(arrival.source, Outcome::only(NoticeKind::Malformed), out);
                break;
            };
            chain.protocol.place(&mut session.progress, expected);
            self.figures.placed += 1;
            out.push(Action::Place { arrival, base });
            placed = expected;
        }
        // Another batch is missing now, and it has a lease of its own.
        self.gaps.end(place);
        if self.sessions.at(place).held > 0 {
            self.gaps.begin(place, self.clock.now());
        }
    }

    fn take_held(&mut self, place: u32, number: u64) -> Option<Arrival> {
        let session = self.sessions.at(place);
        if session.held == 0 {
            return None;
        }
        let arrival = self.held.take(place, number)?;
        session.held -= 1;
        Some(arrival)
    }

    /// The session's current epoch is over: it waits for none of its batches any more.
    pub(super) fn fence(&mut self, place: u32, out: &mut Vec<Action>) {
        let session = self.sessions.at(place);
        session.fenced = true;
        let outcome = Outcome::fenced(session.progress.mark);
        self.save(place, out);
        self.notify_held(place, outcome, out);
    }

    /// Gives all batches that a session holds the same outcome, in no order.
    pub(super) fn notify_held(&mut self, place: u32, outcome: Outcome, out: &mut Vec<Action>) {
        let session = self.sessions.at(place);
        if session.held == 0 {
            return;
        }
        session.active = self.clock.now();
        while let Some(number) = self.held.any(place)
            && let Some(arrival) = self.take_held(place, number)
        {
            self.notify(arrival.source, outcome, out);
        }
        self.gaps.end(place);
    }
}

impl Core {
    /// Whether the batch of a record may still get a place: one that has its place already, or is of an epoch that
    /// is over, never will.
    pub fn may_place(&self, record: &PbrRecord) -> bool {
        let session = self.sessions.get(record.session);
        let known = session.and_then(|it| Some((it, self.chains.at(it.chain)?)));
        known.is_some_and(|(session, chain)| {
            owns(session, Some(chain), record).is_ok()
                && record.session_epoch == session.epoch
                && !session.fenced
                && !chain.protocol.is_placed(&session.progress, record.sequence)
        })
    }
}

/// Whether the record belongs to the session that it names, and is of the session's chain.
#[inline]
pub(super) fn owns(
    session: &Session,
    chain: Option<&Chain>,
    record: &PbrRecord,
) -> Result<(), Outcome> {
    let same = |chain: &&Chain| {
        session.in_use && session.producer == record.producer && chain.id == record.chain
    };
    let Some(chain) = chain.filter(same) else {
        return Err(gone(session, record));
    };
    if record.session_epoch < session.first_epoch {
        return Err(gone(session, record));
    }
    if chain.order != record.order_level() {
        return Err(Outcome::only(NoticeKind::Malformed));
    }
    Ok(())
}

/// Whether the epoch that the record names ever was an epoch of this place.
pub(super) fn was_granted(session: &Session, record: &PbrRecord) -> bool {
    (1..=session.epoch).contains(&record.session_epoch)
}

/// The outcome of a record whose session is not at its place. The epochs of a place only grow: if the record's was
/// granted, it was granted to a session that is over.
#[cold]
fn gone(session: &Session, record: &PbrRecord) -> Outcome {
    Outcome::only(match was_granted(session, record) {
        true => NoticeKind::GivenUp,
        false => NoticeKind::UnknownSession,
    })
}

/// The outcome of a batch of an epoch that is not current, or is fenced.
#[cold]
fn over(session: &Session, chain: &Chain, record: &PbrRecord) -> Outcome {
    if !was_granted(session, record) {
        return Outcome::only(NoticeKind::UnknownSession);
    }
    let (protocol, progress) = (chain.protocol, &session.progress);
    // A number of an older epoch may since have been given to another batch. Only what is known of
    // this very epoch says that this batch is placed.
    let placed = match session.epoch - record.session_epoch {
        0 => protocol.is_placed(progress, record.sequence),
        1 => protocol.was_placed(progress, record.sequence),
        _ => false,
    };
    if placed {
        return Outcome::only(NoticeKind::Duplicate);
    }
    Outcome::fenced(progress.mark)
}
