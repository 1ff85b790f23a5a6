//! What brokers do with their time.

use super::{
    Case, DEFAULT_SYSCALL_S, GAIN_MIN, busiest, confidence, larger_batches, on_a_processor,
};
use crate::cause::Cause;
use crate::finding::{Change, Evidence, Finding, Remedy};
use crate::limits::{Resource, SATURATED, stage_share};
use crate::observed::{Broker, Thread, per};

/// What takes less of a broker's time is not worth a word.
const SHARE_MIN: f64 = 0.1;
/// Batches that are larger than this cost nothing by being batches.
const SMALL_BATCH: f64 = (64 << 10) as f64;
/// Receives that return less are small.
const SMALL_RECEIVE: f64 = (32 << 10) as f64;

pub(super) fn look(case: &Case<'_>, found: &mut Vec<Finding>) {
    let data: Vec<&Broker> = case
        .observed
        .brokers
        .iter()
        .filter(|it| it.takes_data)
        .collect();
    let hottest = data
        .iter()
        .max_by(|a, b| a.occupied().total_cmp(&b.occupied()));
    if let Some(hottest) = hottest {
        log_full(case, &data, found);
        hot(case, &data, hottest, found);
        cold(case, &data, found);
        small_batches(case, &data, found);
        small_reads(case, &data, found);
        busy(case, hottest, found);
    }
    ordering(case, found);
}

/// Time of these stages, as a share of what the brokers' network threads had.
fn stages(case: &Case<'_>, brokers: &[&Broker], names: &[&str]) -> f64 {
    let ns = brokers
        .iter()
        .filter_map(|it| it.profile.as_ref())
        .flat_map(|profile| names.iter().filter_map(|name| profile.stage(name)))
        .map(|row| row.total_ns as f64)
        .sum();
    stage_share(case.observed, ns, threads(brokers)).unwrap_or(0.0)
}

fn threads(brokers: &[&Broker]) -> usize {
    brokers.iter().map(|it| it.network.len()).sum()
}

fn sum(brokers: &[&Broker], counter: &str) -> f64 {
    brokers.iter().map(|it| it.counter(counter)).sum()
}

/// Share of all processors that a share of the time of all the brokers' network threads is.
fn of_machine(case: &Case<'_>, brokers: &[&Broker], share: f64) -> f64 {
    per(
        share * threads(brokers) as f64,
        f64::from(case.observed.machine.cores),
    )
}

/// The mean share in which the brokers' network threads were on a processor.
fn on_cpu(brokers: &[&Broker]) -> f64 {
    let all = brokers.iter().flat_map(|it| &it.network);
    per(all.map(|it| it.on_cpu).sum(), threads(brokers) as f64)
}

/// Whether brokers, or all processors together, are what limits.
fn limits(case: &Case<'_>) -> bool {
    case.limits.share(Resource::Brokers) >= SATURATED
        || case.limits.share(Resource::Processors) >= SATURATED
}

fn log_full(case: &Case<'_>, data: &[&Broker], found: &mut Vec<Finding>) {
    let pauses = sum(data, "pauses");
    let refused = sum(data, "refused_batches");
    let paused = data.iter().filter_map(|it| it.paused_connections);
    let paused: f64 = paused.map(|it| it as f64).sum();
    if pauses + refused + paused == 0.0 {
        return;
    }
    let free: Vec<f64> = data
        .iter()
        .filter_map(|it| Some(per(it.log_free_bytes? as f64, it.log_bytes? as f64)))
        .collect();
    let free = free.iter().copied().fold(1.0, f64::min);
    let times = per(pauses, case.observed.seconds);
    let blocked = crate::limits::blocked(case.observed);
    let mut evidence = vec![
        Evidence::per_second("publishers were paused", times),
        Evidence::count("publishers paused at the end", paused),
        Evidence::count("batches refused", refused),
        Evidence::share("of the fullest log, free", free),
    ];
    evidence
        .extend(blocked.map(|it| Evidence::share("application threads waited for the log", it)));
    found.push(Finding {
        cause: Cause::LogFull,
        part: Resource::Log,
        evidence,
        confidence: confidence(times + paused + refused, 0.0, 10.0),
        // Who does not say for how long it waited may have done nothing else.
        gain_at_most: case.limits.gain_of_waiting(blocked.unwrap_or(1.0), None),
        remedy: Remedy::advice(
            "More memory (--region-size), a higher --high-watermark, or readers that keep up: brokers had no room for what came.",
        ),
        verified: None,
    });
}

/// Of a broker with fewer batches or sends it is chance how many it has.
const MOVED_MIN: f64 = 40.0;
/// Where chance alone spread them, one of thousands of brokers would be so many standard deviations behind.
const BY_CHANCE: f64 = 4.0;

