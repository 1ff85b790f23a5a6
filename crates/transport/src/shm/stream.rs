//! A connection by shared memory: its socket, its two outboxes, and what both sides need to find each other.

use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use embar_memory::{
    Buffer, FileId, LentFile, LentOpening, LentView, Loan, Mapped, Sealed, SealedFile, SealedView,
};

use self::greeting::{Greeting, PeerViews};
use super::doorbell::{Doorbell, Heard};
use super::layout::violation;
use super::leases::ConnectionLeases;
use super::nap::{Nap, settle};
use super::receiver::{Receiver, Taken};
use super::sender::{Sender, WINDOW_BYTES, WINDOW_REFERENCES};
use crate::SendBuf;
use crate::buffer::{LentBytes, Named, Step, Witness};

mod greeting;

/// Bytes taken by one receive at most, so that a busy peer leaves room for others, and what was copied is in the cache
/// when it is looked at.
const RECV_BYTES_MAX: usize = 256 << 10;

/// Bytes after which the peer learns what it may use again: a few times for each of its rings.
const RECV_STEP_BYTES: usize = 32 << 10;

/// How connections by shared memory are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShmOptions {
    /// Bytes of the ring for what is copied to the peer, rounded up to a power of two from 4 KiB to 16 MiB. Default
    /// 1 MiB: with less, both sides wait for each other more often.
    pub ring_bytes: u32,
    /// Records of the ring that names to the peer what is there, rounded up to a power of two from 4 to 65,536. Default
    /// 256.
    pub ring_records: u32,
    /// How much of its memory a peer may make this process map, in bytes of address space: its rings and what it hands
    /// over. A peer that asks for more is refused. Default 512 MiB.
    pub map_bytes_max: u64,
    /// Memories that are handed over to the peers of connections that this process makes, at most
    /// [`MEMORIES_MAX`](super::MEMORIES_MAX). What is sent of them is named to the peer instead of copied.
    pub memories: Vec<SealedFile>,
    /// Of a listener: the payload file of this process, which it lends to those of its own user, or of root, who
    /// [borrow](Self::borrows). What is sent of it is named to them instead of copied, while no more is
    /// [lent](embar_memory::Span::lend) than may be.
    pub lends: Option<LentFile>,
    /// Of connections that this process makes: read payload where it lies in a file that the listener's process lends.
    /// That process is believed not to shorten the file, so it is refused unless it is of this process's user or of
    /// root. Its size does not count for `map_bytes_max`. Default false.
    pub borrows: bool,
}

impl Default for ShmOptions {
    fn default() -> Self {
        Self {
            ring_bytes: 1 << 20,
            ring_records: 256,
            map_bytes_max: 512 << 20,
            memories: Vec::new(),
            lends: None,
            borrows: false,
        }
    }
}

/// What is kept for the peer until it consumed what was named.
enum Kept {
    Buffer(#[expect(dead_code, reason = "kept for its drop")] Arc<Buffer>),
    Loan(Loan<Mapped>),
}

/// A connection by shared memory, from the moment at which its sockets are connected.
///
/// Two threads may use it at the same time, one to send and one to receive.
#[derive(Debug)]
pub struct Shm {
    /// Who reads what the peer lends knows it, too, to wake the peer.
    doorbell: Arc<Doorbell>,
    options: ShmOptions,
    greeting: Mutex<Greeting>,
    link: OnceLock<Link>,
    /// The other end of the socket is closed: nothing more will be published.
    gone: AtomicBool,
    /// How it broke a rule by the socket.
    nonsense: OnceLock<&'static str>,
    /// That was told with an error once, as sockets do.
    reset_told: AtomicBool,
    /// Sending ended before the greeting was over.
    ends: AtomicBool,
    blocks: AtomicBool,
}

/// What there is once both sides have said hello.
struct Link {
    sender: Mutex<Sender<Sealed, SealedView, Kept>>,
    receiver: Mutex<Incoming>,
    nap: Mutex<Nap<Sealed>>,
    /// The memories that were handed over, in their order, and behind them the file that is lent.
    handed: Box<[FileId]>,
    /// On what this side reads where it lies.
    leases: Arc<ConnectionLeases>,
    /// By which this side lends to the peer.
    lends: Option<Arc<LentOpening>>,
    /// What the peer handed over: dropped last, behind all that reads it.
    _views: PeerViews,
}

/// Takes what the peer published, from its own memory or from what it lends.
type Incoming = Receiver<Sealed, SealedView, LentView>;

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Link")
    }
}

