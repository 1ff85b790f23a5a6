//! Buffers between parts that wait for each other. That a buffer is full is a cause only if nobody behind it works all the
//! time.

use super::network::{TINY_BUFFER, confidence_in_buffers};
use super::{Case, confidence};
use crate::cause::Cause;
use crate::finding::{Change, Evidence, Finding, Remedy};
use crate::limits::{Limits, Resource, SATURATED, weighted};
use crate::observed::{Observed, per};

/// A buffer that is full for a shorter time has no part in anything.
const FULL_MIN: f64 = 0.2;
/// The kernel counts its own bookkeeping in: what `SO_RCVBUF` asks for is granted twice (socket(7)).
const GRANTED_FOR_ASKED: u64 = 2;

pub(super) fn look(case: &Case<'_>, found: &mut Vec<Finding>) {
    for to_subscribers in [false, true] {
        let flows = if to_subscribers {
            case.observed.flow.reads()
        } else {
            case.observed.flow.publishes()
        };
        if flows {
            receive_window(case, to_subscribers, found);
            send_buffer(case, to_subscribers, found);
        }
    }
    in_flight(case, found);
}

/// How much whoever empties a buffer works. A thread that waits for a processor does not: it finds more when it has one, if
/// there is room for more.
fn behind(limits: &Limits, to_subscribers: bool) -> f64 {
    if to_subscribers {
        let reader = limits.share(Resource::Reader);
        limits.work(Resource::Receivers).max(reader)
    } else {
        let sequencer = limits.work(Resource::Sequencer);
        limits.work(Resource::Brokers).max(sequencer)
    }
}

/// Bytes that connections carry in a second.
fn sent_per_s(observed: &Observed, to_subscribers: bool) -> f64 {
    let ends = observed.connections_with(to_subscribers);
    let ends = ends.filter_map(|it| it.sender.as_ref());
    per(ends.map(|it| it.sent_bytes as f64).sum(), observed.seconds)
}

/// What a window that fills costs beside the time that both sides wait: an acknowledgement, the packet that opens it again, and
/// a wake-up on each side. And what each byte costs that waits for room in a small one. Fitted to windows of 64 to 512 KiB between threads of two
/// busy processors.
const EACH_WINDOW_S: f64 = 24e-6;
const BYTE_OF_FULL_WINDOW_S: f64 = 0.12e-9;
const SMALL_WINDOW: f64 = (1 << 20) as f64;

/// A window that holds as much as this is large enough for a machine with itself.
const LARGE_WINDOW: f64 = (4 << 20) as f64;

fn receive_window(case: &Case<'_>, to_subscribers: bool, found: &mut Vec<Finding>) {
    let observed = case.observed;
    let these = observed.connections_with(to_subscribers);
    let Some(full) = weighted(these.clone(), |end| end.window_full) else {
        return;
    };
    let busy = behind(case.limits, to_subscribers);
    if full < FULL_MIN || busy >= SATURATED {
        return;
    }
    let window = weighted(these.clone(), |end| end.window_bytes as f64).unwrap_or(0.0);
    let granted: Vec<u64> = these
        .clone()
        .filter_map(|it| Some(it.receiver.as_ref()?.buffer_bytes))
        .collect();
    let granted = granted.iter().max().copied();
    let round_trip = weighted(these, |end| end.round_trip_s).unwrap_or(0.0);
    let sent = sent_per_s(observed, to_subscribers);
    let filled = per(sent, window);
    let cores = f64::from(observed.machine.cores.max(1));
    let of_bytes = match window < SMALL_WINDOW {
        true => sent * BYTE_OF_FULL_WINDOW_S,
        false => 0.0,
    };
    let spent = ((filled * EACH_WINDOW_S + of_bytes) / cores).min(0.9);
    let mut evidence = vec![
        Evidence::share("the receive window was full", full),
        Evidence::share("the busiest of those who empty it worked", busy),
        Evidence::per_second("windows filled", filled),
        Evidence::bytes("the window, at its largest", window),
    ];
    if let Some(granted) = granted {
        evidence.push(Evidence::bytes(
            "the receive buffer, as granted",
            granted as f64,
        ));
    }
    evidence.push(Evidence::seconds("round trip", round_trip));
    if let Some(bytes) = bytes_for_receive(observed, to_subscribers) {
        evidence.push(Evidence::bytes("a receive took", bytes));
    }
    let asked = observed.brokers.iter().find_map(|it| it.recv_buffer);
    let machine = &observed.machine;
    let at_most = machine.tcp_rmem_max.unwrap_or(u64::MAX);
    let (cause, remedy) = match asked {
        Some(_) if !to_subscribers => (
            Cause::ReceiveWindowTooSmall,
            Remedy::change(
                "Leave receive buffers to the kernel, which makes them larger as it needs: start brokers without --recv-buffer.",
                Change::ReceiveBufferTuned,
            ),
        ),
        _ if granted.is_some_and(|granted| granted >= at_most) => (
            Cause::KernelBufferMaxima,
            Remedy::advice(
                "Raise the last number of net.ipv4.tcp_rmem (sysctl): the kernel has made the buffers as large as it may.",
            ),
        ),
        _ => (
            Cause::ReceiveWindowTooSmall,
            Remedy::advice(format!(
                "Let more fit on the way: net.ipv4.tcp_rmem should allow {} bytes and more, and net.ipv4.tcp_moderate_rcvbuf be 1.",
                embar_meter::table::grouped(GRANTED_FOR_ASKED * (1 << 20))
            )),
        ),
    };
    found.push(Finding {
        cause,
        part: Resource::ReceiveBuffers,
        evidence,
        confidence: confidence(full, FULL_MIN, 0.6)
            * confidence_in_buffers(observed.connections_with(to_subscribers))
            * confidence(SATURATED - busy, 0.0, 0.25)
            * confidence(LARGE_WINDOW - window, 0.0, LARGE_WINDOW / 2.0),
        // On a machine with processors to spare it is the waiting that costs, on one without it is the work.
        gain_at_most: case
            .limits
            .gain_of_waiting(full, None)
            .max(case.limits.gain(Resource::Processors, spent, spent)),
        remedy,
        verified: None,
    });
}

