//! What all rounds come to: medians, ratios within each round, and a table of them.

use crate::logs::{Log, Sample, Setup, Way, Workload};
use crate::rounds::Measured;
use serde::Serialize;

/// All of it, as `--json` prints it.
#[derive(Serialize)]
pub struct Comparison {
    message_size: u64,
    messages: u64,
    rounds: usize,
    rows: Vec<Row>,
    /// Each setup of ours over TCP, divided by the peer over TCP that was fastest in the same round.
    of_best_peer: Vec<OfBestPeer>,
    /// What failed.
    pub problems: Vec<String>,
}

/// One way of using a log. Rates are messages per second.
#[derive(Serialize)]
struct Row {
    log: Log,
    way: Way,
    settings: &'static str,
    promises: &'static str,
    publish: Option<Figures>,
    read: Option<Figures>,
    at_once: Option<Figures>,
}

#[derive(Serialize)]
struct Figures {
    per_s: Spread,
    mib_per_s: f64,
    /// Our first setup that is reached in a like way, divided by this one, in each round.
    ours_to_it: Option<Spread>,
}

#[derive(Serialize)]
struct OfBestPeer {
    settings: &'static str,
    publish: Option<Spread>,
    read: Option<Spread>,
}

/// Figures of the same thing: the median, the lowest and the highest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(figures: impl Iterator<Item = f64>) -> Option<Self> {
        let mut figures: Vec<_> = figures.collect();
        figures.sort_unstable_by(f64::total_cmp);
        let middle = figures.len() / 2;
        Some(Self {
            median: match figures.len() % 2 {
                0 => f64::midpoint(*figures.get(middle.checked_sub(1)?)?, figures[middle]),
                _ => figures[middle],
            },
            min: *figures.first()?,
            max: *figures.last()?,
        })
    }
}

/// A figure of a sample, if it has it.
type Of = fn(&Sample) -> Option<f64>;

const PUBLISH: Of = |sample| sample.publish;
const READ: Of = |sample| sample.read;
const AT_ONCE: Of = |sample| sample.at_once;

/// The figures of a setup, by round.
fn rates(samples: &[Option<Sample>], of: Of) -> Vec<Option<f64>> {
    let of_one = |sample: &Option<Sample>| sample.as_ref().and_then(of);
    samples.iter().map(of_one).collect()
}

/// `ours` divided by `theirs` in each round that has both.
fn ratios(ours: &[Option<f64>], theirs: &[Option<f64>]) -> Option<Spread> {
    let rounds = ours.iter().zip(theirs);
    Spread::of(rounds.filter_map(|(ours, theirs)| Some((*ours)? / (*theirs)?)))
}

/// The highest rate of all these setups, by round.
fn best(setups: &[&Vec<Option<Sample>>], rounds: usize, of: Of) -> Vec<Option<f64>> {
    let in_round = |round: usize| {
        let rates = setups
            .iter()
            .filter_map(|samples| samples[round].as_ref().and_then(of));
        rates.max_by(f64::total_cmp)
    };
    (0..rounds).map(in_round).collect()
}

impl Comparison {
    /// Of all rounds.
    pub fn new(workload: &Workload, setups: &[Setup], measured: Measured) -> Self {
        let Measured { samples, problems } = measured;
        let rounds = samples.first().map_or(0, Vec::len);
        let all = || setups.iter().zip(&samples);
        let ours = || all().filter(|(setup, _)| setup.log == Log::Embar);
        let figures = |way: Way, own: &[Option<Sample>], of: Of| {
            let own = rates(own, of);
            let per_s = Spread::of(own.iter().copied().flatten())?;
            let first = ours().find(|(ours, _)| ours.way == way.like());
            let first = first.map(|(_, samples)| rates(samples, of));
            Some(Figures {
                per_s,
                mib_per_s: workload.mib(per_s.median),
                ours_to_it: first.and_then(|first| ratios(&first, &own)),
            })
        };
        let row = |(setup, own): (&Setup, &Vec<Option<Sample>>)| Row {
            log: setup.log,
            way: setup.way,
            settings: setup.settings,
            promises: setup.log.promises(),
            publish: figures(setup.way, own, PUBLISH),
            read: figures(setup.way, own, READ),
            at_once: figures(setup.way, own, AT_ONCE),
        };
        let peers = all().filter(|(setup, _)| setup.log.is_peer());
        let peers: Vec<_> = peers.map(|(_, samples)| samples).collect();
        let of_best_peer = |(setup, own): (&Setup, &Vec<Option<Sample>>)| {
            let ratio = |of: Of| ratios(&rates(own, of), &best(&peers, rounds, of));
            OfBestPeer {
                settings: setup.settings,
                publish: ratio(PUBLISH),
                read: ratio(READ),
            }
        };
        Self {
            message_size: workload.message_size,
            messages: workload.messages,
            rounds,
            rows: all().map(row).collect(),
            of_best_peer: ours()
                .filter(|(ours, _)| ours.way == Way::Tcp)
                .map(of_best_peer)
                .collect(),
            problems,
        }
    }

