//! What the machine lacks.

use super::{Case, confidence};
use crate::cause::Cause;
use crate::finding::{Evidence, Finding, Remedy};
use crate::limits::{Limits, MIN_SHARE, Resource, SATURATED};
use crate::observed::{Machine, Thread};

/// Others may take this share of the processors without being worth a word.
const OTHERS_MIN: f64 = 0.08;
/// A quota that stops threads for less than this share of the time is not worth one.
const THROTTLED_MIN: f64 = 0.03;
/// Time in which a disk is waited for.
const IOWAIT_MIN: f64 = 0.2;

pub(super) fn look(case: &Case<'_>, found: &mut Vec<Finding>) {
    let (machine, limits) = (&case.observed.machine, case.limits);
    found.extend(taken(machine, limits, longest_wait(case)));
    found.extend(throttled(machine, limits));
    too_many_threads(case, found);
    disk(case, found);
    found.extend(wall(
        machine,
        &parts_of_processors(case),
        "More processors, or clients on other machines. On one machine shared memory takes the least processor time: --transport shm.",
    ));
}

/// Others have the processors. A thread of the pipeline waited a share `waited` of the time for one; 0 where the kernel does not say.
pub(crate) fn taken(machine: &Machine, limits: &Limits, waited: f64) -> Option<Finding> {
    let taken = machine.others + machine.unseen + machine.steal;
    // Who has processors to spare loses nothing to others.
    if taken < OTHERS_MIN || machine.busy + machine.steal < SATURATED {
        return None;
    }
    // A pipeline that hardly does anything loses little to others, whatever they do.
    let until_nobody_waits = match waited > 0.0 {
        true => 1.0 / (1.0 - waited).max(MIN_SHARE) - 1.0,
        false => f64::INFINITY,
    };
    let without_them = limits.gain(Resource::Processors, taken, taken);
    let without_them = without_them.min(until_nobody_waits);
    let mut evidence = vec![
        Evidence::share("processors, taken by other processes", machine.others),
        Evidence::share("processors, taken by the host (steal)", machine.steal),
        Evidence::share("processors, busy", machine.busy),
        Evidence::share("a thread of the pipeline waited for a processor", waited),
        Evidence::share(
            "some thread of the machine did",
            machine.cpu_pressure.unwrap_or(waited),
        ),
    ];
    if machine.unseen > 0.0 {
        let what = "processors, taken by what cannot be seen from here";
        evidence.insert(1, Evidence::share(what, machine.unseen));
    }
    Some(Finding {
        cause: Cause::ProcessorsTakenByOthers,
        part: Resource::Processors,
        evidence,
        confidence: confidence(taken, OTHERS_MIN, 0.25),
        gain_at_most: without_them,
        remedy: Remedy::advice(
            "Stop the other processes, or move them or the pipeline to other processors; on a virtual machine with steal, ask for more of the host.",
        ),
        verified: None,
    })
}

/// A quota stops the threads.
pub(crate) fn throttled(machine: &Machine, limits: &Limits) -> Option<Finding> {
    let throttled = machine.throttled.filter(|it| *it >= THROTTLED_MIN)?;
    Some(Finding {
        cause: Cause::ProcessorQuota,
        part: Resource::Processors,
        evidence: vec![
            Evidence::share("time in which a quota stopped threads", throttled),
            Evidence::share("processors, busy with the pipeline", machine.ours),
        ],
        confidence: confidence(throttled, THROTTLED_MIN, 0.2),
        gain_at_most: limits.gain_of_waiting(throttled, None),
        remedy: Remedy::advice(
            "Raise the quota of the control group (cpu.max, or cpu.cfs_quota_us), or the container's processor limit.",
        ),
        verified: None,
    })
}

/// Threads that somebody asked for, and that no processor is there for.
fn too_many_threads(case: &Case<'_>, found: &mut Vec<Finding>) {
    let observed = case.observed;
    let cores = f64::from(observed.machine.cores.max(1));
    let threads: Vec<&Thread> = all_threads(case).collect();
    let preempted: f64 = threads.iter().map(|it| it.preempted_per_s).sum();
    let wanting = threads.iter().filter(|it| it.occupied() > 0.5).count();
    let more = observed.brokers.iter().any(|it| it.network.len() > 1)
        || observed.publisher.as_ref().is_some_and(|publisher| {
            publisher.application.len() > 1 || publisher.threads_per_broker.unwrap_or(1) > 1
        });
    // Of what they share, caches above all, each has less.
    let lost = ((wanting as f64 - cores) * EACH_THREAD_LOSES).min(0.3);
    if !more || (wanting as f64) < WANTING_MIN * cores {
        return;
    }
    found.push(Finding {
        cause: Cause::MoreThreadsThanCores,
        part: Resource::Processors,
        evidence: vec![
            Evidence::count("threads that want to run half of the time or more", wanting as f64),
            Evidence::count("processors", cores),
            Evidence::per_second("threads put aside for others", preempted),
            Evidence::share("a thread waited for a processor", longest_wait(case)),
        ],
        confidence: confidence(wanting as f64 / cores, WANTING_MIN, 10.0),
        gain_at_most: case.limits.gain(Resource::Processors, lost, lost),
        remedy: Remedy::advice(
            "Use fewer threads: --network-threads, --threads-per-broker and --publishers of 1 are the fastest on few processors.",
        ),
        verified: None,
    });
}

