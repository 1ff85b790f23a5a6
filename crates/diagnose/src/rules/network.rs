//! What the way between the machines does.

use super::{Case, confidence, ramp};
use crate::cause::Cause;
use crate::finding::{Evidence, Finding, Remedy};
use crate::limits::{Limits, Resource, weighted};
use crate::observed::{Connection, SendingEnd, per};

/// Packets of a good network are lost more rarely.
const LOSS_MIN: f64 = 0.001;
/// A way within a machine or a rack is shorter.
const DELAY_MIN_S: f64 = 0.5e-3;
/// One this long is no matter of threads that come late.
const DELAY_SURE_S: f64 = 1e-3;
/// A queue in front of a slow link makes the round trip this many times the shortest one.
const QUEUE_MIN: f64 = 4.0;

/// A segment of loopback has 64 KiB; a send buffer of one or two holds up its connection.
pub(crate) const TINY_BUFFER: f64 = (128 << 10) as f64;

/// A long queue makes it so many times as long, and longer by this, seconds.
const LONG_QUEUE_MIN: f64 = 20.0;
const LONG_QUEUE_S: f64 = 5e-3;

/// And longer than this, seconds.
const QUEUE_S: f64 = 0.5e-3;

/// In front of a slow link bytes wait to be sent.
const UNSENT_MIN: f64 = (32 << 10) as f64;

pub(super) fn look(case: &Case<'_>, found: &mut Vec<Finding>) {
    let observed = case.observed;
    found.extend(find(
        &observed.connections,
        case.limits,
        observed.bytes_per_s(),
    ));
}

/// What is found of the ways of these connections, which carry so many bytes a second.
pub(crate) fn find(
    connections: &[Connection],
    limits: &Limits,
    bytes_per_s: f64,
) -> Option<Finding> {
    let all = || connections.iter().filter(|it| moved(it));
    let busy = weighted(all(), |end| end.busy)?;
    let (sent, resent) =
        all()
            .filter_map(|it| it.sender.as_ref())
            .fold((0.0, 0.0), |(sent, resent), end| {
                (
                    sent + end.sent_bytes as f64,
                    resent + end.resent_bytes as f64,
                )
            });
    let lost = per(resent, sent);
    let least = weighted(all(), |end| end.round_trip_min_s).unwrap_or(0.0);
    let round_trip = weighted(all(), |end| end.round_trip_s).unwrap_or(0.0);
    let unsent = weighted(all(), |end| end.unsent_bytes as f64).unwrap_or(0.0);
    let full = weighted(all(), |end| end.window_full.max(end.send_buffer_full)).unwrap_or(0.0);
    let found = |cause, mut evidence: Vec<Evidence>, confidence, gain_at_most, advice: &str| {
        evidence.extend([
            Evidence::seconds("round trip", round_trip),
            Evidence::seconds("the shortest round trip", least),
            Evidence::share("connections had something to send", busy),
        ]);
        Finding {
            cause,
            part: Resource::Network,
            evidence,
            confidence,
            gain_at_most,
            remedy: Remedy::advice(advice),
            verified: None,
        }
    };
    let waited = (busy - limits.busiest().map_or(0.0, |it| it.share)).max(0.1);
    if lost >= LOSS_MIN {
        return Some(found(
            Cause::NetworkLoss,
            vec![Evidence::share("bytes sent again", lost)],
            confidence(lost, LOSS_MIN, 0.01),
            limits.gain_of_waiting(busy, None),
            "Find where packets are dropped: `ethtool -S`, `tc -s qdisc`, and the switch. Congestion control that bears loss (BBR) may help.",
        ));
    }
    if limits.saturated() || busy < 0.5 {
        return None;
    }
    if least >= DELAY_MIN_S && round_trip < QUEUE_MIN * least {
        return Some(found(
            Cause::NetworkDelay,
            vec![Evidence::share("buffers were full", full)],
            confidence(least, DELAY_MIN_S, DELAY_SURE_S),
            limits.gain_of_waiting(waited.max(full), None),
            "The way is long: let more be on it, by more in flight, more connections, and larger maxima of socket buffers.",
        ));
    }
    // Also where threads take turns bytes wait for a moment, and behind a window that is tiny for longer.
    let window = weighted(all(), |end| end.window_bytes as f64).unwrap_or(0.0);
    let short_queue = least > 0.0
        && round_trip >= (QUEUE_MIN * least).max(QUEUE_S)
        && full < 0.4
        && unsent > UNSENT_MIN
        && window >= TINY_BUFFER;
    (queues(all()) || short_queue).then(|| {
        found(
            Cause::NetworkRateLimit,
            vec![
                Evidence::per_second("bytes", bytes_per_s),
                Evidence::bytes("waited in sockets to be sent", unsent),
            ],
            confidence(round_trip / least, QUEUE_MIN, 20.0),
            limits.gain_of_waiting(waited, None),
            "Packets queue in front of a link that carries no more: a faster link, or fewer bytes.",
        )
    })
}

/// Whether packets wait for each other in front of a link: on an empty way they are many times faster, and on a busy machine they are not as
/// late. With a tiny send buffer it is acknowledgements that wait, for more to acknowledge.
fn queues<'a>(connections: impl Iterator<Item = &'a Connection> + Clone) -> bool {
    let mean = |of: fn(&SendingEnd) -> f64| weighted(connections.clone(), of).unwrap_or(0.0);
    let least = mean(|end| end.round_trip_min_s);
    let round_trip = mean(|end| end.round_trip_s);
    least > 0.0
        && round_trip >= LONG_QUEUE_MIN * least
        && round_trip - least >= LONG_QUEUE_S
        && mean(|end| end.buffer_bytes as f64) >= TINY_BUFFER
}

/// How much a buffer that is full says of the buffer: less where the way is long, which it may have been large enough for otherwise, and
/// where a link lets it fill.
pub(crate) fn confidence_in_buffers<'a>(
    connections: impl Iterator<Item = &'a Connection> + Clone,
) -> f64 {
    if queues(connections.clone()) {
        return 0.3;
    }
    let least = weighted(connections, |end| end.round_trip_min_s).unwrap_or(0.0);
    1.0 - 0.3 * ramp(least, DELAY_MIN_S, DELAY_SURE_S)
}

/// Connections that carry a handful of bytes say nothing.
fn moved(connection: &Connection) -> bool {
    let end = connection.sender.as_ref();
    end.is_some_and(|end| end.sent_bytes > 64 << 10)
}
