//! The power of a run: the disks that lose it, when they do, and what they have when it is back.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use embar_meter::random::SplitMix64;
use serde::Serialize;

use super::checker::Checker;
use super::disk_reader::{DiskRead, DiskReader, DiskReaderSetup};
use super::faults::DurationRange;
use super::loop_disk::LoopDisk;
use super::plan::VerifyPlan;
use super::power_plan::PowerPlan;
use super::shared::Shared;
use super::violation::Kind;

/// Bytes of a disk for each cut. Each term of a sequencer begins segments of its own, and none is removed. They take room only where
/// something is written.
const BYTES_PER_CUT: u64 = 1 << 30;
/// One cut of so many does not wait until something is acknowledged: it hits a cluster that is just coming back.
const EARLY_EVERY: u64 = 4;
/// When such a cut comes after the power is back.
const EARLY: DurationRange = DurationRange {
    shortest: Duration::ZERO,
    longest: Duration::from_millis(700),
};

/// What the disks had at the end.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PowerReport {
    /// Messages on the disk that has most.
    pub messages: u64,
    /// Messages that successors wrote once more, on all disks.
    pub repeated: u64,
    /// Bytes that cuts tore and that never counted, on all disks and after all cuts.
    pub torn_bytes: u64,
    /// Segments of the disk that has most.
    pub segments: u64,
}

/// The disks of a run, and when their power is cut.
pub struct Power {
    plan: PowerPlan,
    every: Duration,
    disks: Vec<LoopDisk>,
    reader: Option<DiskReader>,
    timing: Timing,
    report: PowerReport,
}

impl Power {
    /// Makes the disks of a topic of the plan's replication factor; `None` if the plan cuts none.
    pub fn make(plan: &VerifyPlan) -> Result<Option<Self>> {
        let Some(power) = plan.power else {
            return Ok(None);
        };
        let bytes = BYTES_PER_CUT * (u64::from(power.cuts) + 2);
        let disks = (1..plan.replication_factor).map(|_| LoopDisk::make(power.file_system, bytes));
        Ok(Some(Self {
            plan: power,
            every: plan.every,
            disks: disks.collect::<Result<_>>()?,
            reader: None,
            timing: Timing::new(plan.seed.rotate_left(16)),
            report: PowerReport::default(),
        }))
    }

    /// Their directories.
    pub fn dirs(&self) -> Vec<PathBuf> {
        let dirs = self.disks.iter().map(|disk| disk.mounted().to_owned());
        dirs.collect()
    }

    /// Nothing was published yet.
    pub fn begin(&mut self, setup: DiskReaderSetup, checker: &mut Checker) {
        self.reader = Some(DiskReader::new(setup, "the disk", checker));
    }

    /// Whether more cuts are to come.
    pub fn is_to_cut(&self) -> bool {
        self.timing.cuts < self.plan.cuts
    }

    /// How many cuts there were, and are to be.
    pub fn progress(&self) -> (u32, u32) {
        (self.timing.cuts, self.plan.cuts)
    }

    /// When the next cut is due, if that is known: so many messages were acknowledged in all.
    pub fn next_due(&mut self, now: Instant, acknowledged: u64) -> Option<Instant> {
        self.timing.next_due(now, acknowledged, self.every)
    }

    /// Cuts the power of all disks. What processes do for a while then fails.
    pub fn cut(&mut self) -> Result<()> {
        self.timing.cut();
        self.disks.iter_mut().try_for_each(LoopDisk::cut)
    }

    /// How long processes live on with disks that fail: nothing that they say meanwhile may be wrong.
    pub fn afterlife(&mut self) -> Duration {
        Duration::from_millis(self.timing.random.below(20))
    }

    /// The power is back. Reads what the disks have; false if one cannot be read, which is a violation.
    pub fn back(&mut self, shared: &Shared) -> Result<bool> {
        self.disks.iter_mut().try_for_each(LoopDisk::power_on)?;
        let is_whole = self.read(shared);
        self.timing
            .back(Instant::now(), Shared::count(&shared.acknowledged));
        Ok(is_whole)
    }

    fn read(&mut self, shared: &Shared) -> bool {
        let Some(reader) = &self.reader else {
            return true;
        };
        let mut reads: Vec<DiskRead> = Vec::new();
        for disk in &self.disks {
            match reader.read(disk.mounted(), shared) {
                Ok(read) => reads.push(read),
                Err(why) => {
                    let (number, dir) = (self.timing.cuts, disk.mounted().display());
                    let text = format_args!("after cut {number}, {dir} cannot be read: {why:#}");
                    shared.checker().fail(Kind::Lost, text);
                    return false;
                }
            }
        }
        let most = reads.iter().max_by_key(|it| it.messages);
        let most = most.copied().unwrap_or_default();
        self.report = PowerReport {
            messages: most.messages,
            repeated: reads.iter().map(|it| it.repeated).sum(),
            torn_bytes: self.report.torn_bytes + reads.iter().map(|it| it.torn_bytes).sum::<u64>(),
            segments: most.segments,
        };
        true
    }

    /// What the disks had when they were read last.
    pub fn report(&self) -> PowerReport {
        self.report
    }
}

/// When cuts come.
#[derive(Debug)]
struct Timing {
    random: SplitMix64,
    cuts: u32,
    due: Option<Instant>,
    /// Messages that were acknowledged when the power came back.
    acknowledged: u64,
}

impl Timing {
    fn new(seed: u64) -> Self {
        Self {
            random: SplitMix64::new(seed),
            cuts: 0,
            due: None,
            acknowledged: 0,
        }
    }

    /// A cut comes at a random moment of an interval that begins with the first acknowledgement.
    fn next_due(&mut self, now: Instant, acknowledged: u64, every: Duration) -> Option<Instant> {
        if self.due.is_none() && acknowledged > self.acknowledged {
            let within = DurationRange {
                shortest: Duration::ZERO,
                longest: every,
            };
            self.due = Some(now + within.draw(&mut self.random));
        }
        self.due
    }

    fn cut(&mut self) {
        self.due = None;
        self.acknowledged = u64::MAX;
        self.cuts += 1;
    }

    fn back(&mut self, now: Instant, acknowledged: u64) {
        self.acknowledged = acknowledged;
        if self.random.below(EARLY_EVERY) == 0 {
            self.due = Some(now + EARLY.draw(&mut self.random));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_waits_for_load_unless_it_is_early() {
        let mut timing = Timing::new(1);
        let (now, every) = (Instant::now(), Duration::from_secs(2));
        assert_eq!(timing.next_due(now, 0, every), None);
        let due = timing
            .next_due(now, 1, every)
            .expect("something was acknowledged");
        assert!((now..=now + every).contains(&due));
        assert_eq!(
            timing.next_due(now, 9, every),
            Some(due),
            "it is drawn once"
        );
        let mut early = 0;
        for _ in 0..100 {
            timing.cut();
            assert_eq!(timing.next_due(now, 10, every), None, "the power is off");
            timing.back(now, 10);
            match timing.next_due(now, 10, every) {
                Some(due) => {
                    assert!(due <= now + EARLY.longest);
                    early += 1;
                }
                None => assert!(timing.next_due(now, 11, every).is_some()),
            }
        }
        assert!((10..50).contains(&early), "{early}");
        assert_eq!(timing.cuts, 100);
    }
}