/// Bytes that a `recv` of brokers, or of the subscriber, returned.
fn bytes_for_receive(observed: &Observed, to_subscribers: bool) -> Option<f64> {
    let counted = |name: &str| -> f64 {
        if to_subscribers {
            let profile = observed
                .subscriber
                .as_ref()
                .and_then(|it| it.profile.as_ref());
            profile.and_then(|it| it.counter(name)).unwrap_or(0) as f64
        } else {
            observed.brokers.iter().map(|it| it.counter(name)).sum()
        }
    };
    let calls = counted("recv_calls") - counted("recv_eagain");
    (calls > 0.0).then(|| per(counted("recv_bytes"), calls))
}

/// The kernel makes send buffers larger than this where much is sent, unless it is told otherwise.
const SMALL_SEND_BUFFER: f64 = (512 << 10) as f64;
/// What one costs that is filled and emptied, seconds: fitted to buffers of 192 and 320 KiB between threads of two busy processors.
const EACH_SEND_BUFFER_S: f64 = 12e-6;
/// What takes less of all processors is not worth a word.
const SPENT_MIN: f64 = 0.05;

fn send_buffer(case: &Case<'_>, to_subscribers: bool, found: &mut Vec<Finding>) {
    let observed = case.observed;
    let these = observed.connections_with(to_subscribers);
    let Some(full) = weighted(these.clone(), |end| end.send_buffer_full) else {
        return;
    };
    let filler = if to_subscribers {
        Resource::Brokers
    } else {
        Resource::Senders
    };
    let granted = weighted(these.clone(), |end| end.buffer_bytes as f64).unwrap_or(0.0);
    let unsent = weighted(these.clone(), |end| end.unsent_bytes as f64).unwrap_or(0.0);
    let busy = weighted(these.clone(), |end| end.busy).unwrap_or(0.0);
    // With a buffer of a few segments nothing is ever unsent: the connection waits for acknowledgements, or for whoever fills it
    // to be woken, and the kernel does not count that. So it counts as full while nobody works.
    let tiny = granted > 0.0 && granted < TINY_BUFFER && unsent < granted;
    let full = match case.limits.busiest() {
        Some(busiest) if tiny => full.max(1.0 - busiest.share),
        _ => full,
    };
    // One that holds little is filled and emptied by turns, which takes the time of a machine that has none to spare.
    let filled = per(sent_per_s(observed, to_subscribers), granted);
    let cores = f64::from(observed.machine.cores.max(1));
    let spent = match granted < SMALL_SEND_BUFFER {
        true => (filled * EACH_SEND_BUFFER_S / cores).min(0.5),
        false => 0.0,
    };
    let is_full = full >= FULL_MIN;
    let takes_time = spent >= SPENT_MIN && case.limits.share(Resource::Processors) >= SATURATED;
    if !(is_full || takes_time) || case.limits.share(filler) >= SATURATED {
        return;
    }
    let waiting = if is_full { full } else { 0.0 };
    let asked = observed.brokers.iter().find_map(|it| it.send_buffer);
    let change = (asked.is_some() && to_subscribers).then_some(Change::SendBufferTuned);
    let text = "Leave send buffers to the kernel: without --send-buffer. If nothing was asked for, raise net.ipv4.tcp_wmem.";
    found.push(Finding {
        cause: Cause::SendBufferTooSmall,
        part: Resource::SendBuffers,
        evidence: vec![
            Evidence::share("connections had something to send", busy),
            Evidence::share(
                "they ran dry for want of a send buffer, or could hold no more than a few segments",
                full,
            ),
            Evidence::bytes("the send buffer, as granted", granted),
            Evidence::per_second("send buffers filled", filled),
            Evidence::share("of all processors, for that, about", spent),
            Evidence::share(
                "the busiest of those who fill it worked",
                case.limits.share(filler),
            ),
            Evidence::seconds(
                "round trip",
                weighted(these, |end| end.round_trip_s).unwrap_or(0.0),
            ),
        ],
        confidence: confidence(waiting, FULL_MIN, 0.6).max(confidence(spent, SPENT_MIN, 0.2))
            * confidence_in_buffers(observed.connections_with(to_subscribers)),
        gain_at_most: case
            .limits
            .gain_of_waiting(waiting, None)
            .max(case.limits.gain(Resource::Processors, spent, spent)),
        remedy: Remedy {
            text: text.to_owned(),
            change,
        },
        verified: None,
    });
}

