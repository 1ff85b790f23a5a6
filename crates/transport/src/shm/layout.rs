//! What lies where in an outbox, and what a record says. Both sides of a connection have the same picture of both
//! outboxes; the sizes of each are what its owner said in its hello.

use std::io;

/// Bytes of a line: one writer, and one thing that is looked at for itself.
pub(crate) const LINE_BYTES: u64 = 64;

/// How many records of the other outbox its reader is through with. They are the other side's to use again.
pub(crate) const CONSUMED_AT: u64 = 0;
/// Whether and why this side wants to be woken; 0 while it looks by itself.
pub(crate) const ASLEEP_AT: u64 = LINE_BYTES;
/// What the other side must have consumed for this side to be woken for room.
pub(crate) const WANTED_AT: u64 = ASLEEP_AT + 8;
/// Not 0: what records refer to is used again, or may be.
pub(crate) const WITHDRAWN_AT: u64 = 2 * LINE_BYTES;
/// The first record.
const RECORDS_AT: u64 = 4 * LINE_BYTES;

/// Bytes of a record. The last word, stored last, is the record's number and one.
pub(crate) const RECORD_BYTES: u64 = LINE_BYTES;
/// Where the last word of a record lies in it.
pub(crate) const COMMIT_AT: u64 = RECORD_BYTES - 8;
/// Bytes that a record carries by itself.
pub(crate) const INLINE_MAX: usize = 48;
/// Where a record says what it is.
const KIND_AT: usize = INLINE_MAX;
/// Bytes of a record without the last word.
pub(crate) const BODY_BYTES: usize = COMMIT_AT as usize;

/// Unit in which places are taken in the ring of bytes.
pub(crate) const GRAIN_BYTES: u64 = LINE_BYTES;

/// Most memories that one side hands over besides its outbox.
pub const MEMORIES_MAX: usize = 4;

/// How much an outbox holds. The limits keep a stranger's numbers harmless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Records, a power of two.
    pub records: u32,
    /// Bytes of the ring of bytes, a power of two.
    pub bytes: u32,
}

const RECORDS_MIN: u32 = 4;
const RECORDS_MAX: u32 = 1 << 16;
const BYTES_MIN: u32 = 4 << 10;
const BYTES_MAX: u32 = 16 << 20;

impl Sizes {
    /// The next sizes that an outbox may have.
    pub fn at_least(records: u32, bytes: u32) -> Self {
        Self {
            records: records.clamp(RECORDS_MIN, RECORDS_MAX).next_power_of_two(),
            bytes: bytes.clamp(BYTES_MIN, BYTES_MAX).next_power_of_two(),
        }
    }

    /// Whether an outbox may have these sizes.
    pub fn are_valid(self) -> bool {
        Self::at_least(self.records, self.bytes) == self
    }

    /// Bytes of the outbox in all: whole pages.
    pub fn outbox_bytes(self) -> u64 {
        (self.bytes_at() + u64::from(self.bytes)).next_multiple_of(4096)
    }

    /// Where record `number` lies.
    pub fn record_at(self, number: u64) -> u64 {
        RECORDS_AT + (number & u64::from(self.records - 1)) * RECORD_BYTES
    }

    /// Where the ring of bytes lies.
    pub fn bytes_at(self) -> u64 {
        RECORDS_AT + u64::from(self.records) * RECORD_BYTES
    }

    /// The last word of the place of record `number` before that is published.
    pub fn commit_before(self, number: u64) -> u64 {
        (number + 1).saturating_sub(u64::from(self.records))
    }
}

/// What the sender published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    /// Bytes that the record carries itself: how many.
    Inline { len: usize, bytes: [u8; INLINE_MAX] },
    /// Bytes in the ring of bytes: the place in that, and how many.
    Bytes { at: u32, len: u32 },
    /// Bytes in a memory that was handed over: which one, the place in that, and how many.
    Reference { memory: u8, at: u64, len: u32 },
    /// No more will come.
    End,
}

const INLINE: u8 = 1;
const BYTES: u8 = 2;
const REFERENCE: u8 = 3;
const END: u8 = 4;

impl Record {
    /// How many bytes of the stream it stands for.
    pub fn len(&self) -> usize {
        match self {
            Self::Inline { len, .. } => *len,
            Self::Bytes { len, .. } | Self::Reference { len, .. } => *len as usize,
            Self::End => 0,
        }
    }

    pub fn encode(&self) -> [u8; BODY_BYTES] {
        let mut body = [0; BODY_BYTES];
        let (kind, memory, len, at) = match *self {
            Self::Inline { len, bytes } => {
                body[..len].copy_from_slice(&bytes[..len]);
                (INLINE, 0, len as u32, None)
            }
            Self::Bytes { at, len } => (BYTES, 0, len, Some(u64::from(at))),
            Self::Reference { memory, at, len } => (REFERENCE, memory, len, Some(at)),
            Self::End => (END, 0, 0, None),
        };
        if let Some(at) = at {
            body[..8].copy_from_slice(&at.to_le_bytes());
        }
        body[KIND_AT] = kind;
        body[KIND_AT + 1] = memory;
        body[KIND_AT + 4..].copy_from_slice(&len.to_le_bytes());
        body
    }

