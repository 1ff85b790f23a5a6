//! What a measurement ran on: whoever reads a figure later needs it, and whoever compares two figures needs both.

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::thread::available_parallelism;

use rustix::fs::statfs;
use rustix::process::{Resource, getrlimit};

use crate::machine::BufferMaxima;

/// The machine, its kernel, and what that allows. `None` is what could not be read.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Environment {
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// What the processor calls itself.
    pub processor: Option<String>,
    /// Processors that this process may use.
    pub cores: Option<usize>,
    /// How the first processor's clock is governed; many virtual machines do not say.
    pub governor: Option<String>,
    /// Whether it is a virtual machine, as far as the processor says so.
    pub is_virtual: Option<bool>,
    /// Memory in all, bytes.
    pub memory_bytes: Option<u64>,
    /// Files that this process may have open.
    pub open_files_max: Option<u64>,
    /// Memory that it may lock, bytes.
    pub locked_bytes_max: Option<u64>,
    /// The most that `SO_RCVBUF` may ask for, bytes.
    pub rmem_max: Option<u64>,
    /// The most that `SO_SNDBUF` may ask for, bytes.
    pub wmem_max: Option<u64>,
    /// The most that the kernel tunes a receive buffer of TCP to, bytes.
    pub tcp_rmem_max: Option<u64>,
    /// The same of send buffers.
    pub tcp_wmem_max: Option<u64>,
    /// How TCP paces itself.
    pub congestion_control: Option<String>,
    /// When private memory gets large pages: `always`, `madvise` or `never`.
    pub huge_pages: Option<String>,
    /// When files in memory get them.
    pub shmem_huge_pages: Option<String>,
    /// Where the log's memory comes from.
    pub backing: Option<Backing>,
}

/// The file system that memory for regions comes from.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Backing {
    /// The directory.
    pub dir: String,
    /// Its file system: `tmpfs`, `hugetlbfs`, or the kernel's number of another.
    pub kind: String,
    /// Its size, bytes.
    pub bytes: u64,
    /// What is free of it, bytes.
    pub free_bytes: u64,
}

impl Environment {
    /// Reads it; regions are made in `dir`, which need not exist yet.
    pub fn read(dir: &Path) -> Self {
        let maxima = BufferMaxima::read();
        let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let limit = |which| getrlimit(which).current;
        Self {
            kernel: line("/proc/sys/kernel/osrelease"),
            processor: field(&processors, "model name", ':').map(str::to_owned),
            cores: available_parallelism().map(NonZero::get).ok(),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            is_virtual: field(&processors, "flags", ':')
                .map(|flags| flags.split_ascii_whitespace().any(|it| it == "hypervisor")),
            memory_bytes: memory_bytes(),
            open_files_max: limit(Resource::Nofile),
            locked_bytes_max: limit(Resource::Memlock),
            rmem_max: maxima.rmem_max,
            wmem_max: maxima.wmem_max,
            tcp_rmem_max: maxima.tcp_rmem_max,
            tcp_wmem_max: maxima.tcp_wmem_max,
            congestion_control: line("/proc/sys/net/ipv4/tcp_congestion_control"),
            huge_pages: chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
            shmem_huge_pages: chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
            backing: Backing::of(dir),
        }
    }

