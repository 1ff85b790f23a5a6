//! Greetings that keep to no rule: other bytes, other descriptors, none, or too many.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use embar_memory::Sealed;
use embar_meter::random::SplitMix64;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};

use super::raw_stream::{self, HELLO_BYTES, OUTBOX_BYTES, RECORDS, RING_BYTES, RawStream, say};

/// Connections of a crowd, and what each hands over.
const CROWD: usize = 8;
const CROWD_BYTES: u64 = 4 << 20;

/// How long closing a lingering socket may take. The longest that the kernel takes is years.
const LINGERS: Duration = Duration::from_secs(3600);
/// So many peers of lingering sockets are kept, which keeps those lingering.
const DEAF_MAX: usize = 64;

static DEAF: Mutex<VecDeque<TcpStream>> = Mutex::new(VecDeque::new());

/// Says this with the last descriptor of a socket whose closing waits for a peer that reads nothing.
fn say_lingering(socket: &UnixStream, bytes: &[u8]) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut lingering = TcpStream::connect(listener.local_addr()?)?;
    let mut deaf = DEAF.lock().unwrap_or_else(PoisonError::into_inner);
    deaf.push_back(listener.accept()?.0);
    if deaf.len() > DEAF_MAX {
        deaf.pop_front();
    }
    drop(deaf);
    lingering.set_nonblocking(true)?;
    while lingering.write(&[0; 64 << 10]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&lingering, Some(LINGERS))?;
    let said = say(socket, bytes, &[lingering.as_fd()]);
    if said.is_err() {
        // Otherwise this process would be the one that waits.
        rustix::net::sockopt::set_socket_linger(&lingering, None)?;
    }
    said
}

/// A memfd of this size, sealed so.
fn memfd(bytes: u64, seals: SealFlags) -> Result<OwnedFd> {
    let fd = memfd_create(c"hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fallocate(&fd, FallocateFlags::empty(), 0, bytes)?;
    fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}

/// One of many bad greetings.
pub fn greet_badly(path: &Path, random: &mut SplitMix64) -> Result<()> {
    let socket = raw_stream::socket(path)?;
    let good = raw_stream::hello(RECORDS, RING_BYTES, &[]);
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | SealFlags::FUTURE_WRITE;
    let honest = Sealed::new(OUTBOX_BYTES)?.handle();
    let file = File::open("/proc/self/exe")?;
    match random.below(15) {
        0 => say(&socket, &good, &[file.as_fd()])?,
        1 => say(&socket, &good, &[socket.as_fd()])?,
        2 => say(
            &socket,
            &good,
            &[memfd(OUTBOX_BYTES, SealFlags::empty())?.as_fd()],
        )?,
        3 => say(
            &socket,
            &good,
            &[memfd(OUTBOX_BYTES, SealFlags::GROW)?.as_fd()],
        )?,
        4 => say(&socket, &good, &[memfd(OUTBOX_BYTES - 4096, all)?.as_fd()])?,
        5 => {
            // Its owner shortens it at the moment at which it is looked at.
            let fd = memfd(OUTBOX_BYTES, SealFlags::empty())?;
            say(&socket, &good, &[fd.as_fd()])?;
            rustix::fs::ftruncate(&fd, 0)?;
        }
        6 => say(&socket, &good, &[honest.as_fd(); 16])?,
        7 => say(&socket, &good, &[])?,
        8 => {
            let huge = [u64::MAX, 1 << 40, 0, 1];
            let bytes = raw_stream::hello(u64::MAX, random.next_u64(), &huge);
            say(&socket, &bytes, &[honest.as_fd(); 5])?;
        }
        9 => {
            let bytes: [u8; HELLO_BYTES] = std::array::from_fn(|_| random.next_u64() as u8);
            say(&socket, &bytes, &[honest.as_fd()])?;
        }
        10 => {
            // Half of it, and then nothing for a while.
            say(&socket, &good[..20], &[honest.as_fd()])?;
            std::thread::sleep(Duration::from_millis(random.below(300)));
            if random.below(2) == 0 {
                (&socket).write_all(&good[20..])?;
            }
        }
        11 => say_lingering(&socket, &good)?,
        12 => {
            // Behind a hello, where it may still be when the broker closes the connection.
            say(&socket, &good, &[honest.as_fd()])?;
            say_lingering(&socket, &[1])?;
        }
        13 => {
            for byte in &good[..1 + random.below(3) as usize] {
                say_lingering(&socket, &[*byte])?;
            }
        }
        // Nobody says anything.
        _ => std::thread::sleep(Duration::from_millis(random.below(300))),
    }
    Ok(())
}

/// Many connections with much memory at once, held for a moment.
pub fn crowd(path: &Path, random: &mut SplitMix64) -> Result<()> {
    let memory = Sealed::new(CROWD_BYTES)?.handle();
    let memories: [_; 4] = std::array::from_fn(|_| memory.clone());
    let all: Vec<Result<RawStream>> = (0..CROWD)
        .map(|_| RawStream::connect(path, &memories))
        .collect();
    std::thread::sleep(Duration::from_millis(random.below(300)));
    drop(all);
    Ok(())
}

/// What the broker wrote must be safe from its reader: an error if it is not.
pub fn write_where_only_reading_is_allowed(fd: BorrowedFd<'_>) -> Result<()> {
    let mut byte = [0];
    rustix::io::pread(fd, &mut byte, 0)?;
    let wrote = rustix::io::pwrite(fd, &byte, 0).is_ok();
    let size = rustix::fs::fstat(fd)?.st_size as u64;
    let shortened = rustix::fs::ftruncate(fd, size - 4096).is_ok();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punched = fallocate(fd, punch, 0, 4096).is_ok();
    anyhow::ensure!(
        !wrote && !shortened && !punched,
        "{}: a reader could write ({wrote}), shorten ({shortened}) or punch ({punched}) a broker's memory",
        super::HARM
    );
    Ok(())
}