    /// What a record says that anybody may have written, once it was copied. `memories` has the length of each memory that was
    /// handed over.
    pub fn decode(
        body: &[u8; BODY_BYTES],
        sizes: Sizes,
        memories: impl Fn(u8) -> Option<u64>,
    ) -> io::Result<Self> {
        let (bytes, rest) = body.split_at(KIND_AT);
        let (place, _) = bytes.split_at(8);
        let place = u64::from_le_bytes(place.try_into().expect("8 bytes"));
        let (kind, memory) = (rest[0], rest[1]);
        let len = u32::from_le_bytes(rest[4..].try_into().expect("4 bytes"));
        let ends_within = |limit: u64| {
            len > 0
                && place
                    .checked_add(u64::from(len))
                    .is_some_and(|end| end <= limit)
        };
        match kind {
            INLINE if len > 0 && len as usize <= INLINE_MAX => Ok(Self::Inline {
                len: len as usize,
                bytes: bytes.try_into().expect("as many"),
            }),
            BYTES if ends_within(sizes.bytes.into()) && place.is_multiple_of(GRAIN_BYTES) => {
                let at = place as u32;
                Ok(Self::Bytes { at, len })
            }
            REFERENCE => {
                let Some(limit) = memories(memory) else {
                    return Err(violation(format!(
                        "a record names memory {memory}, which was not handed over"
                    )));
                };
                if !ends_within(limit) {
                    return Err(violation(format!(
                        "a record names bytes {place}+{len} of a memory of {limit} bytes"
                    )));
                }
                let at = place;
                Ok(Self::Reference { memory, at, len })
            }
            END if len == 0 => Ok(Self::End),
            INLINE | BYTES => Err(violation(format!(
                "a record of kind {kind} names bytes {place}+{len}, where there are {INLINE_MAX} in a record and {} in the ring",
                sizes.bytes
            ))),
            _ => Err(violation(format!(
                "a record is of kind {kind} with {len} bytes"
            ))),
        }
    }
}

/// The other side broke a rule: nothing that it wrote means anything any more.
pub(crate) fn violation(what: impl AsRef<str>) -> io::Error {
    let text = format!(
        "the peer broke the protocol of shared memory: {}",
        what.as_ref()
    );
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        records: 4,
        bytes: 4096,
    };

    fn decoded(record: Record) -> io::Result<Record> {
        let memories = |memory| [1 << 20].get(usize::from(memory)).copied();
        Record::decode(&record.encode(), SIZES, memories)
    }

    #[test]
    fn records_survive_the_trip_through_memory() {
        let mut bytes = [0; INLINE_MAX];
        bytes[..3].copy_from_slice(b"abc");
        for record in [
            Record::Inline { len: 3, bytes },
            Record::Inline {
                len: INLINE_MAX,
                bytes: [9; INLINE_MAX],
            },
            Record::Bytes { at: 64, len: 4032 },
            Record::Reference {
                memory: 0,
                at: 7,
                len: (1 << 20) - 7,
            },
            Record::End,
        ] {
            assert_eq!(decoded(record).unwrap(), record);
        }
    }

    #[test]
    fn records_that_name_what_is_not_there_are_refused() {
        let bytes = [0; INLINE_MAX];
        for record in [
            Record::Inline { len: 0, bytes },
            Record::Bytes { at: 0, len: 0 },
            Record::Bytes { at: 8, len: 8 },
            Record::Bytes { at: 64, len: 4033 },
            Record::Bytes {
                at: u32::MAX,
                len: u32::MAX,
            },
            Record::Reference {
                memory: 1,
                at: 0,
                len: 1,
            },
            Record::Reference {
                memory: 0,
                at: 0,
                len: 0,
            },
            Record::Reference {
                memory: 0,
                at: 1 << 20,
                len: 1,
            },
            Record::Reference {
                memory: 0,
                at: u64::MAX,
                len: 1,
            },
        ] {
            let error = decoded(record).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{record:?}");
        }
        for kind in [0, 5, 255] {
            let mut body = Record::End.encode();
            body[KIND_AT] = kind;
            Record::decode(&body, SIZES, |_| None).unwrap_err();
        }
        let mut long = Record::Inline { len: 1, bytes }.encode();
        long[KIND_AT + 4] = INLINE_MAX as u8 + 1;
        Record::decode(&long, SIZES, |_| None).unwrap_err();
        let mut end = Record::End.encode();
        end[KIND_AT + 4] = 1;
        Record::decode(&end, SIZES, |_| None).unwrap_err();
    }

    #[test]
    fn no_two_things_share_a_line() {
        for (records, bytes) in [(0, 0), (5, 70_000), (u32::MAX, u32::MAX)] {
            let sizes = Sizes::at_least(records, bytes);
            assert!(sizes.are_valid(), "{sizes:?}");
            assert!(sizes.record_at(0) >= WITHDRAWN_AT + LINE_BYTES);
            assert_eq!(
                sizes.record_at(u64::from(sizes.records)),
                sizes.record_at(0)
            );
            let last = sizes.record_at(u64::from(sizes.records) - 1);
            assert_eq!(last + RECORD_BYTES, sizes.bytes_at());
            assert!(sizes.outbox_bytes() >= sizes.bytes_at() + u64::from(sizes.bytes));
        }
        assert!(
            !Sizes {
                records: 0,
                bytes: 4096
            }
            .are_valid()
        );
        assert!(
            !Sizes {
                records: 6,
                bytes: 4096
            }
            .are_valid()
        );
        assert!(
            !Sizes {
                records: 8,
                bytes: u32::MAX
            }
            .are_valid()
        );
    }

    #[test]
    fn the_word_before_a_record_is_that_of_a_lap_before() {
        assert_eq!(
            [0, 3, 4, 9].map(|number| SIZES.commit_before(number)),
            [0, 0, 1, 6]
        );
    }
}
