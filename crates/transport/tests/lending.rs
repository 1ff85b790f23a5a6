//! Payload that lies in a file which its owner lends is named to readers of its user, while no more is lent than may be.

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use embar_memory::{Coherence, LentFile, Mapped, PayloadFile, Span};
use embar_transport::buffer::PIECE_HEADER_BYTES;
use embar_transport::shm::{WINDOW_BYTES, WINDOW_REFERENCES};
use embar_transport::{
    Body, Completion, Epoll, LentBytes, Payload, Pieces, Reactor, RecvBuf, SendBuf, Shm,
    ShmOptions, Store, Token,
};
use rustix::net::{Shutdown, shutdown};

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

/// An owner and a reader in one reactor.
struct Pair {
    epoll: Epoll,
    payload: PayloadFile<Mapped>,
    owner: Token,
    reader: Token,
    /// The owner's.
    socket: OwnedFd,
    seen: Vec<Completion>,
}

impl Pair {
    fn new(payload_bytes: usize, borrows: bool) -> Self {
        let made = PayloadFile::anonymous_lent(payload_bytes as u64, Coherence::Coherent);
        let (payload, lent) = made.expect("memory");
        let connecting = ShmOptions {
            borrows,
            ..ShmOptions::default()
        };
        let (reader, owner) = Shm::pair(&connecting, &lending(lent)).expect("memory");
        let mut epoll = Epoll::new().expect("descriptors");
        let socket = owner.as_fd().try_clone_to_owned().expect("descriptors");
        Self {
            payload,
            socket,
            owner: epoll.add(owner).expect("new"),
            reader: epoll.add(reader).expect("new"),
            epoll,
            seen: Vec::new(),
        }
    }

    /// Polls until there is a completion that is `wanted`; others are kept.
    fn wait(&mut self, wanted: impl Fn(&Completion) -> bool) -> Completion {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen.iter().position(&wanted) {
                return self.seen.swap_remove(at);
            }
            assert!(Instant::now() < deadline, "nothing comes");
            let timeout = Some(Duration::from_millis(100));
            let polled = self.epoll.poll(timeout, &mut self.seen);
            polled.expect("the kernel serves");
        }
    }

    fn await_sent(&mut self) {
        match self.wait(|it| matches!(it, Completion::Sent { .. })) {
            Completion::Sent { result, .. } => result.expect("the reader lives"),
            other => panic!("{other:?}"),
        }
    }

    fn send(&mut self, buf: SendBuf) {
        self.epoll.send(self.owner, buf);
        self.await_sent();
    }

    fn receive(&mut self, most: usize) -> std::io::Result<Vec<u8>> {
        self.receive_into(RecvBuf::heap(vec![0; most], 0..most))
            .map(|buf| buf.with_filled(buf.filled(), <[u8]>::to_vec))
    }

    fn receive_into(&mut self, buf: RecvBuf) -> std::io::Result<RecvBuf> {
        let reader = self.reader;
        self.epoll.recv(reader, buf);
        let received =
            |it: &Completion| matches!(it, Completion::Received { token, .. } if *token == reader);
        match self.wait(received) {
            Completion::Received { buf, result, .. } => result.map(|_| buf),
            other => panic!("{other:?}"),
        }
    }

    /// Receives at least `least` and at most `most` bytes where they lie.
    fn receive_lent(&mut self, least: usize, most: usize) -> LentBytes {
        let buf = RecvBuf::heap(vec![0; most], 0..most).or_lent(least);
        let buf = self.receive_into(buf).expect("the owner lives");
        let filled = buf.filled();
        match buf.into_store() {
            Store::Lent(bytes, space) => {
                assert_eq!((filled, space.len()), (0..bytes.len(), most));
                bytes
            }
            _ => panic!("it was copied"),
        }
    }

    /// What readers have that nobody hears of any more comes back.
    fn await_released(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.payload.lent_bytes() > 0 {
            self.payload.held().release();
            assert!(Instant::now() < deadline, "something stays lent");
            std::thread::yield_now();
        }
    }

    fn receive_exactly(&mut self, count: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < count {
            let part = self.receive(count - all.len()).expect("the owner lives");
            assert!(!part.is_empty(), "the stream ended at {}", all.len());
            all.extend(part);
        }
        all
    }

    /// The owner waits, and learns meanwhile that nothing is read any more.
    fn await_all_given_back(&mut self) {
        self.epoll.recv(self.owner, RecvBuf::heap(vec![0; 8], 0..8));
        let deadline = Instant::now() + PATIENCE;
        while self.payload.lent_bytes() > 0 {
            let polled = self
                .epoll
                .poll(Some(Duration::from_millis(10)), &mut Vec::new());
            polled.expect("the kernel serves");
            assert!(Instant::now() < deadline, "something stays lent");
        }
    }
}

