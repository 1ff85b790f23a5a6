//! Deals connections and connects out to the workers of one server or client, each in its turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::clock;
use super::mailbox::{Command, Mailbox};

/// See the module.
pub(super) struct Dealer {
    pub(super) mailboxes: Vec<Arc<Mailbox>>,
    next: AtomicUsize,
    adopts: AtomicBool,
}

impl Dealer {
    pub(super) fn new(mailboxes: Vec<Arc<Mailbox>>) -> Arc<Self> {
        Arc::new(Self {
            mailboxes,
            next: AtomicUsize::new(0),
            adopts: AtomicBool::new(true),
        })
    }

    /// Hands a command to the worker whose turn it is, or to the next that runs. Those that a handler holds up come last.
    ///
    /// # Errors
    /// None does: the command back. Dropping it answers, and frees what it holds.
    pub(super) fn deal(&self, command: Command) -> Result<(), Box<Command>> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.mailboxes.len();
        let (before, from) = self.mailboxes.split_at(turn);
        let mut command = Box::new(command);
        let now = clock::now();
        let all = || from.iter().chain(before);
        let held_up = |mailbox: &&Arc<Mailbox>| mailbox.marks.is_held_up(now);
        let run = all().filter(|mailbox| !held_up(mailbox));
        for mailbox in run.chain(all().filter(held_up)) {
            match mailbox.send(*command) {
                Ok(()) => return Ok(()),
                Err(back) => command = back,
            }
        }
        Err(command)
    }

    /// Nothing more is accepted: not from listeners, and not from others who accept.
    pub(super) fn adopt_no_more(&self) {
        self.adopts.store(false, Ordering::Relaxed);
    }

    pub(super) fn adopts(&self) -> bool {
        self.adopts.load(Ordering::Relaxed)
    }
}
