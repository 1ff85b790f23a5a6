//! How long a control group's quota kept a process's threads from running: `cpu.stat` of the group
//! (the kernel's `admin-guide/cgroup-v2.rst` and `scheduler/sched-bwc.rst`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time in which the quotas of control groups have throttled their processes so far, by the groups' folders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Throttled(BTreeMap<PathBuf, Duration>);

impl Throttled {
    /// Of the groups of these processes, and of those around them. `None` where no group tells.
    pub fn read(pids: &[u32]) -> Option<Self> {
        let mut all = BTreeMap::new();
        for pid in pids {
            let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            for group in groups(&text).unwrap_or_default() {
                if all.contains_key(&group) {
                    continue;
                }
                let stat = fs::read_to_string(group.join("cpu.stat")).ok();
                if let Some(time) = stat.as_deref().and_then(parse) {
                    all.insert(group, time);
                }
            }
        }
        (!all.is_empty()).then_some(Self(all))
    }

    /// What was added since `earlier`, of the group to which the most was. One that was not read then, because a process moved into it,
    /// does not count: nobody knows how much of it is old.
    pub fn since(&self, earlier: &Self) -> Duration {
        let added = self.0.iter().filter_map(|(group, now)| {
            let then = earlier.0.get(group)?;
            Some(now.saturating_sub(*then))
        });
        added.max().unwrap_or_default()
    }
}

/// Folders of the group with the processors' quota, and of those around it.
fn groups(text: &str) -> Option<Vec<PathBuf>> {
    // `hierarchy:controllers:path`, see cgroups(7); version 2 has no controllers there.
    let fields = text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let mut version_2 = None;
    let mut version_1 = None;
    for (controllers, path) in fields {
        if controllers.split(',').any(|it| it == "cpu") {
            version_1 = Some((format!("/sys/fs/cgroup/{controllers}"), path));
        } else if controllers.is_empty() {
            version_2 = Some(("/sys/fs/cgroup".to_owned(), path));
        }
    }
    let (root, path) = version_1.or(version_2)?;
    let path = Path::new(path.trim_start_matches('/'));
    let around = path.ancestors().map(|it| Path::new(&root).join(it));
    Some(around.collect())
}

fn parse(stat: &str) -> Option<Duration> {
    let field = |name: &str| -> Option<u64> {
        let line = stat.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    // Version 2 counts microseconds, version 1 nanoseconds.
    let micros = field("throttled_usec ").map(Duration::from_micros);
    micros.or_else(|| field("throttled_time ").map(Duration::from_nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_control_groups_tell() {
        assert_eq!(
            parse("nr_periods 4\nnr_throttled 2\nthrottled_time 1500000\n"),
            Some(Duration::from_micros(1500))
        );
        assert_eq!(
            parse("usage_usec 5\nnr_throttled 2\nthrottled_usec 1500\n"),
            Some(Duration::from_micros(1500))
        );
        assert_eq!(parse("usage_usec 5\nuser_usec 5\n"), None);
    }

    #[test]
    fn old_throttling_of_one_group_hides_no_new_one_of_another() {
        let of = |all: &[(&str, u64)]| {
            let all = all.iter().map(|(group, seconds)| {
                let time = Duration::from_secs(*seconds);
                (PathBuf::from(group), time)
            });
            Throttled(all.collect())
        };
        let before = of(&[("/a", 1000), ("/b", 0)]);
        let after = of(&[("/a", 1000), ("/b", 2), ("/c", 9)]);
        assert_eq!(after.since(&before), Duration::from_secs(2));
        assert_eq!(before.since(&after), Duration::ZERO);
    }

    #[test]
    fn groups_are_those_of_processors_and_all_around_them() {
        let paths = |text| {
            let groups = groups(text).expect("a group");
            let text = |it: PathBuf| it.display().to_string();
            groups.into_iter().map(text).collect::<Vec<_>>()
        };
        assert_eq!(
            paths("3:memory:/m\n1:cpu,cpuacct:/a/b\n0::/\n"),
            [
                "/sys/fs/cgroup/cpu,cpuacct/a/b",
                "/sys/fs/cgroup/cpu,cpuacct/a",
                "/sys/fs/cgroup/cpu,cpuacct/"
            ]
        );
        assert_eq!(
            paths("0::/user.slice\n"),
            ["/sys/fs/cgroup/user.slice", "/sys/fs/cgroup/"]
        );
        assert_eq!(groups("what\n"), None);
    }
}
