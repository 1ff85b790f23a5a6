//! What a process does with the disks of the log before it serves: the head puts what they have into a region in which nobody
//! has sequenced yet, and the others wait for that.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use embar_disk::format::{SEGMENT_HEADER_BYTES, SegmentHeader, segment_number};
use embar_disk::recover::RecoverError;
use embar_disk::{AlignedBuffer, Storage, StoredFile};
use embar_fabric::owner::Claim;
use embar_fabric::region::Region;
use embar_memory::{Coherence, Mapped};

use super::counted::last_written;
use super::disk_writer::{self, DiskLimits, DiskWriter};
use super::progress::Progress;
use super::start_error::StartError;
use crate::clock::Clock;
use crate::disks::Disks;
use crate::journal::{self, Found};
use crate::places::HEAD;

/// How long a process waits for the head to have restored the log.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a long copy reports that it goes on.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// How often it looks meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// On return, the region has what the disks have.
pub(super) fn restore(
    region: &Region<Mapped>,
    claim: &Claim,
    disks: &Disks,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<(), StartError> {
    if disks.iter().next().is_none() {
        return Ok(());
    }
    if !journal::is_new(region) {
        return check_known(region, disks);
    }
    if claim.row() != HEAD {
        return await_head(region);
    }
    progress(Progress::Recovering);
    let began = Instant::now();
    let found = level(region, disks, read_all(disks)?, progress)?;
    progress(Progress::Recovering);
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
    if let Some(broker) = restored.absent {
        tracing::warn!(
            broker,
            "the disks have messages of a broker that is to join: before that nobody reads them; start with --brokers {} to have it at once",
            broker + 1
        );
    }
    Ok(())
}

/// A region that somebody has sequenced in knows its disks: what another one has, or lacks, is not its log. Nor is what another
/// region's cluster has written since to the same disk: memory is older than that.
fn check_known(region: &Region<Mapped>, disks: &Disks) -> Result<(), StartError> {
    for disk in disks.iter() {
        let dir = || disk.directory().path().to_owned();
        let areas = 0..region.geometry().areas();
        let rows = areas.filter_map(|area| region.disk_row(area, disk.number()).found());
        let known = rows.clone().max_by_key(|row| row.epoch);
        let [half, _] = disk.identity().halves();
        if known.is_some_and(|row| row.disk != half) {
            return Err(StartError::OtherDisk {
                dir: dir(),
                number: disk.number(),
            });
        }
        let Some(written) = last_written(rows) else {
            continue;
        };
        // What cannot be read its writer finds out, too, and says that the disk has failed.
        let Ok(others) = headers_above(disk, written) else {
            continue;
        };
        if others.iter().any(|header| header.region != region.nonce()) {
            return Err(StartError::OtherRegion { dir: dir() });
        }
    }
    Ok(())
}

/// The headers of a disk's segments above this number that were begun.
fn headers_above(disk: &embar_disk::Disk, number: u64) -> io::Result<Vec<SegmentHeader>> {
    let directory = disk.directory();
    let names = directory.names()?;
    let above = names
        .iter()
        .filter(|name| segment_number(name).is_some_and(|its| its > number));
    let mut headers = Vec::new();
    for name in above {
        let file = match directory.open(name) {
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        let mut buffer = AlignedBuffer::new(SEGMENT_HEADER_BYTES);
        let came = file.read(0, &mut buffer)?;
        let header = SegmentHeader::decode(&buffer[..came]);
        headers.extend(header.filter(|header| header.disk == disk.identity().disk));
    }
    Ok(headers)
}

/// What all disks have.
fn read_all(disks: &Disks) -> Result<Vec<Found>, StartError> {
    let read = |disk: &embar_disk::Disk| {
        let found = Found::read(disk.directory(), &disk.identity().disk);
        found.map_err(|error| unreadable(disk, error))
    };
    disks.iter().map(read).collect()
}

fn unreadable(disk: &embar_disk::Disk, error: RecoverError) -> StartError {
    StartError::Journal {
        dir: disk.directory().path().to_owned(),
        error,
    }
}

/// Brings all disks to one length; what they have then.
fn level(
    region: &Region<Mapped>,
    disks: &Disks,
    found: Vec<Found>,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<Found>, StartError> {
    let all = disks.iter().zip(found);
    let all = all.map(|(disk, found)| journal::Disk {
        number: disk.number(),
        storage: disk.directory(),
        found,
    });
    let all: Vec<_> = all.collect();
    let (began, mut reported, mut bytes) = (Instant::now(), Instant::now(), 0);
    let mut copied = |more| {
        bytes += more;
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            progress(Progress::Recovering);
        }
    };
    let mut nonce = || RandomState::new().hash_one(region.nonce()) | 1;
    let segment = (disk_writer::SEGMENT_BYTES_MAX, region.nonce());
    let has_changed = journal::level(&all, segment, &mut nonce, &mut copied);
    // Which disk it was, the error's file and the log of the system say.
    let has_changed = has_changed.map_err(|error| unreadable(disks.get(0), error))?;
    if !has_changed {
        return Ok(all.into_iter().map(|disk| disk.found).collect());
    }
    let took = began.elapsed();
    tracing::info!(
        mib = bytes >> 20,
        ?took,
        "a disk got what it lacked from another"
    );
    read_all(disks)
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
    (coherence, limits): (Coherence, DiskLimits),
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
        .map(|number| DiskWriter::start((disks, number, limits), &region, claim, &news, clock));
    Ok(writers.collect::<Result<_, _>>()?)
}
