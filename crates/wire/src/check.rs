//! Checks a batch's payload as it comes, part by part.

use embar_frame::Crc;

use crate::batch::{BatchError, BatchHeader};
use crate::error::DecodeError;
use crate::limits::{LINE_BYTES, MESSAGE_HEADER_BYTES};
use crate::message::{Lengths, MessageError, Messages};

/// What was found of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked {
    /// Its CRC-32C.
    pub crc: u32,
    /// Bytes of the longest message: headers, key and value.
    pub longest: usize,
}

/// The checksum of a payload, and the lengths of its messages, as far as it has come.
///
/// Each byte is looked at once, while whoever received it has it in a cache. Only headers of messages are not: they may
/// lie across parts, so a payload that has some is read again in the end.
#[derive(Debug, Default)]
pub struct PayloadCheck {
    crc: Crc,
    /// Bytes of the payload, and messages in it, as its batch says.
    len: usize,
    count: u32,
    /// Bytes seen.
    seen: usize,
    /// Messages found, and where the next one begins.
    index: u32,
    next: usize,
    /// The first bytes of that, as many as have come.
    lengths: [u8; MESSAGE_HEADER_BYTES],
    has: usize,
    /// The longest message: headers, key and value.
    longest: usize,
    /// Some message has headers.
    has_headers: bool,
    error: Option<MessageError>,
}

impl PayloadCheck {
    /// Begins with the payload of this batch.
    pub fn begin(&mut self, header: &BatchHeader) {
        *self = Self {
            len: header.payload_len() as usize,
            count: header.message_count(),
            ..Self::default()
        };
    }

    /// The next bytes came.
    pub fn see(&mut self, bytes: &[u8]) {
        self.crc.update(bytes);
        let begin = self.seen;
        self.seen += bytes.len();
        if self.has_headers || self.error.is_some() {
            return;
        }
        while self.index < self.count {
            if self.has == 0 {
                if self.take_whole(bytes, begin).is_none() {
                    return;
                }
                if self.index == self.count {
                    break;
                }
            }
            let at = self.next + self.has - begin;
            let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) else {
                return;
            };
            let came = rest.len().min(MESSAGE_HEADER_BYTES - self.has);
            self.lengths[self.has..self.has + came].copy_from_slice(&rest[..came]);
            self.has += came;
            if self.has < MESSAGE_HEADER_BYTES {
                return;
            }
            self.has = 0;
            if self.take_message().is_none() {
                return;
            }
        }
        self.see_padding(bytes, begin);
    }

    /// Counts the messages whose lengths lie whole in these bytes.
    ///
    /// Where a message begins follows from the lengths of the one before. A processor would wait for each load in turn. Here it
    /// guesses that the next lengths are the same as the last, and goes on before it has seen them.
    fn take_whole(&mut self, bytes: &[u8], begin: usize) -> Option<()> {
        // No payload has room for the guess at first: lengths of 0 are those of a message, too.
        let (mut last, mut padded) = (0, usize::MAX);
        while self.index < self.count {
            let Some(lengths) = bytes
                .get(self.next - begin..)
                .and_then(<[u8]>::first_chunk::<MESSAGE_HEADER_BYTES>)
            else {
                break;
            };
            let word = u64::from_le_bytes(*lengths);
            if word != last || padded > self.len.saturating_sub(self.next) {
                let at = self.next;
                self.lengths = *lengths;
                self.take_message()?;
                (last, padded) = (word, self.next - at);
            } else {
                self.next += padded;
                self.index += 1;
            }
        }
        Some(())
    }

    /// Counts the message whose lengths are there, if its payload can hold it.
    fn take_message(&mut self) -> Option<()> {
        let lengths = Lengths::parse(&self.lengths);
        let (need, have) = (lengths.padded(), self.len.saturating_sub(self.next));
        if need > have as u64 {
            let index = self.index;
            self.error = Some(MessageError::Truncated { index, need, have });
            return None;
        }
        self.has_headers = lengths.headers > 0;
        if self.has_headers {
            return None;
        }
        self.longest = self.longest.max(lengths.content() as usize);
        self.next += need as usize;
        self.index += 1;
        Some(())
    }

    /// Behind the last message only zeros up to the line's end may come.
    fn see_padding(&mut self, bytes: &[u8], begin: usize) {
        let left = self.len.saturating_sub(self.next);
        let at = self.next.saturating_sub(begin).min(bytes.len());
        if left >= LINE_BYTES || bytes[at..].iter().any(|byte| *byte != 0) {
            self.error = Some(MessageError::Trailing { bytes: left });
        }
    }

    /// Whether it saw all of the payload.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.seen == self.len
    }

    /// Says whether the payload, all of which came, is what its publisher sealed, and that it holds the messages that its batch
    /// says. `payload` shows it once more to the closure that it is given, if that is needed. A batch without a checksum
    /// [is not compared](BatchHeader::is_summed): whoever accepts such a one gives it what was found.
    ///
    /// # Errors
    /// What is wrong with it. [`BatchError::Truncated`] if less or more came than the batch says.
    pub fn end(
        &self,
        header: &BatchHeader,
        payload: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) -> Result<Checked, DecodeError> {
        if !self.is_whole() {
            let (have, need) = (self.seen, self.len);
            return Err(BatchError::Truncated { have, need }.into());
        }
        let crc = self.crc.value();
        if header.is_summed() {
            header.check_payload_crc(crc)?;
        }
        if self.has_headers {
            let mut longest = Ok(0);
            payload(&mut |bytes| longest = longest_of(bytes, header.message_count()));
            let longest = longest?;
            return Ok(Checked { crc, longest });
        }
        if let Some(error) = self.error {
            return Err(error.into());
        }
        if self.index < self.count {
            let (index, have) = (self.index, self.len - self.next);
            let need = MESSAGE_HEADER_BYTES as u64;
            return Err(MessageError::Truncated { index, need, have }.into());
        }
        // A payload without a byte behind its last message showed no padding, and has none.
        let longest = self.longest;
        Ok(Checked { crc, longest })
    }
}

