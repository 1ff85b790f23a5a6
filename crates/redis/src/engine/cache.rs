//! The cache of a client: replies of servers that report when they are not true any more.
//!
//! Each shared connection has the server track what is read over it (`CLIENT TRACKING`, in the greeting), and the
//! server reports changes on the same connection (`>invalidate`). What comes over one connection has one order, and
//! that makes the race of a reply and a change decidable. A command has an entry *before* it is sent. A change that
//! comes before the reply removes the entry, and then the reply is not kept. One that comes after the reply removes
//! the reply. So it does not matter when the caller gets to keep the reply.
//!
//! An entry is of the connection that fetched it, and goes with that: `validity` says how. `table` has the entries,
//! `flight` is a request that many callers wait for.
//!
//! Reports are not enough for a caller's own writes: a server reports a change behind the reply to the command that
//! made it, so the caller may be back before. So whoever acknowledges a write to a caller removes its keys first
//! ([`Cache::wrote`]).

use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use embar_mux::clock;
use hashbrown::DefaultHashBuilder;

use super::schedule::{Schedule, Task};
use super::timers::after;
use crate::cache_config::{CacheConfig, Tracking};
use crate::cmd::{Change, each_change};
use crate::command::{Class, Command, Route};
use crate::metrics::CacheMetrics;
use crate::resp::{View, parse};
use crate::scratch::with_encoded;
use table::{Found, Name, Reply, Table};
use validity::SlotVersions;

mod flight;
mod table;
mod validity;

pub(crate) use flight::{Asking, Flight, Outcome, Waiter};
pub(crate) use validity::{Tracker, Validity};

/// Most parts, each with its own lock.
const MAX_PARTS: usize = 16;
/// A part is no smaller, so that it holds replies of some size.
const MIN_PART_BYTES: usize = 1 << 20;

/// How long entries that cannot be used any more lie about, until their memory is given back.
const PURGE_AFTER: Duration = Duration::from_millis(100);
/// So many entries are looked at while their part is locked.
const PURGE_ENTRIES: usize = 256;

/// Apart from its neighbours, so that threads that use other parts do not slow this one down.
#[repr(align(128))]
struct Part(Mutex<Table<Arc<Flight>>>);

impl Part {
    fn table(&self) -> MutexGuard<'_, Table<Arc<Flight>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The cache of a client.
pub(crate) struct Cache {
    pub tracking: Tracking,
    parts: Box<[Part]>,
    slots: SlotVersions,
    hasher: DefaultHashBuilder,
    tickets: AtomicU64,
    /// Reads that the caller wanted from the cache, and that went past it.
    bypassed: AtomicU64,
    schedule: Arc<Schedule>,
}

/// What the cache has of a command.
pub(crate) enum Looked<T> {
    /// What came of the frame that answers it.
    Hit(T),
    /// Another caller has asked, or this one now.
    Asked(Waiter),
    Missing,
}

/// A command that may be in the cache: its bytes, and where its key is among them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cacheable<'n> {
    pub command: &'n [u8],
    pub key: (usize, usize),
}

impl<'n> Cacheable<'n> {
    pub fn key(&self) -> &'n [u8] {
        &self.command[self.key.0..self.key.1]
    }
}

impl Cache {
    pub fn new(config: &CacheConfig, schedule: &Arc<Schedule>) -> Arc<Self> {
        let parts = (config.max_bytes / MIN_PART_BYTES).clamp(1, MAX_PARTS);
        let parts = 1 << parts.ilog2();
        let part = |_| Part(Mutex::new(Table::new(config.max_bytes / parts)));
        Arc::new(Self {
            tracking: config.tracking.clone(),
            parts: (0..parts).map(part).collect(),
            slots: SlotVersions::new(),
            hasher: DefaultHashBuilder::default(),
            tickets: AtomicU64::new(0),
            bypassed: AtomicU64::new(0),
            schedule: Arc::clone(schedule),
        })
    }