    /// As people read it.
    pub fn markdown(&self) -> String {
        let Self {
            message_size,
            messages,
            rounds,
            ..
        } = self;
        let mut text = format!(
            "{messages} messages of {message_size} bytes, rounds: {rounds}. Medians in MiB/s; in brackets how many times as fast our \
             first row of the same way (TCP, or shared memory) was in the same round: the median, lowest to highest.\n\n\
             | log | settings | publish | read | both at once |\n\
             | --- | --- | ---: | ---: | ---: |\n"
        );
        for row in &self.rows {
            let cells = [
                row.log.to_string(),
                row.settings.to_owned(),
                cell(row.publish.as_ref()),
                cell(row.read.as_ref()),
                cell(row.at_once.as_ref()),
            ];
            text.push_str(&format!("| {} |\n", cells.join(" | ")));
        }
        text.push('\n');
        for one in &self.of_best_peer {
            let [publish, read] = [one.publish, one.read].map(ratio);
            let settings = one.settings;
            text.push_str(&format!(
                "- ours ({settings}) to the best peer over TCP of each round: publish {publish}, read {read}\n"
            ));
        }
        text.push_str("\n| log | promises |\n| --- | --- |\n");
        let mut logs: Vec<_> = self
            .rows
            .iter()
            .map(|row| (row.log, row.promises))
            .collect();
        logs.dedup();
        for (log, promises) in logs {
            text.push_str(&format!("| {log} | {promises} |\n"));
        }
        for problem in &self.problems {
            text.push_str(&format!("\n- failed: {problem}\n"));
        }
        text
    }
}

fn cell(figures: Option<&Figures>) -> String {
    figures.map_or_else(String::new, |figures| {
        format!("{:.0} ({})", figures.mib_per_s, ratio(figures.ours_to_it))
    })
}

fn ratio(spread: Option<Spread>) -> String {
    let Some(Spread { median, min, max }) = spread else {
        return "-".to_owned();
    };
    format!("{median:.2}, {min:.2} to {max:.2}")
}

#[cfg(test)]
mod tests {
    use super::{Comparison, Spread, ratio};
    use crate::logs::{Log, Sample, Setup, Way, Workload};
    use crate::rounds::Measured;

    #[test]
    fn figures_are_summed_up() {
        let spread = |figures: &[f64]| Spread::of(figures.iter().copied());
        assert_eq!(spread(&[]), None);
        assert_eq!(ratio(spread(&[2.0])), "2.00, 2.00 to 2.00");
        assert_eq!(ratio(spread(&[3.0, 1.0, 2.0])), "2.00, 1.00 to 3.00");
        assert_eq!(ratio(spread(&[4.0, 1.0])), "2.50, 1.00 to 4.00");
    }

    #[test]
    fn logs_are_compared_within_a_round_with_the_best_of_that_round() {
        let workload = Workload {
            messages: 1024,
            message_size: 1024,
        };
        let rows = [
            (Log::Embar, Way::Tcp, [Some(20.0), Some(40.0), Some(90.0)]),
            (Log::Embar, Way::Shm, [Some(200.0), Some(50.0), Some(25.0)]),
            (Log::Kafka, Way::Tcp, [Some(2.0), Some(1.0), None]),
            (Log::Kafka, Way::Tcp, [Some(1.0), Some(4.0), Some(3.0)]),
            // Fast, but no peer.
            (Log::AeronIpc, Way::Shm, [Some(100.0); 3]),
        ];
        let setups =
            rows.map(|(log, way, _)| Setup::new(log, "", |_| Ok(Sample::default())).by(way));
        let samples = rows.map(|(_, _, rates)| {
            let sample = |publish: f64| Sample {
                publish: Some(publish * 1024.0),
                ..Sample::default()
            };
            rates.map(|rate| rate.map(sample)).to_vec()
        });
        let measured = Measured {
            samples: samples.to_vec(),
            problems: Vec::new(),
        };
        let comparison = Comparison::new(&workload, &setups, measured);
        let best = &comparison.of_best_peer[0];
        // 20 / 2, 40 / 4, 90 / 3.
        assert_eq!(ratio(best.publish), "10.00, 10.00 to 30.00");
        assert_eq!(best.read, None);
        assert_eq!(comparison.of_best_peer.len(), 1, "peers come by TCP");
        let aeron = comparison.rows[4].publish.as_ref().unwrap();
        assert_eq!(ratio(aeron.ours_to_it), "0.50, 0.25 to 2.00");
        let kafka = comparison.rows[2].publish.as_ref().unwrap();
        assert_eq!(
            (kafka.mib_per_s, ratio(kafka.ours_to_it).as_str()),
            (1.5, "25.00, 10.00 to 40.00")
        );
        assert!(
            comparison
                .markdown()
                .contains("| embar |  | 40 (1.00, 1.00 to 1.00) |  |  |")
        );
    }
}
