//! What both sides say first, by their socket: how large their outbox is and what else they hand over, with a descriptor
//! for each.

use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::layout::{MEMORIES_MAX, Sizes, violation};
use crate::handed::{self, Handed};

/// Bytes of a hello.
pub(super) const HELLO_BYTES: usize = 64;

/// Begins each hello.
const MAGIC: [u8; 8] = *b"embarshm";
const VERSION: u32 = 3;

/// Descriptors of a hello at most: the outbox, what else is handed over, and what is lent.
const DESCRIPTORS_MAX: usize = 2 + MEMORIES_MAX;

/// Where a hello says what is lent: how many bytes, or, by the side that connects, not 0 if it reads what is lent.
const LENT_AT: usize = 56;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    pub sizes: Sizes,
    /// Bytes of each memory that is handed over besides the outbox.
    pub memories: Vec<u64>,
    pub lent: Lent,
}

/// What a hello says of files that are lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lent {
    /// By the side that connects: whether it reads where bytes lie.
    Wanted(bool),
    /// By the other side: bytes of the file that it lends, 0 without one.
    Bytes(u64),
}

impl Lent {
    /// Bytes that are lent.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Wanted(_) => 0,
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl Hello {
    /// Bytes that the other side is to map, those that are lent left out: whoever accepts them trusts their owner.
    pub fn total_bytes(&self) -> u64 {
        let memories = self.memories.iter();
        memories.fold(self.sizes.outbox_bytes(), |sum, len| {
            sum.saturating_add(*len)
        })
    }

    fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        let numbers = [
            VERSION,
            self.sizes.records,
            self.sizes.bytes,
            self.memories.len() as u32,
        ];
        bytes[..8].copy_from_slice(&MAGIC);
        for (bytes, number) in bytes[8..24].chunks_exact_mut(4).zip(numbers) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        for (bytes, len) in bytes[24..56].chunks_exact_mut(8).zip(&self.memories) {
            bytes.copy_from_slice(&len.to_le_bytes());
        }
        let lent = match self.lent {
            Lent::Wanted(wanted) => u64::from(wanted),
            Lent::Bytes(bytes) => bytes,
        };
        bytes[LENT_AT..].copy_from_slice(&lent.to_le_bytes());
        bytes
    }

    /// As the side that connects said it, or the other one.
    fn decode(bytes: &[u8; HELLO_BYTES], of_connecting: bool) -> io::Result<Self> {
        if bytes[..8] != MAGIC {
            return Err(violation(
                "it begins with other bytes: is this the socket of another service?",
            ));
        }
        let number = |at: usize| {
            let bytes = bytes[at..at + 4].try_into().expect("4 bytes");
            u32::from_le_bytes(bytes)
        };
        if number(8) != VERSION {
            return Err(violation(format!(
                "it speaks version {} of it, and this program version {VERSION}",
                number(8)
            )));
        }
        let sizes = Sizes {
            records: number(12),
            bytes: number(16),
        };
        let count = number(20) as usize;
        if !sizes.are_valid() || count > MEMORIES_MAX {
            return Err(violation(format!(
                "an outbox of {} records and {} bytes, and {count} memories",
                sizes.records, sizes.bytes
            )));
        }
        let (words, _) = bytes[24..].as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        let mut words: Vec<u64> = words.collect();
        let lent = match words.pop() {
            wanted if of_connecting => Lent::Wanted(wanted != Some(0)),
            bytes => Lent::Bytes(bytes.unwrap_or(0)),
        };
        words.truncate(count);
        Ok(Self {
            sizes,
            memories: words,
            lent,
        })
    }

    /// Says it on a fresh socket, which has room for it.
    pub fn send(&self, socket: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let bytes = self.encode();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags)?;
        if sent < bytes.len() {
            return Err(ErrorKind::WriteZero.into());
        }
        Ok(())
    }
}

/// A hello that is coming, however it is cut.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    bytes: Vec<u8>,
    descriptors: Vec<Handed>,
}

/// What was heard so far.
pub(super) enum Heard {
    /// Not all.
    Part,
    /// The other side said nothing and left.
    Nothing,
    All(Hello, Descriptors),
}

/// What comes with a hello.
pub(super) struct Descriptors {
    pub outbox: Handed,
    /// What else is handed over.
    pub memories: Vec<Handed>,
    pub lent: Option<Handed>,
}

impl Incoming {
    /// Takes what is there, and nothing behind the hello, which is that of the side that connects, or of the other one.
    pub fn receive(&mut self, socket: &UnixStream, of_connecting: bool) -> io::Result<Heard> {
        while self.bytes.len() < HELLO_BYTES {
            if handed::is_behind() {
                let text =
                    "descriptors that others handed over cannot be closed: no more are taken";
                return Err(io::Error::new(ErrorKind::ResourceBusy, text));
            }
            let mut part = [0; HELLO_BYTES];
            let left = HELLO_BYTES - self.bytes.len();
            let into = &mut part[..left];
            let received = match handed::receive(socket, into, &mut self.descriptors) {
                Ok(received) => received,
                Err(Errno::AGAIN) => return Ok(Heard::Part),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if received.lost || self.descriptors.len() > DESCRIPTORS_MAX {
                return Err(violation("it hands over too many descriptors"));
            }
            if received.bytes == 0 && self.bytes.is_empty() {
                return Ok(Heard::Nothing);
            }
            if received.bytes == 0 {
                return Err(ErrorKind::ConnectionReset.into());
            }
            self.bytes.extend_from_slice(&part[..received.bytes]);
        }
        self.take(of_connecting)
    }

    fn take(&mut self, of_connecting: bool) -> io::Result<Heard> {
        let bytes = self.bytes[..].try_into().expect("a whole hello");
        let hello = Hello::decode(bytes, of_connecting)?;
        let lends = hello.lent.bytes() > 0;
        if self.descriptors.len() != 1 + hello.memories.len() + usize::from(lends) {
            return Err(violation(format!(
                "it hands over {} descriptors for an outbox, {} memories and {} lent bytes",
                self.descriptors.len(),
                hello.memories.len(),
                hello.lent.bytes()
            )));
        }
        let mut memories = std::mem::take(&mut self.descriptors);
        let lent = if lends { memories.pop() } else { None };
        let outbox = memories.remove(0);
        let descriptors = Descriptors {
            outbox,
            memories,
            lent,
        };
        Ok(Heard::All(hello, descriptors))
    }
}
