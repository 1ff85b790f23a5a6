//! Threads that submit a batch send it by themselves, on a real socket. Everything else is done by hand.

use std::io::Read;
use std::os::unix::net::UnixStream;

use embar_meter::{Profile, Recorder};
use embar_transport::{Epoll, Reactor, Stream};
use embar_wire::batch::Batch;
use embar_wire::limits::MAX_BATCH_BYTES;
use rustix::net::sockopt;

use super::super::buffer_sizes::{BufferSizes, Buffers};
use super::super::core::PublisherCore;
use super::super::outlet::State;
use super::super::shared::{Shared, SharedSettings, lock};
use super::super::submit::Loan;
use super::*;
use crate::connection::{ConnectionAction, ConnectionError};
use crate::profile::publisher::{CALLER_SENDS, SCHEMA, SEND_EAGAIN};
use crate::testing::all_sent;

/// No test has more.
const BATCHES: usize = 4;

/// A publisher with one open channel, A, whose thread is the test.
struct Desk {
    shared: Shared,
    script: Script,
    recorder: Recorder,
    /// Keeps the connection.
    _epoll: Epoll,
    peer: UnixStream,
}

impl Desk {
    fn open(config: PublisherConfig) -> Self {
        let mut script = Script::open(config);
        script.lose(B);
        script.events.clear();
        let (ours, peer) = UnixStream::pair().expect("a pair of sockets");
        peer.set_nonblocking(true).expect("possible");
        sockopt::set_socket_send_buffer_size(&ours, 4096).expect("possible");
        let mut epoll = Epoll::new().expect("a reactor");
        let token = epoll.add(Stream::Unix(ours)).expect("watched");
        let profile = Profile::new(&SCHEMA);
        let recorder = profile.recorder();
        let core = PublisherCore::new(super::config());
        let core = std::mem::replace(&mut script.core, core);
        let settings = SharedSettings {
            sizes: BufferSizes {
                batch_bytes: 4096,
                buffers: Buffers::Count(1),
            },
            linger: Duration::ZERO,
            spin: Duration::ZERO,
            delivery_timeout: Duration::from_secs(1),
            producer: 1,
            on_ack: None,
        };
        let shared = Shared::new(core, profile, settings);
        lock(&shared.state).open_outlet(A, epoll.direct(token));
        for number in 0..BATCHES {
            assert_eq!(shared.receipts.open_batch(), number as u64);
        }
        Self {
            shared,
            script,
            recorder,
            _epoll: epoll,
            peer,
        }
    }

    fn submit(&self, number: u64, bytes: usize) {
        self.shared
            .submit(script::sealed(number, &vec![7; bytes]), &self.recorder);
    }

    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut lock(&self.shared.state))
    }

    fn counted(&self, counter: usize) -> u64 {
        self.shared.profile.snapshot().counters[counter].1
    }

    /// All that has arrived.
    fn arrived(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let error = self.peer.read_to_end(&mut bytes).expect_err("still open");
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        bytes
    }

    fn acknowledge(&mut self, first: u64, offset: u64) {
        let mut bytes = Vec::new();
        encode_ack(first, None, &[offset], &mut bytes);
        let (buf, count, rest) = self.script.sockets.channel(A).fill(&bytes).expect("room");
        assert!(rest.is_empty());
        let next = self.with(|state| {
            state.core.received(A, buf, &Ok(count), Now(0));
            state.core.poll(A, Now(0))
        });
        let Some(ConnectionAction::Receive(buf)) = next else {
            panic!("the next receive is asked for, not {next:?}");
        };
        self.script.sockets.channel(A).receiving = Some(buf);
    }
}

/// The numbers of the batches that these bytes are.
fn numbers(mut bytes: &[u8]) -> Vec<u64> {
    let mut numbers = Vec::new();
    while !bytes.is_empty() {
        let (batch, rest) = Batch::split_first(bytes, MAX_BATCH_BYTES).expect("whole batches");
        numbers.push(batch.header().append_time().0);
        bytes = rest;
    }
    numbers
}

#[test]
fn a_batch_leaves_by_the_thread_that_submits_it() {
    let mut desk = Desk::open(config());
    desk.submit(0, 100);
    assert_eq!(numbers(&desk.arrived()), [0]);
    assert!(!desk.with(|state| state.has_work(A)), "nobody is woken");
    desk.acknowledge(0, 5);
    desk.submit(1, 100);
    assert_eq!(numbers(&desk.arrived()), [1]);
    assert_eq!(desk.counted(CALLER_SENDS), 2);
}

