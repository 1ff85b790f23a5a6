//! All processes of the machine at one moment: what some of them used of the processors since, and what all others did.
//!
//! `/proc/stat` says how busy the processors were, and not with whom. What is left of that beside our own processes is not what others used:
//! kernels that keep an account of interrupts (`CONFIG_IRQ_TIME_ACCOUNTING`) leave softirqs, which serve our connections, out of our processes'
//! time, and others do not. So others are added up, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use crate::process::Member;

/// All processes at one moment, as far as they could be read.
#[derive(Debug)]
pub struct Census(BTreeMap<u32, Member>);

impl Census {
    /// Counts them: a file is read for each.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub fn take() -> io::Result<Self> {
        let pids = fs::read_dir("/proc")?.flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // Who ends meanwhile is not counted.
        Ok(Self(
            pids.filter_map(|pid| Some((pid, Member::of(pid).ok()?)))
                .collect(),
        ))
    }

    /// A process and all that it started. Descendants whose parent has ended belong to nobody.
    pub fn family(&self, pid: u32) -> BTreeSet<u32> {
        let is_ours = |mut of: u32| {
            // Parents are other processes, so a chain is no longer than there are processes, unless ids were reused meanwhile.
            for _ in 0..self.0.len() {
                match self.0.get(&of) {
                    _ if of == pid => return true,
                    Some(it) if it.parent > 0 => of = it.parent,
                    _ => return false,
                }
            }
            false
        };
        let all = self.0.keys().copied();
        all.filter(|it| is_ours(*it)).collect()
    }

    /// Processor seconds of these processes since they started, also of their children that have ended and were waited for.
    pub fn cpu_s(&self, of: &BTreeSet<u32>) -> f64 {
        let all = self.0.iter().filter(|(pid, _)| of.contains(pid));
        all.map(|(_, it)| it.cpu_s).sum()
    }

    /// Processor seconds since `earlier` of all processes but these, and but the kernel's threads that only finish softirqs.
    pub fn others_s(&self, earlier: &Self, but: &BTreeSet<u32>) -> f64 {
        let others = self.0.iter();
        let others = others.filter(|(pid, it)| !but.contains(pid) && !it.finishes_softirqs);
        let used = others.map(|(pid, now)| {
            let then = earlier.0.get(pid).filter(|it| it.started == now.started);
            (now.cpu_s - then.map_or(0.0, |it| it.cpu_s)).max(0.0)
        });
        used.sum()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{self, Command};

    use super::*;

    fn own() -> (Census, BTreeSet<u32>) {
        let census = Census::take().expect("/proc");
        let family = census.family(process::id());
        (census, family)
    }

    /// A process that computes until it is killed.
    fn busy() -> std::process::Child {
        let mut shell = Command::new("sh");
        let child = shell.args(["-c", "i=0; while :; do i=$((i+1)); done"]);
        child.spawn().expect("a shell")
    }

    fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !is_so() {
            assert!(std::time::Instant::now() < until, "{what}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[test]
    fn children_count_while_they_run_and_once_they_have_ended() {
        let used = || {
            let (census, family) = own();
            census.cpu_s(&family)
        };
        let before = used();
        let mut child = busy();
        eventually("the child computes", || used() >= before + 0.05);
        assert!(own().1.contains(&child.id()));
        child.kill().expect("it runs");
        child.wait().expect("it ended");
        assert!(used() >= before + 0.05);
    }

    #[test]
    fn who_is_not_named_is_another() {
        let (before, _) = own();
        let mut child = busy();
        let mut but = BTreeSet::from([process::id()]);
        eventually("the child is another", || {
            own().0.others_s(&before, &but) >= 0.05
        });
        let all = own().0.others_s(&before, &but);
        but.insert(child.id());
        assert!(own().0.others_s(&before, &but) < all + 0.05);
        child.kill().expect("it runs");
        child.wait().expect("it ended");
    }

    #[test]
    fn who_is_gone_has_no_family() {
        assert!(own().0.family(u32::MAX).is_empty());
    }
}
