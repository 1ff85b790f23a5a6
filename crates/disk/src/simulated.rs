//! A disk in memory that loses, when its power is cut, what a real one may lose, and fails when it is told to.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::aligned::AlignedBuffer;
use crate::storage::{Storage, StoredFile};

/// What a disk writes at once, or does not: a write that a power cut interrupts may be torn between two of these.
const SECTOR_BYTES: usize = 512;

/// A disk in memory. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct Simulated {
    state: Arc<Mutex<State>>,
    failure: Failure,
}

/// The operation that fails next, counted from now: 0 is the next one.
type Failure = Arc<Mutex<Option<(u64, io::ErrorKind)>>>;

#[derive(Debug, Default)]
struct State {
    /// The names as programs see them, and as they are after a power cut.
    names: BTreeMap<String, Arc<Mutex<Content>>>,
    synced_names: BTreeMap<String, Arc<Mutex<Content>>>,
}

#[derive(Clone, Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    /// Writes that were begun and not ended: each by its number.
    begun: BTreeMap<u64, Begun>,
    next: u64,
    /// Where a page begins that cannot be read.
    bad_page: Option<u64>,
}

#[derive(Clone, Debug)]
struct Begun {
    at: u64,
    bytes: Vec<u8>,
    /// Readers see it already.
    is_seen: bool,
}

/// A file of a [`Simulated`] disk.
#[derive(Clone, Debug)]
pub struct SimulatedFile {
    content: Arc<Mutex<Content>>,
    failure: Failure,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Simulated {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The disk after its power was cut now. `chance(n)` is a random number below n. Of each write that was begun and not
    /// ended, any sectors may be there; of names that were not synced, any. What was synced is there.
    pub fn cut_power(&self, chance: &mut dyn FnMut(u64) -> u64) -> Self {
        let state = lock(&self.state);
        let mut names = state.synced_names.clone();
        for (name, content) in &state.names {
            if !names.contains_key(name) && chance(2) == 0 {
                names.insert(name.clone(), Arc::clone(content));
            }
        }
        for name in state.synced_names.keys() {
            if !state.names.contains_key(name) && chance(2) == 0 {
                names.remove(name);
            }
        }
        let cut = names.into_iter().map(|(name, content)| {
            let content = lock(&content).after_cut(chance);
            (name, Arc::new(Mutex::new(content)))
        });
        let names: BTreeMap<_, _> = cut.collect();
        let after = State {
            synced_names: names.clone(),
            names,
        };
        Self {
            state: Arc::new(Mutex::new(after)),
            failure: Failure::default(),
        }
    }

    /// Of the operations that change something or sync it, the one behind so many more fails, with this error.
    pub fn fail_after(&self, operations: u64, error: io::ErrorKind) {
        *lock(&self.failure) = Some((operations, error));
    }

    fn file(&self, content: &Arc<Mutex<Content>>) -> SimulatedFile {
        SimulatedFile {
            content: Arc::clone(content),
            failure: Arc::clone(&self.failure),
        }
    }

    /// Flips one bit of a file.
    ///
    /// # Panics
    /// When there is no such file, or it is shorter.
    pub fn flip(&self, name: &str, bit: u64) {
        let state = lock(&self.state);
        let mut content = lock(&state.names[name]);
        content.bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }

    /// The page of [`ALIGN_BYTES`](crate::format::ALIGN_BYTES) that begins at `at` in a file cannot be read any more; none, if there is no place.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn wear_out(&self, name: &str, at: Option<u64>) {
        let state = lock(&self.state);
        lock(&state.names[name]).bad_page = at;
    }
}

/// An operation that may have been told to fail.
fn attempt(failure: &Failure) -> io::Result<()> {
    let mut failure = lock(failure);
    match failure.take() {
        Some((0, error)) => Err(error.into()),
        Some((more, error)) => {
            *failure = Some((more - 1, error));
            Ok(())
        }
        None => Ok(()),
    }
}

impl Content {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).expect("a small disk");
        let end = at + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at..end].copy_from_slice(bytes);
    }

    fn after_cut(&self, chance: &mut dyn FnMut(u64) -> u64) -> Self {
        let mut after = Self {
            bytes: self.bytes.clone(),
            ..Self::default()
        };
        for begun in self.begun.values() {
            after.write_some(begun, chance);
        }
        after
    }

    /// None of a write, all of it, or any sectors.
    fn write_some(&mut self, begun: &Begun, chance: &mut dyn FnMut(u64) -> u64) {
        let kept = chance(4);
        for (number, sector) in (0..).zip(begun.bytes.chunks(SECTOR_BYTES)) {
            let is_kept = match kept {
                0 => false,
                1 => true,
                _ => chance(2) == 0,
            };
            if is_kept {
                self.write(begun.at + number * SECTOR_BYTES as u64, sector);
            }
        }
    }

    fn take_begun(&mut self, number: u64) -> Begun {
        let begun = self.begun.remove(&number);
        begun.expect("begun, and ended once")
    }

    /// What readers see of it stays from now on.
    fn sync_seen(&mut self) {
        let seen = self.begun.values().filter(|begun| begun.is_seen).cloned();
        for begun in seen.collect::<Vec<_>>() {
            self.write(begun.at, &begun.bytes);
        }
    }
}

