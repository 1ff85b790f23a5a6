//! Operations that the kernel has in hand, and the memory that they use.
//!
//! Here is all that is unsafe about io_uring. The kernel reads and writes memory after a call has
//! returned, so what an operation points to must stay until the kernel says that the operation is over:
//!
//! - The buffer, the list of its parts and the socket belong to the [`Operation`], in [`Operations`]. They
//!   leave it when its completion has come, and in no other way.
//! - Their bytes lie outside of these values (on the heap or in mappings), and so stay where they are when
//!   the table of operations grows.
//! - A cancelled operation is like any other: its completion comes later.
//! - Dropping [`Operations`] cancels everything and waits. If the kernel does not let go, the memory is
//!   given up for good, instead of to somebody else.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use embar_memory::Mapped;
use embar_meter::clock::ticks;
use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::call_time::CallTime;
use super::error::UringError;
use super::parts::Parts;
use crate::token::Slab;
use crate::{IoCounters, RecvBuf, SendBuf, Stream, Token};

/// Of completions of cancellations, which nobody waits for.
const CANCELLATION: u64 = u64::MAX;

/// How long dropping waits for the kernel to let go of memory. It takes microseconds.
const DRAIN_WITHIN: Duration = Duration::from_secs(10);

/// Tries to make room for a submission before it fails.
const PUSHES_MAX: u32 = 1000;

/// Names an operation in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct OperationId(Token);

/// Something happened.
pub(super) enum Event {
    Received {
        token: Token,
        id: OperationId,
        buf: RecvBuf<Mapped>,
        verdict: Verdict,
        ticks: u64,
    },
    Sent {
        token: Token,
        id: OperationId,
        buf: SendBuf<Mapped>,
        verdict: Verdict,
        ticks: u64,
    },
    /// What is watched may be ready; if `over`, the kernel watches it no longer.
    Ready { of: Token, over: bool },
}

/// How an operation ended.
pub(super) struct Verdict {
    /// It was cancelled, to be reported so.
    cancelled: Option<ErrorKind>,
    result: Result<usize, Errno>,
}

impl Verdict {
    pub fn of_receive(self) -> io::Result<usize> {
        match (self.cancelled, self.result) {
            (Some(ErrorKind::ConnectionAborted), _) => Err(ErrorKind::ConnectionAborted.into()),
            (Some(kind), Err(Errno::CANCELED | Errno::INTR)) => Err(kind.into()),
            (_, result) => result.map_err(io::Error::from),
        }
    }

    pub fn of_send(self) -> io::Result<()> {
        self.of_receive().map(drop)
    }
}

enum Work {
    Receive(RecvBuf<Mapped>),
    Send(SendBuf<Mapped>),
    Watch,
}

struct Operation {
    /// The connection or listener that it is for.
    token: Token,
    work: Work,
    /// Its descriptor may not become another's before the kernel has the operation.
    stream: Option<Rc<Stream>>,
    parts: Option<Box<Parts>>,
    cancelled: Option<ErrorKind>,
    ticks: u64,
}

/// A completion that was taken from the ring.
struct Done {
    id: u64,
    result: i32,
    flags: u32,
    ticks: u64,
}

/// The ring, and what is in flight.
pub(super) struct Operations {
    ring: IoUring,
    in_flight: Slab<Operation>,
    count: usize,
    /// Taken from the ring, and not handed over yet.
    done: VecDeque<Done>,
    /// For operations to come.
    #[expect(
        clippy::vec_box,
        reason = "an operation takes a box, in which the parts stay where they are"
    )]
    spare_parts: Vec<Box<Parts>>,
    /// Since completions were last taken from the ring.
    call_time: CallTime,
}