    #[inline]
    fn part(&self, key_hash: u64) -> &Part {
        // Tables use the other bits.
        &self.parts[(key_hash >> 32) as usize & (self.parts.len() - 1)]
    }

    #[inline]
    fn name<'n>(&self, it: Cacheable<'n>) -> Name<'n> {
        Name {
            command: it.command,
            key: it.key,
            hash: self.hasher.hash_one(it.command),
            key_hash: self.hasher.hash_one(it.key()),
        }
    }

    /// Looks a command up for who wants nothing older than `max_age`. `read` sees the frame that answers it, while a
    /// part of the cache is locked: it must be brief, and run nobody else's code.
    #[inline]
    pub fn look<T>(
        &self,
        it: Cacheable<'_>,
        max_age: Duration,
        read: impl FnOnce(&Arc<[u8]>) -> T,
    ) -> Looked<T> {
        let name = self.name(it);
        let now = clock::now();
        let mut table = self.part(name.key_hash).table();
        match table.find(&name, now, nanos(max_age), &self.slots) {
            Found::Valid(reply) => Looked::Hit(read(&reply.frame)),
            Found::Asked(flight) => flight.join().map_or(Looked::Missing, Looked::Asked),
            Found::Missing => Looked::Missing,
        }
    }

    /// As [`Cache::look`]; if there is nothing, asks for it. `ask` makes the request, which keeps the reply by the
    /// [`AskedEntry`] that it gets.
    pub fn look_or_ask<T>(
        self: &Arc<Self>,
        it: Cacheable<'_>,
        max_age: Duration,
        slot: u16,
        read: impl FnOnce(&Arc<[u8]>) -> T,
        ask: impl FnOnce(AskedEntry) -> Asking,
    ) -> Looked<T> {
        let name = self.name(it);
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let asked = AskedEntry {
            cache: Arc::clone(self),
            command: it.command.into(),
            key: it.key,
            asked_at: clock::now(),
            ticket,
        };
        let now = asked.asked_at;
        let first = Flight::begin(ask(asked));
        let mut table = self.part(name.key_hash).table();
        let found = match table.find(&name, now, nanos(max_age), &self.slots) {
            Found::Valid(reply) => Looked::Hit(read(&reply.frame)),
            Found::Asked(flight) => flight.join().map_or(Looked::Missing, Looked::Asked),
            Found::Missing => Looked::Missing,
        };
        let looked = match found {
            Looked::Missing => {
                // That of a request which its callers have given up, and which is just being dropped.
                table.remove_asked(&name);
                table.ask(
                    &name,
                    self.slots.of(slot),
                    ticket,
                    Arc::clone(first.flight()),
                );
                return Looked::Asked(first);
            }
            looked => looked,
        };
        // What this caller would have asked is dropped without the lock.
        drop(table);
        drop(first);
        looked
    }

    /// Takes a push of a server over the connection of this tracker.
    pub fn take_push(self: &Arc<Self>, frame: &[u8], tracker: &Tracker) {
        let Ok((View::Push(mut push), _)) = parse(frame) else {
            return;
        };
        if !matches!(push.next(), Some(View::Bulk(b"invalidate"))) {
            return;
        }
        match push.next() {
            Some(View::Array(keys)) => {
                for key in keys {
                    if let View::Bulk(key) = key {
                        self.drop_key(key);
                    }
                }
            }
            // All keys are gone.
            _ => {
                tracker.renew();
                self.request_purge();
            }
        }
    }

    fn drop_key(&self, key: &[u8]) {
        let key_hash = self.hasher.hash_one(key);
        self.part(key_hash).table().drop_key(key, key_hash);
    }

    /// A server has executed this command of a caller's, who does not know yet.
    #[cold]
    pub fn wrote(self: &Arc<Self>, command: &impl Command) {
        if command.class() == Class::Write {
            let route = command.route();
            with_encoded(command, |bytes| self.wrote_encoded(bytes, route));
        }
    }

    /// As [`Cache::wrote`], for encoded commands that write.
    #[cold]
    pub fn wrote_encoded(self: &Arc<Self>, commands: &[u8], route: Route) {
        each_change(commands, |change| match (change, route) {
            (Change::Key(key), _) => self.drop_key(key),
            (Change::Everything, _) => {
                self.slots.renew_all();
                self.request_purge();
            }
            // Not the first one of them alone, as only its module knows which are its keys.
            (Change::Unknown, Route::Slot(slot)) => self.slots.renew(slot),
            (Change::Unknown, _) => {}
        });
    }

    /// Other nodes serve these slots.
    pub fn slots_moved(self: &Arc<Self>, slots: impl IntoIterator<Item = u16>) {
        let mut any = false;
        for slot in slots {
            self.slots.renew(slot);
            any = true;
        }
        if any {
            self.request_purge();
        }
    }

    /// Nothing that came over the connection of this tracker holds any more.
    pub fn connection_over(self: &Arc<Self>, tracker: &Tracker) {
        tracker.renew();
        self.request_purge();
    }

    /// A read went past the cache.
    pub fn bypass(&self) {
        self.bypassed.fetch_add(1, Ordering::Relaxed);
    }

    /// Has the memory of entries given back soon that cannot be used any more.
    fn request_purge(self: &Arc<Self>) {
        let task: Arc<dyn Task> = Arc::clone(self) as Arc<dyn Task>;
        let at = after(PURGE_AFTER);
        self.schedule.run_at(Arc::downgrade(&task), Some(at));
    }

    /// What it did so far.
    pub fn metrics(&self) -> CacheMetrics {
        let mut metrics = CacheMetrics {
            bypassed: self.bypassed.load(Ordering::Relaxed),
            ..CacheMetrics::default()
        };
        for part in &*self.parts {
            let table = part.table();
            let counts = table.counts;
            metrics.hits += counts.hits;
            metrics.misses += counts.misses;
            metrics.shared += counts.joined;
            metrics.invalidations += counts.invalidated;
            metrics.evictions += counts.evicted;
            metrics.entries += table.len() as u64;
            metrics.bytes += table.bytes() as u64;
        }
        metrics
    }
}