fn longest_of(payload: &[u8], count: u32) -> Result<usize, MessageError> {
    let mut longest = 0;
    for message in Messages::new(payload, count) {
        longest = longest.max(message?.content_len());
    }
    Ok(longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchFlags, SealFields};
    use crate::builder::BatchBuilder;
    use crate::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};
    use crate::message::Header;

    fn frame(values: &[Vec<u8>], headers: &[Header<'_>]) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Vec::new(), 1 << 20);
        for value in values {
            let key = (value.len() % 3 == 1).then_some(&value[..value.len() / 2]);
            builder.try_push(key, headers, value).expect("fits");
        }
        builder.seal(SealFields::default()).into()
    }

    /// A frame of messages that all have an empty key.
    fn keyed(values: &[Vec<u8>]) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Vec::new(), 1 << 20);
        for value in values {
            builder.try_push(Some(&[]), &[], value).expect("fits");
        }
        builder.seal(SealFields::default()).into()
    }

    /// A frame whose payload was changed, sealed anew.
    fn resealed(frame: &[u8], change: impl FnOnce(&mut [u8])) -> (BatchHeader, Vec<u8>) {
        let mut payload = frame[BATCH_HEADER_BYTES..].to_vec();
        change(&mut payload);
        let mut header = BatchHeader::parse(frame, MAX_BATCH_BYTES).expect("sealed");
        header.sum(embar_frame::crc32c(&payload));
        (header, payload)
    }

    fn checked(header: &BatchHeader, payload: &[u8], part: usize) -> Result<usize, DecodeError> {
        let mut check = PayloadCheck::default();
        check.begin(header);
        payload.chunks(part).for_each(|part| check.see(part));
        let checked = check.end(header, |see| see(payload))?;
        assert_eq!(checked.crc, embar_frame::crc32c(payload));
        Ok(checked.longest)
    }

    /// What the whole payload says at once.
    fn expected(header: &BatchHeader, payload: &[u8]) -> Result<usize, DecodeError> {
        header.check_payload_crc(embar_frame::crc32c(payload))?;
        Ok(longest_of(payload, header.message_count())?)
    }

    #[test]
    fn parts_of_any_size_say_what_the_whole_says() {
        let values: Vec<Vec<u8>> = (0..40).map(|len| vec![len as u8 | 1; len * 7]).collect();
        let alike = vec![vec![2; 18]; 40];
        // Of length 0, key and all, their length words are 0.
        let mixed = [vec![], vec![], vec![3; 18], vec![], vec![3; 7], vec![]];
        let kind = [Header {
            name: "kind",
            value: b"x",
        }];
        let shapes = [
            frame(&values, &[]),
            frame(&values, &kind),
            frame(&alike, &[]),
            keyed(&mixed),
            keyed(&mixed[..1]),
            keyed(&vec![vec![]; 40]),
        ];
        for frame in shapes {
            let len = frame.len() - BATCH_HEADER_BYTES;
            let places = [0, 3, 4, 7, 8, 9, 100, len.saturating_sub(200), len - 1];
            for place in places.into_iter().filter(|place| *place < len) {
                for change in [0, 1, 0x80, 0xFF] {
                    let (header, payload) = resealed(&frame, |payload| payload[place] ^= change);
                    let due = expected(&header, &payload);
                    for part in [1, 3, 7, 8, 64, 1000, payload.len()] {
                        let found = checked(&header, &payload, part);
                        let found = found.map_err(|error| error.to_string());
                        let due = due.clone().map_err(|error| error.to_string());
                        assert_eq!(found, due, "{place} {change} {part}");
                    }
                }
            }
        }
    }

    #[test]
    fn zeros_are_no_more_messages_than_they_have_room_for() {
        let frame = frame(&[vec![5; 1024 - 56 - MESSAGE_HEADER_BYTES]], &[]);
        let payload = &frame[BATCH_HEADER_BYTES..];
        let len = payload.len();
        assert_eq!(len, 1024, "the last 56 bytes are zeros");
        for count in [2, 8, 9, len as u32 / 8] {
            let header = BatchHeader::new(&SealFields::default(), count, payload);
            let due = expected(&header, payload).map_err(|error| error.to_string());
            for part in [8, 64, len - 64, len] {
                let found = checked(&header, payload, part).map_err(|error| error.to_string());
                assert_eq!(found.is_ok(), due.is_ok(), "{count} {part}");
            }
        }
    }

    #[test]
    fn what_did_not_come_whole_is_refused() {
        let frame = frame(&[vec![1; 100]], &[]);
        let header = BatchHeader::parse(&frame, MAX_BATCH_BYTES).expect("sealed");
        let payload = &frame[BATCH_HEADER_BYTES..];
        for len in [0, 1, payload.len() - 1] {
            let error = checked(&header, &payload[..len], 64).unwrap_err();
            assert!(matches!(
                error,
                DecodeError::Batch(BatchError::Truncated { .. })
            ));
        }
        let damaged: Vec<u8> = payload.iter().map(|byte| byte ^ 1).collect();
        let error = checked(&header, &damaged, 64).unwrap_err();
        assert!(matches!(
            error,
            DecodeError::Batch(BatchError::PayloadChecksum { .. })
        ));
        assert_eq!(checked(&header, payload, 9).unwrap(), 150);
    }

    #[test]
    fn a_batch_without_a_checksum_is_looked_at_and_gets_one() {
        let mut builder = BatchBuilder::new(Vec::new(), 1 << 20);
        builder.try_push(None, &[], &[3; 100]).expect("fits");
        let frame = builder.seal(SealFields {
            flags: BatchFlags::UNSUMMED,
            ..SealFields::default()
        });
        let mut header = BatchHeader::parse(&frame, MAX_BATCH_BYTES).expect("sealed");
        let payload = &frame[BATCH_HEADER_BYTES..];
        let crc = embar_frame::crc32c(payload);
        for (found, computed) in [(0, 0), (0, crc)] {
            let error = header.check_payload_crc(computed).unwrap_err();
            assert_eq!(error, BatchError::PayloadChecksum { found, computed });
        }
        assert_eq!(checked(&header, payload, 64).unwrap(), 100);
        header.sum(crc);
        assert!(header.is_summed());
        header.check_payload(payload).expect("it has one now");
        let parsed = BatchHeader::parse(header.as_bytes(), MAX_BATCH_BYTES);
        assert_eq!(parsed.expect("its own is good"), header);
    }
}
