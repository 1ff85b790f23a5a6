//! Where the time of a run went, and what was allocated, by stage.

use std::fmt::Write as _;

use embar_meter::table::{Table, grouped};
use embar_meter::{Snapshot, StageRow};
use embar_mux::profile;
use embar_transport::alloc::{self, Allocated};
use serde::Serialize;

/// The meters of the process at one moment, or what they counted in between.
#[derive(Clone, Debug)]
pub struct ProfileReading {
    stages: Snapshot,
    allocated: Allocated,
}

impl ProfileReading {
    /// Reads the meters.
    pub fn now() -> Self {
        Self {
            stages: profile::snapshot(),
            allocated: alloc::of_process(),
        }
    }

    /// What the meters counted since an earlier reading.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            stages: self.stages.since(&earlier.stages),
            allocated: self.allocated.since(earlier.allocated),
        }
    }
}

/// Where the time of a run went, and what was allocated.
#[derive(Clone, Debug, Serialize)]
pub struct Profile {
    title: String,
    stages: Vec<Stage>,
    /// Operations that succeeded meanwhile.
    operations: u64,
    /// Processor time of this process, nanoseconds.
    cpu_ns: u64,
    /// All that this process allocated, in stages and outside of them.
    #[serde(flatten)]
    process: Allocations,
}

#[derive(Clone, Debug, Serialize)]
struct Stage {
    #[serde(flatten)]
    time: StageRow,
    #[serde(flatten)]
    allocations: Allocations,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Allocations {
    allocations: u64,
    allocated_bytes: u64,
    allocations_per_op: f64,
    allocated_bytes_per_op: f64,
}

impl Allocations {
    fn of(allocations: u64, allocated_bytes: u64, operations: u64) -> Self {
        let per_op = |count: u64| count as f64 / operations.max(1) as f64;
        Self {
            allocations,
            allocated_bytes,
            allocations_per_op: per_op(allocations),
            allocated_bytes_per_op: per_op(allocated_bytes),
        }
    }

    /// Allocations and bytes for each operation, as columns.
    fn cells(self) -> [String; 2] {
        [self.allocations_per_op, self.allocated_bytes_per_op].map(|count| match count {
            0.0 => "0".to_owned(),
            // Not taken for none.
            count if count < 0.001 => "<0.001".to_owned(),
            count => format!("{count:.3}"),
        })
    }
}

impl Profile {
    /// The profile of a run with `operations` operations.
    pub fn of(seen: &ProfileReading, cpu_ns: u64, operations: u64) -> Self {
        let allocated = profile::allocated(&seen.stages);
        let stages = seen.stages.stages.iter().zip(allocated);
        let stage = |(time, (times, bytes)): (&StageRow, (u64, u64))| Stage {
            time: time.clone(),
            allocations: Allocations::of(times, bytes, operations),
        };
        let Allocated { times, bytes } = seen.allocated;
        Self {
            title: seen.stages.title.clone(),
            stages: stages.map(stage).collect(),
            operations,
            cpu_ns,
            process: Allocations::of(times, bytes, operations),
        }
    }

    fn outside(&self) -> Allocations {
        let within = |of: fn(&Allocations) -> u64| -> u64 {
            self.stages.iter().map(|stage| of(&stage.allocations)).sum()
        };
        let process = &self.process;
        Allocations::of(
            process
                .allocations
                .saturating_sub(within(|a| a.allocations)),
            process
                .allocated_bytes
                .saturating_sub(within(|a| a.allocated_bytes)),
            self.operations,
        )
    }

    /// The profile for people.
    pub fn table(&self) -> String {
        let mut table = Table::new([
            "Component",
            "total (us)",
            "count",
            "avg (ns)",
            "% of pipeline",
            "allocations/op",
            "bytes/op",
        ]);
        let micros = |ns: u64| grouped(ns.saturating_add(500) / 1000);
        for Stage { time, allocations } in &self.stages {
            let [times, bytes] = allocations.cells();
            table.row([
                time.name.clone(),
                micros(time.total_ns),
                grouped(time.count),
                format!("{:.1}", time.avg_ns),
                format!("{:.2}%", time.share * 100.0),
                times,
                bytes,
            ]);
        }
        let within: u64 = self.stages.iter().map(|stage| stage.time.total_ns).sum();
        let nothing = || "-".to_owned();
        for (name, time, allocations) in [
            ("outside the stages", nothing(), self.outside()),
            ("TOTAL", micros(within), self.process),
        ] {
            let [times, bytes] = allocations.cells();
            let name = name.to_owned();
            table.row([name, time, nothing(), nothing(), nothing(), times, bytes]);
        }
        let line = |ns: u64| {
            format!(
                "{} us, {:.2} us per operation, {:.1}% of the process",
                grouped(ns / 1000),
                ns as f64 / 1e3 / self.operations.max(1) as f64,
                100.0 * ns as f64 / self.cpu_ns.max(1) as f64
            )
        };
        let other = match self.cpu_ns.checked_sub(within) {
            Some(other) => line(other),
            None => "unknown: threads were often interrupted within stages".to_owned(),
        };
        let mut text = format!("[{}]\n{table}", self.title);
        let cpu = line(self.cpu_ns);
        let written = write!(
            text,
            "\nprocessor time of the process  {cpu}\nof this outside the stages     {other}"
        );
        assert!(written.is_ok(), "a String takes everything");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1000 operations: 6 allocations in stages, 2 of them in the first, and 9 in all.
    fn seen() -> ProfileReading {
        let names = ["Submit", "Parse"];
        let stages = names.map(|name| (name.to_owned(), 500_000, 1000));
        let counters = [2, 4, 2000, 100].map(|value| (String::new(), value));
        ProfileReading {
            stages: Snapshot::new("Title", stages, counters),
            allocated: Allocated {
                times: 9,
                bytes: 5000,
            },
        }
    }

    #[test]
    fn allocations_are_counted_by_stage_and_for_the_rest() {
        let profile = Profile::of(&seen(), 3_000_000, 1000);
        let json = serde_json::to_value(&profile).expect("JSON");
        let stage = &json["stages"][0];
        assert_eq!(
            (&stage["name"], &stage["allocations"]),
            (&"Submit".into(), &2.into())
        );
        assert_eq!(stage["allocated_bytes_per_op"], 2.0);
        assert_eq!(stage["total_ns"], 500_000);
        assert_eq!(
            (&json["allocations"], &json["cpu_ns"]),
            (&9.into(), &3_000_000.into())
        );
        let outside = profile.outside();
        assert_eq!((outside.allocations, outside.allocated_bytes), (3, 2900));
        let table = profile.table();
        for part in [
            "allocations/op",
            "0.002",
            "0.003",
            "2.900",
            "2,000 us, 2.00 us",
        ] {
            assert!(table.contains(part), "{part} in {table}");
        }
    }

    #[test]
    fn few_allocations_are_not_taken_for_none() {
        let cells = |times| Allocations::of(times, 0, 1_000_000).cells();
        assert_eq!(cells(0), ["0", "0"]);
        assert_eq!(cells(1)[0], "<0.001");
        assert_eq!(cells(1_500_000)[0], "1.500");
    }
}