impl Operations {
    /// Makes a ring, and finds out whether it works.
    pub fn new(submissions: u32, completions: u32) -> Result<Self, UringError> {
        let ring = IoUring::builder()
            .setup_cqsize(completions)
            .setup_clamp()
            .setup_submit_all()
            // Only the thread that waits is interrupted by completions, and only when it waits.
            .setup_single_issuer()
            .setup_defer_taskrun()
            .dontfork()
            .build(submissions)
            .map_err(UringError::of_setup)?;
        if !ring.params().is_feature_nodrop() || !ring.params().is_feature_ext_arg() {
            return Err(UringError::Missing("completions that are never dropped"));
        }
        let mut probe = Probe::new();
        let probed = ring.submitter().register_probe(&mut probe);
        probed.map_err(UringError::of_setup)?;
        for (code, name) in [
            (opcode::Recv::CODE, "receiving"),
            (opcode::RecvMsg::CODE, "receiving into parts"),
            (opcode::Send::CODE, "sending"),
            (opcode::SendMsg::CODE, "sending of parts"),
            (opcode::PollAdd::CODE, "watching"),
            (opcode::AsyncCancel::CODE, "cancelling"),
        ] {
            if !probe.is_supported(code) {
                return Err(UringError::Missing(name));
            }
        }
        let mut operations = Self {
            ring,
            in_flight: Slab::new(),
            count: 0,
            done: VecDeque::new(),
            spare_parts: Vec::new(),
            call_time: CallTime::default(),
        };
        // A process may be allowed to make a ring, but not to use it.
        let nothing = opcode::Nop::new().build().user_data(CANCELLATION);
        let tried = operations.push(&nothing);
        tried
            .and_then(|()| operations.enter_and_wait(Some(Duration::from_secs(1))))
            .map_err(UringError::of_setup)?;
        Ok(operations)
    }

    /// Receives into `buf`.
    pub fn recv(
        &mut self,
        stream: &Rc<Stream>,
        token: Token,
        buf: RecvBuf<Mapped>,
        counters: &mut IoCounters,
    ) -> OperationId {
        let id = self.insert(token, Work::Receive(buf), Some(stream));
        self.submit(id, counters);
        id
    }

    /// Sends what is unsent of `buf`, which is something.
    pub fn send(
        &mut self,
        stream: &Rc<Stream>,
        token: Token,
        buf: SendBuf<Mapped>,
        counters: &mut IoCounters,
    ) -> OperationId {
        let id = self.insert(token, Work::Send(buf), Some(stream));
        self.submit(id, counters);
        id
    }

    /// Reports when `source` becomes ready: once, or each time that it becomes so again. The kernel has
    /// the source when this returns.
    pub fn watch(
        &mut self,
        source: impl AsFd,
        of: Token,
        flags: PollFlags,
        again_and_again: bool,
    ) -> io::Result<OperationId> {
        let id = self.insert(of, Work::Watch, None);
        let fd = Fd(source.as_fd().as_raw_fd());
        let entry = opcode::PollAdd::new(fd, u32::from(flags.bits()))
            .multi(again_and_again)
            .build()
            .user_data(id.0.bits());
        let pushed = self.push(&entry).and_then(|()| self.enter());
        if pushed.is_err() {
            self.forget(id);
        }
        pushed.map(|()| id)
    }

    /// Asks the kernel to end an operation; it reports it as `kind`, unless it is over already.
    pub fn cancel(&mut self, id: OperationId, kind: ErrorKind) {
        let Some(operation) = self.in_flight.get_mut(id.0) else {
            return;
        };
        let before = operation.cancelled.replace(kind);
        if before.is_none() {
            let entry = opcode::AsyncCancel::new(id.0.bits()).build();
            // If there is no room, it ends by itself, or with the reactor.
            let _ = self.push(&entry.user_data(CANCELLATION));
        }
    }

    fn insert(&mut self, token: Token, work: Work, stream: Option<&Rc<Stream>>) -> OperationId {
        self.count += 1;
        OperationId(self.in_flight.insert(Operation {
            token,
            work,
            stream: stream.cloned(),
            parts: None,
            cancelled: None,
            ticks: 0,
        }))
    }

    /// Takes out an operation that the kernel does not have.
    fn forget(&mut self, id: OperationId) -> Option<Operation> {
        let mut operation = self.in_flight.remove(id.0)?;
        self.count -= 1;
        self.spare_parts.extend(operation.parts.take());
        Some(operation)
    }

