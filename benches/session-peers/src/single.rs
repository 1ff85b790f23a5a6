//! One of them, once, in this process.

use crate::arguments::{Arguments, Peer, Test};
use crate::peers::{CapnpRpc, Connected, Embar, Enet, RoundTrips, Tonic, Zeromq};
use anyhow::Context;
use embar_transport::alloc;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::Signal;
use nix::sys::time::{TimeVal, TimeValLike};
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::Instant;

/// What came of it. Costs are those of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Messages per second, from the first to the last answer.
    pub messages_per_s: f64,
    /// Half of all round trips are faster, in microseconds.
    pub p50_us: Option<f64>,
    /// 99 of 100 round trips are faster, in microseconds.
    pub p99_us: Option<f64>,
    /// Processor time, in microseconds.
    pub cpu_us_per_message: f64,
    /// How often memory was asked for, and how much; of ZeroMQ only by Rust, which is not what it is written in.
    pub allocations_per_message: Option<f64>,
    /// Bytes that were asked for.
    pub allocated_bytes_per_message: Option<f64>,
    /// How much more memory the process had at its peak than before it began, in MiB.
    pub peak_mib: f64,
}

/// Measures it, and prints what came of it.
pub fn run(arguments: &Arguments, peer: Peer, test: Test) -> anyhow::Result<()> {
    // The table that started this may be killed.
    set_pdeathsig(Signal::SIGKILL)?;
    let messages = arguments.messages(test);
    let mut report = match peer {
        Peer::Embar => measure::<Embar>(test, messages),
        Peer::Tonic => measure::<Tonic>(test, messages),
        Peer::CapnpRpc => measure::<CapnpRpc>(test, messages),
        Peer::Zeromq => measure::<Zeromq>(test, messages),
        Peer::Enet => measure::<Enet>(test, messages),
    }?;
    if peer == Peer::Zeromq {
        report.allocations_per_message = None;
        report.allocated_bytes_per_message = None;
    }
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{report:#?}");
    }
    Ok(())
}

fn measure<C: Connected>(test: Test, messages: u64) -> anyhow::Result<Report> {
    let memory = memory_kib("VmRSS")?;
    let mut connected = C::start()?;
    let mut run = |messages| match test {
        Test::RoundTrip => connected.round_trips(messages),
        Test::OneWay => connected.one_way(messages).map(|()| RoundTrips::default()),
        Test::Unary => connected.calls(messages),
    };
    run(messages / 10)?;
    let (cpu, begin) = (cpu_us()?, Instant::now());
    let round_trips = run(messages)?;
    let (seconds, cpu) = (begin.elapsed().as_secs_f64(), cpu_us()? - cpu);
    // Counting costs time, so it has messages of its own.
    let before = alloc::of_process();
    alloc::set_counting(true);
    run(messages / 10)?;
    alloc::set_counting(false);
    let allocated = alloc::of_process().since(before);
    let mut nanos = round_trips.nanos;
    nanos.sort_unstable();
    let at = |share: f64| {
        let index = (nanos.len() as f64 * share) as usize;
        nanos.get(index).map(|nanos| *nanos as f64 / 1e3)
    };
    let of_counted = |count: u64| count as f64 / (messages / 10) as f64;
    Ok(Report {
        messages_per_s: messages as f64 / seconds,
        p50_us: at(0.5),
        p99_us: at(0.99),
        cpu_us_per_message: cpu / messages as f64,
        allocations_per_message: Some(of_counted(allocated.times)),
        allocated_bytes_per_message: Some(of_counted(allocated.bytes)),
        peak_mib: (memory_kib("VmHWM")? - memory) / 1024.0,
    })
}

/// What all threads of this process have used so far, for themselves and in the kernel.
fn cpu_us() -> anyhow::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let us = |time: TimeVal| time.num_microseconds() as f64;
    Ok(us(usage.user_time()) + us(usage.system_time()))
}

/// A line of what the kernel says of this process.
fn memory_kib(name: &str) -> anyhow::Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    kib.with_context(|| format!("no {name} in /proc/self/status"))
}

#[cfg(test)]
mod tests {
    use super::measure;
    use crate::arguments::Test;
    use crate::peers::Zeromq;

    #[test]
    fn figures_are_of_each_message() {
        let report = measure::<Zeromq>(Test::RoundTrip, 100).unwrap();
        assert!(report.messages_per_s > 0.0 && report.cpu_us_per_message > 0.0);
        assert!(report.p50_us.unwrap() <= report.p99_us.unwrap());
        let report = measure::<Zeromq>(Test::OneWay, 100).unwrap();
        assert!(report.messages_per_s > 0.0 && report.p50_us.is_none());
    }
}
