//! Threads that publish send small batches themselves, beside the connections' own threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use embar_client::{NewMessage, PublishError, Publisher, PublisherHandle, Start, Subscriber};

use crate::fake_broker::FakeBroker;

/// Sends of batches that publishing threads made.
fn caller_sends(publisher: &Publisher) -> u64 {
    let counters = publisher.profile().counters;
    let (_, sends) = counters
        .iter()
        .find(|(name, _)| *name == "caller_sends")
        .expect("it is counted");
    *sends
}

/// A publisher that sends each message in a batch of its own.
fn open(broker: &FakeBroker) -> Publisher {
    Publisher::builder(&broker.bootstrap())
        .topic("t")
        .batch_bytes(16 << 10)
        .linger(Duration::ZERO)
        .open()
        .expect("opens")
}

/// Message `number` of a thread, of a length that depends on it.
fn message(thread: u32, number: u32) -> Vec<u8> {
    let mut bytes = vec![thread as u8; 8 + (number as usize * 37) % 5000];
    bytes[..4].copy_from_slice(&thread.to_le_bytes());
    bytes[4..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn publish_many(handle: &PublisherHandle, thread: u32, count: u32) {
    for number in 0..count {
        handle.publish(&message(thread, number)).expect("published");
    }
}

/// Asserts that the broker has so many messages of each thread, each as it was, and in their order.
fn assert_stored_in_order(broker: &FakeBroker, counts: &[u32]) {
    let mut subscriber = Subscriber::builder(&broker.bootstrap())
        .topic("t")
        .from(Start::Earliest)
        .until_end(true)
        .open()
        .expect("opens");
    let mut next = vec![0; counts.len()];
    while let Some(read) = subscriber.next().expect("reads") {
        let thread = u32::from_le_bytes(read.value[..4].try_into().expect("4 bytes"));
        let number = &mut next[thread as usize];
        assert!(read.value == message(thread, *number), "{thread}: {number}");
        *number += 1;
    }
    assert_eq!(next, counts);
}

#[test]
fn a_thread_that_publishes_to_an_idle_broker_sends_by_itself() {
    let broker = FakeBroker::start();
    let publisher = open(&broker);
    for number in 0..50 {
        let ticket = publisher.publish(&message(0, number)).expect("published");
        publisher.acked(ticket).wait().expect("stored");
    }
    assert!(caller_sends(&publisher) > 0);
    publisher.close().expect("closes");
    assert_stored_in_order(&broker, &[50]);
}

#[test]
fn threads_that_publish_at_once_keep_their_order() {
    let broker = FakeBroker::start();
    let publisher = open(&broker);
    thread::scope(|scope| {
        for thread in 0..4 {
            let handle = publisher.handle();
            scope.spawn(move || publish_many(&handle, thread, 300));
        }
    });
    publisher.flush().expect("all stored");
    publisher.close().expect("closes");
    assert_stored_in_order(&broker, &[300; 4]);
}

#[test]
fn a_broker_that_stops_reading_keeps_their_order() {
    let broker = FakeBroker::start();
    let publisher = open(&broker);
    broker.freeze(true);
    let mut number = 0;
    thread::scope(|scope| {
        for thread in 0..2 {
            let handle = publisher.handle();
            scope.spawn(move || publish_many(&handle, thread, 300));
        }
        // All that can be in flight is.
        loop {
            let next = NewMessage {
                value: &message(2, number),
                ..NewMessage::default()
            };
            match publisher.try_publish(&next) {
                Ok(_) => number += 1,
                Err(error) => break assert_eq!(error, PublishError::Full),
            }
        }
        broker.freeze(false);
    });
    publisher.flush().expect("all stored");
    publisher.close().expect("closes");
    assert_stored_in_order(&broker, &[300, 300, number]);
}

#[test]
fn what_a_lost_connection_carried_comes_again() {
    let broker = FakeBroker::start();
    let publisher = open(&broker);
    let mut tickets = Vec::new();
    for number in 0..200 {
        if number % 50 == 10 {
            broker.log.lock().expect("no panic").hang_ups = 1;
        }
        let ticket = publisher.publish(&message(0, number)).expect("published");
        if number % 3 == 0 {
            publisher.acked(ticket).wait().expect("stored");
        }
        tickets.push(ticket);
    }
    for ticket in tickets {
        publisher.acked(ticket).wait().expect("stored");
    }
    assert!(broker.log.lock().expect("no panic").connections > 4);
    publisher.close().expect("closes");
}

#[test]
fn a_publisher_may_end_while_threads_publish() {
    for closes in [true, false] {
        let broker = FakeBroker::start();
        let publisher = open(&broker);
        let began = AtomicBool::new(false);
        thread::scope(|scope| {
            for thread in 0..2 {
                let handle = publisher.handle();
                let began = &began;
                scope.spawn(move || {
                    let mut number = 0;
                    while handle.publish(&message(thread, number)).is_ok() {
                        number = (number + 1) % 100;
                        began.store(true, Ordering::Relaxed);
                    }
                });
            }
            while !began.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            if closes {
                // What others publish meanwhile may be lost with it.
                let _ = publisher.close();
            } else {
                drop(publisher);
            }
        });
    }
}