fn lending(lent: LentFile) -> ShmOptions {
    ShmOptions {
        lends: Some(lent),
        ..ShmOptions::default()
    }
}

fn committed(payload: &PayloadFile<Mapped>, bytes: usize, seed: usize) -> Span<Mapped> {
    let mut extent = payload.allocate(bytes as u32).expect("room");
    let mut reservation = extent.reserve(bytes as u32).expect("fresh");
    for (at, byte) in reservation.as_mut_slice().iter_mut().enumerate() {
        *byte = (at * 31 + seed * 7 + at / 251) as u8;
    }
    reservation.commit()
}

#[test]
fn what_is_lent_is_kept_until_it_was_read_even_if_nothing_is_sent_any_more() {
    let mut pair = Pair::new(16 * MIB, true);
    // More than the ring holds, so that copying it would wait for the reader.
    let span = committed(&pair.payload, 2 * MIB, 1);
    let expected = span.as_slice().to_vec();
    pair.send(SendBuf::new(b"head".to_vec(), Body::Span(span)));
    // The span is the connection's alone by now.
    assert_eq!(pair.payload.lent_bytes(), 2 * MIB as u64);
    assert_eq!(pair.payload.free_bytes(), 14 * MIB as u64);
    let got = pair.receive_exactly(4 + expected.len());
    assert!(got[..4] == *b"head" && got[4..] == expected, "bytes differ");
    pair.await_all_given_back();
    assert_eq!(pair.payload.free_bytes(), 16 * MIB as u64);
}

#[test]
fn beyond_an_eighth_of_the_file_payload_is_copied() {
    let mut pair = Pair::new(8 * MIB, true);
    let spans = [1, 2, 3].map(|seed| committed(&pair.payload, MIB, seed));
    let expected: Vec<u8> = spans.iter().flat_map(|it| it.as_slice().to_vec()).collect();
    let [first, second, third] = spans;
    pair.send(SendBuf::span(first));
    assert_eq!(pair.payload.lent_bytes(), MIB as u64);
    // The ring has room for less than this, so it waits for the reader.
    pair.epoll.send(pair.owner, SendBuf::span(second));
    let got = pair.receive_exactly(2 * MIB);
    assert!(got == expected[..2 * MIB], "bytes differ");
    pair.await_sent();
    pair.send(SendBuf::span(third));
    assert!(
        pair.receive_exactly(MIB) == expected[2 * MIB..],
        "bytes differ"
    );
    pair.await_all_given_back();
    assert_eq!(pair.payload.free_bytes(), 8 * MIB as u64);
}

#[test]
fn payloads_among_pieces_are_lent_and_small_ones_copied() {
    let mut pair = Pair::new(64 * MIB, true);
    let private = Arc::new(vec![7; 5000].into());
    let lens = [300_000, 100, 4096, 65_536];
    let spans: Vec<_> = (lens.iter().zip(1..))
        .map(|(len, seed)| committed(&pair.payload, *len, seed))
        .collect();
    let (mut expected, mut starts) = (Vec::new(), Vec::new());
    let mut pieces = Pieces::new();
    for (number, span) in spans.iter().enumerate() {
        starts.push(expected.len());
        let header = [number as u8; PIECE_HEADER_BYTES];
        expected.extend(header);
        expected.extend(span.as_slice());
        pieces.push(header, Payload::Own(span.clone()));
    }
    pieces.push_frame(Arc::clone(&private));
    expected.extend_from_slice(&private);
    pair.send(SendBuf::new(Vec::new(), Body::Pieces(Box::new(pieces))));
    let blocks = |len: usize| len.next_multiple_of(64 << 10).next_power_of_two() as u64;
    let lent = [lens[0], lens[2], lens[3]].map(blocks);
    assert_eq!(pair.payload.lent_bytes(), lent.iter().sum());
    assert!(
        pair.receive_exactly(expected.len()) == expected,
        "bytes differ"
    );
    pair.await_all_given_back();
    for cut in [1, 63, 64, 65, starts[1] - 1, starts[2] + 70] {
        let mut pieces = Pieces::new();
        for (number, span) in spans.iter().enumerate() {
            let header = [number as u8; PIECE_HEADER_BYTES];
            pieces.push(header, Payload::Own(span.clone()));
        }
        pieces.push_frame(Arc::clone(&private));
        let mut buf = SendBuf::new(Vec::new(), Body::Pieces(Box::new(pieces)));
        buf.advance(cut);
        pair.send(buf);
        let got = pair.receive_exactly(expected.len() - cut);
        assert!(got == expected[cut..], "cut at {cut}");
    }
}

