//! What a session asks of the sequencer besides places, and how a lane's record encodes it.
//!
//! The client that opens a session gives it a *secret*, which goes to the brokers and the sequencer and no further.
//! A request in the session's name must name the secret. One *instance* of the client after another uses an
//! identity. An instance that the sequencer has not answered before takes the session over only by naming the epoch
//! that it takes over from. So a request that was made earlier and comes late names an older epoch, and changes
//! nothing.

use embar_fabric::{PbrKind, PbrRecord, Secret};

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Open the session: the first opening, or another one of the same instance.
    Open {
        /// The epoch in which another instance has the session; 0 to take it over from no instance.
        takes_over: u32,
    },
    /// Open the session of this instance, which the sequencer answered before.
    Resume,
    /// Begin the next epoch.
    Renew {
        /// The session's place.
        session: u32,
        /// The epoch that is over.
        gives_up: u32,
    },
    /// End the session.
    Close {
        /// The session's place.
        session: u32,
        /// Its epoch.
        epoch: u32,
    },
}

/// A request in the name of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Identity of the publisher.
    pub producer: u64,
    /// The client's instance.
    pub instance: u64,
    /// The secret of the session.
    pub secret: Secret,
    /// The peer that asks; idle sessions are given up peer by peer.
    pub peer: u32,
    /// What is asked for.
    pub operation: Operation,
}

const OPEN: u16 = 0;
const RESUME: u16 = 1;
const RENEW: u16 = 2;

impl Request {
    /// The record that encodes the request. The caller adds chain, order level and broker.
    pub fn record(&self) -> PbrRecord {
        let (kind, flags, session, session_epoch) = match self.operation {
            Operation::Open { takes_over } => (PbrKind::Open, OPEN, 0, takes_over),
            Operation::Resume => (PbrKind::Open, RESUME, 0, 0),
            Operation::Renew { session, gives_up } => (PbrKind::Open, RENEW, session, gives_up),
            Operation::Close { session, epoch } => (PbrKind::Close, 0, session, epoch),
        };
        let secret = u128::from_le_bytes(self.secret.0);
        PbrRecord {
            payload_at: self.instance,
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

    /// The request that a record encodes; `None` for a batch, and for what no broker writes.
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
            instance: record.payload_at,
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
