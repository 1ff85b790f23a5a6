//! One direction of a connection: bytes that arrive later, in pieces, in order, or not at all.

use std::collections::VecDeque;

use crate::random::Random;

/// How a direction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The sender said that nothing more comes.
    Fin,
    /// The connection is no more.
    Reset,
}

#[derive(Debug)]
struct Packet {
    at: u64,
    bytes: Vec<u8>,
    taken: usize,
}

/// The bytes of one direction, and when they arrive. Times are in nanoseconds.
#[derive(Debug)]
pub struct Pipe {
    /// Bytes that it holds at most, like the socket buffers of both ends.
    window: usize,
    packets: VecDeque<Packet>,
    bytes: usize,
    end: Option<(u64, End)>,
    stalled_until: u64,
    last_at: u64,
}

impl Pipe {
    /// An empty one that holds so many bytes.
    pub fn new(window: usize) -> Self {
        Self {
            window,
            packets: VecDeque::new(),
            bytes: 0,
            end: None,
            stalled_until: 0,
            last_at: 0,
        }
    }

    /// Bytes that can be written now.
    pub fn room(&self) -> usize {
        if self.end.is_some() {
            return 0;
        }
        self.window.saturating_sub(self.bytes)
    }

    /// Sends bytes, which can be read from `at` on, or when all before them were.
    pub fn write(&mut self, bytes: Vec<u8>, at: u64) {
        if bytes.is_empty() || self.end.is_some() {
            return;
        }
        self.last_at = self.last_at.max(at);
        self.bytes += bytes.len();
        self.packets.push_back(Packet {
            at: self.last_at,
            bytes,
            taken: 0,
        });
    }

    /// Bytes that can be read now.
    pub fn readable(&self, now: u64) -> usize {
        if now < self.stalled_until {
            return 0;
        }
        let arrived = self.packets.iter().take_while(|p| p.at <= now);
        arrived.map(|p| p.bytes.len() - p.taken).sum()
    }

    /// The first readable bytes, at most `max`; they stay.
    pub fn peek(&self, max: usize, now: u64) -> Vec<u8> {
        let mut seen = Vec::new();
        if now < self.stalled_until {
            return seen;
        }
        for packet in self.packets.iter().take_while(|p| p.at <= now) {
            let left = &packet.bytes[packet.taken..];
            seen.extend_from_slice(&left[..left.len().min(max - seen.len())]);
        }
        seen
    }

    /// Takes up to `max` readable bytes.
    pub fn read(&mut self, max: usize, now: u64) -> Vec<u8> {
        let mut taken = Vec::new();
        while taken.len() < max
            && now >= self.stalled_until
            && let Some(packet) = self.packets.front_mut().filter(|p| p.at <= now)
        {
            let count = (max - taken.len()).min(packet.bytes.len() - packet.taken);
            taken.extend_from_slice(&packet.bytes[packet.taken..packet.taken + count]);
            packet.taken += count;
            if packet.taken == packet.bytes.len() {
                self.packets.pop_front();
            }
        }
        self.bytes -= taken.len();
        taken
    }

    /// How it ended, once everything before the end was read.
    pub fn ended(&self, now: u64) -> Option<End> {
        let (at, end) = self.end?;
        (self.packets.is_empty() && at <= now && self.stalled_until <= now).then_some(end)
    }

    /// Whether it is reset, whatever is still to be read.
    pub fn is_reset(&self, now: u64) -> bool {
        matches!(self.end, Some((at, End::Reset)) if at <= now)
    }

    /// Whether it ends, or has ended.
    pub fn is_ending(&self) -> bool {
        self.end.is_some()
    }

    /// Nothing more will be written.
    pub fn finish(&mut self, at: u64) {
        self.end.get_or_insert((at.max(self.last_at), End::Fin));
    }

    /// The connection breaks: of what is on its way, some more may arrive.
    pub fn sever(&mut self, at: u64, random: &mut Random) {
        let kept = random.below(self.bytes as u64 + 1) as usize;
        self.truncate(kept);
        self.end = Some((at, End::Reset));
    }

    fn truncate(&mut self, kept: usize) {
        let mut left = kept;
        for packet in &mut self.packets {
            let count = left.min(packet.bytes.len() - packet.taken);
            packet.bytes.truncate(packet.taken + count);
            left -= count;
        }
        self.packets.retain(|p| p.taken < p.bytes.len());
        self.bytes = kept;
    }

    /// Nothing can be read until then; never again with `u64::MAX`.
    pub fn stall(&mut self, until: u64) {
        if self.stalled_until < u64::MAX {
            self.stalled_until = until;
        }
    }

    /// When something can be read, or was ended, at the earliest.
    pub fn next_at(&self) -> Option<u64> {
        let at = match self.packets.front() {
            Some(packet) => packet.at,
            None => self.end?.0,
        };
        Some(at.max(self.stalled_until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_in_order_and_not_before_their_time() {
        let mut pipe = Pipe::new(96 << 10);
        pipe.write(b"abc".to_vec(), 10);
        pipe.write(b"def".to_vec(), 5);
        assert_eq!(pipe.readable(9), 0);
        assert_eq!(pipe.peek(2, 10), b"ab");
        assert_eq!(pipe.read(2, 10), b"ab");
        assert_eq!(pipe.peek(9, 10), b"cdef");
        pipe.stall(20);
        assert!(pipe.read(9, 19).is_empty());
        pipe.finish(15);
        assert_eq!(pipe.ended(20), None);
        assert_eq!(pipe.read(9, 20), b"cdef");
        assert_eq!(pipe.ended(20), Some(End::Fin));
    }

    #[test]
    fn a_severed_pipe_yields_a_prefix() {
        for seed in 0..50 {
            let mut pipe = Pipe::new(96 << 10);
            pipe.write(b"abc".to_vec(), 1);
            pipe.write(b"def".to_vec(), 2);
            pipe.sever(3, &mut Random::new(seed));
            let got = pipe.read(9, 3);
            assert!(b"abcdef".starts_with(&got));
            assert_eq!(pipe.ended(3), Some(End::Reset));
            assert_eq!(pipe.room(), 0);
        }
    }
}