    /// Asks for what is left of a receive or a send.
    fn submit(&mut self, id: OperationId, counters: &mut IoCounters) {
        let Some(operation) = self.in_flight.get_mut(id.0) else {
            return;
        };
        let Some(stream) = &operation.stream else {
            return;
        };
        let fd = Fd(stream.as_fd().as_raw_fd());
        let mut parts = operation.parts.take();
        let mut take_parts = || {
            let spare = &mut self.spare_parts;
            parts
                .take()
                .unwrap_or_else(|| spare.pop().unwrap_or_else(Parts::new))
        };
        let entry = match &mut operation.work {
            Work::Receive(buf) => {
                counters.recv_calls += 1;
                let wanted = buf.wanted();
                let (first, second) = buf.spaces();
                if wanted > 0 {
                    let first = &mut first[..wanted];
                    opcode::Recv::new(fd, first.as_mut_ptr(), as_u32(wanted))
                        .flags(libc::MSG_WAITALL)
                        .build()
                } else if second.is_empty() {
                    opcode::Recv::new(fd, first.as_mut_ptr(), as_u32(first.len())).build()
                } else {
                    let mut parts = take_parts();
                    let message = parts.receive_into([first, second]);
                    operation.parts = Some(parts);
                    opcode::RecvMsg::new(fd, message).build()
                }
            }
            Work::Send(buf) => {
                counters.send_calls += 1;
                let mut parts = take_parts();
                let mut one = (std::ptr::null(), 0);
                let many = parts.send_from(buf, &mut |bytes| one = (bytes.as_ptr(), bytes.len()));
                let message = parts.message();
                operation.parts = Some(parts);
                if many {
                    opcode::SendMsg::new(fd, message)
                        .flags(libc::MSG_NOSIGNAL as u32)
                        .build()
                } else {
                    opcode::Send::new(fd, one.0, as_u32(one.1))
                        .flags(libc::MSG_NOSIGNAL)
                        .build()
                }
            }
            Work::Watch => return,
        };
        let id = id.0.bits();
        if let Err(error) = self.push(&entry.user_data(id)) {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            self.done.push_back(Done {
                id,
                result: -errno.raw_os_error(),
                flags: 0,
                ticks: 0,
            });
        }
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        for _ in 0..PUSHES_MAX {
            // SAFETY: an entry either points to nothing, or to the bytes and the parts of the operation
            // that it names: those are in `in_flight` until its completion comes, as this module's
            // documentation says.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.enter()?;
            self.take_completions();
        }
        Err(Errno::BUSY.into())
    }

    /// Hands over what was submitted, and lets the kernel finish what it can.
    pub fn enter(&mut self) -> io::Result<()> {
        const GET_EVENTS: u32 = 1;
        let before = ticks();
        let count = self.ring.submission().len() as u32;
        // SAFETY: the call has no argument that points anywhere; what the submissions point to is
        // `push`'s matter.
        let entered = unsafe {
            self.ring
                .submitter()
                .enter::<()>(count, 0, GET_EVENTS, None)
        };
        self.call_time.worked(ticks().saturating_sub(before));
        went_well(entered)
    }

