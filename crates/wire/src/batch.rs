//! A batch: one 64-byte header, then a payload of message records.
//!
//! The header is a frame header and a batch header in one cache line, and the same bytes travel on
//! the publish wire, lie in the log and leave on the export wire. The payload is padded to whole
//! lines, so that consecutive batches in an extent are one string of valid frames.
//!
//! ```text
//!  0 u32 length = 56 + payload   4 u16 id       6 u16 flags = 0
//!  8 u32 header_crc             12 u32 payload_crc
//! 16 u64 producer               24 u64 sequence
//! 32 u64 base_offset            40 u64 append_time
//! 48 u32 topic                  52 u32 message_count
//! 56 u16 batch_flags            58 u16 stored_by      60 u32 epoch
//! ```

use std::mem::{offset_of, size_of};

use embar_frame::{FRAME_HEADER_BYTES, FrameHeader, crc32c};
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::frame::FrameId;
use crate::limits::{BATCH_HEADER_BYTES, LINE_BYTES, MAX_BATCH_BYTES, MESSAGE_HEADER_BYTES};
use crate::message::Messages;
use crate::time::WallNs;

/// Flags of a batch. Bits 0-2 are kept for a compression codec and bits 3-5 for a foreign format;
/// this version knows neither and refuses a batch that has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchFlags(u16);

impl BatchFlags {
    /// No flags.
    pub const NONE: Self = Self(0);
    /// The batch was sent again after a failure that left its fate open.
    pub const POSSIBLE_DUPLICATE: Self = Self(1 << 8);

    /// The publisher gave the payload no checksum: the broker computes it while it copies the payload out of memory that both
    /// share. Only there may a batch have this flag, and no batch in a log has it.
    pub const UNSUMMED: Self = Self(1 << 9);

    const KNOWN: u16 = Self::POSSIBLE_DUPLICATE.0 | Self::UNSUMMED.0;

    /// Whether all flags of `other` are set.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These flags and those of `other`.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The 16 bits on the wire.
    #[must_use]
    pub fn bits(self) -> u16 {
        self.0
    }
}

/// The 64-byte header of a batch. Get it by [`BatchHeader::parse`], which checks it; the payload is
/// checked separately.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct BatchHeader {
    length: U32,
    id: U16,
    frame_flags: U16,
    header_crc: U32,
    payload_crc: U32,
    producer: U64,
    sequence: U64,
    base_offset: U64,
    append_time: U64,
    topic: U32,
    message_count: U32,
    batch_flags: U16,
    stored_by: U16,
    epoch: U32,
}

const _: () = {
    assert!(size_of::<BatchHeader>() == BATCH_HEADER_BYTES);
    assert!(offset_of!(BatchHeader, length) == 0);
    assert!(offset_of!(BatchHeader, id) == 4);
    assert!(offset_of!(BatchHeader, frame_flags) == 6);
    assert!(offset_of!(BatchHeader, header_crc) == 8);
    assert!(offset_of!(BatchHeader, payload_crc) == 12);
    assert!(offset_of!(BatchHeader, producer) == 16);
    assert!(offset_of!(BatchHeader, sequence) == 24);
    assert!(offset_of!(BatchHeader, base_offset) == 32);
    assert!(offset_of!(BatchHeader, append_time) == 40);
    assert!(offset_of!(BatchHeader, topic) == 48);
    assert!(offset_of!(BatchHeader, message_count) == 52);
    assert!(offset_of!(BatchHeader, batch_flags) == 56);
    assert!(offset_of!(BatchHeader, stored_by) == 58);
    assert!(offset_of!(BatchHeader, epoch) == 60);
};

/// What a publisher says about a batch when it seals it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealFields {
    /// The publishing session.
    pub producer: u64,
    /// Number of the batch within its session, from 0.
    pub sequence: u64,
    /// Topic id, as the broker gave it.
    pub topic: u32,
    /// Epoch of the session.
    pub epoch: u32,
    /// When the batch was created; the broker replaces it when it appends.
    pub append_time: WallNs,
    /// Flags.
    pub flags: BatchFlags,
}

