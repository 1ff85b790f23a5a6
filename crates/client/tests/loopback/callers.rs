//! Threads that publish send small batches themselves, beside the connections' own threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use embar_client::{NewMessage, PublishError, Publisher, PublisherHandle, Start, Subscriber};

use crate::fake_broker::FakeBroker;

fn counter(publisher: &Publisher, of: &str) -> u64 {
    let counters = publisher.profile().counters;
    let mut counters = counters.iter();
    let (_, count) = counters.find(|(name, _)| *name == of).expect("it is one");
    *count
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
    assert!(counter(&publisher, "caller_sends") > 0);
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

#[test]
fn threads_that_wait_drive_by_turns() {
    let broker = FakeBroker::start();
    let publisher = open(&broker);
    thread::scope(|scope| {
        for thread in 0..3 {
            let handle = publisher.handle();
            scope.spawn(move || {
                for number in 0..200 {
                    let ticket = handle.publish(&message(thread, number)).expect("published");
                    // Some are not waited for, and some by who does not drive.
                    match number % 5 {
                        0 => {}
                        1 => handle.flush().expect("all stored"),
                        _ => drop(handle.acked(ticket).wait().expect("stored")),
                    }
                }
            });
        }
    });
    publisher.flush().expect("all stored");
    publisher.close().expect("closes");
    assert_stored_in_order(&broker, &[200; 3]);
}

#[test]
fn a_thread_that_waits_again_drives() {
    let broker = FakeBroker::start();
    let publisher = open(&broker);
    let mut number = 0;
    while counter(&publisher, "caller_waits") < 20 {
        let ticket = publisher.publish(&message(0, number)).expect("published");
        publisher.acked(ticket).wait().expect("stored");
        number += 1;
    }
    // What nobody waits for is acknowledged as well.
    let ticket = publisher.publish(&message(0, number)).expect("published");
    publisher.flush().expect("all stored");
    publisher.acked(ticket).wait().expect("stored");
    publisher.close().expect("closes");
    assert_stored_in_order(&broker, &[number + 1]);
}

#[test]
fn a_wait_of_a_thread_that_drives_ends_with_its_limit_and_with_the_publisher() {
    let broker = FakeBroker::start();
    let publisher = open(&broker);
    let mut number = 0;
    while counter(&publisher, "caller_waits") == 0 {
        let ticket = publisher.publish(&message(0, number)).expect("published");
        publisher.acked(ticket).wait().expect("stored");
        number += 1;
    }
    broker.freeze(true);
    let ticket = publisher.publish(&message(0, number)).expect("published");
    let limit = Duration::from_millis(5);
    let pending = publisher.acked(ticket).wait_timeout(limit);
    assert!(matches!(pending, Err(PublishError::Pending { .. })));
    let receipt = publisher.acked(ticket);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| receipt.wait());
        drop(publisher);
        assert!(waiting.join().expect("no panic").is_err());
    });
    broker.freeze(false);
}

#[test]
fn one_who_gives_up_leaves_the_acknowledgement_to_another() {
    let broker = FakeBroker::start();
    let publisher = open(&broker);
    let mut number = 0;
    while counter(&publisher, "caller_waits") == 0 {
        let ticket = publisher.publish(&message(0, number)).expect("published");
        publisher.acked(ticket).wait().expect("stored");
        number += 1;
    }
    for _ in 0..20 {
        broker.freeze(true);
        let ticket = publisher.publish(&message(0, number)).expect("published");
        number += 1;
        thread::scope(|scope| {
            // Any of them may be the one that drives.
            let patient: Vec<_> = (0..2)
                .map(|_| {
                    let receipt = publisher.acked(ticket);
                    scope.spawn(|| receipt.wait())
                })
                .collect();
            let hasty: Vec<_> = (0..3)
                .map(|wait| {
                    let receipt = publisher.acked(ticket);
                    scope.spawn(move || receipt.wait_timeout(Duration::from_millis(wait)))
                })
                .collect();
            for thread in hasty {
                let outcome = thread.join().expect("no panic");
                assert!(matches!(outcome, Err(PublishError::Pending { .. })));
            }
            broker.freeze(false);
            for thread in patient {
                thread.join().expect("no panic").expect("stored");
            }
        });
    }
    publisher.close().expect("closes");
    assert_stored_in_order(&broker, &[number]);
}

#[test]
fn callbacks_are_made_by_the_publishers_threads() {
    let broker = FakeBroker::start();
    let (tell, told) = mpsc::channel();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .linger(Duration::ZERO)
        .on_ack(move |_| {
            let name = thread::current().name().map(str::to_owned);
            tell.send(name).expect("somebody listens");
        })
        .open()
        .expect("opens");
    for number in 0..50 {
        let ticket = publisher.publish(&message(0, number)).expect("published");
        publisher.acked(ticket).wait().expect("stored");
        let name = told.recv().expect("called").expect("it has a name");
        assert!(name.starts_with("embar-pub-"), "{name}");
    }
    publisher.close().expect("closes");
}
