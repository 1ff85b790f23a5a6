//! The datagrams of a session that wait, in both directions, and which of them are thrown away. No I/O, no clock.
//!
//! Invariants
//! - No queue holds more than its limit; who comes to a full one takes the place of the oldest.
//! - The numbers of what is sent rise by one each.

use std::collections::VecDeque;

use embar_frame::Now;

use super::{DATAGRAM_HEADER_BYTES, DatagramOrder, DatagramSettings};

/// Most ids of which the newest number is known. Of those that are not, late ones cannot be told.
const KNOWN_IDS: usize = 64;

/// Bits of a number on the wire. At a million per second they last for nine years.
const NUMBER_BITS: u32 = 48;

/// A datagram that came.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::runtime) struct ReceivedDatagram {
    pub(super) id: u16,
    pub(super) sequence: u64,
    pub(super) payload: Box<[u8]>,
}

/// The header of a datagram: its id, then its number.
pub(super) fn header(id: u16, sequence: u64) -> [u8; DATAGRAM_HEADER_BYTES] {
    (u64::from(id) | sequence << 16).to_le_bytes()
}

/// Its id, its number and the rest; `None`: it is too short.
fn parse(datagram: &[u8]) -> Option<(u16, u64, &[u8])> {
    let (header, payload) = datagram.split_first_chunk()?;
    let header = u64::from_le_bytes(*header);
    Some((header as u16, header >> 16, payload))
}

/// The datagrams of a session that wait.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// With the times since when they wait.
    outgoing: VecDeque<(Now, Vec<u8>)>,
    incoming: VecDeque<ReceivedDatagram>,
    /// The number of the next one sent.
    next: u64,
    newest: Vec<(u16, u64)>,
}

impl Queues {
    /// Queues a datagram with room for its header in front; true: the oldest went for it.
    pub(super) fn send(
        &mut self,
        limits: &DatagramSettings,
        now: Now,
        id: u16,
        mut bytes: Vec<u8>,
    ) -> bool {
        let sequence = self.next & ((1 << NUMBER_BITS) - 1);
        self.next += 1;
        bytes[..DATAGRAM_HEADER_BYTES].copy_from_slice(&header(id, sequence));
        push(&mut self.outgoing, limits.max_queued, (now, bytes))
    }

    /// The oldest one that did not wait for too long, and how many did.
    pub(super) fn next_to_send(
        &mut self,
        limits: &DatagramSettings,
        now: Now,
    ) -> (Option<Vec<u8>>, u64) {
        let mut late = 0;
        while let Some((since, bytes)) = self.outgoing.pop_front() {
            if limits.max_wait.is_zero() || now.since(since) <= limits.max_wait {
                return (Some(bytes), late);
            }
            late += 1;
        }
        (None, late)
    }

    /// A datagram came. Whether it is the only one that waits, and how many were thrown away for it, itself perhaps.
    pub(super) fn receive(&mut self, limits: &DatagramSettings, datagram: &[u8]) -> (bool, u64) {
        let Some((id, sequence, payload)) = parse(datagram) else {
            return (false, 1);
        };
        let reserved = id >= embar_frame::FIRST_RESERVED_ID;
        if reserved || limits.order == DatagramOrder::Newest && !self.is_newest(id, sequence) {
            return (false, 1);
        }
        let is_first = self.incoming.is_empty();
        let payload = payload.into();
        let received = ReceivedDatagram {
            id,
            sequence,
            payload,
        };
        let full = push(&mut self.incoming, limits.max_received, received);
        (is_first, u64::from(full))
    }

    pub(super) fn take_received(&mut self) -> Option<ReceivedDatagram> {
        self.incoming.pop_front()
    }

    fn is_newest(&mut self, id: u16, sequence: u64) -> bool {
        if let Some((_, newest)) = self.newest.iter_mut().find(|(known, _)| *known == id) {
            let is_newer = *newest < sequence;
            *newest = sequence.max(*newest);
            return is_newer;
        }
        if self.newest.len() == KNOWN_IDS {
            let oldest = (0..KNOWN_IDS).min_by_key(|&at| self.newest[at].1);
            self.newest.swap_remove(oldest.unwrap_or(0));
        }
        self.newest.push((id, sequence));
        true
    }
}

