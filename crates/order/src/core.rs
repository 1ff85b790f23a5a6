//! The core of the sequencer: decides the outcome of each record that a broker submitted. It places the batch in its
//! chain, holds it until its predecessor comes, or says why it gets no place.

mod batch;
mod identity;
mod rebuild;

use std::hint::black_box;

use embar_fabric::{NoticeKind, PbrKind, SessionOwner, SessionRow};

use crate::action::{Action, Arrival, Outcome, Source};
use crate::chains::Chains;
use crate::clock::LeaseClock;
use crate::figures::Figures;
use crate::gaps::Gaps;
use crate::held::Held;
use crate::limits::{Limits, LimitsError};
use crate::sessions::Sessions;

pub use rebuild::RestoreError;

/// Decides the outcome of records; see the [crate's documentation](crate).
///
/// ```
/// use embar_fabric::{PbrKind, PbrRecord, Secret};
/// use embar_order::{Action, Arrival, Core, Limits, Operation, Request, Source};
///
/// let mut core = Core::new(Limits::default())?;
/// let arrival = |number, record| Arrival {
///     source: Source { row: 1, lane: 0, incarnation: 1, number },
///     record,
/// };
/// let orders = PbrRecord::pack_orders(0, 5);
/// let operation = Operation::Open { takes_over: 0 };
/// let request = Request { producer: 7, instance: 1, secret: Secret([9; 16]), peer: 0, operation };
/// let open = PbrRecord { orders, ..request.record() };
/// let mut actions = Vec::new();
/// core.arrive(&[arrival(0, open)], 0, &mut actions);
/// let [.., Action::SaveSession { .. }, Action::Notify { outcome, .. }] = actions[..] else { panic!() };
///
/// let (session, session_epoch) = (outcome.session, outcome.session_epoch);
/// let kind = PbrKind::Batch as u8;
/// let batch = PbrRecord { kind, producer: 7, orders, session, session_epoch, count: 3, ..Default::default() };
/// actions.clear();
/// core.arrive(&[arrival(1, batch)], 0, &mut actions);
/// assert_eq!(actions, [Action::Place { arrival: arrival(1, batch), base: 0 }]);
/// assert_eq!(core.chain_next(0), Some(3));
/// # Ok::<(), embar_order::LimitsError>(())
/// ```
#[derive(Debug)]
pub struct Core {
    limits: Limits,
    clock: LeaseClock,
    chains: Chains,
    sessions: Sessions,
    held: Held,
    gaps: Gaps,
    figures: Figures,
}

/// Records whose sessions are loaded into the cache together.
const RUN: usize = 64;

impl Core {
    /// A core that knows nothing. It takes its memory now, but for the names of sessions: about 250 bytes
    /// for each session, and 100 for each batch that may be held.
    pub fn new(limits: Limits) -> Result<Self, LimitsError> {
        limits.check()?;
        Ok(Self {
            clock: LeaseClock::new(limits.gap_lease_ns),
            chains: Chains::new(limits.chains),
            sessions: Sessions::new(limits.sessions),
            held: Held::new(limits.held, limits.sessions),
            gaps: Gaps::new(limits.sessions),
            figures: Figures::default(),
            limits,
        })
    }

    /// Decides on records, in their order, and appends the actions to `out`. `now` is in nanoseconds of any clock.
    ///
    /// Records of many sessions are faster together than one by one.
    pub fn arrive(&mut self, arrivals: &[Arrival], now: u64, out: &mut Vec<Action>) {
        self.clock.advance(now);
        for run in arrivals.chunks(RUN) {
            self.look_ahead(run);
            for arrival in run {
                match PbrKind::from_number(arrival.record.kind) {
                    Some(PbrKind::Batch) => self.batch(arrival, out),
                    Some(PbrKind::Open | PbrKind::Close) => self.request(arrival, out),
                    None => self.notify(arrival.source, Outcome::only(NoticeKind::Malformed), out),
                }
            }
        }
    }

