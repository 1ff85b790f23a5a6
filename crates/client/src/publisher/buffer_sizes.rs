//! How many batch buffers a publisher has, and how large.

/// Batches in flight on each connection, at least: one on the wire, one behind it, two on their way back.
const IN_FLIGHT_MIN: usize = 4;
/// Bytes in flight on each connection that keep it busy, if batches are so small that more of them are needed.
const IN_FLIGHT_BYTES: usize = 2 << 20;
/// Batches in flight on each connection, at most, unless told otherwise.
const IN_FLIGHT_MAX: usize = 64;
/// And these for the batches being filled.
const BUFFERS_FILLING: usize = 2;

/// How many batch buffers there are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Buffers {
    /// As many as may be in flight there, and some.
    PerConnection(Option<usize>),
    Count(usize),
    Bytes(usize),
}

/// The buffers of one publisher.
#[derive(Debug, Clone, Copy)]
pub(super) struct BufferSizes {
    pub(super) batch_bytes: usize,
    pub(super) buffers: Buffers,
}

impl BufferSizes {
    /// How many there are for so many connections.
    pub(super) fn count(self, connections: u32) -> usize {
        match self.buffers {
            Buffers::PerConnection(each) => {
                let each = each.unwrap_or_else(|| in_flight(self.batch_bytes));
                connections as usize * each + BUFFERS_FILLING
            }
            Buffers::Count(count) => count,
            Buffers::Bytes(bytes) => (bytes / self.batch_bytes).max(2),
        }
    }
}

/// Batches of this size that are in flight on one connection, at most, unless told otherwise.
pub(super) fn in_flight(batch_bytes: usize) -> usize {
    (IN_FLIGHT_BYTES / batch_bytes).clamp(IN_FLIGHT_MIN, IN_FLIGHT_MAX)
}

#[cfg(test)]
mod tests {
    use super::{BufferSizes, Buffers};

    #[test]
    fn buffers_follow_connections_unless_they_are_counted() {
        for (buffers, expected) in [
            (Buffers::PerConnection(Some(4)), 14),
            (Buffers::PerConnection(None), 3 * 64 + 2),
            (Buffers::Count(5), 5),
            (Buffers::Bytes(4096 * 7 + 1), 7),
            (Buffers::Bytes(0), 2),
        ] {
            let batch_bytes = 4096;
            let sizes = BufferSizes {
                batch_bytes,
                buffers,
            };
            assert_eq!(sizes.count(3), expected, "{buffers:?}");
        }
    }
}
