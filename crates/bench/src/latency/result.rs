//! What a measurement of latencies gave: a line for each load, order and acks, and how much longer acks 2 take than acks 1.

use anyhow::{Context as _, Result};
use embar_meter::stats::median;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::e2e::Latency;

/// Longest latency that a histogram resolves, 60 s.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Share of a rate above which it counts as reached.
const REACHED: f64 = 0.98;

/// One line of the result.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyLine {
    /// The order level; `None` for the bare round trip.
    pub order: Option<u32>,
    /// The level of the acknowledgements; `None` for the bare round trip.
    pub acks: Option<u32>,
    /// Messages, or batches under load.
    pub samples: u64,
    /// Latencies of all trials.
    pub latency_us: Latency,
    /// Messages a second that were due, median of the trials.
    pub messages_per_s: Option<f64>,
    /// Messages a second that left, median of the trials: less when the publisher was held up.
    pub reached_per_s: Option<f64>,
}

impl LatencyLine {
    /// The share of the messages that were due a second which left, unless nearly all did.
    pub fn shortfall(&self) -> Option<f64> {
        let share = self.reached_per_s? / self.messages_per_s?;
        (share < REACHED).then_some(share)
    }
}

/// Synced writes of the topic's disks, without the log: a page after the other, or a batch when it is due.
#[derive(Clone, Debug, Serialize)]
pub struct WritesLine {
    /// Bytes of each.
    pub bytes: u32,
    /// Writes.
    pub samples: u64,
    /// What they took, of all trials.
    pub latency_us: Latency,
}

/// How much longer acks 2 take than acks 1, beside a synced write.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// `alone` or `loaded`.
    pub load: &'static str,
    /// The order level.
    pub order: u32,
    /// `p50` or `p99`.
    pub quantile: &'static str,
    /// At acks 1.
    pub acks_1_us: f64,
    /// At acks 2.
    pub acks_2_us: f64,
    /// A synced write: of 4 KiB alone, of a batch when loaded.
    pub write_us: f64,
    /// The difference of the two, in such writes.
    pub in_writes: f64,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyResult {
    /// Latencies with one message in flight, the bare round trip first.
    pub alone: Vec<LatencyLine>,
    /// Latencies under load, by order level and acks.
    pub loaded: Vec<LatencyLine>,
    /// Where topics are on disks: of a page, and, if there is a load, of a batch when one is due.
    pub writes: Vec<WritesLine>,
    /// Where both acks were measured.
    pub differences: Vec<Difference>,
}

impl LatencyResult {
    pub(super) fn new(
        alone: Vec<LatencyLine>,
        loaded: Vec<LatencyLine>,
        writes: Vec<WritesLine>,
    ) -> Self {
        let alone_of = writes.first();
        let loaded_of = writes.get(1);
        let of_alone = alone_of.map(|page| differences("alone", &alone, page));
        let of_loaded = loaded_of.map(|batch| differences("loaded", &loaded, batch));
        let of_alone = of_alone.into_iter().flatten();
        let differences = of_alone.chain(of_loaded.into_iter().flatten()).collect();
        Self {
            alone,
            loaded,
            writes,
            differences,
        }
    }
}

fn differences<'a>(
    load: &'static str,
    lines: &'a [LatencyLine],
    write: &'a WritesLine,
) -> impl Iterator<Item = Difference> + 'a {
    let at =
        |order, acks| move |line: &&LatencyLine| (line.order, line.acks) == (order, Some(acks));
    let both = lines.iter().filter_map(move |one| {
        at(one.order, 1)(&one).then_some(())?;
        Some((one, lines.iter().find(at(one.order, 2))?))
    });
    both.flat_map(move |(one, two)| {
        let of = |latency: &Latency| [("p50", latency.p50), ("p99", latency.p99)];
        let quantiles = of(&one.latency_us).into_iter().zip(of(&two.latency_us));
        let quantiles = quantiles.zip(of(&write.latency_us));
        let order = one.order.unwrap_or_default();
        quantiles.map(
            move |(((quantile, acks_1_us), (_, acks_2_us)), (_, write_us))| Difference {
                load,
                order,
                quantile,
                acks_1_us,
                acks_2_us,
                write_us,
                in_writes: (acks_2_us - acks_1_us) / write_us,
            },
        )
    })
}

/// Latencies of several trials.
pub(super) struct Latencies {
    pub histogram: Histogram<u64>,
    pub rates: Vec<f64>,
    pub reached: Vec<f64>,
}

impl Latencies {
    pub fn new() -> Result<Self> {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3);
        Ok(Self {
            histogram: histogram.context("the bounds are valid")?,
            rates: Vec::new(),
            reached: Vec::new(),
        })
    }

    pub fn add(&mut self, times: &Histogram<u64>) -> Result<()> {
        self.histogram.add(times).context("the bounds are equal")
    }

    /// Of an order level and its acks; of none for the bare round trip.
    pub fn line(self, of: Option<(u32, u32)>) -> LatencyLine {
        LatencyLine {
            order: of.map(|(order, _)| order),
            acks: of.map(|(_, acks)| acks),
            samples: self.histogram.len(),
            latency_us: Latency::of(&self.histogram),
            messages_per_s: median(&self.rates),
            reached_per_s: median(&self.reached),
        }
    }

    /// Of writes of so many bytes.
    pub fn writes(self, bytes: u32) -> WritesLine {
        WritesLine {
            bytes,
            samples: self.histogram.len(),
            latency_us: Latency::of(&self.histogram),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_median_of_its_trials_and_says_when_a_rate_was_not_reached() {
        let line = |reached: [f64; 2]| {
            let mut times = Latencies::new().expect("valid");
            times.rates = vec![300.0, 100.0];
            times.reached = reached.to_vec();
            times.line(Some((5, 1)))
        };
        assert_eq!(line([300.0, 100.0]).messages_per_s, Some(200.0));
        assert_eq!(line([296.0, 98.0]).shortfall(), None);
        assert_eq!(line([270.0, 90.0]).shortfall(), Some(0.9));
        let alone = Latencies::new().expect("valid").line(None);
        assert_eq!((alone.messages_per_s, alone.shortfall()), (None, None));
    }

    #[test]
    fn the_price_of_acks_2_is_told_in_synced_writes() {
        let times = |us: u64| {
            let mut times = Latencies::new().expect("valid");
            times.histogram.saturating_record(us * 1000);
            times
        };
        let alone = vec![
            times(10).line(None),
            times(100).line(Some((5, 1))),
            times(300).line(Some((5, 2))),
            times(100).line(Some((2, 1))),
        ];
        let loaded = vec![
            times(1000).line(Some((5, 1))),
            times(4000).line(Some((5, 2))),
        ];
        let writes = vec![times(200).writes(4096), times(1000).writes(16384)];
        let result = LatencyResult::new(alone, loaded, writes);
        let seen = result.differences.iter();
        let seen: Vec<_> = seen
            .map(|it| (it.load, it.order, it.quantile, it.in_writes.round()))
            .collect();
        assert_eq!(
            seen,
            [
                ("alone", 5, "p50", 1.0),
                ("alone", 5, "p99", 1.0),
                ("loaded", 5, "p50", 3.0),
                ("loaded", 5, "p99", 3.0)
            ]
        );
    }
}
