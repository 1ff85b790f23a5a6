//! The disks of the log, opened for this process.

use std::path::Path;
use std::sync::Arc;

use embar_disk::format::DISKS_MAX;
use embar_disk::{Disk, DiskError, OpenOptions, RegionName, open_disks};
use embar_fabric::{Region, geometry};
use embar_memory::Mapped;
use embar_meter::profile::Profile;

use crate::config::BrokerConfig;
use crate::places::HEAD;
use crate::profile;

const _: () = assert!(DISKS_MAX == geometry::DISKS_MAX);

/// The disks of the log, by their numbers. While a process has them, no cluster but its own uses their directories.
#[derive(Debug)]
pub struct Disks {
    disks: Vec<Disk>,
    profile: Arc<Profile>,
}

impl Disks {
    /// Opens the directories of `config` for the owner of `row`. The head makes what is not there.
    ///
    /// # Errors
    /// [`DiskError`] names the first directory that cannot be used.
    pub fn open(
        config: &BrokerConfig,
        region: &Region<Mapped>,
        row: u16,
    ) -> Result<Self, DiskError> {
        let dir = region.dir().unwrap_or(Path::new(""));
        let name = RegionName {
            nonce: region.nonce(),
            path: std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()),
        };
        let options = OpenOptions {
            may_create: row == HEAD,
            same_device_is_fine: config.same_device_is_fine,
        };
        let profile = Profile::new(&profile::disk::SCHEMA);
        profile.set_enabled(config.metering);
        let disks = Self {
            disks: open_disks(&config.data, &name, options)?,
            profile,
        };
        for disk in disks.iter() {
            let dir = disk.directory();
            let (number, is_direct) = (disk.number(), dir.is_direct());
            tracing::info!(number, dir = %dir.path().display(), is_direct, "opened a disk of the log");
            if dir.is_in_memory().unwrap_or(false) {
                tracing::warn!(
                    number,
                    dir = %dir.path().display(),
                    "the directory is in memory: what is there survives the cluster, and no reboot"
                );
            }
        }
        Ok(disks)
    }

    /// The start goes well: what was made for it stays.
    pub fn keep(&mut self) {
        self.disks.iter_mut().for_each(Disk::keep);
    }

    /// The disk with this number.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn get(&self, number: u16) -> &Disk {
        &self.disks[usize::from(number)]
    }

    /// Each of them, in the order of their numbers, which begin at 0.
    pub fn iter(&self) -> impl Iterator<Item = &Disk> {
        self.disks.iter()
    }

    /// Stage timers of all threads that write and read them.
    pub fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }
}
