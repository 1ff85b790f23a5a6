//! The drivers on real sockets, against a [`FakeBroker`].

mod callers;
mod conversation;
mod fake_broker;
mod ordered;
mod positions;
mod waiting;

use std::io::Write;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use embar_client::{
    Acks, Admin, AdminError, ClientError, ErrorCode, Header, NewMessage, OpenError, Order,
    Positions, PublishError, Publisher, ReadError, SettingError, Start, Subscriber, TopicSpec,
};

use fake_broker::{FakeBroker, TOPIC};

/// Nothing takes so long, on no machine: what does hangs.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn what_is_published_is_acknowledged_and_read_in_order() {
    let broker = FakeBroker::start();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .batch_bytes(4096)
        .threads_per_broker(2)
        .open()
        .expect("opens and creates the topic");
    let count = 5_000u32;
    let tickets: Vec<_> = (0..count)
        .map(|number| publisher.publish(&number.to_le_bytes()).expect("published"))
        .collect();
    publisher.flush().expect("all stored");
    let mut offsets: Vec<u64> = tickets
        .iter()
        .map(|ticket| publisher.acked(*ticket).wait().expect("stored").offset)
        .collect();
    let by_ticket = offsets.clone();
    offsets.sort_unstable();
    assert!(
        offsets.iter().copied().eq(0..u64::from(count)),
        "each offset once"
    );
    assert_eq!(
        publisher.profile().counters[4].1,
        u64::from(count),
        "messages are counted"
    );
    publisher.close().expect("closes");

    let mut subscriber = Subscriber::builder(&broker.bootstrap())
        .topic("t")
        .from(Start::Earliest)
        .until_end(true)
        .open()
        .expect("opens");
    let mut read = 0;
    while let Some(message) = subscriber.next().expect("reads") {
        assert_eq!(message.offset, read);
        let number = u32::from_le_bytes(message.value.try_into().expect("4 bytes"));
        assert_eq!(by_ticket[number as usize], read);
        read += 1;
    }
    assert_eq!(read, u64::from(count));
    assert_eq!(subscriber.position().to_string(), format!("0:{count}"));
}

#[test]
fn one_message_goes_out_after_the_linger_time_without_a_flush() {
    let broker = FakeBroker::start();
    let open = |linger| {
        Publisher::builder(&broker.bootstrap())
            .topic("t")
            .linger(linger)
            .open()
            .expect("opens")
    };
    for linger in [Duration::ZERO, Duration::from_millis(2)] {
        let publisher = open(linger);
        let ticket = publisher.publish(b"one").expect("published");
        publisher
            .acked(ticket)
            .wait_timeout(LONG)
            .expect("sent by the timer");
    }
    let slow = open(Duration::from_secs(3600));
    let early = slow.publish(b"two").expect("published");
    // What comes later, and is not to wait, is stored before it.
    let fast = open(Duration::ZERO);
    let ticket = fast.publish(b"three").expect("published");
    fast.acked(ticket).wait_timeout(LONG).expect("sent at once");
    let early = slow.acked(early).wait_timeout(Duration::ZERO);
    assert!(
        matches!(early, Err(PublishError::Pending { .. })),
        "{early:?}"
    );
    assert_eq!(broker.log.lock().expect("no panic").next, 3);
    slow.close().expect("closing sends it");
    assert_eq!(broker.log.lock().expect("no panic").next, 4);
}

#[test]
fn handles_reservations_keys_and_headers_arrive() {
    let broker = FakeBroker::start();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .acks(Acks::None)
        .open()
        .expect("opens");
    let headers = [Header {
        name: "h",
        value: b"v",
    }];
    publisher
        .publish_message(&NewMessage {
            key: Some(b"k"),
            headers: &headers,
            value: b"first",
        })
        .expect("published");
    let mut place = publisher.reserve(6).expect("room");
    place.write_all(b"sec").expect("fits");
    place.write_all(b"ond").expect("fits");
    place.commit();
    drop(publisher.reserve(100).expect("room"));
    let mut place = publisher.reserve(100).expect("room");
    place.with(|bytes| bytes[..5].copy_from_slice(b"third"));
    place.commit_first(5);
    let handle = publisher.handle();
    thread::scope(|scope| {
        scope.spawn(|| handle.publish(b"fourth").expect("published"));
    });
    let too_large = publisher.publish(&vec![0; (1 << 20) + 1]);
    assert!(
        matches!(too_large, Err(PublishError::MessageTooLarge { .. })),
        "{too_large:?}"
    );
    publisher.close().expect("all handed over");
    assert_eq!(
        handle.publish(b"late").expect_err("closed"),
        ClientError::Closed.into()
    );

    let mut subscriber = Subscriber::builder(&broker.bootstrap())
        .topic("t")
        .open()
        .expect("opens");
    let mut seen = Vec::new();
    while seen.len() < 4 {
        let message = subscriber
            .next_timeout(LONG)
            .expect("reads")
            .expect("no end")
            .to_owned();
        seen.push((
            message.key,
            message.headers,
            String::from_utf8(message.value).expect("text"),
        ));
    }
    seen.sort_by(|a, b| a.2.cmp(&b.2));
    assert_eq!(
        seen[0],
        (
            Some(b"k".to_vec()),
            vec![("h".to_string(), b"v".to_vec())],
            "first".to_string()
        )
    );
    let rest: Vec<&str> = seen[1..].iter().map(|message| message.2.as_str()).collect();
    assert_eq!(rest, ["fourth", "second", "third"]);
}

