//! Opens a disk for one term.

use std::cmp;
use std::time::Instant;

use embar_disk::Storage;
use embar_order::Term;

use super::super::counted::last_written;
use super::zeros::Zeros;
use super::{Health, Open, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_MIN, Shared};
use crate::journal::{Found, Writer};

impl Shared {
    /// Finds out what counts on the disk, and goes on from there.
    pub(super) fn open(&self, term: Term) -> Open {
        let (directory, number) = (self.directory(), self.number);
        let id = self.disks.get(number).identity().disk;
        let began = Instant::now();
        let found = Found::read(directory, &id);
        let (start, error) = match found {
            Ok(found) if !self.may_go_on(&found, term) => {
                let why = format!(
                    "another region's cluster has written it, in term {}, and this is term {}",
                    found.recovered.epoch, term.epoch
                );
                (Found::nothing(id), Some(why))
            }
            // After this look no successor has made a file that was found.
            Ok(_) if !term.lasts(&self.region) => {
                (Found::nothing(id), Some("another one writes it now".into()))
            }
            Ok(found) => (found, None),
            Err(error) => (Found::nothing(id), Some(error.to_string())),
        };
        if error.is_none() {
            let took = began.elapsed();
            let topics = start.topics.len();
            tracing::info!(
                disk = number,
                epoch = term.epoch,
                topics,
                ?took,
                "writes the disk"
            );
        }
        let region = (term.epoch, self.region.nonce());
        let free = directory.free_bytes().unwrap_or(0) / SEGMENTS_MIN;
        let bytes = free.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX) / SEGMENT_BYTES_MIN
            * SEGMENT_BYTES_MIN;
        let start = start.start(region, (bytes, self.limits.kept), self.news.clone());
        let mut open = Open {
            term,
            writer: Writer::new(&self.region, &self.claim, term, number, start),
            file: None,
            prepared: None,
            preparing: 0,
            is_preparing: false,
            reserved: 0,
            health: Health::Good,
            is_torn: false,
            gains_by_zeros: directory.gains_by_zeros().unwrap_or(false),
            zeros: Zeros::default(),
            gives_back: false,
        };
        if let Some(why) = error {
            self.fail(&mut open, &why);
        }
        open
    }

    /// Whether what was found is of older terms of this region, or of this one, in which no other process writes. What a region
    /// was restored from is older than all that it has written.
    pub(super) fn may_go_on(&self, found: &Found, term: Term) -> bool {
        let segments = &found.recovered.segments;
        let last = segments.last();
        let is_own = last.is_some_and(|last| last.header.region == self.region.nonce());
        let areas = 0..self.region.geometry().areas();
        let rows = areas.filter_map(|area| self.region.disk_row(area, self.number).found());
        if let Some(written) = last_written(rows) {
            let mut since = segments.iter().filter(|it| it.header.number > written);
            if since.any(|it| it.header.region != self.region.nonce()) {
                return false;
            }
        }
        match found.recovered.epoch.cmp(&term.epoch) {
            cmp::Ordering::Less => true,
            cmp::Ordering::Equal => is_own,
            cmp::Ordering::Greater => false,
        }
    }
}
