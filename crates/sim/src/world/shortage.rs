//! Shortages of hosts and clients: file descriptors, memory to be mapped, room in the memory's file system.
//!
//! A host without descriptors accepts no connection, and cannot look whether others hold their rows' locks. A
//! client without any cannot connect. The start of a broker may lack any of them, at any step; it is tried again
//! later.

use std::cell::Cell;

use embar_broker::node::counts_as_alive;
use embar_memory::Outage;

use super::{ALIVE, World};
use crate::host::Host;

thread_local! {
    /// Rows whose hosts have no descriptor, bit by bit: asked for while the world is borrowed, too.
    static SHORT: Cell<u32> = const { Cell::new(0) };
    /// Looks at locks that failed.
    static UNLOOKED: Cell<u64> = const { Cell::new(0) };
}

/// How long a shortage lasts, in nanoseconds, at most.
const LASTS_NS: u64 = 3_000_000_000;
/// A start that failed is tried again within this, in nanoseconds.
const AGAIN_WITHIN_NS: u64 = 2_000_000_000;
/// Accesses to memory of a start that fails on the way, at most.
const STEPS_MAX: u64 = 4_000;

/// The lock of a row could not be looked at.
struct Unlooked;

/// No host is short of anything.
pub(super) fn begin() {
    SHORT.set(0);
    UNLOOKED.set(0);
}

/// Whether the process of a row lives, as far as another one can find out.
pub(super) fn is_alive(asker: u16, row: u16) -> bool {
    let short = SHORT.get() >> asker & 1 == 1;
    UNLOOKED.set(UNLOOKED.get() + u64::from(short));
    let looked = match short {
        true => Err(Unlooked),
        false => Ok(ALIVE.get() >> row & 1 == 1),
    };
    counts_as_alive(looked)
}

impl World {
    /// A host or a client has no descriptor for a while.
    pub(super) fn run_short(&mut self) {
        let until = self.now + self.random.size(LASTS_NS);
        self.figures.shortages += 1;
        if self.random.one_in(3) {
            let actor = self.random.below(self.actors.len() as u64) as usize;
            self.note(format_args!(
                "actor {actor} has no descriptor until {until}"
            ));
            self.short_clients.insert(actor, until);
            return;
        }
        let row = self.any_row();
        self.note(format_args!("broker {row} has no descriptor until {until}"));
        self.short_until[usize::from(row)] = until;
        self.set_short(row, true);
    }

    /// Descriptors are free again where it is time.
    pub(super) fn end_shortages(&mut self) {
        for row in self.rows() {
            if self.is_short(row) && (self.healed || self.short_until[usize::from(row)] <= self.now)
            {
                self.set_short(row, false);
            }
        }
    }

    fn set_short(&mut self, row: u16, is_short: bool) {
        let bit = 1 << row;
        SHORT.set(match is_short {
            true => SHORT.get() | bit,
            false => SHORT.get() & !bit,
        });
        self.network.set_short(row, is_short);
    }

    fn is_short(&self, row: u16) -> bool {
        SHORT.get() >> row & 1 == 1
    }

    /// Whether a client has no descriptor for a connection.
    pub(super) fn cannot_connect(&mut self, actor: usize) -> bool {
        let until = self.short_clients.get(&actor);
        let cannot = !self.healed && until.is_some_and(|until| *until > self.now);
        self.figures.unconnected += u64::from(cannot);
        cannot
    }

    /// Whether a broker finds nothing to start with: the region cannot be opened.
    pub(super) fn cannot_start(&mut self, row: u16) -> bool {
        if self.topics.is_empty() || !self.is_short(row) {
            return false;
        }
        self.note(format_args!("broker {row} cannot start"));
        self.figures.starts_failed += 1;
        self.restart_at[usize::from(row)] = self.now + self.random.size(AGAIN_WITHIN_NS);
        true
    }

    /// A start may fail: on its way, wherever that is, or when the broker has joined.
    pub(super) fn may_fail(&mut self, host: &mut Host) {
        // One whose power has failed already does not get it back.
        let starts = !self.topics.is_empty() && !self.healed && host.lives();
        if !starts || !self.random.one_in(self.plan.faults.failed_start) {
            return;
        }
        self.figures.starts_failed += 1;
        if self.random.one_in(2) {
            host.fails_to_serve = true;
        } else {
            let fuse = self.random.size(STEPS_MAX);
            host.power.fail_after(fuse, Outage::Process);
        }
    }

    /// Whether a broker that has joined lacks what its threads need: then its start has failed.
    pub(super) fn cannot_serve(&self, row: u16) -> bool {
        let Some(host) = self.host(row).filter(|host| host.fails_to_serve) else {
            return false;
        };
        if self.healed {
            return false;
        }
        host.power.fail_after(0, Outage::Process);
        true
    }

    /// For the figures.
    pub(super) fn count_shortages(&mut self) {
        self.figures.unlooked = UNLOOKED.get();
        self.figures.unaccepted = self.network.unaccepted;
    }
}
