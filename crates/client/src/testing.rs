//! What tests of both cores share: frames a broker would send, and a driver that does nothing by itself.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;

use embar_wire::control::{
    self, BrokerInfo, BrokerRole, BrokerState, ClusterMetadata, Control, ErrorCode, ErrorReply,
    Welcome,
};
use embar_wire::frame::{FrameHeader, FrameId, PROTOCOL_VERSION};
use embar_wire::limits::{FRAME_HEADER_BYTES, Limits};

use crate::connection::Lane;

pub(crate) const SECOND: u64 = 1_000_000_000;

pub(crate) fn bootstrap() -> Vec<SocketAddr> {
    vec!["127.0.0.1:9400".parse().expect("an address")]
}

pub(crate) fn frame(message: &Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    control::encode(message, &mut bytes).expect("small");
    bytes
}

pub(crate) fn welcome(broker_id: u32) -> Control {
    Control::Welcome(Welcome {
        version: PROTOCOL_VERSION,
        broker_id,
        incarnation: 1,
        max_control_bytes: Limits::default().max_control_bytes,
        max_batch_bytes: Limits::default().max_batch_bytes,
        server: "test".into(),
    })
}

pub(crate) fn refusal(code: ErrorCode, retryable: bool, first_available: Option<u64>) -> Control {
    Control::Error(ErrorReply {
        code,
        message: format!("{code:?}"),
        retryable,
        topic: None,
        first_available,
    })
}

/// A head, 0, that takes no data, and data brokers 1 to `data`.
pub(crate) fn cluster(data: u32) -> Control {
    cluster_without(data, None)
}

/// As [`cluster`], with one of them gone.
pub(crate) fn cluster_without(data: u32, gone: Option<u32>) -> Control {
    let broker = |id| BrokerInfo {
        id,
        state: if Some(id) == gone {
            BrokerState::Gone
        } else {
            BrokerState::Ready
        },
        address: format!("127.0.0.1:{}", 9400 + id),
        incarnation: 1,
        role: if id == 0 {
            BrokerRole::Head
        } else {
            BrokerRole::Member
        },
        takes_data: id > 0,
    };
    Control::ClusterMetadata(ClusterMetadata {
        head: 0,
        brokers: (0..=data).map(broker).collect(),
    })
}

/// What a core asked the driver for on one lane, and what it sent.
#[derive(Default)]
pub(crate) struct Socket {
    pub(crate) connecting: Option<SocketAddr>,
    pub(crate) receiving: Option<(Vec<u8>, Range<usize>)>,
    pub(crate) sent: Vec<Control>,
    pub(crate) closing: bool,
}

impl Socket {
    pub(crate) fn control_sent(&mut self, bytes: &[u8]) {
        let header = FrameHeader::parse(bytes.first_chunk().expect("a header"));
        let id = FrameId::try_from(header.id).expect("a known frame");
        self.sent
            .push(control::decode(id, &bytes[FRAME_HEADER_BYTES..]).expect("a good frame"));
    }

    /// Puts as much of `bytes` into the waiting receive as fits; returns the buffer, how much that was, and the rest.
    pub(crate) fn fill<'a>(&mut self, bytes: &'a [u8]) -> Option<(Vec<u8>, usize, &'a [u8])> {
        let (mut buffer, space) = self.receiving.take()?;
        let count = bytes.len().min(space.len());
        buffer[space.start..space.start + count].copy_from_slice(&bytes[..count]);
        Some((buffer, count, &bytes[count..]))
    }
}

#[derive(Default)]
pub(crate) struct Sockets(HashMap<u32, Socket>);

impl Sockets {
    pub(crate) fn lane(&mut self, lane: Lane) -> &mut Socket {
        self.0.entry(lane.0).or_default()
    }

    /// Takes the names of the control frames that were sent on a lane.
    pub(crate) fn taken(&mut self, lane: Lane) -> Vec<FrameId> {
        self.lane(lane)
            .sent
            .drain(..)
            .map(|message| message.id())
            .collect()
    }
}
