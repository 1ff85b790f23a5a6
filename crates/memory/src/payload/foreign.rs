//! Reads payload of another owner, which may overwrite it at any time. So there are no slices of these bytes, only
//! copies, and an address for the kernel.

use crate::canary::{Canary, injected};
use std::fmt;
use std::sync::Arc;

use crate::mapped::Mapped;
use crate::memory::Memory;

/// Bytes of another process's payload file.
///
/// Their owner may use the memory again at any time, so there is no slice of them: a reader copies them
/// word by word, or gives the kernel their address. Afterwards it looks at the owner's window, and
/// forgets what it got if the owner had given them up.
pub struct Foreign<M: Memory> {
    memory: Arc<M>,
    at: u64,
    len: usize,
}

impl<M: Memory> Foreign<M> {
    /// `len` bytes at `at`, both of which may come from shared memory: `None` when they are not
    /// inside the file.
    pub fn over(memory: &Arc<M>, at: u64, len: usize) -> Option<Self> {
        let end = at.checked_add(u64::try_from(len).ok()?)?;
        (end <= memory.len()).then(|| Self {
            memory: Arc::clone(memory),
            at,
            len,
        })
    }

    /// Offset in the owner's payload file.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads from now on see what the owner had written back before. To be called once a record
    /// that points here was observed, and before the first read.
    pub fn invalidate(&self) {
        if !injected(Canary::ForeignInvalidate) {
            self.memory.invalidate(self.at, self.len as u64);
        }
    }

    /// Copies the bytes from `from` on, as many as `into` holds, while others may be writing them.
    ///
    /// # Panics
    /// When they do not end within [`Foreign::len`].
    pub fn copy_to(&self, from: usize, into: &mut [u8]) {
        assert!(
            from <= self.len && into.len() <= self.len - from,
            "bytes {from}+{} of a range of {}",
            into.len(),
            self.len
        );
        let at = self.at + from as u64;
        // Memory is read from whole words on; a file is whole words long.
        let skip = (at % 8) as usize;
        let lead = (8 - skip) % 8;
        let (lead, rest) = into.split_at_mut(lead.min(into.len()));
        if !lead.is_empty() {
            let mut word = [0; 8];
            self.memory.read(at - skip as u64, &mut word);
            lead.copy_from_slice(&word[skip..skip + lead.len()]);
        }
        if !rest.is_empty() {
            self.memory.read(at + lead.len() as u64, rest);
        }
    }

    /// As [`Foreign::copy_to`]; `see` is shown what was copied: see [`Memory::read_seen`].
    ///
    /// # Panics
    /// As [`Foreign::copy_to`].
    pub fn copy_seen(&self, from: usize, into: &mut [u8], see: &mut dyn FnMut(&[u8])) {
        let at = self.at + from as u64;
        let lead = (at.next_multiple_of(8) - at) as usize;
        let (lead, rest) = into.split_at_mut(lead.min(into.len()));
        self.copy_to(from, lead);
        if !lead.is_empty() {
            see(lead);
        }
        let from = from + lead.len();
        assert!(
            rest.len() <= self.len - from,
            "bytes {from}+{} of a range of {}",
            rest.len(),
            self.len
        );
        if !rest.is_empty() {
            self.memory.read_seen(at + lead.len() as u64, rest, see);
        }
    }
}

impl Foreign<Mapped> {
    /// Where the first byte is mapped, for as long as this value or a clone of it lives.
    ///
    /// For system calls that read memory, such as `sendmsg`, and for nothing else: the owner may
    /// write these bytes at any moment, so a slice of them, or a plain load, would be a data race.
    pub fn as_ptr(&self) -> *const u8 {
        // SAFETY: a slice without bytes has none that could be written. The range was found to
        // be inside the mapping when `self` was made.
        unsafe { self.memory.slice(self.at, 0) }.as_ptr()
    }
}

impl<M: Memory> Clone for Foreign<M> {
    fn clone(&self) -> Self {
        Self {
            memory: Arc::clone(&self.memory),
            ..*self
        }
    }
}

impl<M: Memory> fmt::Debug for Foreign<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foreign")
            .field("at", &self.at)
            .field("len", &self.len)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::Foreign;
    use crate::mapped::{Coherence, Mapped};
    use crate::memory::Memory;
    use crate::simulated::Device;
    use std::sync::Arc;

    const FILE_BYTES: usize = 4096;

    fn pattern() -> Vec<u8> {
        (0..FILE_BYTES).map(|at| (at * 31 % 251) as u8).collect()
    }

    fn any_place_and_length<M: Memory>(memory: M) {
        let memory = Arc::new(memory);
        memory.write(0, &pattern());
        for at in 0..20 {
            let foreign = Foreign::over(&memory, at, 40).expect("inside the file");
            for from in 0..20 {
                for len in 0..20 {
                    let mut into = vec![0; len];
                    foreign.copy_to(from, &mut into);
                    let start = at as usize + from;
                    assert_eq!(into, pattern()[start..start + len], "{at} {from} {len}");
                }
            }
        }
        let last = Foreign::over(&memory, FILE_BYTES as u64 - 3, 3).expect("inside the file");
        let mut into = [0; 3];
        last.copy_to(0, &mut into);
        assert_eq!(into, pattern()[FILE_BYTES - 3..]);
    }

    #[test]
    fn bytes_are_copied_from_any_place_in_any_length() {
        any_place_and_length(Mapped::anonymous(FILE_BYTES as u64, Coherence::Coherent).unwrap());
        any_place_and_length(Mapped::anonymous(FILE_BYTES as u64, Coherence::WriteBack).unwrap());
        any_place_and_length(Device::new(FILE_BYTES as u64, 1).host(2));
    }

    #[test]
    fn nothing_outside_of_the_file_is_foreign_payload() {
        let memory = Arc::new(Device::new(FILE_BYTES as u64, 1).host(2));
        assert!(Foreign::over(&memory, 4000, 96).is_some());
        assert!(Foreign::over(&memory, 4000, 97).is_none());
        assert!(Foreign::over(&memory, u64::MAX, 1).is_none());
        assert!(Foreign::over(&memory, 0, usize::MAX).is_none());
    }

    #[test]
    #[should_panic(expected = "of a range of 8")]
    fn a_copy_ends_where_the_range_does() {
        let memory = Arc::new(Device::new(FILE_BYTES as u64, 1).host(2));
        let foreign = Foreign::over(&memory, 8, 8).expect("inside the file");
        foreign.copy_to(1, &mut [0; 8]);
    }

    #[test]
    fn what_the_owner_wrote_back_is_read_once_it_is_invalidated() {
        for seed in 0..20 {
            let device = Device::new(FILE_BYTES as u64, seed);
            let (owner, reader) = (device.host(seed), Arc::new(device.host(seed + 1)));
            let foreign = Foreign::over(&reader, 64, 256).expect("inside the file");
            let mut into = [0; 256];
            foreign.copy_to(0, &mut into);
            owner.write(64, &[7; 256]);
            owner.write_back(64, 256);
            owner.fence();
            foreign.invalidate();
            foreign.copy_to(0, &mut into);
            assert_eq!(into, [7; 256], "seed {seed}");
        }
    }

    #[test]
    fn the_address_is_that_of_the_first_byte() {
        let memory = Arc::new(Mapped::anonymous(FILE_BYTES as u64, Coherence::Coherent).unwrap());
        let whole = Foreign::over(&memory, 0, FILE_BYTES).expect("inside the file");
        let part = Foreign::over(&memory, 100, 8).expect("inside the file");
        assert_eq!(whole.as_ptr().addr() + 100, part.as_ptr().addr());
    }
}
