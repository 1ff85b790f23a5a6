//! A control group whose members may use a part of the processors' time.
//!
//! The kernel's documentation: `admin-guide/cgroup-v2.rst` (`cpu.max`) and `scheduler/sched-bwc.rst` (`cpu.cfs_quota_us`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context as _, Result, bail};

/// The kernel gives out the quota anew each so many microseconds.
const PERIOD_US: u64 = 100_000;

/// Names of these groups begin so; then comes the id of the process that made it.
const NAME: &str = "embar-quota-";

/// Removes the groups that runs left which were killed.
fn sweep(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let maker = name.to_string_lossy().strip_prefix(NAME).map(str::to_owned);
        if maker.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _stays_if_used = fs::remove_dir(entry.path());
        }
    }
}

/// A control group of this process and others. Dropping it moves them back.
pub struct Quota {
    group: PathBuf,
    parent: PathBuf,
    members: Vec<u32>,
}

impl Quota {
    /// Lets this process and `others` together use so many percent of one processor. Needs root.
    pub fn start(others: &[u32], percent: u32) -> Result<Self> {
        let quota = u64::from(percent) * PERIOD_US / 100;
        let v1 = Path::new("/sys/fs/cgroup/cpu");
        let v2 = Path::new("/sys/fs/cgroup");
        let (parent, file, text) = if v1.join("cpu.cfs_quota_us").exists() {
            (v1, "cpu.cfs_quota_us", quota.to_string())
        } else if v2.join("cgroup.controllers").exists() {
            (v2, "cpu.max", format!("{quota} {PERIOD_US}"))
        } else {
            bail!("no control groups of processors at /sys/fs/cgroup: a quota cannot be set here");
        };
        sweep(parent);
        let group = parent.join(format!("{NAME}{}", process::id()));
        fs::create_dir(&group).with_context(|| {
            format!(
                "cannot make the control group {}: root can",
                group.display()
            )
        })?;
        let mut quota = Self {
            group,
            parent: parent.to_owned(),
            members: Vec::new(),
        };
        fs::write(quota.group.join(file), text).context("cannot set the quota")?;
        for pid in others.iter().copied().chain([process::id()]) {
            fs::write(quota.group.join("cgroup.procs"), pid.to_string())
                .with_context(|| format!("cannot move process {pid} to the control group"))?;
            quota.members.push(pid);
        }
        Ok(quota)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        for pid in &self.members {
            // Those that have ended are in no group any more.
            let _moved = fs::write(self.parent.join("cgroup.procs"), pid.to_string());
        }
        let _removed = fs::remove_dir(&self.group);
    }
}
