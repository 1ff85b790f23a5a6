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
        all.map(|(_, it)| it.cpu_s()).sum()
    }

    /// Processor seconds since `earlier` of all processes but these, and but the kernel's threads that only finish softirqs.
    ///
    /// Who ended meanwhile has left its whole life to the one that waited for it. Of that only what came since `earlier` counts, and
    /// nothing if it was one of these: what that did since, nobody knows any more.
    pub fn others_s(&self, earlier: &Self, but: &BTreeSet<u32>) -> f64 {
        let before = |pid: &u32, now: &Member| {
            let then = earlier.0.get(pid).filter(|it| it.started == now.started);
            then.cloned().unwrap_or_default()
        };
        let mut left: BTreeMap<u32, f64> = (self.0.iter())
            .map(|(pid, now)| (*pid, now.children_s - before(pid, now).children_s))
            .collect();
        for (pid, ended) in &earlier.0 {
            let stayed = self
                .0
                .get(pid)
                .is_some_and(|it| it.started == ended.started);
            if stayed {
                continue;
            }
            if let Some(heir) = self.heir(earlier, ended) {
                let left = left.entry(heir).or_default();
                *left = match but.contains(pid) {
                    true => 0.0,
                    false => *left - ended.cpu_s(),
                };
            }
        }
        let others = self.0.iter();
        let others = others.filter(|(pid, it)| !but.contains(pid) && !it.finishes_softirqs);
        let used = others.map(|(pid, now)| {
            let own = (now.own_s - before(pid, now).own_s).max(0.0);
            own + left.get(pid).map_or(0.0, |it| it.max(0.0))
        });
        used.sum()
    }

    /// Who waited for a process that has ended: the first one around it that is still there, and was left at least its life. One whose
    /// parent has ended is taken in by somebody further up; and of whoever does not want to wait for its children nothing is left.
    fn heir(&self, earlier: &Self, ended: &Member) -> Option<u32> {
        let mut parent = ended.parent;
        for _ in 0..earlier.0.len() {
            let then = earlier.0.get(&parent)?;
            let now = self.0.get(&parent);
            if let Some(now) = now.filter(|now| now.started == then.started)
                && now.children_s - then.children_s >= ended.cpu_s() - ROUNDING_S
            {
                return Some(parent);
            }
            parent = then.parent;
        }
        None
    }
}

/// Less than a tick of the kernel: sums of floating point are not exact.
const ROUNDING_S: f64 = 1e-3;

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

    /// Processes by id, parent, own seconds and those of their children.
    fn census(of: &[(u32, u32, f64, f64)]) -> Census {
        let member = |(pid, parent, own_s, children_s): &(u32, u32, f64, f64)| {
            let (parent, own_s, children_s) = (*parent, *own_s, *children_s);
            let member = Member {
                parent,
                own_s,
                children_s,
                ..Member::default()
            };
            (*pid, member)
        };
        Census(of.iter().map(member).collect())
    }

    fn others(before: &[(u32, u32, f64, f64)], after: &[(u32, u32, f64, f64)], but: &[u32]) -> f64 {
        let but = but.iter().copied().collect();
        census(after).others_s(&census(before), &but)
    }

    #[test]
    fn of_a_life_that_ended_only_the_last_part_counts() {
        // A shell whose compiler ends after 61 s, one of them since.
        let before = [(1, 0, 5.0, 0.0), (2, 1, 3.0, 10.0), (3, 2, 60.0, 0.0)];
        let after = [(1, 0, 5.0, 0.0), (2, 1, 3.5, 71.0)];
        assert!((others(&before, &after, &[]) - 1.5).abs() < 1e-9);
        // It had a child, for which it waited before it ended.
        let before = [(2, 1, 3.0, 0.0), (3, 2, 10.0, 1.0), (4, 3, 20.0, 0.0)];
        let after = [(2, 1, 3.0, 32.0)];
        assert!((others(&before, &after, &[]) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn who_does_not_wait_for_its_children_is_left_nothing_of_them() {
        let before = [(2, 1, 3.0, 0.0), (3, 2, 60.0, 0.0)];
        assert!((others(&before, &[(2, 1, 3.5, 0.25)], &[]) - 0.75).abs() < 1e-9);
        // The parent ended, too, and the first process took the child in.
        let before = [(1, 0, 1.0, 0.0), (2, 1, 3.0, 0.0), (3, 2, 60.0, 0.0)];
        let after = [(1, 0, 1.0, 64.0)];
        assert!((others(&before, &after, &[]) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn one_of_ours_that_ended_is_no_other() {
        let before = [(2, 1, 3.0, 0.0), (3, 2, 10.0, 0.0)];
        let after = [(2, 1, 3.5, 14.0)];
        assert!((others(&before, &after, &[3]) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn who_is_gone_has_no_family() {
        assert!(own().0.family(u32::MAX).is_empty());
    }
}
