//! What a frame's header may say is known before anything else of the frame is read.

use embar_frame::{FrameError, FrameHeader, Protocol};
use embar_wire::frame::{FrameId, LogProtocol};
use embar_wire::limits::{Limits, MAX_ACK_BYTES, MAX_BATCH_BYTES, MAX_CONTROL_BYTES};

fn first_error(header: FrameHeader, limits: Limits) -> Option<FrameError> {
    LogProtocol { limits }.shape(header).err()
}

#[test]
fn limits_are_checked_on_the_header_alone() {
    let limits = Limits::new(1000, 2048);
    for (id, body) in [
        (FrameId::Subscribe, 1000),
        (FrameId::Batch, 2040),
        (FrameId::Ack, MAX_ACK_BYTES),
    ] {
        assert_eq!(first_error(FrameHeader::new(id, body), limits), None);
        let error = first_error(FrameHeader::new(id, body + 1), limits);
        assert!(
            matches!(error, Some(FrameError::TooLarge { .. })),
            "{id:?} {error:?}"
        );
        assert!(first_error(FrameHeader::new(id, u32::MAX), limits).is_some());
    }
    let short = FrameHeader::new(FrameId::Batch, 55);
    let error = first_error(short, limits);
    assert!(
        matches!(error, Some(FrameError::TooShort { .. })),
        "{error:?}"
    );
    let unknown = FrameHeader {
        length: 0,
        id: 999,
        flags: 0,
    };
    assert!(first_error(unknown, limits).is_some());
    let flagged = FrameHeader {
        flags: 1,
        ..FrameHeader::new(FrameId::Metadata, 0)
    };
    assert!(first_error(flagged, limits).is_some());
}

#[test]
fn no_limit_of_a_connection_is_above_that_of_the_format() {
    let wild = Limits {
        max_control_bytes: u32::MAX,
        max_batch_bytes: u32::MAX,
    };
    let long = FrameHeader::new(FrameId::Subscribe, MAX_CONTROL_BYTES + 1);
    assert!(first_error(long, wild).is_some());
    let large = FrameHeader::new(FrameId::Batch, MAX_BATCH_BYTES);
    assert!(first_error(large, wild).is_some());
}

#[test]
fn ids_of_version_1_that_the_session_layer_took_over_are_unknown() {
    for id in [16, 17, 19, 20, 21] {
        let header = FrameHeader {
            length: 0,
            id,
            flags: 0,
        };
        let error = first_error(header, Limits::default());
        assert_eq!(error, Some(FrameError::UnknownId { id }));
    }
}
