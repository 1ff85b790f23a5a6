//! Messages, and the batch that a subscriber reads them from, one by one and without copying.

use embar_wire::batch::BatchFlags;
use embar_wire::limits::{BATCH_HEADER_BYTES, MESSAGE_ALIGN_BYTES, MESSAGE_HEADER_BYTES};
use embar_wire::message::{Alike, Headers, Messages};
use embar_wire::time::WallNs;

use super::model::{Delivered, header_at};
use super::payload::Payload;
use crate::connection::ChannelId;
use crate::error::ReadError;

/// A message, borrowed from the batch it came in.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// The broker that counts its offset; `None` where there is one order over all brokers.
    pub broker: Option<u32>,
    /// Its offset there, or its place in the order of the topic.
    pub offset: u64,
    /// The key; `None` if it was published without.
    pub key: Option<&'a [u8]>,
    /// Its headers, in the order they were published.
    pub headers: Headers<'a>,
    /// The value.
    pub value: &'a [u8],
    /// When the broker appended its batch.
    pub append_time: WallNs,
    /// The publisher sent its batch again after a loss, so another message may be the same.
    pub possible_duplicate: bool,
}

impl Message<'_> {
    /// A copy that owns its bytes.
    #[must_use]
    pub fn to_owned(&self) -> OwnedMessage {
        OwnedMessage {
            broker: self.broker,
            offset: self.offset,
            key: self.key.map(<[u8]>::to_vec),
            headers: self
                .headers
                .map(|header| (header.name.to_string(), header.value.to_vec()))
                .collect(),
            value: self.value.to_vec(),
            append_time: self.append_time,
            possible_duplicate: self.possible_duplicate,
        }
    }
}

/// As [`Message`], with bytes of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedMessage {
    /// The broker that counts its offset; `None` where there is one order over all brokers.
    pub broker: Option<u32>,
    /// Its offset there, or its place in the order of the topic.
    pub offset: u64,
    /// The key; `None` if it was published without.
    pub key: Option<Vec<u8>>,
    /// Names and values of its headers, in the order they were published.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The value.
    pub value: Vec<u8>,
    /// When the broker appended its batch.
    pub append_time: WallNs,
    /// The publisher sent its batch again after a loss, so another message may be the same.
    pub possible_duplicate: bool,
}

/// Delivered batches and how far they were read.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) channel: ChannelId,
    /// Whose offsets these are.
    pub(super) broker: Option<u32>,
    /// Who sent it.
    sender: u32,
    payload: Payload,
    /// Where the batch at hand ends.
    len: usize,
    /// Where the last batch ends.
    end: usize,
    /// Where the next message begins.
    cursor: usize,
    left: u32,
    /// The lengths of the last message that was looked at closely.
    alike: Alike,
    /// The offset of the next message.
    next_offset: u64,
    append_time: WallNs,
    possible_duplicate: bool,
}

impl Reading {
    /// The batches, behind the messages to skip.
    pub(super) fn new(delivered: Delivered) -> Result<Self, ReadError> {
        let header = delivered.header;
        let mut reading = Self {
            channel: delivered.channel,
            broker: delivered.owner(),
            sender: delivered.broker,
            len: header.payload_len() as usize,
            end: delivered.len,
            payload: delivered.payload,
            cursor: 0,
            left: header.message_count(),
            alike: Alike::default(),
            next_offset: header.base_offset(),
            append_time: header.append_time(),
            possible_duplicate: header.flags().contains(BatchFlags::POSSIBLE_DUPLICATE),
        };
        for _ in 0..delivered.skip {
            reading.next()?;
        }
        Ok(reading)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left == 0 && self.len == self.end
    }

    pub(super) fn next_offset(&self) -> u64 {
        self.next_offset
    }

    pub(super) fn into_buffer(self) -> (ChannelId, Vec<u8>) {
        (self.channel, self.payload.into_space())
    }

    /// Bytes of the next value, and of its record, if that message has the lengths of the last, and nothing but a value. Most
    /// have: for them [`Reading::take_alike`] is the short way.
    #[inline]
    pub(super) fn alike(&self) -> Option<(usize, usize)> {
        let rest = self.payload.get(self.cursor..self.len)?;
        self.alike.first(rest).filter(|_| self.left > 0)
    }