#[test]
fn who_does_not_ask_for_it_is_lent_nothing() {
    let mut pair = Pair::new(16 * MIB, false);
    let span = committed(&pair.payload, 256 << 10, 1);
    pair.send(SendBuf::span(span.clone()));
    assert_eq!(pair.payload.lent_bytes(), 0);
    assert!(pair.receive_exactly(span.len()) == span.as_slice());
}

#[test]
fn what_a_closed_connection_had_lent_is_taken_and_stays_the_readers() {
    let mut pair = Pair::new(16 * MIB, true);
    let span = committed(&pair.payload, MIB, 1);
    let expected = span.as_slice().to_vec();
    pair.send(SendBuf::span(span));
    pair.epoll.close(pair.owner);
    pair.payload.held().release();
    assert_eq!(pair.payload.lent_bytes(), MIB as u64, "the reader lives");
    assert_eq!(pair.payload.free_bytes(), 15 * MIB as u64);
    assert!(pair.receive_exactly(MIB) == expected, "bytes differ");
    pair.epoll.close(pair.reader);
    pair.await_released();
    assert_eq!(pair.payload.free_bytes(), 16 * MIB as u64);
}

#[test]
fn what_is_read_where_it_lies_is_consumed_when_it_is_dropped_in_any_order() {
    let mut pair = Pair::new(64 * MIB, true);
    let spans = [1, 2, 3].map(|seed| committed(&pair.payload, MIB, seed));
    let expected = spans.each_ref().map(|it| it.as_slice().to_vec());
    for span in spans {
        pair.send(SendBuf::new(b"head".to_vec(), Body::Span(span)));
    }
    let read = [(); 3].map(|()| {
        assert_eq!(pair.receive(100).expect("the owner lives"), b"head");
        pair.receive_lent(MIB, MIB)
    });
    for (read, expected) in read.iter().zip(&expected) {
        assert!(**read == **expected, "bytes differ");
    }
    let lent = |pair: &mut Pair| {
        // A look at what the reader consumed.
        pair.send(SendBuf::heap(b"x".to_vec()));
        pair.payload.lent_bytes()
    };
    assert_eq!(lent(&mut pair), 3 * MIB as u64);
    let [first, second, third] = read;
    drop(second);
    assert_eq!(lent(&mut pair), 3 * MIB as u64);
    std::thread::spawn(move || drop(first))
        .join()
        .expect("dropped");
    assert_eq!(lent(&mut pair), MIB as u64);
    assert!(third.ends_with(&expected[2]));
    drop(third);
    // It sleeps, and is woken for that.
    pair.await_all_given_back();
    assert_eq!(pair.payload.free_bytes(), 64 * MIB as u64);
}

#[test]
fn parts_of_what_a_record_names_are_leased_one_by_one() {
    let mut pair = Pair::new(16 * MIB, true);
    let span = committed(&pair.payload, MIB, 1);
    let expected = span.as_slice().to_vec();
    pair.send(SendBuf::span(span));
    let first = pair.receive_lent(1000, 300_000);
    let second = pair.receive_lent(1000, MIB);
    assert!([&first[..], &second[..]].concat() == expected);
    drop(second);
    pair.send(SendBuf::heap(b"x".to_vec()));
    assert_eq!(pair.payload.lent_bytes(), MIB as u64);
    drop(first);
    pair.await_all_given_back();
}

