//! The disks of a cluster's log, and what to do about one that takes nothing.

use embar_console::size::Size;
use embar_meter::table::Table;
use embar_wire::control::{BrokerStatus, DiskState, DiskStatus};
use serde::Serialize;

/// One of them.
#[derive(Serialize)]
pub struct Disk {
    number: u32,
    directory: String,
    state: &'static str,
    free_bytes: u64,
    what_to_do: Option<&'static str>,
}

impl From<&DiskStatus> for Disk {
    fn from(status: &DiskStatus) -> Self {
        Self {
            number: status.number,
            directory: status.directory.clone(),
            state: match status.state {
                DiskState::Opens => "opens",
                DiskState::Writes => "writes",
                DiskState::Failed => "failed",
                DiskState::Full => "full",
                // Of a later version.
                _ => "unknown",
            },
            free_bytes: status.free_bytes,
            what_to_do: what_to_do(status.state),
        }
    }
}

impl Disk {
    /// What is wrong with it, if anything is.
    pub fn remark(&self) -> Option<String> {
        let (number, state) = (self.number, self.state);
        let what_to_do = self.what_to_do?;
        let directory = &self.directory;
        Some(format!(
            "disk {number} ({directory}) {}: {what_to_do}",
            match state {
                "full" => "is full, and publishers of its topics wait",
                _ =>
                    "has failed: topics that no other disk took over are not acknowledged at acks 2",
            }
        ))
    }
}

fn what_to_do(state: DiskState) -> Option<&'static str> {
    match state {
        DiskState::Full => Some(
            "remove other files there, or delete topics, and it goes on by itself within a second",
        ),
        DiskState::Failed => Some(
            "the log of the broker that sequences says why; stop the cluster, replace the disk, and start again",
        ),
        _ => None,
    }
}

/// As the broker that sequences sees them; while none does, as any other.
pub fn of<'a>(
    statuses: impl Iterator<Item = &'a BrokerStatus>,
    sequencer: Option<u32>,
) -> Vec<Disk> {
    let seen = statuses.filter(|status| !status.disks.is_empty());
    let seen = seen.max_by_key(|status| sequencer == Some(status.broker));
    let disks = seen.iter().flat_map(|status| &status.disks);
    disks.map(Disk::from).collect()
}

/// For a terminal.
pub fn table(disks: &[Disk]) -> Table {
    let mut table = Table::new(["disk", "state", "free", "directory"]);
    for disk in disks {
        table.row([
            disk.number.to_string(),
            disk.state.into(),
            Size(disk.free_bytes).to_string(),
            disk.directory.clone(),
        ]);
    }
    table
}
