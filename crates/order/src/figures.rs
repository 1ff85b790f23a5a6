//! Counts of a core: how many sessions, chains and waiting batches it has, and how often it did what.

use embar_fabric::NoticeKind;

/// How much is there, and how often what happened since the core was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Sessions in use.
    pub sessions: u32,
    /// Chains known.
    pub chains: u32,
    /// Batches that wait for a predecessor.
    pub held: u32,
    /// Batches that were placed.
    pub placed: u64,
    /// Epochs that ended because a batch was missing for too long.
    pub gaps: u64,
    /// Sessions that gave up their place to others, as no broker held them.
    pub forgotten: u64,
    /// Notices: a session is open.
    pub opened: u64,
    /// Notices: a session is closed.
    pub closed: u64,
    /// Notices: placed already.
    pub duplicates: u64,
    /// Notices: the epoch is over.
    pub fenced: u64,
    /// Notices: there never was such a session.
    pub unknown: u64,
    /// Notices: too far ahead.
    pub beyond_window: u64,
    /// Notices: no room to wait.
    pub held_full: u64,
    /// Notices: no place for another session.
    pub sessions_full: u64,
    /// Notices: the record makes no sense.
    pub malformed: u64,
    /// Notices: the identity belongs to another instance.
    pub taken_over: u64,
    /// Notices: another instance has it, in this epoch.
    pub in_use: u64,
    /// Notices: the session was given up.
    pub given_up: u64,
    /// Notices: not the session's secret.
    pub wrong_secret: u64,
    /// Notices: the record could not be read.
    pub unreadable: u64,
}

impl Figures {
    pub(crate) fn count(&mut self, kind: NoticeKind) {
        *match kind {
            NoticeKind::Opened => &mut self.opened,
            NoticeKind::Duplicate => &mut self.duplicates,
            NoticeKind::Fenced => &mut self.fenced,
            NoticeKind::UnknownSession => &mut self.unknown,
            NoticeKind::BeyondWindow => &mut self.beyond_window,
            NoticeKind::HeldFull => &mut self.held_full,
            NoticeKind::SessionsFull => &mut self.sessions_full,
            NoticeKind::Closed => &mut self.closed,
            NoticeKind::Malformed => &mut self.malformed,
            NoticeKind::TakenOver => &mut self.taken_over,
            NoticeKind::InUse => &mut self.in_use,
            NoticeKind::GivenUp => &mut self.given_up,
            NoticeKind::WrongSecret => &mut self.wrong_secret,
            NoticeKind::Unreadable => &mut self.unreadable,
        } += 1;
    }
}
