//! A batch on its way: where its payload goes, and the checksum of what came.

use embar_frame::{Crc, crc32c};
use embar_transport::RecvBuf;
use embar_wire::batch::BatchHeader;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};

use super::model::Checksums;

/// Smallest buffer to allocate: small batches come together.
const RUN_BYTES: usize = 512 << 10;
/// A payload of up to so many bytes may go through the connection's ring, from which it is copied, because one receive
/// then takes several of them.
pub(super) const SMALL_BYTES: usize = 64 << 10;

/// The checksums of a payload that is on its way, as far as it has come, and of those that came whole behind it.
#[derive(Debug, Default)]
pub struct PayloadCheck {
    crc: Crc,
    /// How far the buffer's content went into `crc`.
    checked: usize,
    /// Where the payload ends.
    end: usize,
    looked_behind: bool,
    /// What lies where a broker lends it is not summed.
    trusts_lent: bool,
    /// The payload lies there.
    trusted: bool,
    /// Of batches behind it: where each payload begins, and its checksum.
    behind: Vec<(usize, u32)>,
}

impl PayloadCheck {
    /// Begins with the first bytes of a payload of `len` bytes.
    fn begin(&mut self, len: usize, early: &[u8], checksums: Checksums) {
        self.crc = Crc::default();
        self.crc.update(early);
        (self.checked, self.end) = (early.len(), len);
        self.looked_behind = false;
        self.trusts_lent = checksums == Checksums::Copied;
        self.trusted = false;
        self.behind.clear();
    }

    /// Adds what has come into `buf` since the last time.
    pub fn update(&mut self, buf: &RecvBuf) {
        let filled = buf.filled().end;
        let came = self.checked..filled.min(self.end);
        self.checked = came.end;
        if self.trusts_lent && buf.is_lent() {
            self.trusted = true;
            return;
        }
        buf.with_filled(came, |bytes| self.crc.update(bytes));
        if filled > self.end && !std::mem::replace(&mut self.looked_behind, true) {
            buf.with_filled(self.end..filled, |bytes| self.check_behind(bytes));
        }
    }

    /// Whether those are batches, and which, is for the core to say: this only saves it the sums.
    fn check_behind(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while let Ok(header) = BatchHeader::parse(&bytes[at..], MAX_BATCH_BYTES) {
            let begin = at + BATCH_HEADER_BYTES;
            at = begin + header.payload_len() as usize;
            let Some(payload) = bytes.get(begin..at) else {
                return;
            };
            self.behind.push((self.end + begin, crc32c(payload)));
        }
    }

    /// `None` if the payload need not be compared with its checksum.
    pub(super) fn value(&self) -> Option<u32> {
        (!self.trusted).then(|| self.crc.value())
    }

    /// That of a whole payload behind the first one, which begins at `begin` of the buffer.
    pub(super) fn value_behind(&self, begin: usize) -> Option<u32> {
        let found = self.behind.binary_search_by_key(&begin, |(at, _)| *at);
        found.ok().map(|index| self.behind[index].1)
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

/// A buffer that the payload fits into, with the start of it, of which `check` knows.
pub(super) fn begin(
    header: &BatchHeader,
    early: &[u8],
    mut payload: Vec<u8>,
    check: &mut PayloadCheck,
    checksums: Checksums,
) -> Vec<u8> {
    let len = header.payload_len() as usize;
    let least = len.max(RUN_BYTES);
    if payload.len() < least {
        payload = vec![0; least];
    }
    payload[..early.len()].copy_from_slice(early);
    check.begin(len, early, checksums);
    payload
}
