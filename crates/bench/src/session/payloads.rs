//! Makes the payloads of messages, of the size or range of sizes that the user asks for. Each differs from those of its
//! neighbours, so an echo of the wrong message is noticed.

use std::fmt;
use std::str::FromStr;

use buffa::ViewEncode;
use embar_console::size::Size;
use embar_meter::random::SplitMix64;
use embar_meter::random::filler;
use serde::Serialize;

use super::proto::EchoView;

/// Largest payload: both rings of a session hold a message of it.
pub const PAYLOAD_BYTES_MAX: u32 = 8 << 20;

/// Payloads of neighbours begin at different places of the same bytes; this many differ.
const PLACES: u64 = 64;

/// Sizes of payloads: one, or any in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Payload {
    /// Bytes of the smallest.
    pub min: u32,
    /// Bytes of the largest.
    pub max: u32,
}

impl Payload {
    /// Bytes of the payload with this sequence number in this session; sizes of a range are spread evenly over it, in
    /// an order that is the same in every run and another one in each session, so that large ones do not come from
    /// all of them at once.
    #[inline]
    pub fn len(self, session: u32, sequence: u64) -> usize {
        let span = u64::from(self.max - self.min) + 1;
        let more = if span == 1 {
            0
        } else {
            SplitMix64::new(u64::from(session) << 32 ^ sequence).below(span)
        };
        self.min as usize + more as usize
    }

    /// Whether all have one size.
    pub fn is_fixed(self) -> bool {
        self.min == self.max
    }
}

impl FromStr for Payload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        let bytes = |part: &str| -> Result<u32, String> {
            let size: Size = part.parse().map_err(|error| format!("{error}"))?;
            u32::try_from(size.0)
                .ok()
                .filter(|bytes| *bytes <= PAYLOAD_BYTES_MAX)
                .ok_or_else(|| {
                    format!(
                        "{size} is too large: at most {}",
                        Size(PAYLOAD_BYTES_MAX.into())
                    )
                })
        };
        let (min, max) = (bytes(min)?, bytes(max)?);
        if min > max {
            return Err(format!("{text:?} ends before it begins"));
        }
        Ok(Self { min, max })
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_fixed() {
            f.pad(&self.min.to_string())
        } else {
            f.pad(&format!("{}..{}", self.min, self.max))
        }
    }
}

/// The payload of every sequence number, without memory of its own for each.
pub struct Payloads {
    sizes: Payload,
    bytes: Vec<u8>,
}

impl Payloads {
    /// Makes payloads of these sizes.
    pub fn new(sizes: Payload) -> Self {
        Self {
            sizes,
            bytes: filler(sizes.max as usize + PLACES as usize),
        }
    }

    /// The payload with this sequence number in this session.
    #[inline]
    pub fn of(&self, session: u32, sequence: u64) -> &[u8] {
        let at = (sequence % PLACES) as usize;
        &self.bytes[at..at + self.sizes.len(session, sequence)]
    }

    /// The whole message with this sequence number in this session.
    #[inline]
    pub fn echo(&self, session: u32, sequence: u64) -> EchoView<'_> {
        EchoView {
            sequence,
            payload: self.of(session, sequence),
        }
    }

    /// Whether this is the message with that sequence number, and unchanged.
    #[inline]
    pub fn is_right(&self, session: u32, expected: u64, sequence: u64, payload: &[u8]) -> bool {
        sequence == expected && payload == self.of(session, sequence)
    }

    /// Bytes on the wire of a message with the largest payload.
    pub fn frame_bytes(&self) -> usize {
        let echo = EchoView {
            sequence: 1,
            payload: &self.bytes[..self.sizes.max as usize],
        };
        let body = echo.compute_size(&mut buffa::SizeCache::new());
        embar_frame::FRAME_HEADER_BYTES + body as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_as_people_write_them() {
        let parse = |text: &str| text.parse::<Payload>();
        assert_eq!(parse("64"), Ok(Payload { min: 64, max: 64 }));
        assert_eq!(
            parse("4KiB..16KiB"),
            Ok(Payload {
                min: 4096,
                max: 16384
            })
        );
        for wrong in ["", "16..4", "1..2..3", "9MiB", "x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_of_a_range_are_spread_over_all_of_it() {
        let payload = Payload {
            min: 4096,
            max: 16384,
        };
        let sizes: Vec<usize> = (1..=10_000)
            .map(|sequence| payload.len(0, sequence))
            .collect();
        assert!(sizes.iter().all(|size| (4096..=16384).contains(size)));
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!((10_000..10_500).contains(&mean), "{mean}");
        assert_eq!(Payload { min: 7, max: 7 }.len(0, 123), 7);
        let at_once: usize = (0..1_000).map(|session| payload.len(session, 1)).sum();
        assert!((9_900..10_600).contains(&(at_once / 1_000)), "{at_once}");
    }

    #[test]
    fn another_message_is_not_taken_for_the_right_one() {
        let payloads = Payloads::new(Payload { min: 64, max: 64 });
        let third = payloads.of(0, 3).to_vec();
        assert_eq!(third.len(), 64);
        assert!(payloads.is_right(0, 3, 3, &third));
        assert!(!payloads.is_right(0, 3, 4, &third), "repeated");
        assert!(!payloads.is_right(0, 4, 4, &third), "payload of another");
        assert!(!payloads.is_right(0, 3, 3, &third[..63]), "shortened");
    }

    #[test]
    fn frames_are_as_long_as_protobuf_makes_them() {
        // Header 8, sequence 1 + 8, payload 1 + 1 + 64.
        let fixed = Payloads::new(Payload { min: 64, max: 64 });
        assert_eq!(fixed.frame_bytes(), 83);
        let range = Payloads::new(Payload { min: 0, max: 200 });
        assert_eq!(range.frame_bytes(), 8 + 9 + 1 + 2 + 200);
    }
}