impl SimulatedFile {
    /// Begins a write that [`SimulatedFile::end`] or [`SimulatedFile::fail`] ends; until then it is not synced.
    pub fn begin(&self, at: u64, bytes: &[u8]) -> u64 {
        let mut content = lock(&self.content);
        let number = content.next;
        content.next += 1;
        let begun = Begun {
            at,
            bytes: bytes.to_vec(),
            is_seen: false,
        };
        content.begun.insert(number, begun);
        number
    }

    /// Readers see a write that was begun, and nothing says that it stays.
    ///
    /// # Panics
    /// When it was not begun, or has ended.
    pub fn show(&self, number: u64) {
        let mut content = lock(&self.content);
        let begun = content.begun.get_mut(&number);
        begun.expect("begun, and ended once").is_seen = true;
    }

    /// Ends a write: its bytes are synced.
    ///
    /// # Panics
    /// When it was not begun, or has ended.
    pub fn end(&self, number: u64) {
        let mut content = lock(&self.content);
        let begun = content.take_begun(number);
        content.write(begun.at, &begun.bytes);
    }

    /// Ends a write as [`SimulatedFile::end`] does, but its bytes lie elsewhere: the disk misdirected them.
    ///
    /// # Panics
    /// As [`SimulatedFile::end`].
    pub fn end_at(&self, number: u64, at: u64) {
        let mut content = lock(&self.content);
        let begun = content.take_begun(number);
        content.write(at, &begun.bytes);
    }

    /// Ends a write with an error: any of its sectors may be there. `chance` is that of [`Simulated::cut_power`].
    ///
    /// # Panics
    /// When it was not begun, or has ended.
    pub fn fail(&self, number: u64, chance: &mut dyn FnMut(u64) -> u64) {
        let mut content = lock(&self.content);
        let begun = content.take_begun(number);
        content.write_some(&begun, chance);
    }
}

impl Storage for Simulated {
    type File = SimulatedFile;

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(lock(&self.state).names.keys().cloned().collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<SimulatedFile> {
        attempt(&self.failure)?;
        let mut state = lock(&self.state);
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let content = Content {
            bytes: vec![0; usize::try_from(bytes).expect("a small disk")],
            ..Content::default()
        };
        let content = Arc::new(Mutex::new(content));
        state.names.insert(name.to_owned(), Arc::clone(&content));
        Ok(self.file(&content))
    }

    fn open(&self, name: &str) -> io::Result<SimulatedFile> {
        let state = lock(&self.state);
        let content = state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.file(content))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        attempt(&self.failure)?;
        let removed = lock(&self.state).names.remove(name);
        removed.map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    /// The name that a power cut leaves is the new one: that it is the old one is as if this had not happened yet.
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        attempt(&self.failure)?;
        let mut state = lock(&self.state);
        if state.names.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let State {
            names,
            synced_names,
        } = &mut *state;
        let content = names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        names.insert(to.to_owned(), content);
        if let Some(content) = synced_names.remove(from) {
            synced_names.insert(to.to_owned(), content);
        }
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        attempt(&self.failure)?;
        let mut state = lock(&self.state);
        state.synced_names = state.names.clone();
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_names()?;
        let state = lock(&self.state);
        state
            .names
            .values()
            .for_each(|content| lock(content).sync_seen());
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

impl StoredFile for SimulatedFile {
    fn write_synced(&self, at: u64, bytes: &AlignedBuffer, len: usize) -> io::Result<()> {
        attempt(&self.failure)?;
        let number = self.begin(at, &bytes[..len]);
        self.end(number);
        Ok(())
    }

    fn punch_hole(&self, at: u64, bytes: u64) -> io::Result<()> {
        attempt(&self.failure)?;
        // Nobody syncs it, so a power cut may bring back any of it.
        let zeros = vec![0; usize::try_from(bytes).expect("a small disk")];
        let number = self.begin(at, &zeros);
        self.show(number);
        Ok(())
    }

    fn read(&self, at: u64, into: &mut AlignedBuffer) -> io::Result<usize> {
        let content = lock(&self.content);
        let wanted = at..at + into.len() as u64;
        if content.bad_page.is_some_and(|page| wanted.contains(&page)) {
            return Err(Errno::IO.into());
        }
        let from = usize::try_from(at)
            .unwrap_or(usize::MAX)
            .min(content.bytes.len());
        let bytes = &content.bytes[from..];
        let len = bytes.len().min(into.len());
        into[..len].copy_from_slice(&bytes[..len]);
        for begun in content.begun.values().filter(|begun| begun.is_seen) {
            let begun_at = usize::try_from(begun.at).expect("a small disk");
            let first = begun_at.max(from);
            let end = (begun_at + begun.bytes.len()).min(from + len);
            if first < end {
                let seen = &begun.bytes[first - begun_at..end - begun_at];
                into[first - from..end - from].copy_from_slice(seen);
            }
        }
        Ok(len)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(lock(&self.content).bytes.len() as u64)
    }
}