#[test]
fn batches_of_a_lost_connection_are_sent_again_and_marked() {
    let broker = FakeBroker::start();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .open()
        .expect("opens");
    broker.log.lock().expect("no panic").hang_ups = 2;
    let ticket = publisher.publish(b"again").expect("published");
    publisher.flush().expect("stored in the end");
    assert_eq!(publisher.acked(ticket).wait().expect("stored").offset, 0);
    assert_eq!(broker.log.lock().expect("no panic").duplicates, 1);
    publisher.close().expect("closes");
}

#[test]
fn few_buffers_block_the_publisher_but_lose_nothing() {
    let broker = FakeBroker::start();
    let acked = Arc::new(Mutex::new(0u64));
    let counter = acked.clone();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .batch_bytes(1024)
        .buffers(2)
        .on_ack(move |delivery| {
            assert!(delivery.result.is_ok());
            *counter.lock().expect("no panic") += u64::from(delivery.messages);
        })
        .open()
        .expect("opens");
    for _ in 0..2_000 {
        publisher.publish(&[7; 100]).expect("published");
    }
    publisher.close().expect("closes");
    assert_eq!(*acked.lock().expect("no panic"), 2_000);
    assert_eq!(broker.log.lock().expect("no panic").next, 2_000);
}

#[test]
fn a_handle_that_published_nothing_keeps_no_buffer() {
    let broker = FakeBroker::start();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .batch_bytes(1024)
        .buffers(2)
        .open()
        .expect("opens");
    let handle = || publisher.handle();
    let idle: Vec<_> = (0..9).map(|_| handle()).collect();
    let message = |value| NewMessage {
        value,
        ..NewMessage::default()
    };
    for (index, idle) in idle.iter().enumerate() {
        match index % 3 {
            0 => drop(idle.reserve(100).expect("a buffer is free")),
            1 => {
                let refused = idle.reserve(2_000).map(drop);
                assert!(
                    matches!(refused, Err(PublishError::BadMessage(_))),
                    "{refused:?}"
                );
            }
            _ => {
                let refused = idle.try_publish(&message(&[0; 2_000]));
                assert!(
                    matches!(refused, Err(PublishError::BadMessage(_))),
                    "{refused:?}"
                );
            }
        }
    }
    publisher
        .try_publish(&message(b"there is a buffer"))
        .expect("published");
    drop(idle);
    publisher.close().expect("closes");
}

#[test]
fn a_reservation_holds_back_its_own_handle_only() {
    let broker = FakeBroker::start();
    let open = |linger| {
        Publisher::builder(&broker.bootstrap())
            .topic("t")
            .linger(linger)
            .open()
            .expect("opens")
    };
    let soon = LONG;
    let publisher = open(Duration::from_millis(1));
    let reserving = publisher.handle();
    let held = reserving.reserve(10).expect("room");
    let ticket = publisher.publish(b"by the timer").expect("published");
    publisher
        .acked(ticket)
        .wait_timeout(soon)
        .expect("sent by the timer");
    let ticket = held.commit();
    reserving
        .acked(ticket)
        .wait_timeout(soon)
        .expect("its own turn comes");

    let publisher = open(Duration::from_secs(3600));
    let reserving = publisher.handle();
    let ticket = publisher.publish(b"by the flush").expect("published");
    let held = reserving.reserve(10).expect("room");
    let (sender, made) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| publisher.flush().expect("flushed in the end"));
        let sealed = publisher.acked(ticket).wait_timeout(soon);
        // From here on the flush waits for the reservation.
        scope.spawn(|| sender.send(publisher.handle()));
        let made = made.recv_timeout(soon).map(drop);
        drop(held);
        sealed.expect("sealed by the flush");
        made.expect("the list of handles is free");
    });
}

