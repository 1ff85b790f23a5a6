//! A stream by shared memory of which every byte is the caller's to choose: `docs/architecture/shm.md` says what lies where.
//!
//! It keeps to the rules as long as it is read and written, and to none as soon as its caller stores into its outbox.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use embar_memory::{Memory, Sealed, SealedFile};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Bytes of a hello.
pub const HELLO_BYTES: usize = 64;
/// Of this side's outbox.
pub const RECORDS: u64 = 256;
/// Of this side's outbox.
pub const RING_BYTES: u64 = 64 << 10;
/// Bytes of this side's outbox.
pub const OUTBOX_BYTES: u64 =
    (RECORDS_AT + RECORDS * RECORD_BYTES + RING_BYTES).next_multiple_of(4096);

/// How many records of the peer's are consumed.
pub const CONSUMED_AT: u64 = 0;
/// Why this side sleeps, and behind it what it waits for.
pub const ASLEEP_AT: u64 = 64;
/// Whether what was named may be used again.
pub const WITHDRAWN_AT: u64 = 128;
const RECORDS_AT: u64 = 256;
const RECORD_BYTES: u64 = 64;
const KIND_AT: u64 = 48;
const COMMIT_AT: u64 = 56;

/// Kinds of records.
pub const INLINE: u8 = 1;
/// Bytes in the ring.
pub const BYTES: u8 = 2;
/// Bytes of a memory that was handed over.
pub const REFERENCE: u8 = 3;
/// No more comes.
pub const END: u8 = 4;

/// How long a broker may take to answer; it may be stopped or dead.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Most bytes of one record.
const PIECE_BYTES: usize = 4096;

/// One end of a stream.
pub struct RawStream {
    socket: UnixStream,
    /// This side's outbox.
    pub own: Sealed,
    /// The peer's.
    pub peer: File,
    peer_records: u64,
    /// Records published.
    pub published: u64,
    /// Bytes taken in the ring.
    taken: u64,
    /// Of the peer's records, the one at the front, and how much of it was read.
    next: u64,
    front: usize,
}

/// Says a hello in these bytes, with these descriptors.
pub fn say(socket: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let pushed = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        ensure!(pushed, "too many descriptors");
    }
    let part = [IoSlice::new(bytes)];
    rustix::net::sendmsg(socket, &part, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// A hello of these numbers: records and bytes of the rings, and the lengths of further memories.
pub fn hello(records: u64, ring_bytes: u64, memories: &[u64]) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(b"embarshm");
    let numbers = [3, records, ring_bytes, memories.len() as u64];
    for (into, number) in bytes[8..24].chunks_exact_mut(4).zip(numbers) {
        into.copy_from_slice(&(number as u32).to_le_bytes());
    }
    for (into, len) in bytes[24..56].chunks_exact_mut(8).zip(memories) {
        into.copy_from_slice(&len.to_le_bytes());
    }
    bytes
}

/// A socket that gives up in time.
pub fn socket(path: &Path) -> Result<UnixStream> {
    let socket = UnixStream::connect(path)?;
    socket.set_write_timeout(Some(ANSWERS_WITHIN))?;
    socket.set_read_timeout(Some(ANSWERS_WITHIN))?;
    Ok(socket)
}

impl RawStream {
    /// Connects as an honest peer would, and hands these memories over.
    pub fn connect(path: &Path, memories: &[SealedFile]) -> Result<Self> {
        let socket = socket(path)?;
        let own = Sealed::new(OUTBOX_BYTES)?;
        let outbox = own.handle();
        let descriptors: Vec<BorrowedFd<'_>> = [&outbox]
            .into_iter()
            .chain(memories)
            .map(AsFd::as_fd)
            .collect();
        let lens: Vec<u64> = memories.iter().map(SealedFile::len).collect();
        say(&socket, &hello(RECORDS, RING_BYTES, &lens), &descriptors)?;
        let (answer, peer) = heard(&socket)?;
        let peer_records = u32::from_le_bytes(answer[12..16].try_into()?);
        socket.set_read_timeout(Some(LOOK_EVERY))?;
        Ok(Self {
            socket,
            own,
            peer: peer.into(),
            peer_records: peer_records.into(),
            published: 0,
            taken: 0,
            next: 0,
            front: 0,
        })
    }

