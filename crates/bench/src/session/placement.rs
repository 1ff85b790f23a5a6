//! Chooses the processors on which the threads of the server and of the client run.
//!
//! Waking a thread on the same processor costs a fifth of waking one elsewhere. A scheduler that is free to choose does
//! the one in this run and the other in the next, and then runs differ by where it put their threads. A thread begins
//! on the processors of the thread that starts it: in this way the bench also places threads that a library starts.

use anyhow::{Context as _, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// Where the threads are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// The server's threads on one half of the processors, the client's on the other
    Apart,
    /// All on one processor
    Together,
    /// Wherever the scheduler puts them
    Free,
}

/// A side of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Echoes.
    Server,
    /// Asks.
    Client,
}

impl Placement {
    /// Runs `work`; threads started by it are of this side.
    pub fn on<T>(self, side: Side, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let all = sched_getaffinity(None).context("cannot see which processors there are")?;
        let Some(part) = self.part(side, &all) else {
            return work();
        };
        set(&part)?;
        let result = work();
        set(&all)?;
        result
    }

    /// The processors of one side among `all`; `None` for all of them.
    fn part(self, side: Side, all: &CpuSet) -> Option<CpuSet> {
        let all: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|cpu| all.is_set(*cpu))
            .collect();
        if all.len() < 2 {
            return None;
        }
        let (first, second) = all.split_at(all.len() / 2);
        let chosen = match (self, side) {
            (Self::Free, _) => return None,
            (Self::Together, _) => &all[..1],
            (Self::Apart, Side::Server) => first,
            (Self::Apart, Side::Client) => second,
        };
        let mut part = CpuSet::new();
        for cpu in chosen {
            part.set(*cpu);
        }
        Some(part)
    }
}

fn set(cpus: &CpuSet) -> Result<()> {
    sched_setaffinity(None, cpus)
        .context("cannot choose processors: let the scheduler place the threads")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(set: &CpuSet) -> Vec<usize> {
        (0..CpuSet::MAX_CPU)
            .filter(|cpu| set.is_set(*cpu))
            .collect()
    }

    fn set_of(cpus: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        for cpu in cpus {
            set.set(*cpu);
        }
        set
    }

    #[test]
    fn sides_share_nothing_unless_they_are_together() {
        let all = set_of(&[2, 3, 5, 7, 11]);
        let part = |placement: Placement, side| placement.part(side, &all).map(|set| cpus(&set));
        assert_eq!(part(Placement::Apart, Side::Server), Some(vec![2, 3]));
        assert_eq!(part(Placement::Apart, Side::Client), Some(vec![5, 7, 11]));
        assert_eq!(part(Placement::Together, Side::Client), Some(vec![2]));
        assert_eq!(part(Placement::Free, Side::Client), None);
        assert!(Placement::Apart.part(Side::Server, &set_of(&[4])).is_none());
    }

    #[test]
    fn threads_inherit_it_and_the_caller_gets_its_own_back() {
        let before = cpus(&sched_getaffinity(None).expect("known"));
        let inside = Placement::Together
            .on(Side::Server, || {
                let thread = std::thread::spawn(|| sched_getaffinity(None));
                Ok(cpus(&thread.join().expect("no panic")?))
            })
            .expect("allowed");
        assert_eq!(inside.len(), 1);
        assert_eq!(cpus(&sched_getaffinity(None).expect("known")), before);
    }
}
