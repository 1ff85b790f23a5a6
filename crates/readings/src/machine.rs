//! The machine as a whole: what its processors did, and the kernel's maxima. From `/proc`, see proc(5).

use std::fs;
use std::io;

/// Seconds that all processors together have spent since the machine started, by the kernel's kinds (`/proc/stat`).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Processors {
    /// Processors that are on.
    pub count: u32,
    /// In user mode, `nice` included.
    pub user_s: f64,
    /// In the kernel.
    pub system_s: f64,
    /// With nothing to do.
    pub idle_s: f64,
    /// With nothing to do while a disk was waited for.
    pub iowait_s: f64,
    /// In interrupts.
    pub irq_s: f64,
    /// In softirqs: what is left of interrupts, receiving from networks mostly.
    pub softirq_s: f64,
    /// Taken by the host of a virtual machine.
    pub steal_s: f64,
}

impl Processors {
    /// Reads them.
    ///
    /// # Errors
    /// `/proc/stat` cannot be read, or is not as proc(5) says.
    pub fn read() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/stat")?;
        Self::parse(&text).ok_or_else(|| io::Error::other("/proc/stat has no line of processors"))
    }

    fn parse(text: &str) -> Option<Self> {
        let all = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = all
            .split_ascii_whitespace()
            .map_while(|field| field.parse().ok())
            .collect();
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let seconds = |index: usize| ticks.get(index).map(|ticks| *ticks as f64 / per_second);
        let is_one = |line: &&str| {
            let number = line.strip_prefix("cpu");
            number.is_some_and(|rest| rest.starts_with(|it: char| it.is_ascii_digit()))
        };
        Some(Self {
            count: text.lines().filter(is_one).count() as u32,
            user_s: seconds(0)? + seconds(1)?,
            system_s: seconds(2)?,
            idle_s: seconds(3)?,
            iowait_s: seconds(4)?,
            irq_s: seconds(5)?,
            softirq_s: seconds(6)?,
            // Kernels before 2.6.11 do not know it.
            steal_s: seconds(7).unwrap_or(0.0),
        })
    }

    /// What they did since `earlier`, as shares of all of their time, 0 to 1; `None` if no tick has passed.
    pub fn since(&self, earlier: &Self) -> Option<Shares> {
        let of = |part: fn(&Self) -> f64| (part(self) - part(earlier)).max(0.0);
        let idle = of(|it| it.idle_s);
        let iowait = of(|it| it.iowait_s);
        let steal = of(|it| it.steal_s);
        let softirq = of(|it| it.softirq_s);
        let busy = of(|it| it.user_s) + of(|it| it.system_s) + of(|it| it.irq_s) + softirq;
        let all = busy + idle + iowait + steal;
        (all > 0.0).then(|| Shares {
            all_s: all,
            busy: busy / all,
            softirq: softirq / all,
            iowait: iowait / all,
            steal: steal / all,
        })
    }
}

/// What all processors did in a span, as shares of their time, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// The time of all processors together, seconds.
    pub all_s: f64,
    /// With something to do.
    pub busy: f64,
    /// Of that, in softirqs.
    pub softirq: f64,
    /// With nothing to do while a disk was waited for.
    pub iowait: f64,
    /// Taken by the host of a virtual machine.
    pub steal: f64,
}

/// The kernel's maxima of socket buffers, bytes; `None` what it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferMaxima {
    /// The most that `SO_RCVBUF` may ask for (`net.core.rmem_max`).
    pub rmem_max: Option<u64>,
    /// The most that `SO_SNDBUF` may ask for (`net.core.wmem_max`).
    pub wmem_max: Option<u64>,
    /// The most that the kernel tunes TCP's receive buffers to (the last number of `net.ipv4.tcp_rmem`).
    pub tcp_rmem_max: Option<u64>,
    /// The same of send buffers (`net.ipv4.tcp_wmem`).
    pub tcp_wmem_max: Option<u64>,
}

impl BufferMaxima {
    /// Reads them. Who may read none, in a container for instance, gets `None`.
    pub fn read() -> Self {
        let last = |name: &str| {
            let text = fs::read_to_string(format!("/proc/sys/net/{name}")).ok()?;
            text.split_ascii_whitespace().last()?.parse().ok()
        };
        Self {
            rmem_max: last("core/rmem_max"),
            wmem_max: last("core/wmem_max"),
            tcp_rmem_max: last("ipv4/tcp_rmem"),
            tcp_wmem_max: last("ipv4/tcp_wmem"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "cpu  100 0 50 1000 10 0 5 20 0 0\ncpu0 50 0 25 500 5 0 3 10 0 0\ncpu1 50 0 25 500 5 0 2 10 0 0\nctxt 1\n";
    const AFTER: &str = "cpu  200 0 100 1020 20 0 15 30 0 0\ncpu0 1 1 1 1 1 1 1 1\ncpu1 1 1 1 1 1 1 1 1\ncpufreq 1\n";

    #[test]
    fn shares_are_of_the_time_of_all_processors() {
        let before = Processors::parse(BEFORE).expect("as proc(5) says");
        let after = Processors::parse(AFTER).expect("as proc(5) says");
        assert_eq!(after.count, 2);
        let shares = after.since(&before).expect("time passed");
        // 160 ticks of work, 10 of them in softirqs, 20 idle, 10 waiting, 10 stolen.
        assert!((shares.busy - 0.8).abs() < 1e-9, "{shares:?}");
        assert!((shares.softirq - 0.05).abs() < 1e-9);
        assert!((shares.iowait - 0.05).abs() < 1e-9);
        assert!((shares.steal - 0.05).abs() < 1e-9);
        assert_eq!(before.since(&before), None, "no time has passed");
    }

    #[test]
    fn what_is_no_such_file_is_none() {
        for text in ["", "cpu", "cpu \n", "cpu a b c\n", "cpu  1 2 3\n"] {
            assert_eq!(Processors::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn this_machine_can_be_read() {
        let processors = Processors::read().expect("/proc");
        assert!(processors.count > 0 && processors.user_s > 0.0);
        assert!(
            BufferMaxima::read()
                .tcp_rmem_max
                .is_some_and(|it| it >= 4096)
        );
    }
}
