//! What a publishing process reports on its standard output: records of one size. Any thread writes a record whole or not
//! at all, and the record stays in the pipe when its writer is killed.

use embar_client::Position;

/// Bytes of a record; less than what a pipe takes as a whole.
pub const RECORD_BYTES: usize = 32;

/// Stands for no broker.
const NO_BROKER: u32 = u32::MAX;

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Messages with numbers below may be published from now on.
    Announced {
        /// The first number that is not.
        below: u64,
    },
    /// A batch has its first message.
    Began {
        /// The client's number of the batch.
        batch: u64,
        /// The number of its first message.
        number: u64,
    },
    /// A batch is stored here.
    Acknowledged {
        /// Which.
        batch: u64,
        /// Its messages.
        messages: u32,
        /// Where its first message is; `None` if that is not known.
        position: Option<Position>,
    },
    /// A batch is with the kernel; nothing more will be known.
    Sent {
        /// Which.
        batch: u64,
        /// Its messages.
        messages: u32,
    },
    /// A batch is not stored, and never will be.
    NotStored {
        /// Which.
        batch: u64,
        /// Its messages.
        messages: u32,
    },
    /// A batch is not stored, or may not be.
    GivenUp {
        /// Which.
        batch: u64,
        /// Its messages.
        messages: u32,
    },
    /// All was published and resolved.
    Ended {
        /// How many messages in all.
        published: u64,
    },
}

impl Record {
    /// The record as bytes.
    pub fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let (kind, messages, broker, a, b) = match self {
            Self::Announced { below } => (1, 0, 0, below, 0),
            Self::Began { batch, number } => (2, 0, 0, batch, number),
            Self::Acknowledged {
                batch,
                messages,
                position: Some(position),
            } => {
                let broker = position.broker.unwrap_or(NO_BROKER);
                (3, messages, broker, batch, position.offset)
            }
            Self::Acknowledged {
                batch,
                messages,
                position: None,
            } => (4, messages, 0, batch, 0),
            Self::Sent { batch, messages } => (5, messages, 0, batch, 0),
            Self::GivenUp { batch, messages } => (6, messages, 0, batch, 0),
            Self::Ended { published } => (7, 0, 0, published, 0),
            Self::NotStored { batch, messages } => (8, messages, 0, batch, 0),
        };
        let mut bytes = [0; RECORD_BYTES];
        bytes[0..4].copy_from_slice(&u32::to_le_bytes(kind));
        bytes[4..8].copy_from_slice(&messages.to_le_bytes());
        bytes[8..12].copy_from_slice(&broker.to_le_bytes());
        bytes[16..24].copy_from_slice(&a.to_le_bytes());
        bytes[24..32].copy_from_slice(&b.to_le_bytes());
        bytes
    }

    /// The record of these bytes; `None` for what no publisher writes.
    pub fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let small = |at: usize| Some(u32::from_le_bytes(bytes[at..at + 4].try_into().ok()?));
        let large = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
        let (messages, batch) = (small(4)?, large(16)?);
        Some(match small(0)? {
            1 => Self::Announced { below: batch },
            2 => Self::Began {
                batch,
                number: large(24)?,
            },
            3 => {
                let broker = small(8)?;
                let position = Position {
                    broker: (broker != NO_BROKER).then_some(broker),
                    offset: large(24)?,
                };
                Self::Acknowledged {
                    batch,
                    messages,
                    position: Some(position),
                }
            }
            4 => Self::Acknowledged {
                batch,
                messages,
                position: None,
            },
            5 => Self::Sent { batch, messages },
            6 => Self::GivenUp { batch, messages },
            7 => Self::Ended { published: batch },
            8 => Self::NotStored { batch, messages },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_come_back_as_they_went() {
        let (batch, messages) = (u64::MAX - 1, 81);
        let at = |broker| {
            let position = Some(Position { broker, offset: 7 });
            Record::Acknowledged {
                batch,
                messages,
                position,
            }
        };
        let all = [
            Record::Announced { below: 5 },
            Record::Began { batch, number: 9 },
            at(None),
            at(Some(0)),
            at(Some(31)),
            Record::Acknowledged {
                batch,
                messages,
                position: None,
            },
            Record::Sent { batch, messages },
            Record::GivenUp { batch, messages },
            Record::NotStored { batch, messages },
            Record::Ended { published: 12 },
        ];
        for record in all {
            assert_eq!(Record::from_bytes(&record.to_bytes()), Some(record));
        }
        assert_eq!(Record::from_bytes(&[0; RECORD_BYTES]), None);
        assert_eq!(Record::from_bytes(&[0xff; RECORD_BYTES]), None);
    }
}