#[test]
fn a_panic_in_on_ack_costs_that_call_only() {
    let broker = FakeBroker::start();
    let calls = Arc::new(Mutex::new(0));
    let counter = calls.clone();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .linger(Duration::ZERO)
        .on_ack(move |_| {
            let call = {
                let mut calls = counter.lock().expect("no panic under it");
                *calls += 1;
                *calls
            };
            assert!(call > 2, "a bug of the application");
        })
        .open()
        .expect("opens");
    for _ in 0..5 {
        let ticket = publisher.publish(b"m").expect("published");
        publisher.acked(ticket).wait_timeout(LONG).expect("stored");
    }
    publisher.close().expect("closes");
    assert_eq!(*calls.lock().expect("no panic"), 5);
}

#[test]
fn a_subscriber_waits_for_what_comes_and_resumes_elsewhere() {
    let broker = FakeBroker::start();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .linger(Duration::ZERO)
        .open()
        .expect("opens");
    let mut subscriber = Subscriber::builder(&broker.bootstrap())
        .topic("t")
        .from(Start::Latest)
        .open()
        .expect("opens");
    let nothing = subscriber
        .next_timeout(Duration::from_millis(5))
        .map(|message| message.is_some());
    assert!(
        matches!(nothing, Err(ReadError::TimedOut { .. })),
        "{nothing:?}"
    );
    for value in [b"a", b"b", b"c"] {
        publisher.publish(value).expect("published");
    }
    publisher.flush().expect("stored");
    for expected in [b"a", b"b"] {
        let message = subscriber.next().expect("reads").expect("no end");
        assert_eq!(message.value, expected);
    }
    let position = subscriber
        .position()
        .to_string()
        .parse()
        .expect("a position");
    drop(subscriber);
    let mut subscriber = Subscriber::builder(&broker.bootstrap())
        .topic("t")
        .from(Start::Positions(position))
        .open()
        .expect("opens");
    assert_eq!(
        subscriber.next().expect("reads").expect("no end").value,
        b"c"
    );
}

#[test]
fn the_position_keeps_a_broker_that_is_away() {
    let broker = FakeBroker::start();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .open()
        .expect("opens");
    publisher.publish(b"a").expect("published");
    publisher.flush().expect("stored");
    let away = "0:0,7:40".parse().expect("a position");
    let mut subscriber = Subscriber::builder(&broker.bootstrap())
        .topic("t")
        .from(Start::Positions(away))
        .open()
        .expect("opens");
    subscriber.next().expect("reads").expect("no end");
    assert_eq!(subscriber.position().to_string(), "0:1,7:40");
}

#[test]
fn an_idle_subscriber_notices_a_broker_that_hangs() {
    let broker = FakeBroker::start();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .linger(Duration::ZERO)
        .open()
        .expect("opens");
    let open = |loss| {
        Subscriber::builder(&broker.bootstrap())
            .topic("t")
            .idle_timeout(Duration::from_secs(1))
            .loss_timeout(loss)
            .open()
            .expect("opens")
    };
    let mut patient = open(Duration::from_secs(60));
    let before = broker.log.lock().expect("no panic").connections;
    broker.freeze(true);
    broker.wait_until(|log| log.connections > before);
    broker.freeze(false);
    publisher.publish(b"after all").expect("published");
    let message = patient.next_timeout(LONG).expect("reads").expect("no end");
    assert_eq!(message.value, b"after all");

    let mut strict = open(Duration::from_millis(500));
    let first = strict.next_timeout(LONG).expect("reads");
    assert!(first.is_some());
    broker.freeze(true);
    let lost = strict.next_timeout(LONG).map(|message| message.is_some());
    assert!(
        matches!(&lost, Err(ReadError::BrokerLost { broker: 0, source, .. }) if source.to_string().contains("nothing was heard")),
        "{lost:?}"
    );
    broker.freeze(false);
}