impl BatchHeader {
    /// The header for a payload of `payload` padded bytes with `message_count` messages.
    pub(crate) fn new(fields: &SealFields, message_count: u32, payload: &[u8]) -> Self {
        let length = (BATCH_HEADER_BYTES - FRAME_HEADER_BYTES + payload.len()) as u32;
        let payload_crc = match fields.flags.contains(BatchFlags::UNSUMMED) {
            true => 0,
            false => crc32c(payload),
        };
        let mut header = Self {
            length: length.into(),
            id: (FrameId::Batch as u16).into(),
            frame_flags: U16::ZERO,
            header_crc: U32::ZERO,
            payload_crc: payload_crc.into(),
            producer: fields.producer.into(),
            sequence: fields.sequence.into(),
            base_offset: U64::ZERO,
            append_time: fields.append_time.0.into(),
            topic: fields.topic.into(),
            message_count: message_count.into(),
            batch_flags: fields.flags.bits().into(),
            stored_by: U16::ZERO,
            epoch: fields.epoch.into(),
        };
        header.header_crc = header.compute_crc().into();
        header
    }

    /// Reads and checks the header at the start of `bytes`. `max_batch_bytes` bounds the whole
    /// frame.
    ///
    /// # Errors
    /// [`BatchError`] for the first rule that the bytes break. The payload's checksum is not among
    /// them: see [`BatchHeader::check_payload`].
    pub fn parse(bytes: &[u8], max_batch_bytes: u32) -> Result<Self, BatchError> {
        let Some((bytes, _)) = bytes.split_first_chunk::<BATCH_HEADER_BYTES>() else {
            let (have, need) = (bytes.len(), BATCH_HEADER_BYTES);
            return Err(BatchError::Truncated { have, need });
        };
        let header: Self = zerocopy::transmute!(*bytes);
        header.check(max_batch_bytes)?;
        Ok(header)
    }

    fn check(&self, max_batch_bytes: u32) -> Result<(), BatchError> {
        // The id first: "not a batch" says more than "bad checksum". Then the checksum, so that
        // every later complaint is about what the sender meant and not about damage.
        if self.id != FrameId::Batch as u16 {
            return Err(BatchError::NotABatch { id: self.id.get() });
        }
        let (found, computed) = (self.header_crc.get(), self.compute_crc());
        if found != computed {
            return Err(BatchError::HeaderChecksum { found, computed });
        }
        if self.frame_flags != 0 {
            return Err(BatchError::Reserved);
        }
        let flags = self.batch_flags.get();
        if flags & !BatchFlags::KNOWN != 0 {
            return Err(BatchError::UnknownFlags { flags });
        }
        let frame = self.frame_header().frame_bytes();
        let bytes = frame.saturating_sub(BATCH_HEADER_BYTES);
        let limit = max_batch_bytes.min(MAX_BATCH_BYTES) as usize;
        if bytes == 0 || !bytes.is_multiple_of(LINE_BYTES) || frame > limit {
            return Err(BatchError::PayloadLength { bytes });
        }
        let count = self.message_count.get();
        if count == 0 || count as usize > bytes / MESSAGE_HEADER_BYTES {
            let payload_bytes = bytes as u32;
            return Err(BatchError::MessageCount {
                count,
                payload_bytes,
            });
        }
        Ok(())
    }

    fn compute_crc(&self) -> u32 {
        let mut blank = *self;
        blank.header_crc = U32::ZERO;
        crc32c(blank.as_bytes())
    }

    /// Checks that `payload` is what the publisher sealed.
    ///
    /// # Errors
    /// [`BatchError::Truncated`] if it is not [`BatchHeader::payload_len`] bytes, and
    /// [`BatchError::PayloadChecksum`].
    pub fn check_payload(&self, payload: &[u8]) -> Result<(), BatchError> {
        let (have, need) = (payload.len(), self.payload_len() as usize);
        if have != need {
            return Err(BatchError::Truncated { have, need });
        }
        self.check_payload_crc(crc32c(payload))
    }

