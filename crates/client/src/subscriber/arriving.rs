//! A batch on its way: where its payload goes, and the checksum of what came.

use embar_frame::Crc;
use embar_transport::RecvBuf;
use embar_wire::batch::BatchHeader;

/// Smallest buffer to allocate: small batches come together.
const RUN_BYTES: usize = 256 << 10;
/// A payload of up to so many bytes may go through the connection's ring, from which it is copied, because one receive
/// then takes several of them.
pub(super) const SMALL_BYTES: usize = 64 << 10;

/// The checksum of a payload that is on its way, as far as it has come.
#[derive(Debug, Default)]
pub struct PayloadCheck {
    crc: Crc,
    /// How far the buffer's content went into `crc`.
    checked: usize,
}

impl PayloadCheck {
    /// Adds what has come into `buf` since the last time.
    pub fn update(&mut self, buf: &RecvBuf) {
        let came = self.checked..buf.filled().end;
        self.checked = came.end;
        buf.with_filled(came, |bytes| self.crc.update(bytes));
    }

    pub(super) fn value(&self) -> u32 {
        self.crc.value()
    }
}

/// A batch whose payload is on its way.
#[derive(Debug)]
pub(super) struct Arriving {
    pub(super) header: BatchHeader,
    /// `None` while it is with the driver.
    pub(super) buf: Option<RecvBuf>,
    /// Bytes of the payload that are there.
    pub(super) came: usize,
    /// `None` while the driver has it.
    pub(super) check: Option<PayloadCheck>,
}

/// A buffer that the payload fits into, with the start of it.
pub(super) fn begin(
    header: &BatchHeader,
    early: &[u8],
    mut payload: Vec<u8>,
) -> (Vec<u8>, PayloadCheck) {
    let len = (header.payload_len() as usize).max(RUN_BYTES);
    if payload.len() < len {
        payload.resize(len, 0);
    }
    payload[..early.len()].copy_from_slice(early);
    let mut check = PayloadCheck::default();
    check.crc.update(early);
    check.checked = early.len();
    (payload, check)
}
