//! What a process does with the disks of the log before it serves: the head puts what they have into a region in which nobody
//! has sequenced yet, and the others wait for that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use embar_fabric::owner::Claim;
use embar_fabric::region::Region;
use embar_memory::{Coherence, Mapped};

use super::disk_writer::DiskWriter;
use super::progress::Progress;
use super::start_error::StartError;
use crate::clock::Clock;
use crate::disks::Disks;
use crate::journal::{self, Found};
use crate::places::HEAD;

/// How long a process waits for the head to have restored the log.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// How often it looks meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// On return, the region has what the disks have.
pub(super) fn restore(
    region: &Region<Mapped>,
    claim: &Claim,
    disks: &Disks,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<(), StartError> {
    if disks.iter().next().is_none() || !journal::is_new(region) {
        return Ok(());
    }
    if claim.row() != HEAD {
        return await_head(region);
    }
    progress(Progress::Recovering);
    let began = Instant::now();
    let mut found = Vec::new();
    for disk in disks.iter() {
        let read = Found::read(disk.directory(), &disk.identity().disk);
        found.push(read.map_err(|error| StartError::Journal {
            dir: disk.directory().path().to_owned(),
            error,
        })?);
    }
    let restored = journal::seed(region, claim, &found)?;
    if restored.topics > 0 {
        let (topics, sessions, took) = (restored.topics, restored.sessions, began.elapsed());
        tracing::info!(
            topics,
            sessions,
            ?took,
            "the log was restored from its disks"
        );
    }
    Ok(())
}

/// A candidate that sequenced before would hide what the disks have.
fn await_head(region: &Region<Mapped>) -> Result<(), StartError> {
    let began = Instant::now();
    while journal::is_new(region) {
        if began.elapsed() >= HEAD_TIMEOUT {
            let waited = HEAD_TIMEOUT;
            return Err(StartError::NoSequencer { waited });
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// The threads that write the disks while the claimed candidate sequences.
pub(super) fn start_writers(
    region: &Region<Mapped>,
    claim: &Arc<Claim>,
    disks: &Arc<Disks>,
    (coherence, limit): (Coherence, u64),
    clock: Clock,
) -> Result<Vec<DiskWriter>, StartError> {
    let Some(dir) = region.dir().filter(|_| disks.iter().next().is_some()) else {
        return Ok(Vec::new());
    };
    // One that shows all payload as others': of a head that takes data, this process has a part as its own.
    let region = Region::open(dir, coherence)?;
    let news = region.frontier_news_writer(claim);
    let numbers = disks.iter().map(embar_disk::Disk::number);
    let writers = numbers
        .map(|number| DiskWriter::start((disks, number, limit), &region, claim, &news, clock));
    Ok(writers.collect::<Result<_, _>>()?)
}
