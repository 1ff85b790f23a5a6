//! How long a control group's quota kept a process's threads from running: `cpu.stat` of the group
//! (the kernel's `admin-guide/cgroup-v2.rst` and `scheduler/sched-bwc.rst`).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time in which the quotas of its group, and of those around it, have throttled the process `pid` so far: of the one that did
/// so the longest. `None` where no group tells.
pub fn throttled(pid: u32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let groups = groups(&text)?;
    let read = |group: PathBuf| {
        let text = fs::read_to_string(group.join("cpu.stat")).ok()?;
        parse(&text)
    };
    groups.into_iter().filter_map(read).max()
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
