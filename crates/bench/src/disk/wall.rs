//! Writes and reads one after the other, without the log.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use embar_console::interrupt::Interrupt;
use embar_disk::{AlignedBuffer, Directory, Storage, StoredFile};

/// What one trial gave.
pub struct Measured {
    /// Bytes that were written or read.
    pub bytes: u64,
    /// From the first to the last.
    pub took: Duration,
    /// What each took, in nanoseconds, in no order.
    pub each_ns: Vec<u64>,
}

impl Measured {
    pub fn mib_per_s(&self) -> f64 {
        self.bytes as f64 / (1 << 20) as f64 / self.took.as_secs_f64()
    }
}

/// The bytes are random: disks that pack or find again what they have seen do nothing for them.
pub fn random_bytes(buffer: &mut [u8]) {
    fastrand::Rng::with_seed(7).fill(buffer);
}

fn new_file(directory: &Directory, name: &str, bytes: u64) -> Result<<Directory as Storage>::File> {
    let file = directory.create(name, bytes);
    let file = file.context("cannot make a file")?;
    let synced = directory.sync_names();
    synced.context("cannot sync the directory")?;
    Ok(file)
}

/// Writes a new file.
pub fn write(
    directory: &Directory,
    name: &str,
    bytes: u64,
    (io_bytes, depth): (u32, u16),
    interrupt: &Interrupt,
) -> Result<Measured> {
    let file = new_file(directory, name, bytes)?;
    each(bytes, (io_bytes, depth), interrupt, |at, buffer| {
        file.write_synced(at, buffer, buffer.len())
            .context("cannot write")
    })
}

/// Writes a new file: one write after the other, each when it is due and the last has ended. `each_ns` counts from when it was due.
pub fn write_when_due(
    directory: &Directory,
    name: &str,
    (io_bytes, count): (u32, u64),
    every: Duration,
    interrupt: &Interrupt,
) -> Result<Measured> {
    let bytes = count * u64::from(io_bytes);
    let file = new_file(directory, name, bytes)?;
    let mut buffer = AlignedBuffer::new(io_bytes as usize);
    random_bytes(&mut buffer);
    let (mut each_ns, began) = (Vec::new(), Instant::now());
    for number in 0..count {
        interrupt.check()?;
        let due = every.mul_f64(number as f64);
        thread::sleep(due.saturating_sub(began.elapsed()));
        // Sleeping for too long is no fault of the disk, unless the last write made it late.
        let due = match each_ns.last() {
            Some(last) if Duration::from_nanos(*last) > every => due,
            _ => began.elapsed(),
        };
        file.write_synced(number * u64::from(io_bytes), &buffer, buffer.len())
            .context("cannot write")?;
        each_ns.push((began.elapsed() - due).as_nanos() as u64);
    }
    Ok(Measured {
        bytes,
        took: began.elapsed(),
        each_ns,
    })
}

/// Reads a file that is there.
pub fn read(
    directory: &Directory,
    name: &str,
    (io_bytes, depth): (u32, u16),
    interrupt: &Interrupt,
) -> Result<Measured> {
    let file = directory.open(name).context("cannot open a file")?;
    let bytes = file.size()?;
    each(bytes, (io_bytes, depth), interrupt, |at, buffer| {
        let came = file.read(at, buffer).context("cannot read")?;
        match came == buffer.len() {
            true => Ok(()),
            false => Err(anyhow!("the file ends at {}", at + came as u64)),
        }
    })
}

/// Calls `one` for all places of `bytes`, by `depth` threads.
fn each(
    bytes: u64,
    (io_bytes, depth): (u32, u16),
    interrupt: &Interrupt,
    one: impl Fn(u64, &mut AlignedBuffer) -> Result<()> + Sync,
) -> Result<Measured> {
    let next = AtomicU64::new(0);
    let count = bytes / u64::from(io_bytes);
    let all_ns = Mutex::new(Vec::new());
    let buffers = (0..depth).map(|_| {
        let mut buffer = AlignedBuffer::new(io_bytes as usize);
        random_bytes(&mut buffer);
        buffer
    });
    let buffers: Vec<AlignedBuffer> = buffers.collect();
    let began = Instant::now();
    let work = |mut buffer: AlignedBuffer| -> Result<()> {
        let mut each_ns = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            interrupt.check()?;
            let began = Instant::now();
            one(number * u64::from(io_bytes), &mut buffer)?;
            each_ns.push(began.elapsed().as_nanos() as u64);
        }
        let mut all_ns = all_ns.lock().map_err(|_| anyhow!("a thread panicked"))?;
        all_ns.append(&mut each_ns);
        Ok(())
    };
    thread::scope(|scope| {
        let work = &work;
        let threads = buffers.into_iter().map(|it| scope.spawn(move || work(it)));
        let threads: Vec<_> = threads.collect();
        let ends = threads.into_iter().map(|thread| thread.join());
        let ends = ends.map(|end| end.map_err(|_| anyhow!("a thread panicked"))?);
        ends.collect::<Result<Vec<()>>>()
    })?;
    let each_ns = all_ns
        .into_inner()
        .map_err(|_| anyhow!("a thread panicked"))?;
    Ok(Measured {
        bytes: count * u64::from(io_bytes),
        took: began.elapsed(),
        each_ns,
    })
}
