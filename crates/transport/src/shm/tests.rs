//! The cores of both sides on memory that hosts do not see alike, with peers that lie.

use std::io::ErrorKind;
use std::sync::Arc;

use embar_memory::{Device, Memory, Simulated};
use embar_meter::random::SplitMix64;
use proptest::prelude::*;

use super::layout::{COMMIT_AT, CONSUMED_AT, INLINE_MAX, Record, Sizes, WANTED_AT, WITHDRAWN_AT};
use super::nap::{NEWS, Nap};
use super::receiver::{Receiver, Taken};
use super::sender::{Sender, WINDOW_REFERENCES};

const SIZES: Sizes = Sizes {
    records: 8,
    bytes: 8192,
};

type Keep = Arc<Vec<u8>>;

/// Both sides of one direction, each with a view of its own of the two outboxes.
struct Pair {
    /// The memories of the side that sends and of the one that receives, and one that was handed over.
    sending: Device,
    receiving: Device,
    handed: Device,
    sender: Sender<Simulated, Simulated, Keep>,
    receiver: Receiver<Simulated, Simulated>,
}

fn pair(seed: u64) -> Pair {
    let sending = Device::blank(SIZES.outbox_bytes());
    let receiving = Device::blank(SIZES.outbox_bytes());
    let handed = Device::blank(1 << 16);
    let host = |device: &Device, of: u64| Arc::new(device.host(seed * 8 + of));
    let sender = Sender::new(host(&sending, 0), host(&receiving, 1), SIZES);
    let receiver = Receiver::new(
        host(&receiving, 2),
        host(&sending, 3),
        SIZES,
        [host(&handed, 4)].into(),
        None,
    );
    Pair {
        sending,
        receiving,
        handed,
        sender,
        receiver,
    }
}

/// Stores a word as a peer does that keeps to no rule.
fn scribble(device: &Device, at: u64, value: u64) {
    let host = device.host(99);
    host.store(at, value);
    host.write_back(at, 8);
    host.fence();
}

/// Puts bytes into a handed-over memory.
fn fill(device: &Device, at: u64, bytes: &[u8]) {
    let host = device.host(77);
    host.write(at, bytes);
    host.write_back(at, bytes.len() as u64);
    host.fence();
}

impl Pair {
    fn take(&mut self, most: usize) -> Vec<u8> {
        let mut into = vec![0; most];
        let count = match self.receiver.take(&mut into).expect("an honest sender") {
            Taken::Bytes(count) => count,
            Taken::Nothing | Taken::End => 0,
        };
        self.receiver.tell();
        into.truncate(count);
        into
    }