    /// Names and values for people.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let text = |it: &Option<String>| it.clone().unwrap_or_else(unread);
        let size = |it: Option<u64>| it.map_or_else(unread, bytes);
        let cores = self.cores.map_or_else(unread, |it| it.to_string());
        let kind = match self.is_virtual {
            Some(true) => ", virtual",
            _ => "",
        };
        vec![
            (
                "processor",
                format!("{cores} cores of {}{kind}", text(&self.processor)),
            ),
            ("governor", text(&self.governor)),
            ("kernel", format!("Linux {}", text(&self.kernel))),
            ("memory", size(self.memory_bytes)),
            (
                "limits",
                format!(
                    "{} open files, {} of locked memory",
                    self.open_files_max
                        .map_or_else(|| "any number of".into(), |it| it.to_string()),
                    self.locked_bytes_max
                        .map_or_else(|| "any amount".into(), bytes),
                ),
            ),
            (
                "socket buffers",
                format!(
                    "asked for: receive {}, send {}; tuned: receive {}, send {}",
                    size(self.rmem_max),
                    size(self.wmem_max),
                    size(self.tcp_rmem_max),
                    size(self.tcp_wmem_max)
                ),
            ),
            ("congestion control", text(&self.congestion_control)),
            (
                "large pages",
                format!(
                    "{} for private memory, {} for files in memory",
                    text(&self.huge_pages),
                    text(&self.shmem_huge_pages)
                ),
            ),
            (
                "regions",
                self.backing.as_ref().map_or_else(unread, |it| {
                    format!(
                        "{}, {}, {} free of {}",
                        it.dir,
                        it.kind,
                        bytes(it.free_bytes),
                        bytes(it.bytes)
                    )
                }),
            ),
        ]
    }
}

impl Backing {
    fn of(dir: &Path) -> Option<Self> {
        let dir = dir.ancestors().find(|it| it.is_dir())?;
        let found = statfs(dir).ok()?;
        let block = found.f_bsize.cast_unsigned();
        // linux/magic.h
        let kind = match found.f_type {
            0x0102_1994 => "tmpfs".to_owned(),
            0x9584_58F6 => "hugetlbfs".to_owned(),
            other => format!("file system {other:#x}"),
        };
        Some(Self {
            dir: dir.display().to_string(),
            kind,
            bytes: found.f_blocks.saturating_mul(block),
            free_bytes: found.f_bavail.saturating_mul(block),
        })
    }
}

fn unread() -> String {
    "unknown".into()
}

/// The file's only line.
fn line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The word in brackets: `always [madvise] never`.
fn chosen(path: &str) -> Option<String> {
    let text = line(path)?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// The value of the first line that begins with this name.
fn field<'a>(text: &'a str, name: &str, mark: char) -> Option<&'a str> {
    let named = |line: &'a str| {
        let (before, after) = line.split_once(mark)?;
        (before.trim() == name).then(|| after.trim())
    };
    text.lines().find_map(named)
}

fn memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = field(&text, "MemTotal", ':')?.strip_suffix(" kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// About three digits of a size.
fn bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(value < 10.0 && value.fract() > 0.0);
    format!("{value:.digits$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_says_what_it_is() {
        let read = Environment::read(Path::new("/dev/shm"));
        assert!(read.kernel.is_some() && read.cores.is_some_and(|it| it > 0));
        assert!(read.memory_bytes.is_some_and(|it| it > 1 << 20));
        let backing = read.backing.as_ref().expect("/dev/shm");
        assert_eq!(backing.kind, "tmpfs");
        assert!(backing.free_bytes <= backing.bytes);
        assert!(read.lines().iter().all(|(_, value)| !value.is_empty()));
    }

    #[test]
    fn what_is_not_there_is_unknown() {
        assert_eq!(Backing::of(Path::new("no/such/place")), None);
        let later = Backing::of(Path::new("/dev/shm/no/such/place"));
        assert_eq!(later.map(|it| it.dir), Some("/dev/shm".to_owned()));
        let nothing = Environment::default();
        let lines = nothing.lines();
        let governor = lines.iter().find(|(name, _)| *name == "governor");
        assert_eq!(governor.map(|(_, value)| value.as_str()), Some("unknown"));
    }

    #[test]
    fn fields_and_sizes_are_as_people_read_them() {
        let text = "processor\t: 0\nmodel name\t: A: B\nmodel name\t: C\n";
        assert_eq!(field(text, "model name", ':'), Some("A: B"));
        assert_eq!(field(text, "model", ':'), None);
        let sizes = [
            (0, "0 B"),
            (212_992, "208 KiB"),
            (6 << 20, "6 MiB"),
            (3 << 29, "1.5 GiB"),
        ];
        for (size, text) in sizes {
            assert_eq!(bytes(size), text);
        }
    }
}
