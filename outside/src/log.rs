//! The log's client: publish, read and ask.

use std::error::Error;
use std::time::Duration;

use embar_client::{
    Acks, Admin, AdminError, Message, NewMessage, OnBrokerLoss, OnEvicted, OpenError, Order,
    OwnedMessage, Position, Positions, PublishError, Publisher, PublisherBuilder, PublisherHandle,
    ReadError, Receipt, Request, Start, Subscriber, SubscriberBuilder, Ticket, Topic, TopicSpec,
};

const TIMEOUT: Duration = Duration::from_millis(50);

fn publisher(bootstrap: &str) -> Result<Publisher, OpenError> {
    let builder: PublisherBuilder = Publisher::builder(bootstrap);
    builder
        .topic("orders")
        .acks(Acks::Readable)
        .on_broker_loss(OnBrokerLoss::Resend)
        .open_timeout(TIMEOUT)
        .open()
}

fn publish(publisher: Publisher) -> Result<Position, PublishError> {
    let handle: PublisherHandle = publisher.handle();
    let message = NewMessage {
        value: b"hello",
        ..NewMessage::default()
    };
    let ticket: Ticket = handle.publish_message(&message)?;
    let receipt: Receipt = handle.acked(ticket);
    let position = receipt.wait()?;
    publisher.close()?;
    Ok(position)
}

fn subscriber(bootstrap: &str) -> Result<Subscriber, OpenError> {
    let builder: SubscriberBuilder = Subscriber::builder(bootstrap);
    builder
        .topic("orders")
        .from(Start::Earliest)
        .on_evicted(OnEvicted::Fail)
        .until_end(true)
        .open_timeout(TIMEOUT)
        .open()
}

fn read(mut subscriber: Subscriber) -> Result<(Vec<OwnedMessage>, Positions), ReadError> {
    let mut messages = Vec::new();
    while let Some(message) = subscriber.next()? {
        let message: Message<'_> = message;
        messages.push(message.to_owned());
    }
    Ok((messages, subscriber.position()))
}

fn create(bootstrap: &str) -> Result<Topic, AdminError> {
    let admin = Admin::connect(bootstrap)?.timeout(TIMEOUT);
    let spec = TopicSpec::new("orders").order(Order::TotalPerPublisher);
    let request: Request<Topic> = admin.create_topic(spec);
    request.wait()
}

/// A topic is created, a message published and read; nothing answers, so it reports why that fails.
pub fn run(silent: &str) -> Result<(), Box<dyn Error>> {
    let Err(error) = create(silent) else {
        return Err("a topic was created although nothing listens".into());
    };
    println!("admin: {error}; again later: {}", error.is_retryable());
    match publisher(silent) {
        Ok(publisher) => println!("published at {:?}", publish(publisher)?),
        Err(error) => println!("publisher: {error}; later: {}", error.is_retryable()),
    }
    match subscriber(silent) {
        Ok(subscriber) => println!("read {:?}", read(subscriber)?),
        Err(error) => println!("subscriber: {error}; later: {}", error.is_retryable()),
    }
    Ok(())
}
