//! Greetings that keep to no rule: other bytes, other descriptors, none, or too many.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use embar_memory::Sealed;
use embar_meter::random::SplitMix64;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};

use super::raw_stream::{self, HELLO_BYTES, OUTBOX_BYTES, RECORDS, RING_BYTES, RawStream, say};

/// Connections of a crowd, and what each hands over.
const CROWD: usize = 8;
const CROWD_BYTES: u64 = 4 << 20;

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
    match random.below(12) {
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
