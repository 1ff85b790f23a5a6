//! Memory without cache coherence, simulated.
//!
//! A [`Device`] is what all hosts share. Each host ([`Simulated`]) sees it through a private
//! write-back cache that does all that such a cache may do: a stored line stays private until it
//! is written back *and* fenced, or until the seeded cache evicts it by chance at any earlier
//! moment; a clean line stays stale until it is invalidated or evicted. Lines move as a whole.
//! The same seed and the same calls give the same run.

mod interruption;
mod power;

pub use interruption::interrupt_after;
pub use power::{Outage, Power};

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use embar_meter::random::SplitMix64;

use crate::cache_line::{LINE_BYTES, lines};
use crate::damage::{Damage, DamageLog};
use crate::memory::{Memory, ShowsCopies, check_range, check_word};

type Line = [u8; LINE_BYTES as usize];

/// Lines a host caches before each further one evicts another.
const CACHE_LINES_MAX: usize = 8192;
/// One in so many accesses evicts a line by chance.
const EVICTION_ONE_IN: u64 = 16;

/// The memory that all hosts of a simulation share: one file.
#[derive(Clone)]
pub struct Device {
    lines: Arc<Mutex<Vec<Line>>>,
    watched: Arc<[Range<u64>]>,
}

/// What may go wrong on purpose, to prove that the checkers notice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// `write_back` does nothing: lines reach the device by chance eviction only.
    pub drop_write_backs: bool,
}

impl Device {
    /// `len` zero bytes, as a new file has: a region's control file begins so.
    ///
    /// `len` is a multiple of 64.
    pub fn blank(len: u64) -> Self {
        assert!(len.is_multiple_of(LINE_BYTES), "a device of {len} bytes");
        Self::of(vec![[0; LINE_BYTES as usize]; (len / LINE_BYTES) as usize])
    }

    /// `len` bytes of garbage drawn from `seed`: nothing may rely on payload memory being zero.
    ///
    /// `len` is a multiple of 64.
    pub fn new(len: u64, seed: u64) -> Self {
        assert!(len.is_multiple_of(LINE_BYTES), "a device of {len} bytes");
        let mut random = SplitMix64::new(seed);
        let lines = (0..len / LINE_BYTES)
            .map(|_| {
                let mut line = [0; LINE_BYTES as usize];
                for word in line.chunks_exact_mut(8) {
                    word.copy_from_slice(&random.next_u64().to_le_bytes());
                }
                line
            })
            .collect();
        Self::of(lines)
    }

    fn of(lines: Vec<Line>) -> Self {
        Self {
            lines: Arc::new(Mutex::new(lines)),
            watched: Arc::new([]),
        }
    }

    /// From now on accesses to these places are interrupted more often: see [`interrupt_after`].
    pub fn watch(&mut self, places: impl IntoIterator<Item = Range<u64>>) {
        self.watched = places.into_iter().collect();
    }

    /// A host with an empty cache of its own, whose chance evictions follow `seed`.
    pub fn host(&self, seed: u64) -> Simulated {
        self.host_with(seed, Faults::default())
    }

    /// As [`Device::host`], with faults.
    pub fn host_with(&self, seed: u64, faults: Faults) -> Simulated {
        self.host_on(seed, faults, &Power::default())
    }

    /// As [`Device::host_with`], for one of the memories that fail together with `power`.
    pub fn host_on(&self, seed: u64, faults: Faults, power: &Power) -> Simulated {
        let cache = Cache {
            held: BTreeMap::new(),
            pending: BTreeMap::new(),
            random: SplitMix64::new(seed),
            faults,
            power: power.clone(),
            off: false,
            left: BTreeMap::new(),
        };
        self.with_mode(Mode::Cached(Mutex::new(cache)))
    }

    /// The device as it is, without a cache between: for checkers. Storing through it panics.
    pub fn view(&self) -> Simulated {
        self.with_mode(Mode::Raw)
    }

    /// Changes a line as damage does: no host had a part in it, and one that holds a copy does not see
    /// it yet.
    ///
    /// # Panics
    /// When no line begins at `at`.
    pub fn damage(&self, at: u64, change: impl FnOnce(&mut [u8])) {
        assert!(at.is_multiple_of(LINE_BYTES), "no line begins at {at}");
        change(&mut self.lock()[(at / LINE_BYTES) as usize]);
    }