impl Task for Cache {
    /// Gives back the memory of entries that cannot be used any more, a few at a time: what arrives meanwhile must not
    /// wait for all.
    fn run(self: Arc<Self>) {
        for part in &*self.parts {
            let mut from = Some(0);
            while let Some(place) = from {
                let now = clock::now();
                from = part.table().purge(place, PURGE_ENTRIES, now, &self.slots);
            }
        }
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache({:?})", self.metrics())
    }
}

/// The entry of a command that was asked for, as its request has it. Dropped, it takes the entry away, unless the
/// reply was kept.
pub(crate) struct AskedEntry {
    cache: Arc<Cache>,
    command: Box<[u8]>,
    key: (usize, usize),
    asked_at: u64,
    ticket: u64,
}

impl AskedEntry {
    pub fn command(&self) -> Cacheable<'_> {
        Cacheable {
            command: &self.command,
            key: self.key,
        }
    }

    /// The reply came, of a key that expires after so long. It is kept if it still holds.
    pub fn keep(&self, frame: &Arc<[u8]>, expires_after: Option<Duration>, validity: Validity) {
        // From when it was asked on: the server answered later, so its key expires later.
        let expires_at =
            expires_after.map_or(u64::MAX, |after| self.asked_at.saturating_add(nanos(after)));
        let reply = Reply {
            frame: Arc::clone(frame),
            asked_at: self.asked_at,
            expires_at,
            validity,
        };
        let name = self.cache.name(self.command());
        let part = self.cache.part(name.key_hash);
        part.table().store(&name, self.ticket, reply);
    }
}

impl Drop for AskedEntry {
    fn drop(&mut self) {
        let name = self.cache.name(self.command());
        let part = self.cache.part(name.key_hash);
        part.table().forget(&name, self.ticket);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