    /// As [`Operations::enter`], and waits for a completion, at most `timeout`.
    pub fn enter_and_wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timer = self.call_time.begin_wait();
        let submitter = self.ring.submitter();
        let entered = match timeout {
            None => submitter.submit_and_wait(1),
            Some(time) => {
                let time = Timespec::from(time.min(Duration::from_secs(u32::MAX.into())));
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        self.call_time.end_wait(timer);
        went_well(entered)
    }

    /// The next thing that happened, of those that the kernel has reported.
    pub fn next(&mut self, counters: &mut IoCounters) -> io::Result<Option<Event>> {
        loop {
            let Some(done) = self.done.pop_front() else {
                self.take_completions();
                if self.done.is_empty() {
                    return Ok(None);
                }
                continue;
            };
            if let Some(event) = self.finish(&done, counters)? {
                return Ok(Some(event));
            }
        }
    }

    /// Empties the ring, and shares out the time of the calls by the bytes that they moved.
    fn take_completions(&mut self) {
        let first = self.done.len();
        let mut bytes = 0;
        for entry in self.ring.completion() {
            bytes += entry.result().max(1) as u64;
            self.done.push_back(Done {
                id: entry.user_data(),
                result: entry.result(),
                flags: entry.flags(),
                ticks: 0,
            });
        }
        if self.done.len() == first {
            return;
        }
        let ticks = self.call_time.take(bytes);
        for done in self.done.iter_mut().skip(first) {
            let share = done.result.max(1) as u64;
            done.ticks =
                ((u128::from(ticks) * u128::from(share) / u128::from(bytes)) as u64).max(1);
        }
    }

    /// What a completion means; `None` if its operation goes on, or nobody wants to know.
    fn finish(&mut self, done: &Done, counters: &mut IoCounters) -> io::Result<Option<Event>> {
        let id = OperationId(Token::from_bits(done.id));
        let Some(operation) = self.in_flight.get_mut(id.0) else {
            return Ok(None);
        };
        operation.ticks += done.ticks;
        let result =
            usize::try_from(done.result).map_err(|_| Errno::from_raw_os_error(-done.result));
        let cancelled = operation.cancelled;
        let again = match &mut operation.work {
            Work::Watch => return self.watched(id, result, cqueue::more(done.flags)),
            Work::Receive(buf) => {
                if let Ok(count) = result {
                    buf.advance(count);
                    counters.recv_bytes += count as u64;
                }
                matches!(result, Err(Errno::INTR | Errno::AGAIN))
            }
            Work::Send(buf) => {
                let mut again = matches!(result, Err(Errno::INTR | Errno::AGAIN));
                if let Ok(count) = result {
                    buf.advance(count);
                    counters.send_bytes += count as u64;
                    if buf.remaining() > 0 {
                        counters.send_partial += 1;
                        again = !buf.goes_in_steps();
                    }
                }
                again
            }
        };
        if again && cancelled.is_none() {
            self.submit(id, counters);
            return Ok(None);
        }
        let Some(operation) = self.forget(id) else {
            return Ok(None);
        };
        let (token, ticks) = (operation.token, operation.ticks);
        let verdict = Verdict { cancelled, result };
        Ok(match operation.work {
            Work::Receive(buf) => Some(Event::Received {
                token,
                id,
                buf,
                verdict,
                ticks,
            }),
            Work::Send(buf) => Some(Event::Sent {
                token,
                id,
                buf,
                verdict,
                ticks,
            }),
            Work::Watch => None,
        })
    }

    fn watched(
        &mut self,
        id: OperationId,
        result: Result<usize, Errno>,
        goes_on: bool,
    ) -> io::Result<Option<Event>> {
        let Some(operation) = self.in_flight.get_mut(id.0) else {
            return Ok(None);
        };
        let (of, cancelled) = (operation.token, operation.cancelled.is_some());
        if !goes_on {
            self.forget(id);
        }
        match result {
            _ if cancelled => Ok(None),
            Ok(_) => Ok(Some(Event::Ready { of, over: !goes_on })),
            Err(error) => Err(error.into()),
        }
    }

    /// Cancels everything, and waits until the kernel has let go of all memory. False: it has not.
    fn drain(&mut self) -> bool {
        let all = opcode::AsyncCancel2::new(CancelBuilder::any()).build();
        let deadline = Instant::now() + DRAIN_WITHIN;
        while self.count > 0 && Instant::now() < deadline {
            if self.push(&all.clone().user_data(CANCELLATION)).is_err() {
                return false;
            }
            if self
                .enter_and_wait(Some(Duration::from_millis(100)))
                .is_err()
            {
                return false;
            }
            self.take_completions();
            while let Some(done) = self.done.pop_front() {
                if !cqueue::more(done.flags) {
                    self.forget(OperationId(Token::from_bits(done.id)));
                }
            }
        }
        self.count == 0
    }
}

impl Drop for Operations {
    fn drop(&mut self) {
        if self.count > 0 && !self.drain() {
            // The kernel may still write there.
            mem::forget(mem::replace(&mut self.in_flight, Slab::new()));
        }
    }
}

/// A wait may end for no reason, or because its time is over, and the kernel may be busy for a moment:
/// the next call goes on.
fn went_well(entered: io::Result<usize>) -> io::Result<()> {
    match entered {
        Ok(_) => Ok(()),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::INTR | Errno::TIME | Errno::BUSY | Errno::AGAIN) => Ok(()),
            _ => Err(error),
        },
    }
}

/// Longer buffers are received or sent in several operations.
fn as_u32(len: usize) -> u32 {
    len.min(i32::MAX as usize) as u32
}