    fn with_mode(&self, mode: Mode) -> Simulated {
        let len = self.lock().len() as u64 * LINE_BYTES;
        Simulated {
            device: self.clone(),
            len,
            mode,
            damage: DamageLog::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Line>> {
        self.lines
            .lock()
            .expect("no access to a device panics half-way")
    }

    fn fetch(&self, line: u64) -> Line {
        self.lock()[(line / LINE_BYTES) as usize]
    }

    fn put(&self, line: u64, bytes: Line) {
        self.lock()[(line / LINE_BYTES) as usize] = bytes;
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not its content, which may be gigabytes.
        f.debug_struct("Device").finish_non_exhaustive()
    }
}

/// One simulated host's view of a [`Device`].
pub struct Simulated {
    device: Device,
    len: u64,
    mode: Mode,
    damage: DamageLog,
}

impl fmt::Debug for Simulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulated")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

enum Mode {
    Cached(Mutex<Cache>),
    Raw,
}

struct Cache {
    held: BTreeMap<u64, Held>,
    /// Write-backs that were started and not yet fenced. A line that leaves `held` leaves here
    /// too, so that a later fetch never misses what this host has stored.
    pending: BTreeMap<u64, Line>,
    random: SplitMix64,
    faults: Faults,
    power: Power,
    /// The power failed: nothing reaches the device any more.
    off: bool,
    /// What the host still caches when the power failed, and only its process ended.
    left: BTreeMap<u64, Held>,
}

#[derive(Clone)]
struct Held {
    bytes: Line,
    dirty: bool,
}

impl Simulated {
    /// The host dies: what was neither written back nor evicted is lost. Of the write-backs that
    /// no fence completed, chance decides which still arrive.
    pub fn crash(&self) {
        let Mode::Cached(cache) = &self.mode else {
            return;
        };
        let mut cache = cache.lock().expect("no access to a cache panics half-way");
        cache.held.clear();
        let pending = mem::take(&mut cache.pending);
        for (line, bytes) in pending {
            if cache.random.next_u64().is_multiple_of(2) {
                self.device.put(line, bytes);
            }
        }
    }

    /// Lets an outage act here too that struck while another memory was accessed.
    pub fn settle_outage(&self) {
        self.with_cache(|cache| {
            if let Some(outage) = cache.power.failed() {
                cache.go_off(outage, &self.device);
            }
        });
    }

    /// The next process on the same host, whose process ended: it finds in the caches what the one
    /// before left there, however old. One whose host failed leaves nothing.
    pub fn next_process(&self, seed: u64, power: &Power) -> Self {
        let left = self.with_cache(|cache| mem::take(&mut cache.left));
        let next = self.device.host_on(seed, Faults::default(), power);
        next.with_cache(|cache| cache.held = left.unwrap_or_default());
        next
    }

    /// Before each access that others may come between.
    fn access(&self, at: u64) {
        if let Mode::Cached(_) = self.mode {
            let mut watched = self.device.watched.iter();
            interruption::count(watched.any(|place| place.contains(&at)));
        }
    }

    fn with_cache<R>(&self, f: impl FnOnce(&mut Cache) -> R) -> Option<R> {
        match &self.mode {
            Mode::Cached(cache) => Some(f(&mut cache
                .lock()
                .expect("no access to a cache panics half-way"))),
            Mode::Raw => None,
        }
    }

    /// Copies out bytes that may start anywhere.
    fn copy_out(&self, at: u64, into: &mut [u8]) {
        check_range(at, into.len() as u64, self.len);
        self.access(at);
        for_each_line(at, into.len(), |line, within, range| {
            let bytes = self
                .with_cache(|cache| {
                    cache.evict_by_chance(&self.device);
                    cache.line(line, &self.device).bytes
                })
                .unwrap_or_else(|| self.device.fetch(line));
            into[range].copy_from_slice(&bytes[within]);
        });
    }

    /// Copies in bytes that may start anywhere.
    fn copy_in(&self, at: u64, from: &[u8]) {
        check_range(at, from.len() as u64, self.len);
        self.access(at);
        for_each_line(at, from.len(), |line, within, range| {
            self.with_cache(|cache| {
                cache.evict_by_chance(&self.device);
                let held = cache.line(line, &self.device);
                held.bytes[within].copy_from_slice(&from[range]);
                held.dirty = true;
            })
            .expect("a view of the raw device is for reading only");
        });
    }
}

/// Calls `f(line, bytes within the line, bytes within the range)` for every line touched.
fn for_each_line(at: u64, len: usize, mut f: impl FnMut(u64, Range<usize>, Range<usize>)) {
    for line in lines(at, len as u64) {
        let from = line.max(at);
        let to = (line + LINE_BYTES).min(at + len as u64);
        f(
            line,
            (from - line) as usize..(to - line) as usize,
            (from - at) as usize..(to - at) as usize,
        );
    }
}

impl Cache {
    fn line(&mut self, line: u64, device: &Device) -> &mut Held {
        if !self.off && !self.held.contains_key(&line) && self.held.len() >= CACHE_LINES_MAX {
            self.evict_some(device);
        }
        self.held.entry(line).or_insert_with(|| Held {
            bytes: device.fetch(line),
            dirty: false,
        })
    }

    /// Counts an access. True when the power is off.
    fn spend_power(&mut self, device: &Device) -> bool {
        if let Some(outage) = self.power.spend() {
            self.go_off(outage, device);
        }
        self.off
    }

    /// What this host cached stays readable to the code that still runs on it, and to no other.
    fn go_off(&mut self, outage: Outage, device: &Device) {
        if mem::replace(&mut self.off, true) {
            return;
        }
        for (line, bytes) in mem::take(&mut self.pending) {
            if outage == Outage::Process || self.random.next_u64().is_multiple_of(2) {
                device.put(line, bytes);
            }
        }
        if outage == Outage::Process {
            let dirty = self.held.iter_mut().filter(|(_, held)| held.dirty);
            for (line, held) in dirty {
                device.put(*line, held.bytes);
                held.dirty = false;
            }
            self.left = self.held.clone();
        }
    }

    fn evict_by_chance(&mut self, device: &Device) {
        if self.spend_power(device) {
            return;
        }
        if self.random.next_u64().is_multiple_of(EVICTION_ONE_IN) {
            self.evict_some(device);
        }
    }

    fn evict_some(&mut self, device: &Device) {
        let from = match self.held.last_key_value() {
            Some((last, _)) => self.random.next_u64() % (last + 1),
            None => return,
        };
        let chosen = self.held.range(from..).next().map(|(line, _)| *line);
        self.evict(chosen.expect("the last line is not below `from`"), device);
    }

    fn evict(&mut self, line: u64, device: &Device) {
        let pending = self.pending.remove(&line);
        match self.held.remove(&line) {
            Some(held) if held.dirty => device.put(line, held.bytes),
            _ => {
                if let Some(bytes) = pending {
                    device.put(line, bytes);
                }
            }
        }
    }

    /// Completes some write-back; whether there are more.
    fn complete_any(&mut self, device: &Device) -> bool {
        let (first, last) = (self.pending.keys().next(), self.pending.keys().next_back());
        let (Some(first), Some(last)) = (first, last) else {
            return false;
        };
        let near = first + self.random.next_u64() % (last - first + 1);
        let chosen = if self.random.next_u64().is_multiple_of(2) {
            self.pending.range(near..).next()
        } else {
            self.pending.range(..=near).next_back()
        };
        let line = *chosen
            .expect("the first and the last line are not beyond")
            .0;
        if let Some(bytes) = self.pending.remove(&line) {
            device.put(line, bytes);
        }
        !self.pending.is_empty()
    }

    fn write_back(&mut self, line: u64) {
        if self.faults.drop_write_backs {
            return;
        }
        if let Some(held) = self.held.get_mut(&line)
            && held.dirty
        {
            held.dirty = false;
            self.pending.insert(line, held.bytes);
        }
    }
}

// SAFETY: `with_bytes` and `with_bytes_mut` show a vector of their own.
unsafe impl ShowsCopies for Simulated {}

impl Memory for Simulated {
    fn len(&self) -> u64 {
        self.len
    }

    fn is_coherent(&self) -> bool {
        false
    }

    fn load(&self, at: u64) -> u64 {
        check_word(at, self.len);
        let mut word = [0; 8];
        self.copy_out(at, &mut word);
        u64::from_le_bytes(word)
    }

    fn store(&self, at: u64, value: u64) {
        check_word(at, self.len);
        self.copy_in(at, &value.to_le_bytes());
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        assert!(at.is_multiple_of(8), "no word at {at}");
        for (i, word) in into.chunks_mut(8).enumerate() {
            self.copy_out(at + 8 * i as u64, word);
        }
    }

    fn write(&self, at: u64, from: &[u8]) {
        assert!(at.is_multiple_of(8), "no word at {at}");
        for (i, word) in from.chunks(8).enumerate() {
            self.copy_in(at + 8 * i as u64, word);
        }
    }

    fn write_back(&self, at: u64, len: u64) {
        check_range(at, len, self.len);
        self.access(at);
        self.with_cache(|cache| {
            if !cache.spend_power(&self.device) {
                lines(at, len).for_each(|line| cache.write_back(line));
            }
        });
    }

    fn fence(&self) {
        self.access(u64::MAX);
        let on = self.with_cache(|cache| !cache.spend_power(&self.device));
        // Line by line, in any order, and seen by others one after the other: a moment as decisive as any.
        while on == Some(true)
            && self.with_cache(|cache| cache.complete_any(&self.device)) == Some(true)
        {
            interruption::count(true);
        }
    }

    fn invalidate(&self, at: u64, len: u64) {
        check_range(at, len, self.len);
        self.access(at);
        self.with_cache(|cache| {
            if !cache.spend_power(&self.device) {
                lines(at, len).for_each(|line| cache.evict(line, &self.device));
            }
        });
    }

    unsafe fn with_bytes<R>(&self, at: u64, len: usize, f: impl FnOnce(&[u8]) -> R) -> R {
        let mut bytes = vec![0; len];
        self.copy_out(at, &mut bytes);
        f(&bytes)
    }

    unsafe fn with_bytes_mut<R>(&self, at: u64, len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut bytes = vec![0; len];
        self.copy_out(at, &mut bytes);
        let result = f(&mut bytes);
        self.copy_in(at, &bytes);
        result
    }

    fn note_damage(&self, at: u64, damage: Damage) {
        self.damage.note(at, damage);
    }

    fn damage(&self) -> Vec<(u64, Damage)> {
        self.damage.all()
    }
}
