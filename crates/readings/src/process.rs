//! What the kernel counted for a process: CPU time, page faults, peak memory. Read from `/proc`, see proc(5).
//!
//! Reading costs two system calls per file and does not touch the process that is read. The parser is here and not
//! in a dependency: two files with a dozen fields of interest do not pay for one.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::time::Instant;

/// Why a process could not be read.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// There is no such process (any more).
    #[error("process {pid} is gone; read it before it ends")]
    Gone {
        /// Its id.
        pid: u32,
    },
    /// `/proc` refused.
    #[error("cannot read {path}: {source}; is /proc mounted?")]
    Io {
        /// The file.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// The file is not in the form proc(5) describes.
    #[error("{path} has no readable {what}; this kernel is not one that embar knows")]
    Malformed {
        /// The file.
        path: String,
        /// The field.
        what: &'static str,
    },
    /// The id belongs to another process than at the earlier reading.
    #[error("process {pid} is not the one read before: it ended and its id was given to another")]
    OtherProcess {
        /// The id.
        pid: u32,
    },
}

/// What the kernel counted for a process since it started.
#[derive(Clone, Debug)]
pub struct ProcessReading {
    /// Its id.
    pub pid: u32,
    /// When it was read.
    pub taken: Instant,
    /// CPU seconds in user mode, all threads, also ended ones; counted in steps of the kernel's tick, mostly 10 ms.
    pub user_s: f64,
    /// CPU seconds in the kernel, likewise.
    pub system_s: f64,
    /// Page faults served without I/O: first touches of memory.
    pub minor_faults: u64,
    /// Page faults that waited for I/O.
    pub major_faults: u64,
    /// Largest resident set so far (VmHWM), bytes; `None` when it has no memory (a zombie).
    pub peak_rss_bytes: Option<u64>,
    started: u64,
}

/// What a process used between two readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// Time between the readings, seconds.
    pub elapsed_s: f64,
    /// CPU seconds in user mode.
    pub user_s: f64,
    /// CPU seconds in the kernel.
    pub system_s: f64,
    /// Page faults served without I/O.
    pub minor_faults: u64,
    /// Page faults that waited for I/O.
    pub major_faults: u64,
    /// Largest resident set of the process's whole life, as of the later reading, bytes.
    pub peak_rss_bytes: Option<u64>,
}

impl Usage {
    /// CPU seconds in user mode and in the kernel.
    pub fn cpu_s(&self) -> f64 {
        self.user_s + self.system_s
    }

    /// CPUs kept busy on average: 1.0 is one whole CPU. Zero when no time passed.
    pub fn cpus(&self) -> f64 {
        if self.elapsed_s > 0.0 {
            self.cpu_s() / self.elapsed_s
        } else {
            0.0
        }
    }
}

impl ProcessReading {
    /// Reads the process `pid`.
    ///
    /// # Errors
    /// [`KernelError::Gone`], [`KernelError::Io`], [`KernelError::Malformed`].
    pub fn of(pid: u32) -> Result<Self, KernelError> {
        let path = format!("/proc/{pid}/stat");
        let taken = Instant::now();
        let text = slurp(&path, pid)?;
        let stat = Stat::parse(&text).map_err(|what| KernelError::Malformed { path, what })?;
        let path = format!("/proc/{pid}/status");
        let peak =
            peak_rss(&slurp(&path, pid)?).map_err(|what| KernelError::Malformed { path, what })?;
        Ok(Self {
            pid,
            taken,
            user_s: seconds(stat.user_ticks),
            system_s: seconds(stat.system_ticks),
            minor_faults: stat.minor_faults,
            major_faults: stat.major_faults,
            peak_rss_bytes: peak,
            started: stat.started,
        })
    }

    /// Reads the calling process.
    ///
    /// # Errors
    /// As [`ProcessReading::of`].
    pub fn of_self() -> Result<Self, KernelError> {
        Self::of(std::process::id())
    }

    /// What the process used since `earlier`.
    ///
    /// # Errors
    /// [`KernelError::OtherProcess`] when the readings are of two processes, even if they had the same id.
    pub fn since(&self, earlier: &Self) -> Result<Usage, KernelError> {
        if (self.pid, self.started) != (earlier.pid, earlier.started) {
            return Err(KernelError::OtherProcess { pid: self.pid });
        }
        Ok(Usage {
            elapsed_s: self
                .taken
                .saturating_duration_since(earlier.taken)
                .as_secs_f64(),
            user_s: (self.user_s - earlier.user_s).max(0.0),
            system_s: (self.system_s - earlier.system_s).max(0.0),
            minor_faults: self.minor_faults.saturating_sub(earlier.minor_faults),
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
            peak_rss_bytes: self.peak_rss_bytes,
        })
    }
}