    /// The next message, of which [`Reading::alike`] has said the lengths.
    #[inline]
    pub(super) fn take_alike(&mut self, (len, padded): (usize, usize)) -> Message<'_> {
        let at = self.cursor + MESSAGE_HEADER_BYTES;
        self.cursor += padded;
        self.left -= 1;
        let offset = self.next_offset;
        self.next_offset += 1;
        Message {
            broker: self.broker,
            offset,
            key: None,
            headers: Headers::default(),
            value: &self.payload[at..at + len],
            append_time: self.append_time,
            possible_duplicate: self.possible_duplicate,
        }
    }

    /// The next message. After an error nothing more is read.
    ///
    /// # Panics
    /// If there [is none](Self::is_empty).
    pub(super) fn next(&mut self) -> Result<Message<'_>, ReadError> {
        if self.left == 0 && !self.is_empty() {
            self.begin_next_batch();
        }
        let payload = &self.payload[..self.len];
        let rest = &payload[self.cursor..];
        match Messages::new(rest, self.left).next() {
            Some(Ok(view)) => {
                self.alike = Alike::of(rest);
                // The value is the last part of a record, so the next one begins behind it.
                let end =
                    view.value.as_ptr() as usize - payload.as_ptr() as usize + view.value.len();
                self.cursor = end.next_multiple_of(MESSAGE_ALIGN_BYTES);
                let offset = self.next_offset;
                self.next_offset += 1;
                self.left -= 1;
                Ok(Message {
                    broker: self.broker,
                    offset,
                    key: view.key,
                    headers: view.headers,
                    value: view.value,
                    append_time: self.append_time,
                    possible_duplicate: self.possible_duplicate,
                })
            }
            Some(Err(error)) => {
                (self.left, self.end) = (0, self.len);
                Err(ReadError::Corrupt {
                    broker: self.sender,
                    offset: self.next_offset,
                    cause: error.to_string(),
                })
            }
            None => panic!("read past the end of a batch"),
        }
    }

    #[cold]
    fn begin_next_batch(&mut self) {
        let header = header_at(&self.payload[self.len..self.end]);
        self.cursor = self.len + BATCH_HEADER_BYTES;
        self.len = self.cursor + header.payload_len() as usize;
        self.left = header.message_count();
        self.next_offset = header.base_offset();
        self.append_time = header.append_time();
        self.possible_duplicate = header.flags().contains(BatchFlags::POSSIBLE_DUPLICATE);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use embar_wire::batch::{BatchHeader, SealFields};
    use embar_wire::builder::BatchBuilder;
    use embar_wire::limits::MAX_BATCH_BYTES;
    use embar_wire::message::Header;

    use super::*;

    /// A stamped batch frame with these values.
    pub(crate) fn frame(base: u64, topic: u32, values: &[&[u8]]) -> Vec<u8> {
        let bytes: usize = values.iter().map(|value| value.len()).sum();
        let mut builder = BatchBuilder::new(Vec::new(), (1 << 20) + bytes);
        for value in values {
            builder.try_push(None, &[], value).expect("fits");
        }
        let mut frame = builder.seal(SealFields {
            topic,
            ..SealFields::default()
        });
        let mut header = BatchHeader::parse(&frame, MAX_BATCH_BYTES).expect("sealed");
        header.stamp(base, WallNs(77));
        frame[..BATCH_HEADER_BYTES].copy_from_slice(header.as_bytes());
        frame.into()
    }

    pub(crate) fn delivered(frame: &[u8], skip: u32) -> Delivered {
        let mut payload = frame[BATCH_HEADER_BYTES..].to_vec();
        let len = payload.len();
        // A buffer is longer than its batch, and holds bytes of an older one.
        payload.extend([0xAA; 256]);
        let header = BatchHeader::parse(frame, MAX_BATCH_BYTES).expect("good");
        Delivered {
            len,
            channel: ChannelId(1),
            broker: 4,
            ordered: false,
            header,
            payload: payload.into(),
            skip,
            next: header.base_offset() + u64::from(header.message_count()),
        }
    }

    #[test]
    fn messages_of_all_shapes_come_back_with_their_offsets() {
        let mut builder = BatchBuilder::new(Vec::new(), 4096);
        let headers = [Header {
            name: "kind",
            value: b"x",
        }];
        builder.try_push(None, &[], b"").expect("fits");
        builder
            .try_push(Some(b"key"), &headers, b"value")
            .expect("fits");
        builder.try_push(Some(b""), &[], b"").expect("fits");
        builder.try_push(None, &headers, b"12345678").expect("fits");
        let frame = builder.seal(SealFields {
            flags: BatchFlags::POSSIBLE_DUPLICATE,
            ..SealFields::default()
        });
        let mut reading = Reading::new(delivered(&frame, 0)).expect("good");
        let mut seen = Vec::new();
        while !reading.is_empty() {
            let message = reading.next().expect("good").to_owned();
            assert!(message.possible_duplicate);
            seen.push((
                message.offset,
                message.key,
                message.headers.len(),
                message.value,
            ));
        }
        assert_eq!(
            seen,
            [
                (0, None, 0, vec![]),
                (1, Some(b"key".to_vec()), 1, b"value".to_vec()),
                (2, Some(vec![]), 0, vec![]),
                (3, None, 1, b"12345678".to_vec()),
            ]
        );
    }

    #[test]
    fn messages_like_the_one_before_and_others_between_them_come_whole() {
        let mut builder = BatchBuilder::new(Vec::new(), 4096);
        let shapes: [(Option<&[u8]>, &[u8]); 8] = [
            (None, b"abc"),
            (None, b"def"),
            (Some(b""), b"ghi"),
            (None, b"jkl"),
            (None, b"mno"),
            (None, b"pqrs"),
            (Some(b"k"), b"tuvw"),
            (None, b"xyz"),
        ];
        for (key, value) in shapes {
            builder.try_push(key, &[], value).expect("fits");
        }
        let frame = builder.seal(SealFields::default());
        let mut reading = Reading::new(delivered(&frame, 0)).expect("good");
        let mut were_alike = 0;
        for (offset, (key, value)) in (0..).zip(shapes) {
            let message = match reading.alike() {
                Some(lengths) => {
                    were_alike += 1;
                    reading.take_alike(lengths)
                }
                None => reading.next().expect("good"),
            };
            let found = (message.offset, message.key, message.value);
            assert_eq!(found, (offset, key, value));
        }
        assert!(reading.is_empty());
        assert_eq!(reading.alike(), None);
        assert_eq!(were_alike, 2, "those behind the first and the fourth");
    }

    #[test]
    fn messages_below_the_start_are_skipped() {
        let frame = frame(100, 1, &[b"a", b"bb", b"ccc"]);
        let mut reading = Reading::new(delivered(&frame, 2)).expect("good");
        let message = reading.next().expect("one is left");
        assert_eq!(
            (message.offset, message.value, message.append_time),
            (102, &b"ccc"[..], WallNs(77))
        );
        assert!(reading.is_empty());
        assert_eq!(reading.next_offset(), 103);
    }

    #[test]
    fn batches_that_came_together_are_read_one_after_the_other() {
        let frames = [
            frame(7, 1, &[b"a", b"b"]),
            frame(9, 1, &[b"c"]),
            frame(10, 1, &[b"d"]),
        ];
        let mut run = delivered(&frames[0], 1);
        for frame in &frames[1..] {
            let (header, payload) = (header_at(frame), &frame[BATCH_HEADER_BYTES..]);
            assert!(run.has_room(payload.len()));
            assert_eq!(run.stage(&header, payload), payload);
            run.push(&header);
        }
        assert!(!run.has_room(256));
        // One that is not pushed does not belong to them.
        let mut space = run.payload.into_space();
        space.resize(run.len + 256, 0);
        run.payload = space.into();
        run.stage(&header_at(&frames[1]), &frames[1][BATCH_HEADER_BYTES..]);
        let bases: Vec<u64> = run.batches().map(|(it, _)| it.base_offset()).collect();
        assert_eq!(bases, [7, 9, 10]);
        let mut reading = Reading::new(run).expect("good");
        let mut seen = Vec::new();
        while !reading.is_empty() {
            let message = reading.next().expect("good");
            seen.push((message.offset, message.value.to_vec()));
        }
        let expected = [(8, b"b"), (9, b"c"), (10, b"d")].map(|(at, it)| (at, it.to_vec()));
        assert_eq!(seen, expected);
        assert_eq!(reading.next_offset(), 11);
    }

    #[test]
    fn a_record_that_lies_about_its_length_is_an_error_once() {
        let mut frame = frame(5, 1, &[b"a", b"b"]);
        // The second record's value length.
        frame[BATCH_HEADER_BYTES + 16..BATCH_HEADER_BYTES + 20]
            .copy_from_slice(&u32::MAX.to_le_bytes());
        let mut reading = Reading::new(delivered(&frame, 0)).expect("the first is good");
        assert!(reading.next().is_ok());
        assert!(matches!(
            reading.next(),
            Err(ReadError::Corrupt { offset: 6, .. })
        ));
        assert!(reading.is_empty());
        assert!(
            Reading::new(delivered(&frame, 2)).is_err(),
            "damage in what is skipped counts too"
        );
    }
}