#[test]
fn what_is_large_or_behind_others_is_left_to_the_channels_thread() {
    let mut desk = Desk::open(config());
    desk.submit(0, 70_000);
    assert!(desk.arrived().is_empty());
    assert!(desk.with(|state| state.has_work(A)));

    let mut desk = Desk::open(config());
    desk.submit(0, 100);
    desk.submit(1, 100);
    assert_eq!(numbers(&desk.arrived()), [0]);
    assert!(desk.with(|state| state.has_work(A)));
    assert_eq!(desk.counted(CALLER_SENDS), 1);
}

#[test]
fn what_a_full_connection_does_not_take_goes_on_in_its_place() {
    let mut desk = Desk::open(config());
    desk.submit(0, 60_000);
    desk.submit(1, 100);
    let mut bytes = desk.arrived();
    assert_eq!(desk.counted(CALLER_SENDS), 0, "no send was whole");
    assert!(desk.with(|state| state.has_work(A)), "its thread is woken");
    let rest = desk.with(|state| state.take_rest(A)).expect("some is left");
    assert_eq!(rest.sent(), bytes.len());
    assert!(
        desk.with(|state| state.core.poll(A, Now(0))).is_none(),
        "nothing overtakes it"
    );
    rest.with_unsent(|_, body| bytes.extend_from_slice(body));
    desk.with(|state| state.core.sent(A, all_sent(rest), &Ok(()), Now(0)));
    let Some(ConnectionAction::Send(next)) = desk.with(|state| state.core.poll(A, Now(0))) else {
        panic!("the next batch is to be sent");
    };
    next.with_unsent(|_, body| bytes.extend_from_slice(body));
    assert_eq!(numbers(&bytes), [0, 1]);
}

#[test]
fn of_a_connection_without_room_all_is_left() {
    let mut desk = Desk::open(config());
    desk.submit(0, 60_000);
    let rest = desk.with(|state| state.take_rest(A)).expect("some is left");
    desk.with(|state| state.core.sent(A, all_sent(rest), &Ok(()), Now(0)));
    desk.acknowledge(0, 5);
    desk.submit(1, 100);
    assert_eq!(desk.counted(SEND_EAGAIN), 1);
    let rest = desk.with(|state| state.take_rest(A)).expect("all is left");
    assert_eq!(rest.sent(), 0);
}

#[test]
fn a_connections_end_is_reported_when_the_loan_is_back() {
    let mut config = config();
    config.on_broker_loss = OnBrokerLoss::InDoubt;
    let mut desk = Desk::open(config);
    let lent = desk.with(|state| {
        state.core.submit(script::sealed(0, b"message"), Now(0));
        state.lend(Now(0)).expect("the connection is idle")
    });
    desk.submit(1, 100);
    assert!(desk.arrived().is_empty(), "one send at a time");
    assert!(!desk.with(|state| state.close_outlet(A)));
    assert!(!desk.with(|state| state.has_work(A)), "not yet");

    drop(Loan::new(&desk.shared, lent));
    assert!(desk.with(|state| state.has_work(A)), "its thread is woken");
    assert!(desk.with(|state| state.close_outlet(A)));
    desk.with(|state| {
        let lost = ConnectionError::Local("lost");
        state.core.disconnected(A, lost, Now(0));
        assert!(!state.has_work(A));
        let events: Vec<_> = std::iter::from_fn(|| state.core.next_event()).collect();
        let resolved = |event: &Event| matches!(event, Event::Resolved { .. });
        assert!(!events.iter().any(resolved), "not in doubt: {events:?}");
        assert!(state.lend(Now(0)).is_none(), "there is no connection");
    });
}

#[test]
fn an_error_is_reported_with_what_the_connection_had() {
    let desk = Desk::open(config());
    desk.peer.shutdown(std::net::Shutdown::Both).expect("open");
    desk.submit(0, 100);
    desk.with(|state| {
        assert!(state.take_rest(A).is_none(), "the core knows");
        assert!(state.lend(Now(0)).is_none());
    });
    assert_eq!(desk.counted(CALLER_SENDS), 0);
}

#[test]
fn without_acknowledgements_the_buffer_is_back_at_once() {
    let mut config = config();
    config.acks = Acks::None;
    let mut desk = Desk::open(config);
    desk.submit(0, 100);
    assert_eq!(numbers(&desk.arrived()), [0]);
    assert_eq!(desk.shared.receipts.unresolved(), BATCHES - 1);
}
