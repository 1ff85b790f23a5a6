//! Checks I9 of one broker: its buffers and connections stay below their limits, and when all connections are gone it
//! has given back what they took.

use embar_memory::Simulated;
use embar_transport::{RecvBuf, SendBuf};
use embar_wire::limits::MAX_CONTROL_BYTES;

use crate::host::Broker;
use crate::plan::Plan;
use crate::violation::{Check, Invariant, ensure};

/// What a connection's ring holds of acknowledgements and answers (64 KiB), or a longer answer, and
/// one read of the log (4 MiB).
const SEND_BYTES_MAX: usize = (4 << 20) + (64 << 10) + MAX_CONTROL_BYTES as usize;
/// What the ring for requests and headers holds.
const RECV_RING_BYTES: u32 = 128 << 10;

/// Connections of one host that are being refused at the same time.
const REFUSED_MAX: usize = 32;

/// Connections that one host may have to a broker, others than the broker's own: half of all, and those
/// that are refused.
pub fn share_of_connections(plan: &Plan) -> usize {
    plan.config.max_connections.div_ceil(2) + REFUSED_MAX
}

/// A living broker, after each of its turns.
pub fn broker(broker: &Broker, plan: &Plan) -> Check {
    let log = broker.node.log();
    let max_batch = u64::from(plan.config.max_batch_bytes);
    let share = u64::from(plan.config.high_watermark_percent);
    let limit = plan.geometry.payload_bytes / 100 * share + max_batch;
    let reserved = log.reserved_bytes();
    ensure(Invariant::I9, reserved <= limit, || {
        format!("{reserved} bytes are reserved, above {limit}")
    })?;
    let (open, known) = (broker.node.connections(), broker.connections());
    ensure(Invariant::I9, open == known, || {
        format!("{open} connections are counted, {known} are there")
    })
}

/// What the broker hands to the network.
pub fn receive(buf: &RecvBuf<Simulated>, plan: &Plan) -> Check {
    let limit = plan.config.max_batch_bytes.max(RECV_RING_BYTES) as usize;
    ensure(Invariant::I9, buf.remaining() <= limit, || {
        format!("{buf:?} is larger than any frame")
    })
}

/// What the broker hands to the network.
pub fn send(buf: &SendBuf<Simulated>) -> Check {
    ensure(Invariant::I9, buf.total() <= SEND_BYTES_MAX, || {
        format!("{buf:?} is too large")
    })
}

/// To be checked when every connection is gone.
pub fn idle(broker: &Broker) -> Check {
    let log = broker.node.log();
    let left = (log.reserved_bytes(), broker.node.connections());
    ensure(Invariant::I9, left == (0, 0), || {
        format!("(bytes, connections) {left:?} were never given back")
    })
}
