//! A control group whose members may use a part of the processors' time.
//!
//! The kernel's documentation: `admin-guide/cgroup-v2.rst` (`cpu.max`) and `scheduler/sched-bwc.rst` (`cpu.cfs_quota_us`).

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// Where the hierarchies of groups are.
const MOUNTS: &str = "/sys/fs/cgroup";

/// The kernel gives out the quota anew each so many microseconds.
const PERIOD_US: u64 = 100_000;

/// How long members that were killed may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(2);
/// Looks for that are this far apart.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Names of these groups begin so; then come the id of the process that made it, and a number.
const NAME: &str = "embar-quota-";

/// A control group of this process and others. Dropping it moves each back to where it was.
pub struct Quota {
    group: PathBuf,
    /// Members, and the groups that they come from.
    members: Vec<(u32, PathBuf)>,
}

impl Quota {
    /// Lets this process and `others` together use so many percent of one processor. Needs root.
    pub fn start(others: &[u32], percent: u32) -> Result<Self> {
        let own = Place::of(process::id())?;
        let parent = own.parent().with_context(|| {
            format!(
                "no group around {} may give quotas to others: write +cpu to the cgroup.subtree_control of one",
                own.group.display()
            )
        })?;
        sweep(&parent);
        let mut quota = Self {
            group: create(&parent)?,
            members: Vec::new(),
        };
        let (file, text) = own.version.quota(percent);
        fs::write(quota.group.join(file), text)
            .context("cannot set the quota: is it more than that of the group around it?")?;
        for pid in others.iter().copied().chain([process::id()]) {
            let from = Place::of(pid)?.group;
            put(pid, &quota.group)
                .with_context(|| format!("cannot move process {pid} to the control group"))?;
            quota.members.push((pid, from));
        }
        Ok(quota)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        for (pid, from) in &self.members {
            // Those that have ended are in no group any more.
            let _moved = put(*pid, from);
        }
        // This process moved itself last. What it started meanwhile was born into the group.
        let born = fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
        let born = born.lines().filter_map(|it| it.parse().ok());
        if let Some((_, home)) = self.members.last() {
            born.for_each(|pid| drop(put(pid, home)));
        }
        remove(&self.group);
    }
}

/// Removes a group. Members that were killed cannot be moved, and keep it busy until they are gone.
fn remove(group: &Path) {
    let deadline = Instant::now() + GONE_WITHIN;
    let is_busy = || fs::remove_dir(group).is_err_and(|it| it.kind() == ErrorKind::ResourceBusy);
    while is_busy() && Instant::now() < deadline {
        thread::sleep(LOOK_EVERY);
    }
}

/// Moves a process to a group.
fn put(pid: u32, group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), pid.to_string())
}

/// Makes a group of a name that none has: one of this process's id may be left of another that had it before and was killed.
fn create(parent: &Path) -> Result<PathBuf> {
    let maker = process::id();
    for number in 0_u64.. {
        let group = parent.join(format!("{NAME}{maker}-{number}"));
        match fs::create_dir(&group) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => {
                let what = || {
                    let group = group.display();
                    format!("cannot make the control group {group}: root can")
                };
                return made.with_context(what).map(|()| group);
            }
        }
    }
    unreachable!("there are fewer groups than numbers")
}

/// Removes the groups that runs left which were killed.
fn sweep(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let maker = name.strip_prefix(NAME).and_then(|it| it.split('-').next());
        if maker.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _stays_if_used = fs::remove_dir(entry.path());
        }
    }
}

/// The version of control groups that bounds processors here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// A group's file with its quota, and what to write there.
    fn quota(self, percent: u32) -> (&'static str, String) {
        let quota = u64::from(percent) * PERIOD_US / 100;
        match self {
            Self::One => ("cpu.cfs_quota_us", quota.to_string()),
            Self::Two => ("cpu.max", format!("{quota} {PERIOD_US}")),
        }
    }
}