    /// As [`BatchHeader::check_payload`], for a checksum that was computed as the bytes arrived.
    ///
    /// # Errors
    /// [`BatchError::PayloadChecksum`] if it is another, or the batch [has none](BatchFlags::UNSUMMED).
    pub fn check_payload_crc(&self, computed: u32) -> Result<(), BatchError> {
        let found = self.payload_crc.get();
        if found == computed && self.is_summed() {
            Ok(())
        } else {
            Err(BatchError::PayloadChecksum { found, computed })
        }
    }

    /// Whether it has the checksum of its payload.
    #[must_use]
    pub fn is_summed(&self) -> bool {
        !self.flags().contains(BatchFlags::UNSUMMED)
    }

    /// Gives the header the checksum of its payload. Its own is renewed.
    pub fn sum(&mut self, payload_crc: u32) {
        self.payload_crc = payload_crc.into();
        self.batch_flags = (self.flags().bits() & !BatchFlags::UNSUMMED.bits()).into();
        self.header_crc = self.compute_crc().into();
    }

    /// What the broker adds when it appends the batch: the offset of its first message and the
    /// time. The header's checksum is renewed.
    pub fn stamp(&mut self, base_offset: u64, append_time: WallNs) {
        self.base_offset = base_offset.into();
        self.append_time = append_time.0.into();
        self.header_crc = self.compute_crc().into();
    }

    /// The broker that stored it, if it says: batches of ordered topics do so on disks, where nothing else does.
    #[must_use]
    pub fn stored_by(&self) -> Option<u16> {
        self.stored_by.get().checked_sub(1)
    }

    /// Says which broker stored it. The header's checksum is renewed.
    ///
    /// # Panics
    /// When no broker has this number.
    pub fn set_stored_by(&mut self, broker: u16) {
        let above = broker.checked_add(1).expect("no broker has this number");
        self.stored_by = above.into();
        self.header_crc = self.compute_crc().into();
    }

    /// Numbers the batch anew, as a publisher does when the batch gets its place in a session. The
    /// header's checksum is renewed.
    pub fn renumber(&mut self, sequence: u64, epoch: u32) {
        self.sequence = sequence.into();
        self.epoch = epoch.into();
        self.header_crc = self.compute_crc().into();
    }

    /// Adds flags, as a publisher does before it sends a batch again. The header's checksum is
    /// renewed.
    pub fn add_flags(&mut self, flags: BatchFlags) {
        self.batch_flags = self.flags().with(flags).bits().into();
        self.header_crc = self.compute_crc().into();
    }

    /// The 64 bytes on the wire and in the log.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; BATCH_HEADER_BYTES] {
        zerocopy::transmute_ref!(self)
    }

    /// The first 8 bytes.
    #[must_use]
    pub fn frame_header(&self) -> FrameHeader {
        FrameHeader {
            length: self.length.get(),
            id: self.id.get(),
            flags: self.frame_flags.get(),
        }
    }

    /// Bytes of the whole frame: this header and the payload.
    #[must_use]
    pub fn frame_len(&self) -> u32 {
        self.length.get() + FRAME_HEADER_BYTES as u32
    }

    /// Bytes of the payload: a positive multiple of 64.
    #[must_use]
    pub fn payload_len(&self) -> u32 {
        self.frame_len() - BATCH_HEADER_BYTES as u32
    }

    /// CRC-32C of the payload, as the publisher sealed it.
    #[must_use]
    pub fn payload_crc(&self) -> u32 {
        self.payload_crc.get()
    }

    /// The publishing session.
    #[must_use]
    pub fn producer(&self) -> u64 {
        self.producer.get()
    }

    /// Number of the batch within its session, from 0.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence.get()
    }

    /// Offset of the first message; 0 until the broker stamped it.
    #[must_use]
    pub fn base_offset(&self) -> u64 {
        self.base_offset.get()
    }

    /// Creation time, and append time once the broker stamped it.
    #[must_use]
    pub fn append_time(&self) -> WallNs {
        WallNs(self.append_time.get())
    }

    /// Topic id.
    #[must_use]
    pub fn topic(&self) -> u32 {
        self.topic.get()
    }

    /// Number of messages, at least 1.
    #[must_use]
    pub fn message_count(&self) -> u32 {
        self.message_count.get()
    }

    /// Flags.
    #[must_use]
    pub fn flags(&self) -> BatchFlags {
        BatchFlags(self.batch_flags.get())
    }

    /// Epoch of the session.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch.get()
    }
}