/// No step leaves what it guards half-done when it panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shm {
    /// The side that connected, which lends nothing. It blocks until a reactor takes it.
    pub(crate) fn connecting(socket: UnixStream, options: &ShmOptions) -> Self {
        let options = ShmOptions {
            lends: None,
            ..options.clone()
        };
        Self::new(socket, options, true)
    }

    /// The side that was connected to, which hands no memories over.
    pub(crate) fn accepted(socket: UnixStream, options: &ShmOptions) -> Self {
        let options = ShmOptions {
            memories: Vec::new(),
            ..options.clone()
        };
        Self::new(socket, options, false)
    }

    /// Both ends of a connection between two parts of this process: the one that connected, and the one that accepted.
    ///
    /// # Errors
    /// When the kernel has no memory or descriptors; as a greeting fails.
    pub fn pair(connecting: &ShmOptions, accepted: &ShmOptions) -> io::Result<(Self, Self)> {
        let (ours, theirs) = UnixStream::pair()?;
        let ours = Self::connecting(ours, connecting);
        let theirs = Self::accepted(theirs, accepted);
        while !(ours.greet()? && theirs.greet()?) {
            theirs.greet()?;
        }
        Ok((ours, theirs))
    }

    fn new(socket: UnixStream, options: ShmOptions, connects: bool) -> Self {
        Self {
            doorbell: Doorbell::new(socket),
            options,
            greeting: Mutex::new(Greeting::new(connects)),
            link: OnceLock::new(),
            gone: AtomicBool::new(false),
            nonsense: OnceLock::new(),
            reset_told: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            blocks: AtomicBool::new(true),
        }
    }

    /// The socket beside the memory.
    pub(crate) fn socket(&self) -> &UnixStream {
        self.doorbell.socket()
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.blocks.store(!nonblocking, Ordering::Relaxed);
    }

    pub(super) fn blocks(&self) -> bool {
        self.blocks.load(Ordering::Relaxed)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Whether both sides have said hello, as far as [`Shm::greet`] found.
    #[inline]
    pub(crate) fn is_linked(&self) -> bool {
        self.link.get().is_some()
    }

    /// Receives into `first`, then `second`, what is there: 0 at the end of the stream. What it copies into `first` `witness` sees.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there. `InvalidData` if the peer broke a rule, `ConnectionAborted` if it withdrew what it had
    /// named: then what is in the buffers is to be thrown away. `ConnectionReset` once if the peer left without having
    /// consumed everything.
    pub(crate) fn try_recv(
        &self,
        first: &mut [u8],
        second: &mut [u8],
        witness: Option<&dyn Witness>,
    ) -> io::Result<usize> {
        self.check_socket()?;
        // Before the look into memory: what it published before it left is seen then.
        let gone = self.is_gone();
        if !self.greet()? {
            return match self.is_gone() {
                true => Ok(0),
                false => Err(ErrorKind::WouldBlock.into()),
            };
        }
        let Some(link) = self.link.get() else {
            return Err(ErrorKind::NotConnected.into());
        };
        let mut receiver = lock(&link.receiver);
        let most = first.len().min(RECV_BYTES_MAX);
        let mut taken = self.take(&mut receiver, &mut first[..most], witness)?;
        if let Taken::Bytes(count) = taken
            && count == first.len()
            && !second.is_empty()
            && !receiver.is_at_lent()
            && let Taken::Bytes(more) = self.take(&mut receiver, second, None)?
        {
            taken = Taken::Bytes(count + more);
        }
        drop(receiver);
        match taken {
            Taken::Bytes(count) => {
                // Who hears that something arrived may use it again, so it must not be kept any more.
                Self::let_go(link)?;
                Ok(count)
            }
            Taken::End => Ok(0),
            Taken::Nothing if gone => self.end_of(link),
            Taken::Nothing => {
                if link.lends.is_some() {
                    // What was lent is to be used again, although nothing is to be sent.
                    Self::let_go(link)?;
                }
                Err(ErrorKind::WouldBlock.into())
            }
        }
    }

    /// Takes the next bytes, at least `least` and at most `most`, where the peer lends them; `None` if they are to be copied, or not
    /// there.
    pub(crate) fn try_recv_lent(&self, least: usize, most: usize) -> Option<LentBytes> {
        self.check_socket().ok()?;
        let link = self.link.get()?;
        let mut receiver = lock(&link.receiver);
        let part = receiver.take_lent(least, most)?;
        if receiver.tell() {
            self.ring();
        }
        drop(receiver);
        part.memory.make_present(part.at, part.len);
        let lessor = Arc::clone(&link.leases);
        #[allow(unsafe_code, reason = "bytes that another process lends")]
        // SAFETY: the peer is of this user or of root, by the kernel's word, when it lends something: so it keeps the rules of
        // `embar_memory::payload` for loans, and the lock for as long as the mapping is there.
        Some(unsafe { LentBytes::new(part.memory, (part.at, part.len), part.record, lessor) })
    }

    /// Lets go of what was named and is consumed by now.
    fn let_go(link: &Link) -> io::Result<()> {
        let mut sender = lock(&link.sender);
        match sender.kept() {
            (0, _) => Ok(()),
            _ => sender.refresh(),
        }
    }

    /// Takes what is there and fits. The peer learns step by step what it may use again, and goes on meanwhile.
    fn take(
        &self,
        receiver: &mut Incoming,
        into: &mut [u8],
        witness: Option<&dyn Witness>,
    ) -> io::Result<Taken> {
        let mut filled = 0;
        loop {
            let end = into.len().min(filled + RECV_STEP_BYTES);
            let taken = receiver.take_seen(&mut into[filled..end], witness)?;
            if receiver.tell() {
                self.ring();
            }
            match taken {
                Taken::Bytes(count) => filled += count,
                _ if filled > 0 => return Ok(Taken::Bytes(filled)),
                none => return Ok(none),
            }
            if filled == into.len() {
                return Ok(Taken::Bytes(filled));
            }
            if receiver.is_at_lent() {
                return Ok(Taken::Bytes(filled));
            }
        }
    }

    /// What a receive says when the peer has left, and all that it published is taken.
    fn end_of(&self, link: &Link) -> io::Result<usize> {
        let mut sender = lock(&link.sender);
        sender.refresh()?;
        if sender.all_consumed() || self.reset_told.swap(true, Ordering::Relaxed) {
            return Ok(0);
        }
        Err(ErrorKind::ConnectionReset.into())
    }

    /// Runs `publish` with the sender. Says how many bytes it published, and whether the peer sleeps, and is [to be
    /// woken](Shm::ring) for them.
    fn with_sender(
        &self,
        publish: impl FnOnce(&mut Sender<Sealed, SealedView, Kept>, &Link) -> io::Result<usize>,
    ) -> io::Result<(usize, bool)> {
        self.check_socket()?;
        let greeted = self.greet()?;
        let gone = self.is_gone();
        if !greeted && !gone {
            return Err(ErrorKind::WouldBlock.into());
        }
        let Some(link) = self.link.get().filter(|_| !gone) else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        let mut sender = lock(&link.sender);
        if sender.has_ended() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let count = publish(&mut sender, link)?;
        Ok((count, count > 0 && sender.must_ring()))
    }

    /// Publishes as much of `buf` as there is room for, and advances it by that; returns how many bytes, and whether the peer is [to
    /// be woken](Shm::ring) for them.
    ///
    /// # Errors
    /// `WouldBlock` before the greeting is over. `BrokenPipe` if the peer left, or sending has ended. `InvalidData` if the peer broke
    /// a rule.
    pub(crate) fn try_send(&self, buf: &mut SendBuf) -> io::Result<(usize, bool)> {
        if buf.remaining() == 0 {
            return Ok((0, false));
        }
        self.with_sender(|sender, link| {
            if sender.kept().0 > 0 {
                sender.refresh()?;
            }
            publish_all(sender, buf.remaining(), |sender, _| {
                let count = publish_next(sender, link, buf);
                buf.advance(count);
                count
            })
        })
    }

    /// As [`Shm::try_send`], of plain bytes; returns how many were published, and wakes the peer by itself.
    pub(crate) fn try_send_bytes(&self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let (count, wakes) = self.with_sender(|sender, _| {
            publish_all(sender, bytes.len(), |sender, sent| {
                sender.copy(&bytes[sent..])
            })
        })?;
        if wakes {
            self.ring();
        }
        Ok(count)
    }

    /// Says that nothing more will be sent.
    ///
    /// # Errors
    /// `NotConnected` if the peer left.
    pub(crate) fn end(&self) -> io::Result<()> {
        if self.is_gone() {
            return Err(ErrorKind::NotConnected.into());
        }
        // Under the lock of the greeting, so that one of the two sees the other.
        let greeting = lock(&self.greeting);
        self.ends.store(true, Ordering::Release);
        drop(greeting);
        if let Some(link) = self.link.get() {
            self.end_on(link);
        }
        Ok(())
    }

    fn end_on(&self, link: &Link) {
        let mut sender = lock(&link.sender);
        sender.end();
        let ring = sender.must_ring();
        drop(sender);
        if ring {
            self.ring();
        }
    }

    /// Ends the connection on this side: nothing more is sent, and nothing is kept for the peer. What it was lent it keeps by itself.
    pub(crate) fn close(&self) {
        let Some(link) = self.link.get() else { return };
        let mut sender = lock(&link.sender);
        if link.lends.is_none() {
            return sender.withdraw();
        }
        for kept in sender.leave() {
            if let Kept::Loan(loan) = kept {
                loan.abandon();
            }
        }
    }

    /// Wakes the peer. It costs a system call, and often a wake-up on another core: whatever else is to be published goes first.
    pub(crate) fn ring(&self) {
        self.doorbell.ring();
    }

    /// Takes all that woke this side. False if nothing did, or if the connection is over, which it learns here.
    pub(crate) fn hear(&self) -> bool {
        match self.doorbell.hear() {
            Heard::Nothing => return false,
            Heard::Rung => {
                // It may have rung because of what was named. Nonsense is for the next send or receive to tell.
                if let Some(link) = self.link.get() {
                    let _ = Self::let_go(link);
                }
                return true;
            }
            Heard::Gone => {}
            Heard::Nonsense(text) => {
                // The next send or receive tells. Nothing more comes by the socket, so it wakes nobody any more.
                let _ = self.nonsense.set(text);
                let _ = self.socket().shutdown(Shutdown::Both);
            }
        }
        self.gone.store(true, Ordering::Release);
        false
    }

    /// # Errors
    /// `InvalidData` if the peer broke a rule by the socket.
    fn check_socket(&self) -> io::Result<()> {
        self.nonsense.get().map_or(Ok(()), |it| Err(violation(it)))
    }

    /// Asks to be woken: for news, or for room. Then [`settle`] is due, and a look whether [it stirs](Shm::stirs).
    pub(crate) fn doze(&self, news: bool, room: bool) {
        let Some(link) = self.link.get() else { return };
        let wanted = self.wanted(link, room);
        lock(&link.nap).begin(news, wanted);
    }

    /// Does not ask to be woken any more.
    pub(crate) fn wake(&self) {
        if let Some(link) = self.link.get() {
            lock(&link.nap).end();
        }
    }

    /// What the peer is to have consumed. What is kept is asked for, too: buffers when they are many, because their owner may
    /// wait for them, and what is lent when the peer is through with all of it.
    fn wanted(&self, link: &Link, room: bool) -> Option<u64> {
        let mut sender = lock(&link.sender);
        if !room {
            // Nonsense is for the next send or receive to tell.
            let _ = sender.refresh();
        }
        let (references, bytes) = sender.kept();
        let many = references >= WINDOW_REFERENCES / 2 || bytes >= WINDOW_BYTES / 2;
        match link.lends.is_some() && references > 0 {
            _ if room || many => sender.wanted(),
            true => Some(sender.published()),
            false => None,
        }
    }

    /// Whether trying to receive, or to send, may get anywhere.
    #[inline]
    pub(crate) fn stirs(&self, news: bool, room: bool) -> bool {
        let Some(link) = self.link.get() else {
            return false;
        };
        if news && lock(&link.receiver).has_news() {
            return true;
        }
        if link.lends.is_some() && lock(&link.sender).may_let_go() {
            return true;
        }
        room && {
            let sender = lock(&link.sender);
            sender
                .wanted()
                .is_none_or(|wanted| sender.has_consumed(wanted))
        }
    }

    /// Says that this side sleeps, and whether it may: nothing came meanwhile.
    pub(super) fn may_sleep(&self, news: bool, room: bool) -> bool {
        self.doze(news, room);
        settle();
        !self.is_gone() && !self.stirs(news, room)
    }
}

