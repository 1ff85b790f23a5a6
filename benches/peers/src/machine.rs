//! Processors: which ones we run on, and how much of them we use.

use anyhow::Context;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::unistd::Pid;
use std::time::Duration;

/// Binds this thread, and all it starts from now on, to processors like `0-1,3`; how many these are.
pub fn place(list: &str) -> anyhow::Result<usize> {
    let cpus =
        parse(list).with_context(|| format!("{list:?} is no list of processors like 0-1,3"))?;
    let mut set = CpuSet::new();
    for cpu in &cpus {
        set.set(*cpu)?;
    }
    sched_setaffinity(Pid::from_raw(0), &set)
        .with_context(|| format!("cannot run on processors {list}"))?;
    Ok(cpus.len())
}

fn parse(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    cpus.sort_unstable();
    cpus.dedup();
    (!cpus.is_empty()).then_some(cpus)
}

/// What all threads of this process have used so far, for themselves and in the kernel.
pub fn cpu_time() -> anyhow::Result<Duration> {
    used_by(UsageWho::RUSAGE_SELF)
}

/// What all processes have used that were started by this one and have ended.
pub fn cpu_time_of_children() -> anyhow::Result<Duration> {
    used_by(UsageWho::RUSAGE_CHILDREN)
}

fn used_by(who: UsageWho) -> anyhow::Result<Duration> {
    let usage = getrusage(who)?;
    Ok(duration(usage.user_time())? + duration(usage.system_time())?)
}

fn duration(time: TimeVal) -> anyhow::Result<Duration> {
    let micros = u64::try_from(time.tv_usec())?;
    Ok(Duration::from_secs(u64::try_from(time.tv_sec())?) + Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::{cpu_time, parse};

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(parse("3,0-1,1"), Some(vec![0, 1, 3]));
        for wrong in ["", "a", "1-", "2-1"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn time_that_is_used_is_counted() {
        let before = cpu_time().unwrap();
        while cpu_time().unwrap() == before {}
        assert!(cpu_time().unwrap() > before);
    }
}