#[test]
fn too_little_at_once_is_copied() {
    let mut pair = Pair::new(16 * MIB, true);
    let span = committed(&pair.payload, 64 << 10, 1);
    let expected = span.as_slice().to_vec();
    pair.send(SendBuf::new(Vec::new(), Body::Span(span)));
    pair.send(SendBuf::heap(vec![7; 64]));
    let most = (64 << 10) + 64;
    let buf = RecvBuf::heap(vec![0; most], 0..most).or_lent(most);
    let buf = pair.receive_into(buf).expect("the owner lives");
    let Store::Heap(bytes) = buf.into_store() else {
        panic!("it was not copied")
    };
    assert!(bytes[..64 << 10] == expected);
}

#[test]
fn bytes_that_are_read_stand_still_although_both_sides_closed_the_connection() {
    let mut pair = Pair::new(16 * MIB, true);
    let span = committed(&pair.payload, MIB, 1);
    let expected = span.as_slice().to_vec();
    pair.send(SendBuf::span(span));
    let read = pair.receive_lent(MIB, MIB);
    pair.epoll.close(pair.owner);
    pair.epoll.close(pair.reader);
    pair.payload.held().release();
    // All that there is is used again, several times.
    for seed in 2..50 {
        let others: Vec<_> = std::iter::from_fn(|| pair.payload.allocate(1)).collect();
        assert_eq!(others.len(), 15 * 16);
        for mut extent in others {
            let mut bytes = extent.reserve(64 << 10).expect("fresh");
            bytes.as_mut_slice().fill(seed);
        }
    }
    assert!(*read == *expected, "bytes changed under a reader");
    drop(read);
    pair.await_released();
    assert_eq!(pair.payload.free_bytes(), 16 * MIB as u64);
}

#[test]
fn what_an_owner_had_lent_that_died_since_is_taken() {
    let mut pair = Pair::new(16 * MIB, true);
    let span = committed(&pair.payload, MIB, 1);
    let buf = SendBuf::new(b"head".to_vec(), Body::Span(span.clone()));
    pair.send(buf);
    // As the kernel does for a process that was killed, which withdraws nothing. Its locks keep these bytes from being used again.
    shutdown(&pair.socket, Shutdown::Both).expect("connected");
    let got = pair.receive_exactly(4 + MIB);
    assert!(got.starts_with(b"head") && got.ends_with(span.as_slice()));
}

#[test]
fn what_a_dead_owner_had_copied_is_taken() {
    let mut pair = Pair::new(16 * MIB, true);
    pair.send(SendBuf::heap(b"copied".to_vec()));
    shutdown(&pair.socket, Shutdown::Both).expect("connected");
    assert_eq!(pair.receive_exactly(6), b"copied");
}

#[test]
fn a_reader_that_takes_nothing_is_lent_a_window() {
    for bytes in [MIB, 64 << 10] {
        let mut pair = Pair::new(256 * MIB, true);
        let direct = pair.epoll.direct(pair.owner).expect("it is open");
        let mut sent = 0;
        loop {
            let mut buf = SendBuf::span(committed(&pair.payload, bytes, sent));
            match direct.try_send_buf(&mut buf) {
                Ok(count) => assert_eq!(count, bytes, "all or nothing is named"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
            sent += 1;
        }
        assert_eq!(sent, WINDOW_REFERENCES.min(WINDOW_BYTES / bytes));
        assert_eq!(pair.payload.lent_bytes(), (sent * bytes) as u64);
        let got = pair.receive_exactly(sent * bytes);
        assert!(got.ends_with(committed(&pair.payload, bytes, sent - 1).as_slice()));
        pair.await_all_given_back();
    }
}

#[test]
fn two_readers_of_one_block_take_it_once() {
    let (payload, lent) =
        PayloadFile::anonymous_lent(16 << 20, Coherence::Coherent).expect("memory");
    let borrowing = ShmOptions {
        borrows: true,
        ..ShmOptions::default()
    };
    let mut epoll = Epoll::new().expect("descriptors");
    let span = committed(&payload, MIB, 1);
    let mut readers = Vec::new();
    for _ in 0..2 {
        let pair = Shm::pair(&borrowing, &lending(lent.clone())).expect("memory");
        readers.push(epoll.add(pair.0).expect("new"));
        let owner = epoll.add(pair.1).expect("new");
        let direct = epoll.direct(owner).expect("it is open");
        let mut buf = SendBuf::span(span.clone());
        assert_eq!(direct.try_send_buf(&mut buf).expect("named"), MIB);
    }
    assert_eq!(payload.lent_bytes(), MIB as u64);
    drop(epoll);
    payload.held().release();
    assert_eq!(payload.lent_bytes(), 0);
}