/// What the kernel counted for one thread since it started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThreadReading {
    /// Its id, unique on the machine while it lives.
    pub tid: u32,
    /// Its name, at most 15 bytes.
    pub name: String,
    /// CPU seconds in user mode, in steps of the kernel's tick.
    pub user_s: f64,
    /// CPU seconds in the kernel, likewise.
    pub system_s: f64,
    /// Page faults served without I/O.
    pub minor_faults: u64,
    /// Seconds on a processor, to the nanosecond; `None` where the kernel keeps no such account (`/proc/PID/schedstat`).
    pub on_cpu_s: Option<f64>,
    /// Seconds in which it was ready to run, and had no processor.
    pub waiting_s: Option<f64>,
    /// Times that it went to sleep.
    pub voluntary_switches: u64,
    /// Times that the kernel put another thread in its place.
    pub involuntary_switches: u64,
    /// When it started, in the kernel's ticks since the machine did: who has its id at another time is another thread.
    pub started: u64,
}

/// All threads of the process `pid` that are alive, in the order of their ids.
///
/// # Errors
/// As [`ProcessReading::of`].
pub fn threads(pid: u32) -> Result<Vec<ThreadReading>, KernelError> {
    let dir = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&dir).map_err(|source| unreadable(&dir, pid, source))?;
    let mut threads = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| unreadable(&dir, pid, source))?;
        let Some(tid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let path = format!("{dir}/{tid}/stat");
        let text = match slurp(&path, tid) {
            // It ended after its name was listed.
            Err(KernelError::Gone { .. }) => continue,
            other => other?,
        };
        let stat = Stat::parse(&text).map_err(|what| KernelError::Malformed { path, what })?;
        let read = |file: &str| slurp(&format!("{dir}/{tid}/{file}"), tid).unwrap_or_default();
        let (schedule, status) = (read("schedstat"), read("status"));
        let mut schedule = schedule.split_ascii_whitespace().map(str::parse::<u64>);
        let mut next_s = || Some(schedule.next()?.ok()? as f64 / 1e9);
        threads.push(ThreadReading {
            on_cpu_s: next_s(),
            waiting_s: next_s(),
            voluntary_switches: field(&status, "voluntary_ctxt_switches:"),
            involuntary_switches: field(&status, "nonvoluntary_ctxt_switches:"),
            tid,
            name: stat.name.to_owned(),
            user_s: seconds(stat.user_ticks),
            system_s: seconds(stat.system_ticks),
            minor_faults: stat.minor_faults,
            started: stat.started,
        });
    }
    threads.sort_by_key(|thread| thread.tid);
    Ok(threads)
}

/// A number of `/proc/PID/status`; 0 if the thread ended meanwhile.
fn field(status: &str, name: &str) -> u64 {
    let rest = status.lines().find_map(|line| line.strip_prefix(name));
    rest.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
}

/// All threads of the calling process.
///
/// # Errors
/// As [`ProcessReading::of`].
pub fn own_threads() -> Result<Vec<ThreadReading>, KernelError> {
    threads(std::process::id())
}

/// A process among all others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Member {
    /// Who started it, or took it in when that one ended.
    pub parent: u32,
    /// Processor seconds of its own.
    pub own_s: f64,
    /// Those of children that have ended and were waited for, and of theirs.
    pub children_s: f64,
    /// When it started: who has its id at another time is another process.
    pub started: u64,
    /// It is a thread of the kernel that does what interrupts have left to do.
    pub finishes_softirqs: bool,
}

impl Member {
    /// Processor seconds, with those of children that have ended and were waited for.
    pub fn cpu_s(&self) -> f64 {
        self.own_s + self.children_s
    }

    /// Reads it.
    pub fn of(pid: u32) -> Result<Self, KernelError> {
        let path = format!("/proc/{pid}/stat");
        let text = slurp(&path, pid)?;
        let stat = Stat::parse(&text).map_err(|what| KernelError::Malformed { path, what })?;
        let own = stat.user_ticks + stat.system_ticks;
        let children = stat.children_user_ticks + stat.children_system_ticks;
        Ok(Self {
            parent: stat.parent,
            own_s: seconds(own),
            children_s: seconds(children),
            started: stat.started,
            finishes_softirqs: stat.name.starts_with("ksoftirqd/"),
        })
    }
}

