//! Memory is reserved before it is used, so that a full file system is an error at the start and
//! never a SIGBUS later.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::fs::statfs;

use crate::error::RegionError;

/// Bytes reserved per call, between two reports of progress: a signal interrupts, and undoes, a whole call.
const RESERVE_BYTES: u64 = 256 << 20;
/// `f_type` of a tmpfs, whose pages are memory.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Reserves so many bytes for a file.
pub(super) type Reserve<'a> = dyn Fn(&File, u64) -> io::Result<()> + 'a;

/// Refuses early what `file_system` cannot hold.
pub(super) fn check(file_system: &Path, dir: &Path, needed: u64) -> Result<(), RegionError> {
    let available = available(file_system)
        .map_err(|e| RegionError::io("looking at the file system of", file_system, e))?;
    if needed <= available {
        return Ok(());
    }
    Err(RegionError::NoSpace {
        needed,
        available,
        dir: dir.to_owned(),
    })
}

/// Reserves `len` bytes for the file.
pub(super) fn reserve(file: &File, len: u64) -> io::Result<()> {
    reserve_and_tell(file, len, &|_| ())
}

/// The same, and says how many bytes were added, after each [`RESERVE_BYTES`].
pub(super) fn reserve_and_tell(file: &File, len: u64, added: &dyn Fn(u64)) -> io::Result<()> {
    embar_memory::reserve(file, len, RESERVE_BYTES, added)
}

/// The error for a reservation that the kernel refused after all.
pub(super) fn refused(dir: &Path, path: &Path, needed: u64, error: io::Error) -> RegionError {
    match error.kind() {
        io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::FileTooLarge
        | io::ErrorKind::OutOfMemory => {
            let available = available(dir).unwrap_or(0);
            RegionError::NoSpace {
                needed,
                available,
                dir: dir.to_owned(),
            }
        }
        _ => RegionError::io("reserving memory for", path, error),
    }
}

/// Bytes that the file system at `path` can still give; for a tmpfs no more than the machine's
/// memory can, whatever its size limit says.
fn available(path: &Path) -> io::Result<u64> {
    let stat = statfs(path)?;
    // A tmpfs without a limit reports no blocks at all.
    let on_disk = match stat.f_blocks {
        0 => u64::MAX,
        _ => (stat.f_bavail as u64).saturating_mul(stat.f_bsize as u64),
    };
    if stat.f_type as u64 != TMPFS_MAGIC {
        return Ok(on_disk);
    }
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    Ok(on_disk.min(memory_available(&meminfo).unwrap_or(u64::MAX)))
}

/// `MemAvailable` plus `SwapFree` of proc(5)'s meminfo, in bytes.
fn memory_available(meminfo: &str) -> Option<u64> {
    let kib = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':')
            .split_whitespace()
            .next()?
            .parse::<u64>()
            .ok()
    };
    Some((kib("MemAvailable")? + kib("SwapFree").unwrap_or(0)) << 10)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn memory_counts_swap() {
        let text = "MemTotal:  100 kB\nMemAvailable:   30 kB\nSwapFree:   2 kB\n";
        assert_eq!(memory_available(text), Some(32 << 10));
        assert_eq!(memory_available("nothing"), None);
    }
}
