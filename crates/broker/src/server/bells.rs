//! Who wakes whom: brokers the active sequencer, and the sequencer the brokers' threads.
//!
//! Only those are woken that sleep, and say so before they look for work the last time. A bell that
//! nobody rang costs a sleeper the rest of its nap and nothing else.

use std::io;
use std::sync::Arc;

use embar_fabric::memory::Mapped;
use embar_fabric::region::Region;
use embar_fabric::{Bell, RegionError, Ringer, Sleeper};
use embar_order::Term;
use embar_transport::Epoll;

use crate::node::Node;

/// What wakes one thread, and how it says that it sleeps.
pub(super) struct Bed {
    pub bell: Bell,
    pub sleeper: Sleeper<Mapped>,
}

impl Bed {
    /// That of a thread of this process: a lane's number, or the sequencer's.
    pub fn make(region: &Region<Mapped>, row: u16, number: u16) -> Result<Self, RegionError> {
        let sleeper = region.sleeper(row, number);
        // One who had it before may have died asleep.
        sleeper.set(false);
        let bell = region.bell(row, number)?;
        Ok(Self { bell, sleeper })
    }
}

/// What one thread of a broker and the sequencer wake each other with.
pub(super) struct Order {
    node: Arc<Node<Mapped>>,
    sleeper: Sleeper<Mapped>,
    to_sequencer: ToSequencer,
}

impl Order {
    /// From here on a ring ends the reactor's waits.
    pub fn attach(bed: Bed, node: Arc<Node<Mapped>>, reactor: &mut Epoll) -> io::Result<Self> {
        reactor.set_bell(bed.bell)?;
        Ok(Self {
            to_sequencer: ToSequencer::new(&node.region),
            sleeper: bed.sleeper,
            node,
        })
    }

    /// See [`Sleeper::set`].
    pub fn says_asleep(&self, asleep: bool) {
        self.sleeper.set(asleep);
    }

    /// The sequencer has something to take.
    pub fn submitted(&mut self) {
        self.to_sequencer.ring(self.node.term());
    }
}

/// The way from a broker's thread to the active sequencer.
struct ToSequencer {
    region: Region<Mapped>,
    ringer: Ringer,
    met: Option<Met>,
}

struct Met {
    term: Term,
    row: u16,
    sleeper: Sleeper<Mapped>,
}

impl ToSequencer {
    fn new(region: &Region<Mapped>) -> Self {
        Self {
            region: region.clone(),
            ringer: region.ringer(),
            met: None,
        }
    }

    /// Wakes the sequencer of `term` if it sleeps. Whoever begins a term looks at all lanes by
    /// itself, so without one nobody has to be woken.
    fn ring(&mut self, term: Option<Term>) {
        let Some(term) = term else { return };
        let number = self.region.sequencer_sleeper();
        if self.met.as_ref().is_none_or(|met| met.term != term) {
            let row = self.region.geometry().candidates().nth(term.area.into());
            self.met = row.map(|row| Met {
                term,
                row,
                sleeper: self.region.sleeper(row, number),
            });
        }
        if let Some(met) = &self.met
            && met.sleeper.is_asleep()
        {
            self.ringer.ring(met.row, number);
        }
    }
}

/// The ways from the sequencer to all threads of all brokers that take data.
pub(super) struct ToBrokers {
    region: Region<Mapped>,
    ringer: Ringer,
    /// By row and number, as many as any broker may have.
    sleepers: Vec<(u16, Vec<Sleeper<Mapped>>)>,
    /// Threads of each of these brokers; none of one that is dead and may have died asleep.
    threads: Vec<usize>,
}

impl ToBrokers {
    pub fn new(region: &Region<Mapped>) -> Self {
        let lanes = region.geometry().lanes;
        let of = |row| {
            (0..lanes)
                .map(|number| region.sleeper(row, number))
                .collect()
        };
        let rows = region.geometry().data_rows();
        let sleepers: Vec<_> = rows.map(|row| (row, of(row))).collect();
        Self {
            region: region.clone(),
            ringer: region.ringer(),
            threads: vec![0; sleepers.len()],
            sleepers,
        }
    }

    /// Looks which brokers there are.
    pub fn look(&mut self, alive: &dyn Fn(u16) -> bool) {
        for ((row, sleepers), threads) in self.sleepers.iter().zip(&mut self.threads) {
            let said = self.region.broker_row(*row).found().filter(|_| alive(*row));
            *threads = said.map_or(0, |row| usize::from(row.lanes).min(sleepers.len()));
        }
    }

    /// Wakes the threads that sleep, of the brokers whose rows' bits are set.
    pub fn ring(&mut self, rows: u128) {
        for ((row, sleepers), threads) in self.sleepers.iter().zip(&self.threads) {
            if rows & 1 << row == 0 {
                continue;
            }
            for (number, sleeper) in (0..).zip(&sleepers[..*threads]) {
                if sleeper.is_asleep() {
                    self.ringer.ring(*row, number);
                }
            }
        }
    }
}
