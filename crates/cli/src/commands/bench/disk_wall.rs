//! The wall of a disk beside what a bench of the log measured: the fastest of several depths.

use anyhow::Result;
use embar_bench::disk::beside::IO_BYTES;
use embar_console::size::Size;
use embar_meter::experiment::{Comparison, Outcome};
use serde::Serialize;

/// The fastest writes or reads, and what the log is of them.
#[derive(Serialize)]
pub struct DiskWallReport {
    io_bytes: u32,
    depth: u16,
    /// Of each trial.
    bytes: u64,
    ratio: Comparison,
}

impl DiskWallReport {
    /// `walls` are depths with their places in the experiment; `log` is what is compared with them. `None` without walls.
    pub fn of(
        outcome: &Outcome,
        walls: impl Iterator<Item = (u16, usize)>,
        log: usize,
        bytes: u64,
    ) -> Result<Option<Self>> {
        let median = |place: usize| outcome.series(place).median();
        let fastest = walls.max_by(|(_, one), (_, other)| median(*one).total_cmp(&median(*other)));
        let Some((depth, place)) = fastest else {
            return Ok(None);
        };
        Ok(Some(Self {
            io_bytes: IO_BYTES,
            depth,
            bytes,
            ratio: outcome.compare(place, log)?,
        }))
    }

    /// `0.93 [0.90, 0.95] of synced writes of 1MiB, 2 at once, the fastest`.
    pub fn describe(&self, what: &str) -> String {
        format!(
            "{:.3} of {what} of {}, {} at once, the fastest",
            self.ratio.ratio,
            Size(self.io_bytes.into()),
            self.depth
        )
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use embar_meter::experiment::{Experiment, Sample};

    use super::*;

    #[test]
    fn the_fastest_depth_is_the_wall() {
        let rates = [100.0, 200.0, 150.0, 180.0];
        let outcome = Experiment::new(["1", "2", "4", "log"])
            .trials(2)
            .run(|index, _| Ok::<_, Infallible>(Sample::from(rates[index])))
            .expect("measured");
        let walls = [(1, 0), (2, 1), (4, 2)];
        let report = DiskWallReport::of(&outcome, walls.into_iter(), 3, 4 << 20);
        let report = report.expect("compared").expect("there are walls");
        assert_eq!((report.depth, report.ratio.ratio.point), (2, 0.9));
        let text = report.describe("synced writes");
        assert!(text.starts_with("0.900 [0.900, 0.900]"), "{text}");
        assert!(text.ends_with("of synced writes of 1MiB, 2 at once, the fastest"));
        let none = DiskWallReport::of(&outcome, [].into_iter(), 3, 0).expect("nothing");
        assert!(none.is_none());
    }
}