/// Publishes `len` bytes, or as many as there is room for, by a `step` that is told how many are published, and tells how many it
/// added; returns how many there are in all.
fn publish_all(
    sender: &mut Sender<Sealed, SealedView, Kept>,
    len: usize,
    mut step: impl FnMut(&mut Sender<Sealed, SealedView, Kept>, usize) -> usize,
) -> io::Result<usize> {
    let mut published = 0;
    // Once: what the peer consumes meanwhile is for the next call, so that this one ends.
    let mut looked = false;
    while published < len {
        let count = step(sender, published);
        published += count;
        if count == 0 {
            if looked {
                break;
            }
            sender.refresh()?;
            looked = true;
        }
    }
    Ok(published)
}

/// Publishes the next bytes of `buf`, by name if they lie in a memory that was handed over; returns how many, 0 without room.
fn publish_next(
    sender: &mut Sender<Sealed, SealedView, Kept>,
    link: &Link,
    buf: &SendBuf,
) -> usize {
    let (bytes, from) = match buf.next_step() {
        Step::Copy(most) => return buf.with_next(most, |bytes| sender.copy(bytes)),
        Step::Name(bytes, from) => (bytes, from),
    };
    let place = bytes.place();
    let memory = place.and_then(|(file, _)| link.handed.iter().position(|it| *it == file));
    let (Some(memory), Some((_, at))) = (memory, place) else {
        return buf.with_next(usize::MAX, |bytes| sender.copy(bytes));
    };
    if !sender.may_name() {
        return 0;
    }
    let kept = match bytes {
        Named::Buffer(bytes) => Kept::Buffer(Arc::clone(bytes)),
        Named::Span(span) => match link.lends.as_ref().and_then(|reader| span.lend(reader)) {
            Some(loan) => Kept::Loan(loan),
            // Readers hold as much as they may.
            None => return buf.with_next(usize::MAX, |bytes| sender.copy(bytes)),
        },
    };
    let len = u32::try_from(bytes.len() - from).unwrap_or(u32::MAX);
    sender.name(memory as u8, at + from as u64, len, kept);
    len as usize
}

impl Drop for Shm {
    fn drop(&mut self) {
        self.close();
    }
}

impl AsFd for Shm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}
