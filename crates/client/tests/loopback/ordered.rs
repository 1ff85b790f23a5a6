//! A topic with one order over all brokers.

use super::*;

const MESSAGES: u32 = 2_000;

fn of_order_five() -> FakeBroker {
    let broker = FakeBroker::start();
    broker.log.lock().expect("no panic").order = Order::TotalPerPublisher;
    broker
}

#[test]
fn every_message_is_stored_once_and_in_order_whatever_breaks() {
    let broker = of_order_five();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .batch_bytes(1024)
        .threads_per_broker(3)
        .open()
        .expect("opens");
    let mut tickets = Vec::new();
    for number in 0..MESSAGES {
        match number % 500 {
            100 => broker.log.lock().expect("no panic").hang_ups = 2,
            200 => broker.log.lock().expect("no panic").lost_acks = 2,
            300 => broker.log.lock().expect("no panic").fences = 1,
            _ => {}
        }
        let ticket = publisher.publish(&number.to_le_bytes());
        tickets.push(ticket.expect("published"));
        if matches!(number % 500, 150 | 250 | 350) {
            broker.wait_until(|log| log.hang_ups + log.lost_acks + log.fences == 0);
        }
    }
    publisher.flush().expect("all stored");
    for (number, ticket) in tickets.iter().enumerate() {
        let position = publisher.acked(*ticket).wait().expect("stored");
        assert_eq!((position.broker, position.offset), (None, number as u64));
    }
    publisher.close().expect("closes");
    {
        let log = broker.log.lock().expect("no panic");
        assert_eq!(
            log.hang_ups + log.lost_acks + log.fences,
            0,
            "all of it broke"
        );
        assert_eq!(log.duplicates, 0, "nothing is marked");
        assert!(log.closed, "the session ends with its publisher");
    }

    let mut subscriber = Subscriber::builder(&broker.bootstrap())
        .topic("t")
        .until_end(true)
        .open()
        .expect("opens");
    let mut read = 0u32;
    while let Some(message) = subscriber.next().expect("reads") {
        assert_eq!((message.broker, message.offset), (None, u64::from(read)));
        assert_eq!(message.value, read.to_le_bytes());
        read += 1;
    }
    assert_eq!(read, MESSAGES);
    assert_eq!(subscriber.position().to_string(), MESSAGES.to_string());
}

#[test]
fn a_subscriber_resumes_at_one_number() {
    let broker = of_order_five();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .linger(Duration::ZERO)
        .open()
        .expect("opens");
    for value in [b"a", b"b", b"c"] {
        publisher.publish(value).expect("published");
    }
    publisher.close().expect("closes");
    let open = |from| {
        Subscriber::builder(&broker.bootstrap())
            .topic("t")
            .from(from)
            .open()
    };
    let mut subscriber = open(Start::Earliest).expect("opens");
    subscriber.next().expect("reads").expect("no end");
    let position = subscriber.position();
    assert_eq!(position, Positions::at(1));
    let mut subscriber = open(Start::Positions(position)).expect("opens");
    let next = subscriber.next().expect("reads").expect("no end");
    assert_eq!(next.value, b"b");
    let offsets = Start::Positions(Positions::from_iter([(0, 1)]));
    let refused = open(offsets).err();
    assert!(
        matches!(
            refused,
            Some(OpenError::Setting(SettingError {
                setting: "from",
                ..
            }))
        ),
        "{refused:?}"
    );
}
