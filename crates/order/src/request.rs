//! What a session asks of the sequencer besides places, and how a lane's record says it.
//!
//! Whoever opens a session gives it a *secret*, which goes to the brokers and the sequencer and no
//! further. Who asks for anything in its name later must know it. An identity is used by one *instance*
//! of its client after another. One that has not been answered before takes the session over only by
//! naming the epoch that it takes it over from: whatever asked before that, and comes late, names an
//! older one, and changes nothing.

use embar_fabric::{PbrKind, PbrRecord, Secret};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The session: its first opening, or another one of the same instance.
    Open {
        /// The epoch in which another instance has the session; 0 to take it over from nobody.
        takes_over: u32,
    },
    /// The session of this instance, which was answered before.
    Resume,
    /// The epoch after this one.
    Renew {
        /// The session's place.
        session: u32,
        /// The epoch that is over.
        gives_up: u32,
    },
    /// The end of the session.
    Close {
        /// The session's place.
        session: u32,
        /// Its epoch.
        epoch: u32,
    },
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Identity of the publisher.
    pub producer: u64,
    /// The client's instance.
    pub instance: u64,
    /// The secret of the session.
    pub secret: Secret,
    /// Where it is asked from; sessions that nobody holds are given up peer by peer.
    pub peer: u32,
    /// What is asked for.
    pub operation: Operation,
}

const OPEN: u16 = 0;
const RESUME: u16 = 1;
const RENEW: u16 = 2;

impl Request {
    /// The record that says it, but for chain, order level and broker.
    pub fn record(&self) -> PbrRecord {
        let (kind, flags, session, session_epoch) = match self.operation {
            Operation::Open { takes_over } => (PbrKind::Open, OPEN, 0, takes_over),
            Operation::Resume => (PbrKind::Open, RESUME, 0, 0),
            Operation::Renew { session, gives_up } => (PbrKind::Open, RENEW, session, gives_up),
            Operation::Close { session, epoch } => (PbrKind::Close, 0, session, epoch),
        };
        let secret = u128::from_le_bytes(self.secret.0);
        PbrRecord {
            blog_at: self.instance,
            producer: self.producer,
            sequence: secret as u64,
            len: (secret >> 64) as u32,
            count: (secret >> 96) as u32,
            payload_crc: self.peer,
            session_epoch,
            session,
            flags,
            kind: kind as u8,
            ..PbrRecord::default()
        }
    }

    /// What a record asks for; `None` of a batch, and of what no broker writes.
    pub fn of(record: &PbrRecord) -> Option<Self> {
        let (session, epoch) = (record.session, record.session_epoch);
        let operation = match (PbrKind::from_number(record.kind)?, record.flags) {
            (PbrKind::Open, OPEN) => Operation::Open { takes_over: epoch },
            (PbrKind::Open, RESUME) => Operation::Resume,
            (PbrKind::Open, RENEW) => Operation::Renew {
                session,
                gives_up: epoch,
            },
            (PbrKind::Close, 0) => Operation::Close { session, epoch },
            _ => return None,
        };
        let secret = u128::from(record.sequence)
            | u128::from(record.len) << 64
            | u128::from(record.count) << 96;
        Some(Self {
            producer: record.producer,
            instance: record.blog_at,
            secret: Secret(secret.to_le_bytes()),
            peer: record.payload_crc,
            operation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_all_of_it() {
        for operation in [
            Operation::Open { takes_over: 0 },
            Operation::Open { takes_over: 7 },
            Operation::Resume,
            Operation::Renew {
                session: 3,
                gives_up: 4,
            },
            Operation::Close {
                session: 3,
                epoch: 4,
            },
        ] {
            let request = Request {
                producer: 1,
                instance: u64::MAX,
                secret: Secret(std::array::from_fn(|i| i as u8 + 100)),
                peer: 9,
                operation,
            };
            assert_eq!(Request::of(&request.record()), Some(request));
        }
        assert_eq!(Request::of(&PbrRecord::default()), None, "a batch");
        let senseless = PbrRecord {
            kind: PbrKind::Open as u8,
            flags: 3,
            ..PbrRecord::default()
        };
        assert_eq!(Request::of(&senseless), None);
    }
}