    /// Publishes a record, true or not, whether there is room or not: `first` is its first word.
    pub fn publish(&mut self, kind: u8, memory: u8, len: u32, first: u64) -> io::Result<()> {
        let at = RECORDS_AT + self.published % RECORDS * RECORD_BYTES;
        self.own.store(at, first);
        let said = u64::from(kind) | u64::from(memory) << 8 | u64::from(len) << 32;
        self.own.store(at + KIND_AT, said);
        self.published += 1;
        self.own.store(at + COMMIT_AT, self.published);
        self.ring()
    }

    /// Stores what it likes into the last word of the next record.
    pub fn commit(&mut self, word: u64) -> io::Result<()> {
        let at = RECORDS_AT + self.published % RECORDS * RECORD_BYTES;
        self.own.store(at + COMMIT_AT, word);
        self.ring()
    }

    /// Wakes the peer. A full socket is as good.
    fn ring(&self) -> io::Result<()> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::send(&self.socket, &[1], flags) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the peer still has its end.
    pub fn is_alive(&self) -> bool {
        match (&self.socket).read(&mut [0; 64]) {
            Ok(count) => count > 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }

    /// Waits until the peer ends the connection, at most for `time`; true if it did.
    pub fn ends_within(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
        }
        true
    }

    fn peer_word(&self, at: u64) -> io::Result<u64> {
        let mut word = [0; 8];
        self.peer.read_exact_at(&mut word, at)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Repeats until there is something, or the peer left, or it takes too long.
    fn until<T>(&self, mut look: impl FnMut() -> io::Result<Option<T>>) -> io::Result<Option<T>> {
        let deadline = Instant::now() + ANSWERS_WITHIN;
        loop {
            if let Some(found) = look()? {
                return Ok(Some(found));
            }
            if !self.is_alive() {
                return look();
            }
            if Instant::now() >= deadline {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }
}

/// The peer's hello, and the descriptor of its outbox.
fn heard(socket: &UnixStream) -> Result<([u8; HELLO_BYTES], OwnedFd)> {
    let mut bytes = [0; HELLO_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let into = &mut [IoSliceMut::new(&mut bytes)];
    let received = rustix::net::recvmsg(socket, into, &mut ancillary, flags)?;
    ensure!(received.bytes == HELLO_BYTES, "no hello");
    let descriptors = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let outbox = descriptors.collect::<Vec<_>>().into_iter().next();
    Ok((bytes, outbox.context("a hello without an outbox")?))
}

impl Write for RawStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let at = self.taken % RING_BYTES;
        let len = bytes.len().min(PIECE_BYTES).min((RING_BYTES - at) as usize);
        if len == 0 {
            return Ok(0);
        }
        // Simple, not fast: the ring is used anew when all of it is consumed.
        let is_full = at == 0 || self.published.is_multiple_of(RECORDS / 2);
        if is_full {
            let published = self.published;
            let consumed = self.until(|| {
                let consumed = self.peer_word(CONSUMED_AT)?;
                Ok((consumed >= published).then_some(()))
            })?;
            consumed.ok_or(ErrorKind::BrokenPipe)?;
        }
        let place = RECORDS_AT + RECORDS * RECORD_BYTES + at;
        self.own.write(place, &bytes[..len]);
        self.taken += (len as u64).next_multiple_of(64);
        self.publish(BYTES, 0, len as u32, at)?;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for RawStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let at = RECORDS_AT + self.next % self.peer_records * RECORD_BYTES;
        let next = self.next;
        let found = self.until(|| {
            let commit = self.peer_word(at + COMMIT_AT)?;
            Ok((commit == next + 1).then_some(()))
        })?;
        if found.is_none() {
            return Ok(0);
        }
        let mut body = [0; COMMIT_AT as usize];
        self.peer.read_exact_at(&mut body, at)?;
        let kind = body[KIND_AT as usize];
        let len = u32::from_le_bytes(body[52..56].try_into().expect("4 bytes")) as usize;
        let first = u64::from_le_bytes(body[..8].try_into().expect("8 bytes"));
        let count = into.len().min(len - self.front.min(len));
        let into = &mut into[..count];
        match kind {
            INLINE => into.copy_from_slice(&body[self.front..self.front + count]),
            BYTES => {
                let ring = RECORDS_AT + self.peer_records * RECORD_BYTES;
                let place = ring + first + self.front as u64;
                self.peer.read_exact_at(into, place)?;
            }
            // What lies elsewhere is of no use here.
            REFERENCE => into.fill(0),
            _ => return Ok(0),
        }
        self.front += count;
        if self.front >= len {
            self.front = 0;
            self.next += 1;
            self.own.store(CONSUMED_AT, self.next);
            self.ring()?;
        }
        Ok(count)
    }
}