/// With less on its way to a broker its threads and the publisher's sleep for each batch, or for a few.
const LITTLE_IN_FLIGHT: u64 = 512 << 10;
/// What each time costs that a thread goes to sleep and is woken, less what remains of it with more in flight: fitted to batches of 32 and
/// 64 KiB, one or two of them in flight, on two busy processors.
const EACH_SLEEP_S: f64 = 8e-6;
/// Part of what may be in flight that must be. Where that is little, it is on its way for a short part of the time that its publisher takes
/// to fill the next.
const IN_FLIGHT_MIN: f64 = 0.6;
const LITTLE_IN_FLIGHT_MIN: f64 = 0.35;
/// What clients have on their way on a connection unless told otherwise, bytes and batches.
const IN_FLIGHT_BYTES: u64 = 2 << 20;
const IN_FLIGHT_BATCHES: (u64, u64) = (4, 64);

/// All that may be on its way is, and nobody works: the way is too long for so little.
fn in_flight(case: &Case<'_>, found: &mut Vec<Finding>) {
    let observed = case.observed;
    let used = case.limits.share(Resource::InFlight);
    let Some(publisher) = &observed.publisher else {
        return;
    };
    // Those of Unix sockets and shared memory are not seen, but known.
    let seen = observed.connections_with(false).count();
    let opened = observed.brokers.iter().filter(|it| it.takes_data).count()
        * publisher.threads_per_broker.unwrap_or(1) as usize;
    let these = if seen > 0 { seen } else { opened }.max(1) as u64;
    let most = publisher.in_flight_max.unwrap_or(0);
    let (each, batch) = (most / these, publisher.batch_bytes.unwrap_or(0));
    let little = each.saturating_mul(batch) < LITTLE_IN_FLIGHT;
    let saturated = case.limits.saturated_behind_publisher();
    let least = match little {
        true => LITTLE_IN_FLIGHT_MIN,
        false => IN_FLIGHT_MIN,
    };
    if used < least || publisher.waits_for_each || (saturated && !little) {
        return;
    }
    let full = case
        .limits
        .share(Resource::ReceiveBuffers)
        .max(case.limits.share(Resource::SendBuffers));
    if full >= 0.4 {
        return;
    }
    let profile = publisher.profile.as_ref();
    let ack = profile
        .and_then(|it| it.stage("WaitForAck"))
        .map_or(0.0, |it| it.avg_ns / 1e9);
    let blocked = crate::limits::blocked(observed).unwrap_or(0.0);
    let batches: f64 = observed
        .brokers
        .iter()
        .map(|it| it.counter("batches"))
        .sum();
    let rate = per(batches, observed.seconds);
    let cores = f64::from(observed.machine.cores.max(1));
    let network = observed.brokers.iter().flat_map(|it| &it.network);
    let threads = network
        .chain(&publisher.senders)
        .chain(&publisher.application);
    let sleeps: f64 = threads.map(|it| it.sleeps_per_s).sum();
    let spent = if little {
        (sleeps * EACH_SLEEP_S / cores).min(0.75)
    } else {
        0.0
    };
    let more = (IN_FLIGHT_BYTES / batch.max(1))
        .clamp(IN_FLIGHT_BATCHES.0, IN_FLIGHT_BATCHES.1)
        .max(each.saturating_mul(2));
    found.push(Finding {
        cause: Cause::TooFewInFlight,
        part: Resource::InFlight,
        evidence: vec![
            Evidence::share("of the batches that may be on their way were", used),
            Evidence::count("batches on their way, at most", most as f64),
            Evidence::bytes("a batch", batch as f64),
            Evidence::per_second("batches", rate),
            Evidence::per_second("times that threads went to sleep", sleeps),
            Evidence::seconds("until it was acknowledged", ack),
            Evidence::share("application threads waited for a buffer", blocked),
        ],
        confidence: confidence(used, least, 0.9)
            * confidence(blocked, 0.1, 0.5)
            * confidence_in_buffers(observed.connections_with(false)),
        gain_at_most: case
            .limits
            .gain_of_waiting(blocked.max(0.1), None)
            .max(case.limits.gain(Resource::Processors, spent, spent)),
        remedy: Remedy::change(
            format!("Let {more} batches be on their way on each connection."),
            Change::BatchesInFlight(more),
        ),
        verified: None,
    });
}
