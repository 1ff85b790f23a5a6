//! How the threads of brokers and the active sequencer wake each other.
//!
//! Only threads that sleep are woken. A thread says that it sleeps before it looks for work the last time, so
//! who makes work visible afterwards sees that it sleeps. Where a wake-up is lost, the thread sleeps until its
//! time is over, and nothing worse comes of it.

use std::io;
use std::sync::Arc;

use embar_fabric::region::Region;
use embar_fabric::{Notifier, RegionError, SleepFlag, Wakeup};
use embar_memory::Mapped;
use embar_order::Term;
use embar_transport::Reactor;

use crate::node::Node;

/// What others wake one thread of this process with, and how that thread says that it sleeps.
pub(super) struct Parker {
    pub wakeup: Wakeup,
    pub sleep_flag: SleepFlag<Mapped>,
}

impl Parker {
    /// Of the thread of this number in this row: the number of a lane, or the sequencer's.
    pub fn new(region: &Region<Mapped>, row: u16, number: u16) -> Result<Self, RegionError> {
        let sleep_flag = region.sleep_flag(row, number);
        // The owner before may have died asleep.
        sleep_flag.set(false);
        let wakeup = region.wakeup(row, number)?;
        Ok(Self { wakeup, sleep_flag })
    }
}

/// How one network thread and the active sequencer wake each other.
pub(super) struct SequencerWakeups {
    node: Arc<Node<Mapped>>,
    sleep_flag: SleepFlag<Mapped>,
    to_sequencer: SequencerNotifier,
}

impl SequencerWakeups {
    /// From here on a wake-up ends the reactor's waits.
    pub fn attach(
        parker: Parker,
        node: Arc<Node<Mapped>>,
        reactor: &mut impl Reactor<Mapped>,
    ) -> io::Result<Self> {
        reactor.set_wakeup(parker.wakeup)?;
        Ok(Self {
            to_sequencer: SequencerNotifier::new(&node.region),
            sleep_flag: parker.sleep_flag,
            node,
        })
    }

    /// As [`SleepFlag::set`].
    pub fn set_asleep(&self, asleep: bool) {
        self.sleep_flag.set(asleep);
    }

    /// Wakes the sequencer, for which there is a submission, unless it sequences in `epoch`: then it has looked.
    pub fn notify_sequencer_unless(&mut self, epoch: Option<u32>) {
        let term = self.node.term();
        if epoch.is_none() || epoch != term.map(|term| term.epoch) {
            self.to_sequencer.notify(term);
        }
    }
}

/// Wakes the active sequencer.
struct SequencerNotifier {
    region: Region<Mapped>,
    notifier: Notifier,
    active: Option<ActiveSequencer>,
}

/// The sequencer that was woken last.
struct ActiveSequencer {
    term: Term,
    row: u16,
    sleep_flag: SleepFlag<Mapped>,
}

impl SequencerNotifier {
    fn new(region: &Region<Mapped>) -> Self {
        Self {
            region: region.clone(),
            notifier: region.notifier(),
            active: None,
        }
    }

    /// Wakes the sequencer of this term if it sleeps. A candidate that takes over looks at all lanes by
    /// itself, so before the first term no thread needs to be woken.
    fn notify(&mut self, term: Option<Term>) {
        let Some(term) = term else { return };
        let number = self.region.sequencer_thread();
        if self.active.as_ref().is_none_or(|it| it.term != term) {
            let row = self.region.geometry().candidates().nth(term.area.into());
            self.active = row.map(|row| ActiveSequencer {
                term,
                row,
                sleep_flag: self.region.sleep_flag(row, number),
            });
            // Even if it does not sleep: later this process may have no descriptor left.
            if let Some(row) = row {
                self.notifier.prepare(row, number);
            }
        }
        if let Some(active) = &self.active
            && active.sleep_flag.is_asleep()
        {
            self.notifier.notify(active.row, number);
        }
    }
}

/// Wakes the network threads of all brokers that take data, on behalf of the sequencer.
pub(super) struct BrokersNotifier {
    region: Region<Mapped>,
    notifier: Notifier,
    /// By row and number, as many as a broker may have at most.
    sleep_flags: Vec<(u16, Vec<SleepFlag<Mapped>>)>,
    /// How many threads each of these brokers has; none if it is dead, as it may have died asleep.
    threads: Vec<usize>,
}

impl BrokersNotifier {
    pub fn new(region: &Region<Mapped>) -> Self {
        let lanes = region.geometry().lanes;
        let of = |row| {
            (0..lanes)
                .map(|number| region.sleep_flag(row, number))
                .collect()
        };
        let rows = region.geometry().data_rows();
        let sleep_flags: Vec<_> = rows.map(|row| (row, of(row))).collect();
        Self {
            region: region.clone(),
            notifier: region.notifier(),
            threads: vec![0; sleep_flags.len()],
            sleep_flags,
        }
    }

    /// Looks which brokers there are. `alive` says of a row whether a live process holds it.
    pub fn refresh(&mut self, alive: &dyn Fn(u16) -> bool) {
        for ((row, sleep_flags), threads) in self.sleep_flags.iter().zip(&mut self.threads) {
            let live = self.region.broker_row(*row).found().filter(|_| alive(*row));
            *threads = live.map_or(0, |live| usize::from(live.lanes).min(sleep_flags.len()));
            // Now, because later this process may have no descriptor left.
            for (number, _) in (0..).zip(&sleep_flags[..*threads]) {
                self.notifier.prepare(*row, number);
            }
        }
    }

    /// Wakes the threads that sleep, of the brokers whose rows' bits are set.
    pub fn notify(&mut self, rows: u128) {
        for ((row, sleep_flags), threads) in self.sleep_flags.iter().zip(&self.threads) {
            if rows & 1 << row == 0 {
                continue;
            }
            for (number, flag) in (0..).zip(&sleep_flags[..*threads]) {
                if flag.is_asleep() {
                    self.notifier.notify(*row, number);
                }
            }
        }
    }
}