/// A whole batch over borrowed bytes, header and payload checked against their checksums.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    header: BatchHeader,
    payload: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Joins a checked header with its payload.
    ///
    /// # Errors
    /// As [`BatchHeader::check_payload`].
    pub fn new(header: BatchHeader, payload: &'a [u8]) -> Result<Self, BatchError> {
        header.check_payload(payload)?;
        Ok(Self { header, payload })
    }

    /// Takes the batch at the start of `bytes`, as when walking an extent; returns the bytes after
    /// it too.
    ///
    /// # Errors
    /// Those of [`BatchHeader::parse`] and [`BatchHeader::check_payload`].
    pub fn split_first(
        bytes: &'a [u8],
        max_batch_bytes: u32,
    ) -> Result<(Self, &'a [u8]), BatchError> {
        let header = BatchHeader::parse(bytes, max_batch_bytes)?;
        let (have, need) = (bytes.len(), header.frame_len() as usize);
        let Some((frame, rest)) = bytes.split_at_checked(need) else {
            return Err(BatchError::Truncated { have, need });
        };
        Ok((Self::new(header, &frame[BATCH_HEADER_BYTES..])?, rest))
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The message records, padded to 64 bytes.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The messages in order; the offset of one is [`BatchHeader::base_offset`] plus its index.
    #[must_use]
    pub fn messages(&self) -> Messages<'a> {
        Messages::new(self.payload, self.header.message_count())
    }
}

/// A batch header or its payload that cannot be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BatchError {
    /// Fewer bytes than the batch needs.
    #[error("a batch needs {need} bytes, {have} are there")]
    Truncated {
        /// Bytes at hand.
        have: usize,
        /// Bytes of the header, or of the whole batch.
        need: usize,
    },
    /// The frame is not a batch.
    #[error("frame id {id} where a batch was expected")]
    NotABatch {
        /// The id found.
        id: u16,
    },
    /// The header's checksum does not match.
    #[error(
        "batch header checksum is {found:#010x}, its bytes give {computed:#010x}: damaged on its way or in memory"
    )]
    HeaderChecksum {
        /// As stored.
        found: u32,
        /// Of the bytes at hand.
        computed: u32,
    },
    /// The payload's checksum does not match.
    #[error(
        "batch payload checksum is {found:#010x}, its bytes give {computed:#010x}: damaged on its way or in memory"
    )]
    PayloadChecksum {
        /// As stored in the header.
        found: u32,
        /// Of the bytes at hand.
        computed: u32,
    },
    /// The payload's length is not a positive multiple of 64 within the limit.
    #[error("a payload of {bytes} bytes is not a positive multiple of 64 within the limit")]
    PayloadLength {
        /// The length found.
        bytes: usize,
    },
    /// No message, or more than the payload can hold.
    #[error("{count} messages cannot be in {payload_bytes} bytes of payload")]
    MessageCount {
        /// The count found.
        count: u32,
        /// The payload's length.
        payload_bytes: u32,
    },
    /// A flag, compression codec or foreign format that this version does not know.
    #[error("batch flags {flags:#06x} are unknown to this version: publish without them")]
    UnknownFlags {
        /// All flags found.
        flags: u16,
    },
    /// A field that must be 0 is not.
    #[error("a reserved field of the batch header is not 0")]
    Reserved,
}