/// One that is busy, or slow, beside others that are not.
fn hot(case: &Case<'_>, data: &[&Broker], busiest: &Broker, found: &mut Vec<Finding>) {
    // One that does not tell what it moved has not moved nothing.
    let data = data.iter().filter(|it| it.profile.is_some());
    let data: Vec<&Broker> = data.copied().collect();
    if data.len() >= 2 {
        found.extend(busier(case, &data, busiest).or_else(|| behind(case, &data)));
    }
}

/// What a broker moved, by the counter of its publishers, or by that of its subscribers where nobody publishes.
fn moved(case: &Case<'_>, broker: &Broker, published: &str, read: &str) -> f64 {
    match case.observed.flow.publishes() {
        true => broker.counter(published),
        false => broker.counter(read),
    }
}

/// Bytes a second of a broker.
fn rate(case: &Case<'_>, broker: &Broker) -> f64 {
    per(
        moved(case, broker, "bytes", "send_bytes"),
        case.observed.seconds,
    )
}

fn sorted(data: &[&Broker], of: impl Fn(&Broker) -> f64) -> Vec<f64> {
    let mut all: Vec<f64> = data.iter().map(|it| of(it)).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// One has more to do than the others.
fn busier(case: &Case<'_>, data: &[&Broker], busiest: &Broker) -> Option<Finding> {
    let rates = sorted(data, |it| rate(case, it));
    let occupied = sorted(data, Broker::occupied);
    let others = occupied[(occupied.len() - 1) / 2];
    let apart = busiest.occupied() - others;
    let without = case.limits.gain(Resource::Brokers, apart, 0.0);
    if busiest.occupied() < SATURATED || apart < 0.25 || without < GAIN_MIN {
        return None;
    }
    Some(Finding {
        cause: Cause::HotBroker,
        part: Resource::Brokers,
        evidence: vec![
            Evidence::share(
                format!("broker {} was busy", busiest.id),
                busiest.occupied(),
            ),
            Evidence::share("the broker in the middle was busy", others),
            Evidence::per_second(
                format!("bytes of broker {}", busiest.id),
                rate(case, busiest),
            ),
            Evidence::per_second("bytes of the broker in the middle", rates[rates.len() / 2]),
        ],
        confidence: confidence(apart, 0.25, 0.5),
        gain_at_most: without,
        remedy: Remedy::advice(
            "Look what else runs where this broker does, and which publishers choose it.",
        ),
        verified: None,
    })
}

/// One does less than the others.
fn behind(case: &Case<'_>, data: &[&Broker]) -> Option<Finding> {
    let slowest = data
        .iter()
        .min_by(|a, b| rate(case, a).total_cmp(&rate(case, b)))?;
    let rates = sorted(data, |it| rate(case, it));
    let middle = rates[rates.len() / 2];
    let moves = sorted(data, |it| moved(case, it, "batches", "send_calls"));
    let usual = moves[moves.len() / 2];
    let behind = 1.0 - per(rate(case, slowest), middle);
    if middle <= 0.0 || usual < MOVED_MIN || behind < (BY_CHANCE / usual.sqrt()).max(0.4) {
        return None;
    }
    Some(Finding {
        cause: Cause::HotBroker,
        part: Resource::Brokers,
        evidence: vec![
            Evidence::per_second(
                format!("bytes of broker {}", slowest.id),
                rate(case, slowest),
            ),
            Evidence::per_second("bytes of the broker in the middle", middle),
            Evidence::share(
                format!("broker {} was busy", slowest.id),
                slowest.occupied(),
            ),
        ],
        confidence: confidence(behind, 0.4, 0.8),
        // The others take what it does not, as far as there are processors for it.
        gain_at_most: case
            .limits
            .gain_of_waiting(per(behind, data.len() as f64), None),
        remedy: Remedy::advice(
            "This broker takes less than the others: look whether it is stopped, short of processors, or on a slower way.",
        ),
        verified: None,
    })
}

/// Pages that are touched for the first time.
fn cold(case: &Case<'_>, data: &[&Broker], found: &mut Vec<Finding>) {
    let machine = &case.observed.machine;
    let network = || data.iter().flat_map(|it| &it.network);
    let faults: f64 = network().map(|it| it.faults as f64).sum();
    let gib = case.observed.bytes as f64 / f64::from(1 << 30);
    if per(faults, gib) < 10_000.0 {
        return;
    }
    let cost = machine.fault_s.unwrap_or(DEFAULT_FAULT_S);
    let in_kernel: f64 = network().map(|it| it.on_cpu * it.system).sum();
    let in_kernel = in_kernel * case.observed.seconds;
    let receiving = machine
        .receive_byte_s
        .map(|it| it * case.observed.bytes as f64);
    // Pages that were never used cost more than those that were measured: the host supplies them, too. What receiving does
    // not explain of the kernel's time is theirs, where brokers do not send as well.
    let sends = case.observed.flow.reads();
    let unexplained = receiving.map_or(0.0, |it| if sends { 0.0 } else { in_kernel - it });
    let time = (faults * cost).max(unexplained);
    let share = per(time, case.observed.seconds * threads(data) as f64).min(on_cpu(data));
    if share < SHARE_MIN / 2.0 {
        return;
    }
    found.push(Finding {
        cause: Cause::ColdMemory,
        part: Resource::Log,
        evidence: vec![
            Evidence::count("pages touched for the first time, for each GiB", per(faults, gib)),
            Evidence::seconds("each costs here, at least", cost),
            Evidence::seconds("brokers were in the kernel, together", in_kernel),
            Evidence::seconds("of that, to receive, at most", receiving.unwrap_or(0.0)),
            Evidence::share("of the brokers' time", share),
        ],
        confidence: confidence(share, SHARE_MIN / 2.0, 0.25),
        gain_at_most: case
            .limits
            .gain(Resource::Brokers, share, of_machine(case, data, share))
            .max(if limits(case) { 0.0 } else { share }),
        remedy: Remedy::advice(
            "Touch memory before it is needed: brokers do so at their start; a second run over the same log is warm.",
        ),
        verified: None,
    });
}

/// Where nobody measured it: 0.5 us natively to 3 us in virtual machines.
const DEFAULT_FAULT_S: f64 = 1.5e-6;

/// What a batch costs, however large it is.
const FOR_EACH_BATCH: [&str; 5] = [
    "DrainHeader",
    "ReserveBLogSpace",
    "GetCXLBuffer",
    "ReservePBRSlotAndWriteEntry",
    "CompleteBatchInCXL",
];

fn small_batches(case: &Case<'_>, data: &[&Broker], found: &mut Vec<Finding>) {
    let observed = case.observed;
    let batches = sum(data, "batches");
    let mean = per(sum(data, "bytes"), batches);
    if batches < 1.0 || mean > SMALL_BATCH {
        return;
    }
    let publisher = observed.publisher.as_ref();
    let full = publisher.and_then(|it| it.batch_bytes).unwrap_or(0) as f64;
    // Batches that are small because little comes are not the cause of anything.
    if full > 0.0 && mean < full / 2.0 {
        return;
    }
    let each = stages(case, data, &FOR_EACH_BATCH);
    // What it costs beside the stages: calls, frames, acknowledgements, wake-ups, on both sides.
    let beside = per(
        batches * BESIDE_STAGES_S,
        observed.seconds * threads(data) as f64,
    );
    let share = (each + beside).min(on_cpu(data));
    let cores = f64::from(observed.machine.cores.max(1));
    // The publisher pays as much once more.
    let of_machine =
        of_machine(case, data, share) + per(batches * BESIDE_STAGES_S, observed.seconds * cores);
    if share.max(of_machine) < BATCHES_MIN {
        return;
    }
    found.push(Finding {
        cause: Cause::BatchesTooSmall,
        part: Resource::Brokers,
        evidence: vec![
            Evidence::bytes("a batch", mean),
            Evidence::bytes("a full batch", full),
            Evidence::per_second("batches", per(batches, observed.seconds)),
            Evidence::share("of the brokers' time, for what each batch costs", share),
            Evidence::share(
                "of all processors, with the publisher's part, about",
                of_machine,
            ),
        ],
        confidence: confidence(share.max(of_machine), BATCHES_MIN, 0.35)
            * confidence(SMALL_BATCH - mean, 0.0, SMALL_BATCH / 2.0),
        gain_at_most: case
            .limits
            .gain(Resource::Brokers, share, of_machine.min(0.9)),
        remedy: larger_batches(
            case,
            "Fill larger batches: a batch size of 256 KiB to 2 MiB.",
        ),
        verified: None,
    });
}

/// What brokers spend on a batch beside these stages, and publishers once more, seconds: fitted to batches of 4 to 64 KiB on two virtual processors, three machines of a kind: 1.8 to 2.7 us.
const BESIDE_STAGES_S: f64 = 2.4e-6;
/// What batches cost is worth a word from this share of the brokers' time, or of all processors.
const BATCHES_MIN: f64 = 0.08;

fn small_reads(case: &Case<'_>, data: &[&Broker], found: &mut Vec<Finding>) {
    let observed = case.observed;
    let calls = sum(data, "recv_calls");
    let cost = observed.machine.syscall_s.unwrap_or(DEFAULT_SYSCALL_S);
    let bytes = per(sum(data, "recv_bytes"), calls);
    let share = per(calls * cost, observed.seconds * threads(data) as f64).min(on_cpu(data));
    if share < SHARE_MIN || bytes > SMALL_RECEIVE {
        return;
    }
    found.push(Finding {
        cause: Cause::SmallReads,
        part: Resource::Brokers,
        evidence: vec![
            Evidence::bytes("a receive returned", bytes),
            Evidence::per_second("receives", per(calls, observed.seconds)),
            Evidence::seconds("each costs at least", cost),
            Evidence::share("of the brokers' time", share),
        ],
        confidence: confidence(share, SHARE_MIN, 0.3),
        gain_at_most: case.limits.gain(
            Resource::Brokers,
            share,
            of_machine(case, data, share),
        ),
        remedy: Remedy::advice(
            "Larger batches, and fewer connections that each carry more; or shared memory, which needs no calls.",
        ),
        verified: None,
    });
}

/// Threads of the same broker that work less than this part of the time that the busiest does have less to do than it.
const HOT_LANE: f64 = 0.5;

/// Connections with publishers that one thread has more of than the others, so that they could be spread better.
fn hot_lane(case: &Case<'_>, hottest: &Broker, busiest: &Thread) -> Option<Finding> {
    let others = hottest.network.iter().filter(|it| it.name != busiest.name);
    let next = others.map(|it| it.on_cpu).reduce(f64::max)?;
    if next > HOT_LANE * busiest.on_cpu {
        return None;
    }
    let threads = hottest.network.len() as u32;
    let publisher = case.observed.publisher.as_ref();
    let connections = publisher.and_then(|it| it.threads_per_broker);
    let text = "Connections go to the threads of a broker in turn: open as many to each broker as it has threads.";
    let remedy = match connections {
        Some(connections) if connections < threads => {
            Remedy::change(text, Change::ThreadsPerBroker(threads))
        }
        _ => Remedy::advice(text),
    };
    let mut found = case.one_more(busiest, (Cause::HotLane, Resource::Brokers), remedy);
    found.evidence.extend([
        Evidence::count("network threads of this broker", threads.into()),
        Evidence::share("the next busiest of them was on a processor", next),
    ]);
    if let Some(connections) = connections {
        let connections = Evidence::count("connections of the publisher to it", connections.into());
        found.evidence.push(connections);
    }
    Some(found)
}

/// A network thread that works all the time while processors are idle.
fn busy(case: &Case<'_>, hottest: &Broker, found: &mut Vec<Finding>) {
    let Some(thread) = case.busy_thread(&hottest.network) else {
        return;
    };
    if let Some(finding) = hot_lane(case, hottest, thread) {
        found.push(finding);
        return;
    }
    let more = hottest.network.len() as u32 + 1;
    let remedy = Remedy::change(
        format!("Give each broker {more} network threads."),
        Change::NetworkThreads(more),
    );
    let limited = (Cause::ReceiverCpuBound, Resource::Brokers);
    found.push(case.one_more(thread, limited, remedy));
}

/// The sequencer works all the time.
fn ordering(case: &Case<'_>, found: &mut Vec<Finding>) {
    let brokers = &case.observed.brokers;
    let threads = brokers.iter().filter_map(|it| it.sequencer.as_ref());
    let Some(thread) = busiest(threads).filter(|it| it.on_cpu >= SATURATED) else {
        return;
    };
    let batches: f64 = brokers.iter().map(|it| it.counter("batches")).sum();
    let mut evidence = vec![
        on_a_processor(thread),
        Evidence::per_second("batches", per(batches, case.observed.seconds)),
    ];
    let lanes = |of: fn(&Broker) -> Option<u64>| {
        let all = brokers.iter().filter_map(of);
        all.reduce(u64::saturating_add).map(|it| it as f64)
    };
    let waiting = lanes(|it| it.lane_batches).map(|it| ("batches that wait for their place", it));
    let held = lanes(|it| it.held_batches);
    let held = held.map(|it| ("of these, behind a missing one of their publisher", it));
    let capacity = lanes(|it| it.lane_capacity).map(|it| ("batches that may wait", it));
    let lanes = [waiting, held, capacity].into_iter().flatten();
    evidence.extend(lanes.map(|(what, count)| Evidence::count(what, count)));
    found.push(Finding {
        cause: Cause::SequencerBound,
        part: Resource::Sequencer,
        evidence,
        confidence: confidence(thread.on_cpu, SATURATED, 0.97),
        gain_at_most: case.limits.gain(Resource::Sequencer, thread.on_cpu, 0.0),
        remedy: larger_batches(
            case,
            "Larger batches: the sequencer's work is for each batch.",
        ),
        verified: None,
    });
}
