//! Sessions open and close.

use embar_fabric::{NoticeKind, PbrRecord};

use super::Core;
use super::batch::{owns, was_granted};
use crate::chains::NoChain;
use crate::protocol::Progress;
use crate::session::Session;
use crate::verdict::{Arrival, Told, Verdict};

impl Core {
    /// A session opens. A record that comes again, as it does after a takeover, changes nothing.
    pub(super) fn open(&mut self, arrival: &Arrival, out: &mut Vec<Verdict>) {
        let record = &arrival.record;
        let opened = match self.sessions.find(record.chain, record.producer) {
            Some(place) => self.open_again(place, record, out).map(|()| place),
            None => self.open_first(record, out),
        };
        let told = opened.map_or_else(Told::only, |place| {
            let session = self.sessions.at(place);
            Told {
                kind: NoticeKind::Opened,
                session: place,
                session_epoch: session.epoch,
                mark: session.progress.mark,
            }
        });
        self.tell(arrival.source, told, out);
    }

    fn open_first(
        &mut self,
        record: &PbrRecord,
        out: &mut Vec<Verdict>,
    ) -> Result<u32, NoticeKind> {
        self.chains
            .check(record.chain, record.order_level())
            .map_err(refusal)?;
        // Whoever has an epoch to give up was forgotten. Nobody knows any more what of its batches is
        // placed, so it may not go on as if none were.
        if record.sequence != 0 {
            return Err(NoticeKind::UnknownSession);
        }
        let vacant = self.sessions.vacant().or_else(|| {
            self.forget_idle()?;
            self.sessions.vacant()
        });
        let place = vacant.ok_or(NoticeKind::SessionsFull)?;
        let chain = self
            .chains
            .place(record.chain, record.order_level())
            .map_err(refusal)?;
        let session = Session {
            producer: record.producer,
            progress: Progress::default(),
            active: self.clock.now(),
            instance: record.blog_at,
            chain,
            epoch: self.sessions.at(place).epoch + 1,
            held: 0,
            in_use: true,
            fenced: false,
        };
        self.sessions.put(place, record.chain, session);
        self.save(place, out);
        Ok(place)
    }

    fn open_again(
        &mut self,
        place: u32,
        record: &PbrRecord,
        out: &mut Vec<Verdict>,
    ) -> Result<(), NoticeKind> {
        let session = self.sessions.at(place);
        let chain = self.chains.at(session.chain);
        let chain = chain.filter(|chain| chain.order == record.order_level());
        let chain = chain.ok_or(NoticeKind::Malformed)?;
        let same = session.instance == record.blog_at;
        if !same && record.sequence != 0 {
            return Err(NoticeKind::TakenOver);
        }
        session.active = self.clock.now();
        if same && record.sequence != session.epoch.into() {
            return Ok(());
        }
        let over = Told::fenced(session.progress.mark);
        session.epoch = session
            .epoch
            .checked_add(1)
            .ok_or(NoticeKind::SessionsFull)?;
        session.instance = record.blog_at;
        session.fenced = false;
        chain.protocol.begin_epoch(&mut session.progress);
        self.save(place, out);
        self.tell_held(place, over, out);
        Ok(())
    }

    /// A session ends for good.
    pub(super) fn close(&mut self, arrival: &Arrival, out: &mut Vec<Verdict>) {
        let told = match self.end(&arrival.record, out) {
            Ok(()) => Told::only(NoticeKind::Closed),
            Err(told) => told,
        };
        self.tell(arrival.source, told, out);
    }

    fn end(&mut self, record: &PbrRecord, out: &mut Vec<Verdict>) -> Result<(), Told> {
        let unknown = || Told::only(NoticeKind::UnknownSession);
        let session = self.sessions.get(record.session).ok_or_else(unknown)?;
        let chain = self.chains.at(session.chain).ok_or_else(unknown)?;
        owns(session, chain, record)?;
        if !was_granted(session, record) {
            return Err(unknown());
        }
        if record.session_epoch < session.epoch {
            return Err(Told::fenced(session.progress.mark));
        }
        if session.held > 0 {
            return Err(Told::only(NoticeKind::BeyondWindow));
        }
        self.sessions.remove(record.session, record.chain);
        self.save(record.session, out);
        Ok(())
    }

    /// Frees the place of the session that was idle for longest, if that is long enough.
    fn forget_idle(&mut self) -> Option<()> {
        let idle_ns = self.limits.session_idle_ns;
        let place = self.sessions.longest_idle(self.clock.now(), idle_ns)?;
        let chain = self.chains.at(self.sessions.at(place).chain)?;
        self.sessions.remove(place, chain.id);
        self.figures.forgotten += 1;
        Some(())
    }
}

fn refusal(no_chain: NoChain) -> NoticeKind {
    match no_chain {
        NoChain::Order => NoticeKind::Malformed,
        NoChain::Full => NoticeKind::SessionsFull,
    }
}