/// A pipeline with one thread of each kind has fewer for each processor.
const WANTING_MIN: f64 = 5.0;
/// What each further thread that wants to run took of the rate on two processors, with up to 26 of them: an estimate.
const EACH_THREAD_LOSES: f64 = 0.01;

fn disk(case: &Case<'_>, found: &mut Vec<Finding>) {
    let machine = &case.observed.machine;
    let iowait = machine.iowait;
    if iowait < IOWAIT_MIN {
        return;
    }
    let mut evidence = vec![Evidence::share(
        "processors idle while a disk was waited for",
        iowait,
    )];
    if let Some(stood) = machine.io_pressure {
        evidence.push(Evidence::share("a thread stood still for a disk", stood));
    }
    if let Some(stood) = machine.memory_pressure.filter(|it| *it >= 0.01) {
        evidence.push(Evidence::share("a thread stood still for memory", stood));
    }
    let disks = machine.disks.iter();
    if let Some(disk) = disks.max_by(|a, b| a.busy.total_cmp(&b.busy)) {
        let name = &disk.name;
        evidence.push(Evidence::share(format!("{name} was busy"), disk.busy));
        for (does, count, took) in [
            ("a read", disk.reads, disk.read_s),
            ("a write", disk.writes, disk.write_s),
            ("a flush", disk.flushes, disk.flush_s),
        ] {
            if count > 0 {
                evidence.push(Evidence::seconds(format!("{does} of {name} took"), took));
            }
        }
    }
    found.push(Finding {
        cause: Cause::DiskBound,
        part: Resource::Log,
        evidence,
        confidence: confidence(iowait, IOWAIT_MIN, 0.5),
        gain_at_most: case.limits.gain_of_waiting(iowait, None),
        remedy: Remedy::advice("Look which process writes (`pidstat -d`), or use a faster disk."),
        verified: None,
    });
}

/// No fault: the machine does what it can.
/// `parts` are how many processors each part keeps busy.
pub(crate) fn wall(
    machine: &Machine,
    parts: &[(&'static str, f64)],
    advice: &str,
) -> Option<Finding> {
    let others = machine.others + machine.unseen;
    if machine.busy + machine.steal < SATURATED || machine.ours < others {
        return None;
    }
    let mut evidence = vec![
        Evidence::share("processors, busy with the pipeline", machine.ours),
        Evidence::share("processors, busy with anything", machine.busy),
    ];
    let cores = f64::from(machine.cores.max(1));
    for (name, share) in parts {
        evidence.push(Evidence::share(
            format!("of all processors, {name}"),
            share / cores,
        ));
    }
    Some(Finding {
        cause: Cause::MachineWall,
        part: Resource::Processors,
        evidence,
        confidence: confidence(machine.busy + machine.steal, SATURATED, 0.97),
        gain_at_most: 0.0,
        remedy: Remedy::advice(advice),
        verified: None,
    })
}

/// Processors that each part keeps busy.
pub(super) fn parts_of_processors(case: &Case<'_>) -> Vec<(&'static str, f64)> {
    let observed = case.observed;
    let sum = |threads: &[Thread]| threads.iter().map(|it| it.on_cpu).sum::<f64>();
    let mut parts = Vec::new();
    if let Some(publisher) = &observed.publisher {
        parts.push(("threads that publish", sum(&publisher.application)));
        parts.push(("threads that send", sum(&publisher.senders)));
    }
    let brokers = observed.brokers.iter();
    parts.push((
        "brokers' network threads",
        brokers.clone().map(|broker| sum(&broker.network)).sum(),
    ));
    let ordering = brokers.filter_map(|broker| broker.sequencer.as_ref());
    parts.push(("the sequencer", ordering.map(|it| it.on_cpu).sum()));
    if let Some(subscriber) = &observed.subscriber {
        parts.push(("threads that receive", sum(&subscriber.receivers)));
        parts.push(("threads that read", sum(&subscriber.application)));
    }
    parts.retain(|(_, share)| *share >= 0.01);
    parts
}

fn all_threads<'a>(case: &'a Case<'_>) -> impl Iterator<Item = &'a Thread> {
    let observed = case.observed;
    let publisher = observed.publisher.iter();
    let subscriber = observed.subscriber.iter();
    publisher
        .flat_map(|it| it.application.iter().chain(&it.senders))
        .chain(
            observed
                .brokers
                .iter()
                .flat_map(|it| it.network.iter().chain(&it.sequencer)),
        )
        .chain(subscriber.flat_map(|it| it.application.iter().chain(&it.receivers)))
}

fn longest_wait(case: &Case<'_>) -> f64 {
    all_threads(case).map(|it| it.waiting).fold(0.0, f64::max)
}
