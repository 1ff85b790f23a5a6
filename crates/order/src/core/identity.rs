//! The core's answers to requests for sessions: to open, take over or close one. Where there is no room for another
//! session, one that no broker holds gives up its place.

use embar_fabric::{NoticeKind, PbrRecord};
use embar_memory::canary::{Canary, injected};

use super::Core;
use super::batch::{owns, was_granted};
use crate::action::{Action, Arrival, Outcome};
use crate::chains::NoChain;
use crate::protocol::Progress;
use crate::request::{Operation, Request};
use crate::session::{Owner, Session};

impl Core {
    /// Answers a request in a session's name. A record that comes again, as it does after a takeover, changes
    /// nothing.
    pub(super) fn request(&mut self, arrival: &Arrival, out: &mut Vec<Action>) {
        let record = &arrival.record;
        let outcome = match Request::of(record) {
            None => Outcome::only(NoticeKind::Malformed),
            Some(request) => match request.operation {
                Operation::Close { .. } => self.close(record, &request, out),
                _ => self.open(record, &request, out),
            },
        };
        self.notify(arrival.source, outcome, out);
    }

    fn open(&mut self, record: &PbrRecord, request: &Request, out: &mut Vec<Action>) -> Outcome {
        let opened = match self.sessions.find(record.chain, request.producer) {
            Some(place) => self.open_again(place, record, request, out).map(|()| place),
            None => self.open_first(record, request, out).map_err(Outcome::only),
        };
        opened.map_or_else(
            |outcome| outcome,
            |place| {
                let session = self.sessions.at(place);
                Outcome {
                    kind: NoticeKind::Opened,
                    session: place,
                    session_epoch: session.epoch,
                    first_epoch: session.first_epoch,
                    mark: session.progress.mark,
                }
            },
        )
    }

    fn open_first(
        &mut self,
        record: &PbrRecord,
        request: &Request,
        out: &mut Vec<Action>,
    ) -> Result<u32, NoticeKind> {
        let order = record.order_level();
        self.chains.check(record.chain, order).map_err(refusal)?;
        // A publisher that had a session before may not go on as if none of its batches were placed: which ones are
        // is no longer known.
        let Operation::Open { .. } = request.operation else {
            return Err(NoticeKind::GivenUp);
        };
        let vacant = self.sessions.vacant().or_else(|| {
            self.give_up_idle()?;
            self.sessions.vacant()
        });
        let place = vacant.ok_or(NoticeKind::SessionsFull)?;
        let chain = self.chains.place(record.chain, order).map_err(refusal)?;
        let epoch = self.sessions.at(place).epoch + 1;
        let session = Session {
            producer: request.producer,
            progress: Progress::default(),
            active: self.clock.now(),
            chain,
            epoch,
            first_epoch: epoch,
            held: 0,
            in_use: true,
            fenced: false,
        };
        let owner = Owner {
            secret: request.secret,
            instance: request.instance,
            peer: request.peer,
        };
        self.sessions.put(place, record.chain, session, owner);
        out.push(Action::SaveOwner {
            session: place,
            owner: session.owner_row(&owner),
        });
        self.save(place, out);
        Ok(place)
    }

    fn open_again(
        &mut self,
        place: u32,
        record: &PbrRecord,
        request: &Request,
        out: &mut Vec<Action>,
    ) -> Result<(), Outcome> {
        let owner = *self.sessions.owner(place);
        let session = self.sessions.at(place);
        let chain = self.chains.at(session.chain);
        let chain = chain.filter(|chain| chain.order == record.order_level());
        let chain = chain.ok_or(Outcome::only(NoticeKind::Malformed))?;
        if owner.secret != request.secret && !injected(Canary::SessionSecret) {
            return Err(Outcome::only(NoticeKind::WrongSecret));
        }
        let begins = begins_epoch(place, session, owner.instance, request)?;
        session.active = self.clock.now();
        if !begins {
            return Ok(());
        }
        let over = Outcome::fenced(session.progress.mark);
        let next = session.epoch.checked_add(1);
        let next = next.ok_or(Outcome::only(NoticeKind::SessionsFull))?;
        if owner.instance == request.instance || !injected(Canary::NextInstance) {
            session.epoch = next;
        }
        session.fenced = false;
        chain.protocol.begin_epoch(&mut session.progress);
        self.sessions.hand_over(place, request.instance);
        self.save(place, out);
        self.notify_held(place, over, out);
        Ok(())
    }

    /// A session ends for good.
    fn close(&mut self, record: &PbrRecord, request: &Request, out: &mut Vec<Action>) -> Outcome {
        match self.end(record, request, out) {
            Ok(()) => Outcome::only(NoticeKind::Closed),
            Err(outcome) => outcome,
        }
    }

    fn end(
        &mut self,
        record: &PbrRecord,
        request: &Request,
        out: &mut Vec<Action>,
    ) -> Result<(), Outcome> {
        let unknown = || Outcome::only(NoticeKind::UnknownSession);
        let session = self.sessions.get(record.session).ok_or_else(unknown)?;
        owns(session, self.chains.at(session.chain), record)?;
        if !was_granted(session, record) {
            return Err(unknown());
        }
        if self.sessions.owner(record.session).secret != request.secret {
            return Err(Outcome::only(NoticeKind::WrongSecret));
        }
        if record.session_epoch < session.epoch {
            return Err(Outcome::fenced(session.progress.mark));
        }
        if session.held > 0 {
            return Err(Outcome::only(NoticeKind::BeyondWindow));
        }
        self.sessions.remove(record.session, record.chain);
        self.save(record.session, out);
        Ok(())
    }

    /// Frees the place of the session that was idle for longest, if that is long enough. No row records that: the
    /// owner of the next session here is stored before its row, and from then on the old row belongs to no session.
    fn give_up_idle(&mut self) -> Option<()> {
        let idle_ns = self.limits.session_idle_ns;
        let place = self.sessions.longest_idle(self.clock.now(), idle_ns)?;
        let chain = self.chains.at(self.sessions.at(place).chain)?;
        self.sessions.remove(place, chain.id);
        self.figures.forgotten += 1;
        Some(())
    }
}

/// Whether a request that knows the session's secret begins the next epoch, or why it changes nothing.
fn begins_epoch(
    place: u32,
    session: &Session,
    instance: u64,
    request: &Request,
) -> Result<bool, Outcome> {
    let only = |kind| Err(Outcome::only(kind));
    let is_same = instance == request.instance;
    match request.operation {
        Operation::Open { .. } if is_same => Ok(false),
        Operation::Open { takes_over } if takes_over == session.epoch => Ok(true),
        Operation::Open { .. } if injected(Canary::TakeOverEpoch) => Ok(true),
        Operation::Open { .. } => Err(Outcome {
            session_epoch: session.epoch,
            ..Outcome::only(NoticeKind::InUse)
        }),
        _ if !is_same => only(NoticeKind::TakenOver),
        // An old request of its own opened it anew.
        Operation::Renew {
            session: its,
            gives_up,
        } if its != place || gives_up < session.first_epoch => only(NoticeKind::GivenUp),
        Operation::Renew { gives_up, .. } => Ok(gives_up == session.epoch),
        Operation::Resume | Operation::Close { .. } => Ok(false),
    }
}

fn refusal(no_chain: NoChain) -> NoticeKind {
    match no_chain {
        NoChain::Order => NoticeKind::Malformed,
        NoChain::Full => NoticeKind::SessionsFull,
    }
}