/// Where a process is in the hierarchy that bounds processors.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    version: Version,
    /// The folder of all groups.
    root: PathBuf,
    /// That of its group.
    group: PathBuf,
}

impl Place {
    fn of(pid: u32) -> Result<Self> {
        let file = format!("/proc/{pid}/cgroup");
        let text = fs::read_to_string(&file)
            .with_context(|| format!("cannot tell the control group of process {pid}"))?;
        let place = Self::find(&text, Path::new(MOUNTS));
        place.with_context(|| {
            format!("{MOUNTS} has no control groups of processors: a quota cannot be set here")
        })
    }

    /// From the text of `/proc/PID/cgroup`: lines of `hierarchy:controllers:path`, without controllers in version 2, see
    /// cgroups(7). A controller that version 1 has, version 2 has not.
    fn find(text: &str, mounts: &Path) -> Option<Self> {
        let fields = text.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            Some((fields.next()?, fields.next()?))
        });
        let of_processors = |it: &&(&str, &str)| it.0.split(',').any(|name| name == "cpu");
        let fields: Vec<_> = fields.collect();
        let (version, root, path) = match fields.iter().find(of_processors) {
            Some((_, path)) => (Version::One, mounts.join("cpu"), path),
            None => {
                let (_, path) = fields
                    .iter()
                    .find(|(controllers, _)| controllers.is_empty())?;
                (Version::Two, mounts.to_owned(), path)
            }
        };
        if !root.join("cgroup.procs").exists() {
            return None;
        }
        // In a container whose paths are those of the machine around it, the group is the folder that it is shown as root.
        let group = root.join(path.trim_start_matches('/'));
        let is_shown = !path.contains("..") && group.join("cgroup.procs").exists();
        Some(Self {
            version,
            group: if is_shown { group } else { root.clone() },
            root,
        })
    }

    /// The nearest group whose new members can have a quota: in version 1 its own. In version 2 only groups without processes
    /// hand out processors, the root aside.
    fn parent(&self) -> Option<PathBuf> {
        let hands_out = |group: &&Path| {
            let handed = fs::read_to_string(group.join("cgroup.subtree_control"));
            handed.is_ok_and(|it| it.split_whitespace().any(|name| name == "cpu"))
        };
        match self.version {
            Version::One => Some(self.group.clone()),
            Version::Two => {
                let around = self.group.ancestors();
                let mut around = around.take_while(|it| it.starts_with(&self.root));
                around.find(hands_out).map(Path::to_owned)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// Folders that look like groups; of some, new groups inside can have a quota.
    fn groups(folders: &[(&str, bool)]) -> TempDir {
        let mounts = tempfile::tempdir().expect("a folder");
        for (folder, hands_out) in folders {
            let folder = mounts.path().join(folder);
            fs::create_dir_all(&folder).expect("made");
            fs::write(folder.join("cgroup.procs"), "").expect("written");
            let handed = if *hands_out {
                "cpuset cpu io\n"
            } else {
                "memory\n"
            };
            fs::write(folder.join("cgroup.subtree_control"), handed).expect("written");
        }
        mounts
    }

    #[test]
    fn the_group_of_version_1_is_below_that_of_the_process() {
        let mounts = groups(&[("", false), ("cpu", false), ("cpu/a/b", false)]);
        let text = "5:cpuacct:/\n4:cpu,cpuacct:/a/b\n0::/elsewhere\n";
        let place = Place::find(text, mounts.path()).expect("it is there");
        assert_eq!(place.version, Version::One);
        assert_eq!(place.group, mounts.path().join("cpu/a/b"));
        assert_eq!(place.parent(), Some(place.group));
    }

    #[test]
    fn the_group_of_version_2_is_below_the_nearest_that_hands_out_processors() {
        let mounts = groups(&[("", true), ("a", true), ("a/b", false), ("a/b/c", false)]);
        let place = Place::find("0::/a/b/c\n", mounts.path()).expect("it is there");
        assert_eq!(place.version, Version::Two);
        assert_eq!(place.group, mounts.path().join("a/b/c"));
        assert_eq!(place.parent(), Some(mounts.path().join("a")));
        // Not beyond the root of what is shown.
        let mounts = groups(&[("", false), ("a", false)]);
        let place = Place::find("0::/a\n", mounts.path()).expect("it is there");
        assert_eq!(place.parent(), None);
    }

    #[test]
    fn a_container_that_is_shown_its_group_as_root_is_there() {
        let mounts = groups(&[("", true), ("cpu", false)]);
        let root = |text: &str| Place::find(text, mounts.path()).expect("it is there").group;
        assert_eq!(root("2:cpu:/docker/1\n"), mounts.path().join("cpu"));
        assert_eq!(root("0::/../other\n"), mounts.path());
        let none = groups(&[]);
        assert_eq!(Place::find("0::/\n", none.path()), None);
    }

    #[test]
    fn each_member_goes_back_to_where_it_was() {
        let mounts = groups(&[("own", false), ("other", false), ("embar-quota-1-0", false)]);
        let at = |name: &str| mounts.path().join(name);
        fs::write(at("embar-quota-1-0/cgroup.procs"), "77\n").expect("written");
        drop(Quota {
            group: at("embar-quota-1-0"),
            members: vec![(8, at("other")), (9, at("own"))],
        });
        let procs = |name: &str| fs::read_to_string(at(name).join("cgroup.procs")).expect("text");
        assert_eq!(procs("other"), "8");
        // The last one there was one that was started meanwhile.
        assert_eq!(procs("own"), "77");
    }

    #[test]
    fn a_name_that_is_taken_is_no_obstacle_and_those_of_the_dead_are_removed() {
        let parent = tempfile::tempdir().expect("a folder");
        let first = create(parent.path()).expect("made");
        let second = create(parent.path()).expect("made");
        assert_ne!(first, second);
        // No process has a number as large as this.
        let dead = parent.path().join(format!("{NAME}4194305-3"));
        fs::create_dir(&dead).expect("made");
        sweep(parent.path());
        assert!(first.exists() && second.exists() && !dead.exists());
    }

    /// A child that sleeps, in a group of its own. Dropping it removes both.
    struct Elsewhere {
        child: process::Child,
        group: PathBuf,
    }

    impl Elsewhere {
        fn start(parent: &Path) -> Self {
            let group = parent.join(format!("embar-test-{}", process::id()));
            fs::create_dir(&group).expect("root can make a group");
            let child = process::Command::new("sleep").arg("600").spawn();
            let child = child.expect("sleep starts");
            let elsewhere = Self { child, group };
            put(elsewhere.child.id(), &elsewhere.group).expect("moved");
            elsewhere
        }
    }

    impl Drop for Elsewhere {
        fn drop(&mut self) {
            let _ended = self.child.kill();
            let _reaped = self.child.wait();
            let _removed = fs::remove_dir(&self.group);
        }
    }

    #[test]
    fn processes_of_two_groups_share_a_quota_and_go_back() {
        let own = Place::of(process::id()).ok();
        let parent = own.as_ref().and_then(Place::parent);
        let (true, Some(own), Some(parent)) = (rustix::process::geteuid().is_root(), own, parent)
        else {
            return;
        };
        let other = Elsewhere::start(&parent);
        let place = |pid| Place::of(pid).expect("it runs").group;
        let quota = Quota::start(&[other.child.id()], 6400).expect("root can");
        assert_eq!(place(other.child.id()), quota.group);
        assert_eq!(place(process::id()), quota.group);
        // What starts meanwhile is born into the group, and is no obstacle.
        let mut born = process::Command::new("sleep").arg("600").spawn();
        let born = born.as_mut().expect("sleep starts");
        let group = quota.group.clone();
        drop(quota);
        assert_eq!(place(other.child.id()), other.group);
        assert_eq!(place(process::id()), own.group);
        assert_eq!(place(born.id()), own.group);
        assert!(!group.exists());
        born.kill().expect("our own child");
        born.wait().expect("our own child");
    }
}
