//! What a subscriber says of where it stands.

use embar_client::{Publisher, Start, Subscriber};

use super::fake_broker::FakeBroker;

#[test]
fn where_reading_begins_is_known_before_anything_is_read() {
    let broker = FakeBroker::start();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .open()
        .expect("opens");
    let publish = |value: &[u8]| {
        publisher.publish(value).expect("published");
        publisher.flush().expect("stored");
    };
    let subscribe = |start| {
        Subscriber::builder(&broker.bootstrap())
            .topic("t")
            .from(start)
            .open()
            .expect("opens")
    };
    publish(b"before");
    let subscriber = subscribe(Start::Latest);
    let saved = subscriber.position();
    assert_eq!(saved.to_string(), "0:1");
    subscriber.close();
    publish(b"after");
    let mut subscriber = subscribe(Start::Positions(saved));
    let message = subscriber.next().expect("reads").expect("no end");
    assert_eq!(message.value, b"after");
    publisher.close().expect("closes");
}