    fn refused(&mut self) -> String {
        let error = self.receiver.take(&mut [0; 64]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        error.to_string()
    }
}

#[test]
fn bytes_come_as_they_were_sent_however_both_sides_cut_them() {
    for seed in 0..30 {
        let mut random = SplitMix64::new(seed);
        let mut pair = pair(seed);
        let sent: Vec<u8> = (0..60_000).map(|_| random.next_u64() as u8).collect();
        fill(&pair.handed, 0, &sent);
        let (mut at, mut got) = (0, Vec::new());
        let mut rounds = 0;
        while got.len() < sent.len() {
            rounds += 1;
            assert!(rounds < 100_000, "it stands still at {}", got.len());
            if at < sent.len() && random.below(2) == 0 {
                pair.sender.refresh().unwrap();
                let len = 1 + random.below(3000) as usize;
                let end = (at + len).min(sent.len());
                if random.below(4) == 0 && pair.sender.may_name() {
                    let keep = Keep::default();
                    pair.sender.name(0, at as u64, (end - at) as u32, keep);
                    at = end;
                } else {
                    at += pair.sender.copy(&sent[at..end]);
                }
            } else {
                got.extend(pair.take(1 + random.below(5000) as usize));
            }
        }
        assert!(got == sent, "seed {seed}");
        pair.sender.refresh().unwrap();
        assert!(pair.sender.all_consumed());
        assert_eq!(pair.sender.kept(), (0, 0));
        pair.sender.end();
        pair.sender.end();
        assert_eq!(pair.receiver.take(&mut [0; 8]).unwrap(), Taken::End);
        assert_eq!(pair.receiver.take(&mut [0; 8]).unwrap(), Taken::End);
        assert_eq!(pair.sender.copy(b"late"), 0);
    }
}

#[test]
fn a_reader_that_takes_nothing_stops_the_writer_and_the_end_still_fits() {
    for len in [1, INLINE_MAX + 1, 4000] {
        let mut pair = pair(1);
        let mut sent = 0;
        loop {
            pair.sender.refresh().unwrap();
            match pair.sender.copy(&vec![7; len]) {
                0 => break,
                count => sent += count,
            }
            assert!(sent < 10_000, "more than there is room for");
        }
        assert!(!pair.sender.may_name() || len > INLINE_MAX);
        pair.sender.end();
        let mut got = 0;
        loop {
            let count = pair.take(100).len();
            if count == 0 {
                break;
            }
            got += count;
        }
        assert_eq!(got, sent);
        assert_eq!(pair.receiver.take(&mut [0; 8]).unwrap(), Taken::End);
    }
}

#[test]
fn what_is_named_is_kept_until_it_was_consumed() {
    let mut pair = pair(3);
    fill(&pair.handed, 64, &[5; 100]);
    let keep: Keep = Arc::default();
    pair.sender.copy(b"before");
    pair.sender.name(0, 64, 100, Arc::clone(&keep));
    assert_eq!(pair.take(6), b"before");
    assert_eq!(pair.take(99), [5; 99]);
    pair.sender.refresh().unwrap();
    assert_eq!(
        (Arc::strong_count(&keep), pair.sender.kept()),
        (2, (1, 100))
    );
    assert_eq!(pair.take(9), [5]);
    pair.sender.refresh().unwrap();
    assert_eq!((Arc::strong_count(&keep), pair.sender.kept()), (1, (0, 0)));
}

#[test]
fn only_so_much_is_named_at_once() {
    let sending = Device::blank(Sizes::at_least(256, 4096).outbox_bytes());
    let peer = Device::blank(4096);
    let hosts = (Arc::new(sending.host(0)), Arc::new(peer.host(1)));
    let mut sender = Sender::new(hosts.0, hosts.1, Sizes::at_least(256, 4096));
    let mut named = 0;
    while sender.may_name() {
        sender.name(0, 0, 64, ());
        named += 1;
    }
    assert_eq!(named, WINDOW_REFERENCES);
    let mut sender: Sender<_, _, ()> = {
        let hosts = (Arc::new(sending.host(0)), Arc::new(peer.host(1)));
        Sender::new(hosts.0, hosts.1, Sizes::at_least(256, 4096))
    };
    sender.name(0, 0, super::WINDOW_BYTES as u32, ());
    assert!(!sender.may_name());
    assert_eq!(sender.copy(b"copies go on"), 12);
}

#[test]
fn what_was_withdrawn_is_not_taken_and_what_was_copied_is() {
    let mut pair = pair(4);
    fill(&pair.handed, 0, &[1; 64]);
    pair.sender.copy(b"copied");
    pair.sender.name(0, 0, 64, Arc::default());
    pair.sender.withdraw();
    assert_eq!(pair.sender.kept(), (0, 0));
    fill(&pair.handed, 0, &[2; 64]);
    assert_eq!(pair.take(6), b"copied");
    let error = pair.receiver.take(&mut [0; 64]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
    assert_eq!(pair.sender.copy(b"more"), 0, "nothing is sent behind it");
}

#[test]
fn withdrawing_what_was_consumed_aborts_nothing() {
    let mut pair = pair(5);
    pair.sender.name(0, 0, 64, Arc::default());
    assert_eq!(pair.take(64).len(), 64);
    pair.sender.copy(b"later");
    pair.sender.withdraw();
    assert_eq!(pair.sending.view().load(WITHDRAWN_AT), 0);
    assert_eq!(pair.take(9), b"later");
}

#[test]
fn a_counter_that_lies_is_an_error() {
    for (consumed, then) in [(3, None), (u64::MAX, None), (2, Some(1)), (2, Some(0))] {
        let mut pair = pair(6);
        pair.sender.copy(b"one");
        pair.sender.copy(b"two");
        scribble(&pair.receiving, CONSUMED_AT, consumed);
        let mut result = pair.sender.refresh();
        if let Some(then) = then {
            result.unwrap();
            scribble(&pair.receiving, CONSUMED_AT, then);
            result = pair.sender.refresh();
        }
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(error.to_string().contains("consumed"), "{error}");
    }
}

#[test]
fn a_commit_word_of_another_lap_is_an_error() {
    for word in [2, 9, u64::MAX] {
        let mut pair = pair(7);
        scribble(&pair.sending, SIZES.record_at(0) + COMMIT_AT, word);
        assert!(pair.receiver.has_news());
        let text = pair.refused();
        assert!(text.contains(&word.to_string()), "{text}");
    }
    // The word of the lap before says that nothing is there.
    let mut pair = pair(8);
    for _ in 0..8 {
        assert_eq!(pair.sender.copy(b"x"), 1);
        assert_eq!(pair.take(1), b"x");
        pair.sender.refresh().unwrap();
    }
    assert!(!pair.receiver.has_news());
    assert_eq!(pair.receiver.take(&mut [0; 1]).unwrap(), Taken::Nothing);
    scribble(&pair.sending, SIZES.record_at(8) + COMMIT_AT, 0);
    pair.refused();
}

#[test]
fn records_of_what_is_not_there_are_errors() {
    for record in [
        Record::Bytes { at: 8192, len: 64 },
        Record::Reference {
            memory: 1,
            at: 0,
            len: 64,
        },
        Record::Reference {
            memory: 0,
            at: (1 << 16) - 63,
            len: 64,
        },
    ] {
        let mut pair = pair(9);
        let host = pair.sending.host(98);
        let at = SIZES.record_at(0);
        host.write(at, &record.encode());
        host.store(at + COMMIT_AT, 1);
        host.write_back(at, 64);
        host.fence();
        pair.refused();
    }
}

#[test]
fn a_sleeper_is_woken_once_for_what_it_waits_for() {
    let mut pair = pair(10);
    let mut nap = Nap::new(Arc::new(pair.receiving.host(50)));
    pair.sender.copy(b"x");
    assert!(!pair.sender.must_ring(), "nobody sleeps");
    nap.begin(true, None);
    pair.sender.copy(b"x");
    assert!(pair.sender.must_ring());
    pair.sender.copy(b"x");
    assert!(!pair.sender.must_ring(), "it is woken already");
    nap.end();
    assert!(!pair.sender.must_ring());
    nap.begin(false, Some(0));
    assert!(!pair.sender.must_ring(), "it does not wait for news");
    nap.begin(true, None);
    assert!(pair.sender.must_ring(), "another nap");

    // The other way round: the sender sleeps until half of three records is consumed.
    let mut nap = Nap::new(Arc::new(pair.sending.host(51)));
    pair.sender.refresh().unwrap();
    let wanted = pair.sender.wanted().unwrap();
    assert_eq!(wanted, 2);
    nap.begin(false, Some(wanted));
    assert!(!pair.sender.has_consumed(wanted));
    for ring in [false, true, false] {
        assert_eq!(pair.receiver.take(&mut [0; 1]).unwrap(), Taken::Bytes(1));
        assert_eq!(pair.receiver.tell(), ring);
    }
    assert!(pair.sender.has_consumed(wanted));
    assert_eq!(NEWS & pair.sending.view().load(super::layout::ASLEEP_AT), 0);
    assert_eq!(pair.sending.view().load(WANTED_AT), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever is in the peer's memory: an error, or bytes, and never a panic or a loop without end.
    #[test]
    fn any_content_of_the_peers_memory_is_survived(
        seed: u64,
        words in proptest::collection::vec((0_u64..64, any::<u64>()), 0..64),
        commits in 0_u64..9,
    ) {
        let mut pair = pair(seed % 1000);
        for (word, value) in words {
            scribble(&pair.sending, word * 8 + 192, value);
            scribble(&pair.receiving, word % 24 * 8, value);
        }
        for number in 0..commits {
            scribble(&pair.sending, SIZES.record_at(number) + COMMIT_AT, number + 1);
        }
        for _ in 0..20 {
            let mut into = [0; 4096];
            match pair.receiver.take(&mut into) {
                Ok(Taken::Bytes(_)) => { pair.receiver.tell(); }
                Ok(_) => break,
                Err(error) => {
                    prop_assert_eq!(error.kind(), if pair.sending.view().load(WITHDRAWN_AT) == 0 {
                        ErrorKind::InvalidData
                    } else {
                        error.kind()
                    });
                    break;
                }
            }
            pair.sender.copy(&[1; 100]);
            let _ = pair.sender.refresh();
            pair.sender.must_ring();
        }
        pair.sender.withdraw();
    }
}