/// Fields of `/proc/<pid>/stat` and `/proc/<pid>/task/<tid>/stat`; the numbers are those of proc(5), from 1.
#[derive(Debug, PartialEq)]
struct Stat<'a> {
    name: &'a str,
    parent: u32,
    minor_faults: u64,
    major_faults: u64,
    user_ticks: u64,
    system_ticks: u64,
    children_user_ticks: u64,
    children_system_ticks: u64,
    started: u64,
}

impl<'a> Stat<'a> {
    fn parse(text: &'a str) -> Result<Self, &'static str> {
        // The name is whatever the process chose: blanks and parentheses too, so it ends at the last parenthesis.
        let open = text.find('(').ok_or("name")?;
        let close = text
            .rfind(')')
            .filter(|close| *close > open)
            .ok_or("name")?;
        let fields: Vec<&str> = text[close + 1..].split_ascii_whitespace().collect();
        // The first field after the name is number 3.
        let field = |number: usize, what| -> Result<u64, &'static str> {
            fields
                .get(number - 3)
                .and_then(|field| field.parse().ok())
                .ok_or(what)
        };
        let parent = fields.get(1).and_then(|field| field.parse().ok());
        Ok(Self {
            name: &text[open + 1..close],
            parent: parent.ok_or("ppid")?,
            minor_faults: field(10, "minflt")?,
            major_faults: field(12, "majflt")?,
            user_ticks: field(14, "utime")?,
            system_ticks: field(15, "stime")?,
            // proc(5) has them signed.
            children_user_ticks: field(16, "cutime").unwrap_or(0),
            children_system_ticks: field(17, "cstime").unwrap_or(0),
            started: field(22, "starttime")?,
        })
    }
}

/// `VmHWM` of `/proc/<pid>/status`, which is in KiB, as bytes.
fn peak_rss(status: &str) -> Result<Option<u64>, &'static str> {
    let Some(rest) = status.lines().find_map(|line| line.strip_prefix("VmHWM:")) else {
        return Ok(None);
    };
    let kib: Option<u64> = rest
        .trim()
        .strip_suffix("kB")
        .and_then(|n| n.trim_end().parse().ok());
    kib.and_then(|kib| kib.checked_mul(1024))
        .map(Some)
        .ok_or("VmHWM")
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// A name of a process may be any bytes, so what is not UTF-8 is replaced and not refused.
fn slurp(path: &str, pid: u32) -> Result<String, KernelError> {
    let bytes = read_all(path).map_err(|source| unreadable(path, pid, source))?;
    let text = String::from_utf8(bytes);
    Ok(text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// The kernel says that these files are empty, so [`fs::read`] would look for their size, and then read a few bytes at a time.
fn read_all(path: &str) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut bytes = vec![0; USUAL];
    let mut len = 0;
    loop {
        match file.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if len == bytes.len() {
            bytes.resize(len * 2, 0);
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// More than such a file has.
const USUAL: usize = 2048;

fn unreadable(path: &str, pid: u32, source: io::Error) -> KernelError {
    // ESRCH: it ended between the opening and the reading of its file.
    if source.kind() == io::ErrorKind::NotFound
        || source.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
    {
        return KernelError::Gone { pid };
    }
    KernelError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "4711 (a) b (c) S 1 4711 4711 0 -1 4194560 250 9 3 4 150 50 0 0 20 0 1 0 987654 1000 200 0";

    #[test]
    fn a_name_with_blanks_and_parentheses_shifts_nothing() {
        let stat = Stat::parse(STAT).expect("a line of the kernel");
        let expected = Stat {
            name: "a) b (c",
            parent: 1,
            minor_faults: 250,
            major_faults: 3,
            user_ticks: 150,
            system_ticks: 50,
            children_user_ticks: 0,
            children_system_ticks: 0,
            started: 987_654,
        };
        assert_eq!(stat, expected);
    }

    #[test]
    fn a_cut_line_names_the_first_field_it_lacks() {
        assert_eq!(Stat::parse("4711"), Err("name"));
        assert_eq!(Stat::parse("4711 (x) S 1 2 3"), Err("minflt"));
        assert_eq!(Stat::parse(&STAT[..STAT.len() - 30]), Err("starttime"));
    }

    #[test]
    fn the_peak_is_in_bytes_and_a_zombie_has_none() {
        assert_eq!(
            peak_rss("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n"),
            Ok(Some(2048 * 1024))
        );
        assert_eq!(peak_rss("Name:\tx\nState:\tZ (zombie)\n"), Ok(None));
        assert_eq!(peak_rss("VmHWM:\t many kB\n"), Err("VmHWM"));
    }
}
