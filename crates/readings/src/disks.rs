//! What block devices did: `/proc/diskstats` (the kernel's `admin-guide/iostats.rst`).

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Counters of a device since the machine started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Its name.
    pub name: String,
    /// Reads that were done.
    pub reads: u64,
    /// From their submission to their end, together.
    pub read_time: Duration,
    /// Writes that were done.
    pub writes: u64,
    /// The same of them.
    pub write_time: Duration,
    /// Flushes of the device's cache that were done; 0 before Linux 5.5.
    pub flushes: u64,
    /// The same of them.
    pub flush_time: Duration,
    /// How long something was in progress.
    pub busy: Duration,
}

impl Disk {
    /// What was added since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            name: self.name.clone(),
            reads: self.reads.saturating_sub(earlier.reads),
            read_time: self.read_time.saturating_sub(earlier.read_time),
            writes: self.writes.saturating_sub(earlier.writes),
            write_time: self.write_time.saturating_sub(earlier.write_time),
            flushes: self.flushes.saturating_sub(earlier.flushes),
            flush_time: self.flush_time.saturating_sub(earlier.flush_time),
            busy: self.busy.saturating_sub(earlier.busy),
        }
    }
}

/// All devices of hardware, without their partitions, and without those that the kernel makes of files or memory.
///
/// # Errors
/// `/proc/diskstats` cannot be read.
pub fn disks() -> io::Result<Vec<Disk>> {
    let text = fs::read_to_string("/proc/diskstats")?;
    let is_one = |name: &str| Path::new("/sys/block").join(name).join("device").exists();
    Ok(parse(&text).filter(|disk| is_one(&disk.name)).collect())
}

fn parse(text: &str) -> impl Iterator<Item = Disk> {
    text.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(2);
        let name = fields.next()?.to_owned();
        let counters: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
        let ms = |index: usize| counters.get(index).copied().map(Duration::from_millis);
        Some(Disk {
            name,
            reads: *counters.first()?,
            read_time: ms(3)?,
            writes: *counters.get(4)?,
            write_time: ms(7)?,
            busy: ms(9)?,
            flushes: counters.get(15).copied().unwrap_or(0),
            flush_time: ms(16).unwrap_or_default(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_of_the_kernels_document() {
        let text = " 254 0 vda 10 1 80 20 30 3 240 90 0 100 110 5 0 40 2 7 14\n   7 0 loop0 1 0\n";
        let disks: Vec<Disk> = parse(text).collect();
        let ms = Duration::from_millis;
        let expected = Disk {
            name: "vda".into(),
            reads: 10,
            read_time: ms(20),
            writes: 30,
            write_time: ms(90),
            flushes: 7,
            flush_time: ms(14),
            busy: ms(100),
        };
        assert_eq!(disks, std::slice::from_ref(&expected));
        let later = Disk {
            reads: 15,
            busy: ms(90),
            ..expected.clone()
        };
        let since = later.since(&expected);
        assert_eq!((since.reads, since.busy), (5, Duration::ZERO));
    }

    #[test]
    fn this_machine_has_what_it_has() {
        let names = disks().expect("/proc/diskstats");
        assert!(names.iter().all(|it| !it.name.starts_with("loop")));
    }
}
