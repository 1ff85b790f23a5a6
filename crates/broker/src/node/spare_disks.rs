//! Gives topics of a disk that has failed another disk, where there is one.

use embar_fabric::DiskState;
use embar_memory::Memory;
use embar_order::Leadership;

use super::Node;
use crate::log::disk_row;

impl<M: Memory> Node<M> {
    /// Head only: topics whose disk has failed in the present term go on with one that never had them, if such a disk writes. To be
    /// called every so often. Of the head, as it alone changes topics.
    pub fn replace_failed_disks(&self) {
        let disks = 0..self.region.geometry().disks;
        let Some(term) = Leadership::observe(&self.region)
            .term
            .filter(|_| self.is_head() && !disks.is_empty())
        else {
            return;
        };
        let state_of = |disk: u16| {
            let row = disk_row(&self.region, term, disk)?;
            DiskState::from_number(row.state)
        };
        let has_failed = |disk: &u16| state_of(*disk) == Some(DiskState::Failed);
        for failed in disks.filter(has_failed) {
            let is_spare = |disk: u16| state_of(disk) == Some(DiskState::Writes);
            let replaced = self.topics().replace_disk(failed, is_spare);
            for (topic, spare) in replaced {
                tracing::warn!(
                    topic = topic.name,
                    failed,
                    disk = spare,
                    "a disk of the topic has failed, and another takes its place: what memory has of the topic is written there, and what came before is only where it was"
                );
            }
        }
    }
}
