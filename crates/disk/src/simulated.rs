//! A disk in memory that loses, when its power is cut, what a real one may lose.

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
}

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
    begun: BTreeMap<u64, (u64, Vec<u8>)>,
    next: u64,
    /// Where a page begins that cannot be read.
    bad_page: Option<u64>,
}

/// A file of a [`Simulated`] disk.
#[derive(Clone, Debug)]
pub struct SimulatedFile {
    content: Arc<Mutex<Content>>,
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
        for (at, bytes) in self.begun.values() {
            // None of it, all of it, or any sectors.
            let kept = chance(4);
            for (number, sector) in (0..).zip(bytes.chunks(SECTOR_BYTES)) {
                let is_kept = match kept {
                    0 => false,
                    1 => true,
                    _ => chance(2) == 0,
                };
                if is_kept {
                    after.write(at + number * SECTOR_BYTES as u64, sector);
                }
            }
        }
        after
    }
}

impl SimulatedFile {
    /// Begins a write that [`SimulatedFile::end`] ends; until then it is not synced.
    pub fn begin(&self, at: u64, bytes: &[u8]) -> u64 {
        let mut content = lock(&self.content);
        let number = content.next;
        content.next += 1;
        content.begun.insert(number, (at, bytes.to_vec()));
        number
    }

    /// Ends a write: its bytes are synced.
    ///
    /// # Panics
    /// When it was not begun, or has ended.
    pub fn end(&self, number: u64) {
        let mut content = lock(&self.content);
        let (at, bytes) = content
            .begun
            .remove(&number)
            .expect("begun, and ended once");
        content.write(at, &bytes);
    }
}

impl Storage for Simulated {
    type File = SimulatedFile;

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(lock(&self.state).names.keys().cloned().collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<SimulatedFile> {
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
        Ok(SimulatedFile { content })
    }

    fn open(&self, name: &str) -> io::Result<SimulatedFile> {
        let state = lock(&self.state);
        let content = state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(SimulatedFile {
            content: Arc::clone(content),
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let removed = lock(&self.state).names.remove(name);
        removed.map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.synced_names = state.names.clone();
        Ok(())
    }

    /// Writes end when they are synced, so there is nothing else to sync.
    fn sync_all(&self) -> io::Result<()> {
        self.sync_names()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

impl StoredFile for SimulatedFile {
    fn write_synced(&self, at: u64, bytes: &AlignedBuffer, len: usize) -> io::Result<()> {
        let number = self.begin(at, &bytes[..len]);
        self.end(number);
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
        Ok(len)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(lock(&self.content).bytes.len() as u64)
    }
}
