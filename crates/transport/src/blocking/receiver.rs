//! The thread of one connection, which receives into one buffer at a time.

use std::io::{self, ErrorKind};
use std::mem;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use embar_memory::Mapped;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::work_timer::WorkTimer;
use crate::{RecvBuf, Stream, Token, Waker};

/// How often a thread that waits for bytes looks whether it is to give up.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A receive that is over.
pub(super) struct Finished {
    pub token: Token,
    pub buf: RecvBuf<Mapped>,
    pub result: io::Result<usize>,
    /// Time that the calls worked.
    pub ticks: u64,
    pub calls: u64,
    pub eagain: u64,
    pub bytes: u64,
}

/// Where the threads of a reactor put what they have received.
pub(super) struct Outbox {
    finished: Mutex<Vec<Finished>>,
    waker: Waker,
}

impl Outbox {
    pub fn new(waker: Waker) -> Self {
        Self {
            finished: Mutex::default(),
            waker,
        }
    }

    fn put(&self, finished: Finished) {
        lock(&self.finished).push(finished);
        self.waker.wake();
    }

    /// Moves everything to `into`.
    pub fn take_all(&self, into: &mut Vec<Finished>) {
        into.append(&mut lock(&self.finished));
    }
}

/// What the reactor and the thread share.
#[derive(Default)]
struct Desk {
    task: Mutex<Task>,
    /// There is a task.
    posted: Condvar,
    /// How the receive is to end: one of the constants below.
    give_up: AtomicU8,
}

const GO_ON: u8 = 0;
const RECALLED: u8 = 1;
const CLOSED: u8 = 2;

#[derive(Default)]
enum Task {
    #[default]
    None,
    Receive(RecvBuf<Mapped>),
    End,
}

/// The reactor's end of a thread. Dropping it ends the thread and waits for it, at most [`LOOK_EVERY`].
pub(super) struct Receiver {
    token: Token,
    desk: Arc<Desk>,
    works: bool,
    thread: Option<JoinHandle<()>>,
}

impl Receiver {
    /// Starts the thread of a connection.
    pub fn start(token: Token, stream: Arc<Stream>, outbox: Arc<Outbox>) -> io::Result<Self> {
        // The thread waits inside the kernel, and not for long. Others use the socket without waiting.
        rustix::io::ioctl_fionbio(&*stream, false)?;
        set_socket_timeout(&*stream, Timeout::Recv, Some(LOOK_EVERY))?;
        let desk = Arc::new(Desk::default());
        let (its, name) = (Arc::clone(&desk), format!("embar-recv-{}", token.index()));
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || run(token, &stream, &its, &outbox))?;
        Ok(Self {
            token,
            desk,
            works: false,
            thread: Some(thread),
        })
    }

    pub fn token(&self) -> Token {
        self.token
    }

    /// Whether the thread has a buffer.
    pub fn has_work(&self) -> bool {
        self.works
    }

    /// Gives the thread a buffer.
    pub fn receive(&mut self, buf: RecvBuf<Mapped>) {
        self.works = true;
        self.desk.give_up.store(GO_ON, Ordering::Relaxed);
        self.post(Task::Receive(buf));
    }

    /// The buffer is back.
    pub fn is_over(&mut self) {
        self.works = false;
    }

    /// Asks for the buffer before it is full; `kind` says how the receive is reported.
    pub fn give_up(&self, kind: ErrorKind) {
        let how = match kind {
            ErrorKind::Interrupted => RECALLED,
            _ => CLOSED,
        };
        // Nothing else is published by it: the buffer comes back under a lock.
        self.desk.give_up.fetch_max(how, Ordering::Relaxed);
    }

    fn post(&self, task: Task) {
        *lock(&self.desk.task) = task;
        self.desk.posted.notify_one();
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.give_up(ErrorKind::ConnectionAborted);
        let mut task = lock(&self.desk.task);
        // A buffer that the thread has not taken goes with it.
        *task = Task::End;
        drop(task);
        self.desk.posted.notify_one();
        if let Some(thread) = self.thread.take() {
            // One that panicked is gone, too.
            let _ = thread.join();
        }
    }
}

fn run(token: Token, stream: &Stream, desk: &Desk, outbox: &Outbox) {
    loop {
        let mut task = lock(&desk.task);
        let buf = loop {
            match mem::take(&mut *task) {
                Task::Receive(buf) => break buf,
                Task::End => return,
                Task::None => {
                    task = desk
                        .posted
                        .wait(task)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(task);
        outbox.put(receive(token, stream, buf, &desk.give_up));
    }
}

/// Receives until as many bytes are there as the buffer wants, or until it is to give up.
fn receive(
    token: Token,
    stream: &Stream,
    mut buf: RecvBuf<Mapped>,
    give_up: &AtomicU8,
) -> Finished {
    let wanted = buf.wanted();
    let (mut got, mut ticks, mut calls, mut eagain) = (0, 0, 0, 0);
    let result = loop {
        let room = &mut buf.spaces().0[..wanted - got];
        let timer = WorkTimer::start();
        let received = rustix::net::recv(stream, room, RecvFlags::WAITALL);
        ticks += timer.stop();
        calls += 1;
        match received {
            Ok((count, _)) => {
                buf.advance(count);
                got += count;
                // The end, which every later receive finds again.
                if count == 0 || got == wanted {
                    break Ok(got);
                }
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => eagain += 1,
            // Every later receive finds it again, or the end.
            Err(_) if got > 0 => break Ok(got),
            Err(error) => break Err(error.into()),
        }
        match give_up.load(Ordering::Relaxed) {
            GO_ON => {}
            RECALLED if got > 0 => break Ok(got),
            RECALLED => break Err(ErrorKind::Interrupted.into()),
            _ => break Ok(got),
        }
    };
    let closed = give_up.load(Ordering::Relaxed) == CLOSED;
    Finished {
        token,
        buf,
        result: match closed {
            true => Err(ErrorKind::ConnectionAborted.into()),
            false => result,
        },
        ticks,
        calls,
        eagain,
        bytes: got as u64,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
