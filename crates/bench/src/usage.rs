//! What a trial cost: CPU, page faults, memory, of this process and of the brokers.

use std::fmt;
use std::time::Duration;

use anyhow::Result;
use embar_meter::Snapshot;
use embar_readings::process::{ProcessReading, Usage};
use serde::Serialize;

/// Connections that a client made to data brokers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Connections {
    /// By TCP.
    pub tcp_connections: u64,
    /// By Unix sockets.
    pub unix_connections: u64,
    /// By shared memory.
    pub shm_connections: u64,
}

impl Connections {
    /// Those that a client's profile counts.
    pub fn of(profile: &Snapshot) -> Self {
        let count = |name| {
            let mut counters = profile.counters.iter();
            counters
                .find(|(it, _)| it == name)
                .map_or(0, |(_, count)| *count)
        };
        Self {
            tcp_connections: count("tcp_connections"),
            unix_connections: count("unix_connections"),
            shm_connections: count("shm_connections"),
        }
    }
}

impl fmt::Display for Connections {
    /// `by TCP`, `by Unix sockets`, `by shared memory`, or how many by each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            ("TCP", self.tcp_connections),
            ("Unix sockets", self.unix_connections),
            ("shared memory", self.shm_connections),
        ];
        let used: Vec<_> = all.into_iter().filter(|(_, count)| *count > 0).collect();
        f.write_str("by ")?;
        match &used[..] {
            [] => f.write_str("TCP"),
            [(name, _)] => f.write_str(name),
            several => {
                let parts = several
                    .iter()
                    .map(|(name, count)| format!("{name} ({count})"));
                f.write_str(&parts.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// Readings at the start of a measurement.
pub struct Meters {
    client: ProcessReading,
    brokers: Vec<ProcessReading>,
}

/// What processes used; per GiB of message bytes where the name says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// CPU seconds, user and kernel.
    pub cpu_s_per_gib: f64,
    /// The kernel's part of them.
    pub system_s_per_gib: f64,
    /// CPUs kept busy on average.
    pub cpus: f64,
    /// Page faults served without I/O, during the measurement.
    pub minor_faults_per_gib: f64,
    /// Largest resident set so far; of brokers the sum, in which each counts the shared pages that it has touched.
    pub peak_rss_bytes: u64,
}

/// What both sides used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Costs {
    /// What this process used.
    pub client: Cost,
    /// What all brokers used together.
    pub brokers: Cost,
}

impl Meters {
    /// Reads this process and those of the brokers.
    pub fn start(brokers: &[u32]) -> Result<Self> {
        Ok(Self {
            client: ProcessReading::of_self()?,
            brokers: read_all(brokers)?,
        })
    }

    /// Reads them again.
    pub fn stop(&self, bytes: u64) -> Result<Costs> {
        let pids: Vec<u32> = self.brokers.iter().map(|reading| reading.pid).collect();
        let brokers = read_all(&pids)?
            .iter()
            .zip(&self.brokers)
            .map(|(after, before)| after.since(before))
            .collect::<Result<Vec<_>, _>>()?;
        let client = ProcessReading::of_self()?.since(&self.client)?;
        Ok(Costs {
            client: cost(&[client], bytes),
            brokers: cost(&brokers, bytes),
        })
    }
}

fn read_all(pids: &[u32]) -> Result<Vec<ProcessReading>> {
    Ok(pids
        .iter()
        .map(|pid| ProcessReading::of(*pid))
        .collect::<Result<_, _>>()?)
}

fn cost(usages: &[Usage], bytes: u64) -> Cost {
    let gib = bytes as f64 / (1u64 << 30) as f64;
    let sum = |part: fn(&Usage) -> f64| usages.iter().map(part).sum::<f64>();
    let per_gib = |value: f64| if gib > 0.0 { value / gib } else { 0.0 };
    Cost {
        cpu_s_per_gib: per_gib(sum(Usage::cpu_s)),
        system_s_per_gib: per_gib(sum(|usage| usage.system_s)),
        cpus: sum(Usage::cpus),
        minor_faults_per_gib: per_gib(sum(|usage| usage.minor_faults as f64)),
        peak_rss_bytes: usages.iter().filter_map(|usage| usage.peak_rss_bytes).sum(),
    }
}

/// Medians of each number over trials.
pub fn median(costs: &[Costs]) -> Costs {
    let side = |side: fn(&Costs) -> &Cost| {
        let of = |part: fn(&Cost) -> f64| {
            let values: Vec<f64> = costs.iter().map(|costs| part(side(costs))).collect();
            embar_meter::stats::median(&values).unwrap_or(0.0)
        };
        Cost {
            cpu_s_per_gib: of(|cost| cost.cpu_s_per_gib),
            system_s_per_gib: of(|cost| cost.system_s_per_gib),
            cpus: of(|cost| cost.cpus),
            minor_faults_per_gib: of(|cost| cost.minor_faults_per_gib),
            peak_rss_bytes: costs
                .iter()
                .map(|costs| side(costs).peak_rss_bytes)
                .max()
                .unwrap_or(0),
        }
    };
    Costs {
        client: side(|costs| &costs.client),
        brokers: side(|costs| &costs.brokers),
    }
}

/// The rate at which messages moved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    /// MiB of message bytes per second.
    pub mib_per_s: f64,
    /// Messages per second.
    pub messages_per_s: f64,
    /// How long it took.
    pub seconds: f64,
}

impl Rate {
    /// The rate of `messages` messages of `bytes` bytes in all.
    pub fn new(bytes: u64, messages: u64, elapsed: Duration) -> Self {
        Self {
            mib_per_s: embar_console::size::mib_per_s(bytes, elapsed),
            messages_per_s: embar_console::size::per_s(messages as f64, elapsed),
            seconds: elapsed.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(cpu: f64, faults: u64, peak: u64) -> Usage {
        Usage {
            elapsed_s: 2.0,
            user_s: cpu / 2.0,
            system_s: cpu / 2.0,
            minor_faults: faults,
            major_faults: 0,
            peak_rss_bytes: Some(peak),
        }
    }

    #[test]
    fn processes_add_up_and_are_divided_by_gib() {
        let cost = cost(&[usage(1.0, 10, 100), usage(3.0, 30, 200)], 2 << 30);
        assert_eq!(
            (cost.cpu_s_per_gib, cost.system_s_per_gib, cost.cpus),
            (2.0, 1.0, 2.0)
        );
        assert_eq!(
            (cost.minor_faults_per_gib, cost.peak_rss_bytes),
            (20.0, 300)
        );
    }

    #[test]
    fn the_median_is_taken_number_by_number_and_the_peak_is_the_largest() {
        let costs: Vec<Costs> = [1.0, 5.0, 3.0]
            .map(|cpu| Costs {
                client: cost(&[usage(cpu, 0, cpu as u64)], 1 << 30),
                ..Costs::default()
            })
            .to_vec();
        let median = median(&costs);
        assert_eq!(
            (median.client.cpu_s_per_gib, median.client.peak_rss_bytes),
            (3.0, 5)
        );
    }

    #[test]
    fn this_process_can_be_read() {
        let meters = Meters::start(&[std::process::id()]).expect("readable");
        let costs = meters.stop(1 << 30).expect("readable");
        assert!(costs.client.peak_rss_bytes > 0);
        assert!(Meters::start(&[4_194_305]).is_err(), "no such process");
    }
}
