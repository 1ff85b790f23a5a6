//! What clients on real sockets say that they wait for.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use embar_client::{
    Admin, ClientError, OpenError, PublishError, Publisher, Start, Subscriber, Wait, WaitProbe,
    WaitReason,
};

use crate::LONG;
use crate::fake_broker::FakeBroker;

/// What it waits for, once it is this.
fn eventually(wait_probe: &WaitProbe, is_it: impl Fn(&Wait) -> bool) -> Wait {
    let deadline = Instant::now() + LONG;
    loop {
        let waits = wait_probe.waiting_for();
        if let Some(waits) = waits.filter(|it| is_it(it)) {
            return waits;
        }
        assert!(Instant::now() < deadline, "it does not say so");
        thread::sleep(Duration::from_millis(1));
    }
}

fn is_for(reason: WaitReason) -> impl Fn(&Wait) -> bool {
    move |waits| waits.parties.iter().all(|party| party.reason == reason)
}

#[test]
fn clients_that_are_being_opened_can_be_asked() {
    // The kernel connects, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = silent.local_addr().expect("its address");
    let limit = Duration::from_secs(2);
    let probes = [WaitProbe::new(), WaitProbe::new()];
    assert!(probes.iter().all(|it| it.waiting_for().is_none()));
    thread::scope(|scope| {
        let [publisher, subscriber] = &probes;
        let opening = scope.spawn(|| {
            let builder = Publisher::builder(&address.to_string()).topic("t");
            builder
                .wait_probe(publisher)
                .open_timeout(limit)
                .open()
                .err()
        });
        let subscribing = scope.spawn(|| {
            let builder = Subscriber::builder(&address.to_string()).topic("t");
            builder
                .wait_probe(subscriber)
                .open_timeout(limit)
                .open()
                .err()
        });
        for probe in &probes {
            let waits = eventually(probe, is_for(WaitReason::Connecting));
            assert_eq!(waits.parties[0].address, Some(address.into()));
            assert!(waits.remaining.is_some_and(|left| left <= limit));
        }
        for opening in [opening, subscribing] {
            let error = opening.join().expect("no panic");
            assert!(
                matches!(
                    error,
                    Some(OpenError::Client(ClientError::Unreachable { .. }))
                ),
                "{error:?}"
            );
        }
    });
    assert!(
        probes.iter().all(|it| it.waiting_for().is_none()),
        "they ended"
    );
}

#[test]
fn a_publisher_waits_for_acks_and_a_flush_has_a_limit() {
    let broker = FakeBroker::start();
    let wait_probe = WaitProbe::new();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .wait_probe(&wait_probe)
        .open()
        .expect("opens");
    assert_eq!(publisher.waiting_for(), None);
    broker.freeze(true);
    publisher.publish(b"one").expect("published");
    let limit = Duration::from_millis(20);
    let late = publisher.flush_timeout(limit).expect_err("nobody answers");
    assert!(matches!(late, PublishError::Pending { .. }), "{late}");
    let waits = eventually(&wait_probe, |waits| waits.elapsed >= limit);
    assert_eq!(waits.parties[0].broker, Some(0));
    broker.freeze(false);
    publisher.flush_timeout(LONG).expect("it is stored");
    assert_eq!(wait_probe.waiting_for(), None);
    publisher.close().expect("closes");
    assert_eq!(wait_probe.waiting_for(), None);
}

#[test]
fn a_subscriber_waits_for_messages_only_at_the_end() {
    let broker = FakeBroker::start();
    let publisher = Publisher::builder(&broker.bootstrap()).topic("t");
    let publisher = publisher.open().expect("opens");
    publisher.publish(b"one").expect("published");
    publisher.flush().expect("stored");
    let wait_probe = WaitProbe::new();
    let mut subscriber = Subscriber::builder(&broker.bootstrap())
        .topic("t")
        .from(Start::Earliest)
        .wait_probe(&wait_probe)
        .open()
        .expect("opens");
    subscriber.next().expect("reads").expect("a message");
    let waits = eventually(&wait_probe, is_for(WaitReason::Messages));
    assert_eq!(waits.remaining, None);
    publisher.publish(b"two").expect("published");
    publisher.flush().expect("stored");
    let deadline = Instant::now() + LONG;
    while wait_probe.waiting_for().is_some() {
        assert!(Instant::now() < deadline, "it came, and was not taken");
    }
    subscriber.next().expect("reads").expect("a message");
    drop(subscriber);
    assert_eq!(wait_probe.waiting_for(), None);
}

#[test]
fn a_question_that_is_not_answered_says_whom_it_was_put_to() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = silent.local_addr().expect("its address");
    let admin = Admin::connect(&address.to_string()).expect("a thread");
    let admin = admin.timeout(Duration::from_secs(2));
    let wait_probe = admin.wait_probe();
    assert_eq!(wait_probe.waiting_for(), None);
    let asked = admin.metadata();
    let waits = eventually(&wait_probe, is_for(WaitReason::Connecting));
    assert_eq!(waits.parties[0].address, Some(address.into()));
    assert!(asked.wait().is_err());
    assert_eq!(wait_probe.waiting_for(), None);
}

#[test]
fn time_without_messages_is_the_readers_wait_and_its_own_time_is_not() {
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
    let waited = |subscriber: &Subscriber| {
        let profile = subscriber.profile();
        let stage = profile.stage("WaitForBatch").expect("such a stage");
        Duration::from_nanos(stage.total_ns)
    };
    let limit = Duration::from_millis(50);
    let asked = Instant::now();
    assert!(subscriber.next_timeout(limit).is_err(), "there is nothing");
    let first = waited(&subscriber);
    assert!(first >= limit * 9 / 10, "{first:?}");
    assert!(first <= asked.elapsed(), "{first:?}");

    // Whoever does something else does not wait, whether there is something or not.
    thread::sleep(limit);
    assert_eq!(waited(&subscriber), first);
    publisher.publish(b"a").expect("published");
    publisher.flush().expect("stored");
    thread::sleep(limit);
    assert_eq!(waited(&subscriber), first);
    let message = subscriber.next().expect("reads").expect("no end");
    assert_eq!(message.value, b"a");
    assert!(waited(&subscriber) <= first + asked.elapsed());
}