#[test]
fn a_subscriber_held_back_by_its_own_reader_stays_connected() {
    // A third of it passes between heartbeats.
    const IDLE: Duration = Duration::from_secs(1);
    const BATCHES: u8 = 20;
    // So large that it is alone in its buffer.
    let value = |number| vec![number; 100_000];
    let broker = FakeBroker::impatient(IDLE);
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .linger(Duration::ZERO)
        .open()
        .expect("opens");
    for number in 0..BATCHES {
        publisher.publish(&value(number)).expect("published");
        publisher.flush().expect("stored");
    }
    publisher.close().expect("closes");
    // More than it holds: it stops to read, and so hears nothing either.
    let mut subscriber = Subscriber::builder(&broker.bootstrap())
        .topic("t")
        .idle_timeout(IDLE)
        .buffers_per_broker(2)
        .open()
        .expect("opens");
    let first = subscriber.next().expect("reads").expect("no end");
    assert_eq!(first.value, value(0));
    // For several times as long as either may be silent.
    broker.wait_until(|log| log.heartbeats >= 9 || log.ended > 0);
    assert_eq!(broker.log.lock().expect("no panic").ended, 0, "given up");
    for number in 1..BATCHES {
        let message = subscriber
            .next_timeout(LONG)
            .expect("reads")
            .expect("no end");
        assert_eq!(message.value, value(number));
    }
    assert_eq!(broker.log.lock().expect("no panic").ended, 0, "given up");
}

#[test]
fn admin_asks_and_is_answered() {
    let broker = FakeBroker::start();
    let admin = Admin::connect(&broker.bootstrap()).expect("a thread");
    assert!(matches!(
        admin.describe_topic("t").wait(),
        Err(AdminError::Client(ClientError::UnknownTopic { .. }))
    ));
    let topic = admin
        .create_topic(TopicSpec::new("t"))
        .wait()
        .expect("created");
    assert_eq!((topic.id, topic.name.as_str()), (TOPIC, "t"));
    assert_eq!(
        admin
            .describe_topic("t")
            .wait()
            .expect("there")
            .partitions
            .len(),
        1
    );
    assert_eq!(admin.metadata().wait().expect("answers").brokers.len(), 1);
    assert!(matches!(
        admin.status(7).wait(),
        Err(AdminError::UnknownBroker { broker: 7, .. })
    ));
}

#[test]
fn a_refusal_carries_the_brokers_code_and_words() {
    let broker = FakeBroker::start();
    let code = ErrorCode::InvalidArgument;
    broker.log.lock().expect("no panic").refuse = Some(code);
    let is_told = |told: Option<OpenError>| match told {
        Some(OpenError::Client(error)) => is_refused(Some(error.into()), code),
        other => panic!("{other:?}"),
    };
    let publisher = Publisher::builder(&broker.bootstrap()).topic("t");
    is_told(publisher.open().err());
    let subscriber = Subscriber::builder(&broker.bootstrap()).topic("t");
    let next = subscriber.open().and_then(|mut subscriber| {
        let next = subscriber.next_timeout(LONG);
        Ok(next.map(|message| message.is_some())?)
    });
    is_told(next.err());
    let admin = Admin::connect(&broker.bootstrap()).expect("a thread");
    is_refused(admin.create_topic(TopicSpec::new("t")).wait().err(), code);
    broker.log.lock().expect("no panic").refuse = Some(ErrorCode::Draining);
    is_refused(admin.describe_topic("t").wait().err(), ErrorCode::Draining);
}

fn is_refused(told: Option<AdminError>, code: ErrorCode) {
    match told {
        Some(AdminError::Client(ClientError::Refused {
            code: found,
            message,
        })) => {
            assert_eq!(found, code);
            assert!(message.contains("not like this"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

/// As a broker of another version does, and one that holds all connections it may: nobody is sent to start one.
#[test]
fn an_admin_that_is_turned_away_says_so_wherever_else_it_asked() {
    let broker = FakeBroker::start();
    let gone = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let gone = gone.expect("an address").to_string();
    for code in [ErrorCode::UnsupportedVersion, ErrorCode::ClusterFull] {
        broker.log.lock().expect("no panic").turn_away = Some(code);
        for addresses in [
            broker.bootstrap(),
            format!("{},{gone}", broker.bootstrap()),
            format!("{gone},{}", broker.bootstrap()),
        ] {
            let admin = Admin::connect(&addresses).expect("a thread");
            is_refused(admin.metadata().wait().err(), code);
            let created = admin.create_topic(TopicSpec::new("t")).wait();
            is_refused(created.err(), code);
        }
    }
}

#[test]
fn without_a_broker_opening_fails_in_time() {
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("free")
        .port();
    let address = format!("127.0.0.1:{port}");
    let limit = Duration::from_millis(100);
    let publisher = Publisher::builder(&address)
        .topic("t")
        .open_timeout(limit)
        .open();
    assert!(
        matches!(
            publisher,
            Err(OpenError::Client(ClientError::Unreachable { .. }))
        ),
        "{publisher:?}"
    );
    let subscriber = Subscriber::builder(&address)
        .topic("t")
        .open_timeout(limit)
        .open();
    assert!(
        matches!(
            subscriber,
            Err(OpenError::Client(ClientError::Unreachable { .. }))
        ),
        "{subscriber:?}"
    );
}