    /// Ends the epochs whose missing batch did not come in time. The driver calls it in each round, also when there
    /// is much to do, and after what arrived: what came in time then counts.
    pub fn elapse(&mut self, now: u64, out: &mut Vec<Action>) {
        self.clock.advance(now);
        while let Some((session, since)) = self.gaps.longest() {
            if self.clock.now() - since < self.limits.gap_lease_ns {
                break;
            }
            self.figures.gaps += 1;
            self.fence(session, out);
        }
    }

    /// Within how many nanoseconds the driver calls [`Core::elapse`], or `None` while no session waits for a
    /// missing batch. At most a quarter of the lease, as longer steps do not count.
    pub fn next_deadline(&self) -> Option<u64> {
        let (_, since) = self.gaps.longest()?;
        let left =
            self.limits.gap_lease_ns - (self.clock.now() - since).min(self.limits.gap_lease_ns);
        Some(left.min(self.clock.step()))
    }

    /// The next position of a chain, if it is known.
    pub fn chain_next(&self, chain: u32) -> Option<u64> {
        Some(self.chains.get(chain)?.next)
    }

    /// The chains that are known: number, order level and next position.
    pub fn chains(&self) -> impl Iterator<Item = (u32, u8, u64)> {
        self.chains.iter().map(|it| (it.id, it.order, it.next))
    }

    /// The row of a place of the session table as it is now, also when no session is there.
    ///
    /// It counts all batches placed so far: the driver may write it back only when their records are visible, that
    /// is after it did all actions.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn session_row(&self, session: u32) -> SessionRow {
        let it = self.sessions.get(session).expect("a place of the table");
        match self.chains.at(it.chain) {
            Some(chain) if it.in_use => it.row(self.sessions.owner(session), chain.id, chain.order),
            _ => it.free_row(),
        }
    }

    /// The owner of the session at a place; `None` when there is no session.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn session_owner(&self, session: u32) -> Option<SessionOwner> {
        let it = self.sessions.get(session).expect("a place of the table");
        it.in_use
            .then(|| it.owner_row(self.sessions.owner(session)))
    }

    /// Whether so few places are free that sessions may soon have to give up theirs: then the driver looks at
    /// brokers ([`Core::set_attached`]) before sessions open.
    pub fn is_crowded(&self) -> bool {
        self.sessions.is_crowded()
    }

    /// Whether brokers hold the session at a place: it has a connection there, or batches under way.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn set_attached(&mut self, session: u32, attached: bool) {
        let now = self.clock.now();
        self.sessions.set_attached(session, attached, now);
    }

    /// A broker that lives cannot say yet what it holds, or could not a moment ago: no session counts as idle
    /// before now.
    pub fn await_holders(&mut self) {
        self.sessions.await_holders(self.clock.now());
    }

    /// The driver looks at all brokers now, and says what they hold with the next calls. Only a session that no
    /// broker was found to hold gives up its place.
    pub fn looked(&mut self, now: u64) {
        self.clock.advance(now);
        self.sessions.looked(self.clock.now());
    }

    /// What the core holds and has counted.
    pub fn figures(&self) -> Figures {
        Figures {
            sessions: self.sessions.len(),
            chains: self.chains.len(),
            held: self.held.len(),
            ..self.figures
        }
    }

    /// Loads what is at the sessions' places before any of it is used, so that the memory accesses overlap.
    #[inline]
    fn look_ahead(&self, run: &[Arrival]) {
        let sessions = run
            .iter()
            .filter_map(|it| self.sessions.get(it.record.session));
        black_box(sessions.fold(0, |sum, session| sum ^ session.epoch));
    }

    fn notify(&mut self, source: Source, outcome: Outcome, out: &mut Vec<Action>) {
        self.figures.count(outcome.kind);
        out.push(Action::Notify { source, outcome });
    }

    fn save(&mut self, session: u32, out: &mut Vec<Action>) {
        let row = self.session_row(session);
        out.push(Action::SaveSession { session, row });
    }
}