/// Queues what came last; true: the oldest went for it.
fn push<T>(queue: &mut VecDeque<T>, limit: usize, item: T) -> bool {
    let full = queue.len() >= limit.max(1);
    if full {
        queue.pop_front();
    }
    queue.push_back(item);
    full
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MAX_WAIT: Duration = Duration::from_millis(50);

    fn limits(order: DatagramOrder) -> DatagramSettings {
        DatagramSettings {
            max_queued: 2,
            max_received: 2,
            max_wait: MAX_WAIT,
            order,
        }
    }

    fn datagram(id: u16, sequence: u64) -> Vec<u8> {
        [&header(id, sequence)[..], b"x"].concat()
    }

    fn waiting(queues: &mut Queues) -> Vec<(u16, u64)> {
        let all = std::iter::from_fn(|| queues.take_received());
        all.map(|it| (it.id, it.sequence)).collect()
    }

    #[test]
    fn the_oldest_goes_at_the_limit_in_both_directions() {
        let limits = limits(DatagramOrder::Newest);
        let mut queues = Queues::default();
        let room = || vec![0; DATAGRAM_HEADER_BYTES + 1];
        let sent = (0..4).map(|id| queues.send(&limits, Now(0), id, room()));
        let displaced: Vec<bool> = sent.collect();
        assert_eq!(displaced, [false, false, true, true]);
        let left = std::iter::from_fn(|| queues.next_to_send(&limits, Now(0)).0);
        let left: Vec<_> = left.filter_map(|it| Some(parse(&it)?.1)).collect();
        assert_eq!(left, [2, 3]);

        let came = [5, 6, 7].map(|number| queues.receive(&limits, &datagram(1, number)));
        assert_eq!(came, [(true, 0), (false, 0), (false, 1)]);
        assert_eq!(waiting(&mut queues), [(1, 6), (1, 7)]);
    }

    #[test]
    fn what_waited_for_too_long_is_not_sent() {
        let mut limits = limits(DatagramOrder::Newest);
        let room = || vec![0; DATAGRAM_HEADER_BYTES];
        let at = |ms| Now(0).after(Duration::from_millis(ms));
        let mut queues = Queues::default();
        queues.send(&limits, at(0), 1, room());
        queues.send(&limits, at(30), 2, room());
        let (next, late) = queues.next_to_send(&limits, at(60));
        assert_eq!((next.map(|it| it[0]), late), (Some(2), 1));
        queues.send(&limits, at(60), 3, room());
        assert_eq!(queues.next_to_send(&limits, at(111)), (None, 1));
        limits.max_wait = Duration::ZERO;
        queues.send(&limits, at(0), 4, room());
        assert!(queues.next_to_send(&limits, at(1_000_000)).0.is_some());
    }

    #[test]
    fn late_ones_of_the_same_id_go_unless_all_are_wanted() {
        let mut queues = Queues::default();
        let newest = limits(DatagramOrder::Newest);
        assert_eq!(queues.receive(&newest, &datagram(1, 5)), (true, 0));
        // Another id has a newest of its own.
        assert_eq!(queues.receive(&newest, &datagram(2, 3)), (false, 0));
        assert_eq!(queues.receive(&newest, &datagram(1, 4)), (false, 1));
        assert_eq!(queues.receive(&newest, &datagram(1, 5)), (false, 1));
        assert_eq!(waiting(&mut queues), [(1, 5), (2, 3)]);
        let all = limits(DatagramOrder::Arrival);
        assert_eq!(queues.receive(&all, &datagram(1, 4)), (true, 0));
        assert_eq!(waiting(&mut queues), [(1, 4)]);
    }

    #[test]
    fn what_is_no_datagram_is_dropped() {
        let mut queues = Queues::default();
        let limits = limits(DatagramOrder::Newest);
        assert_eq!(queues.receive(&limits, &[1; 7]), (false, 1));
        assert_eq!(queues.receive(&limits, &datagram(0xFF00, 1)), (false, 1));
        assert_eq!(queues.receive(&limits, &[0; 8]), (true, 0));
    }

    #[test]
    fn a_peer_with_all_ids_makes_the_table_no_larger() {
        let mut queues = Queues::default();
        let limits = limits(DatagramOrder::Newest);
        for id in 0..1000 {
            queues.receive(&limits, &datagram(id, u64::from(id)));
        }
        assert_eq!(queues.newest.len(), KNOWN_IDS);
        // The latest ones are known.
        assert_eq!(queues.receive(&limits, &datagram(999, 998)), (false, 1));
    }
}
