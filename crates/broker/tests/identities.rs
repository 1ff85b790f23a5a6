//! Whose session it is, who takes it over, and whose place goes when others need one.

mod support;

use std::time::{Duration, Instant};

use embar_broker::{BrokerConfig, Cluster};
use embar_wire::control::{
    Control, DeleteTopic, ErrorCode, OpenPublisher, OpenSession, PublisherOpened, Secret,
};
use support::{PATIENCE, Peer, batch_of, create_topic_of_order, data};

const TOPIC: &str = "order-5";

fn start(sessions: u32) -> Cluster {
    start_with(sessions, 0)
}

fn start_with(sessions: u32, standbys: u16) -> Cluster {
    let config = BrokerConfig {
        session_idle: Duration::from_millis(50),
        ..BrokerConfig::default()
    };
    let builder = Cluster::builder().brokers(2).region_bytes(96 << 20);
    let builder = builder.standbys(standbys);
    let builder = builder.sessions(sessions).config(config);
    let cluster = builder.start().expect("it starts");
    create_topic_of_order(&cluster, TOPIC, 5, 0);
    cluster
}

fn opening(producer: u64, instance: u64) -> OpenPublisher {
    OpenPublisher {
        topic: TOPIC.into(),
        producer,
        acks: 1,
        instance,
        secret: Secret([9; 16]),
        ..OpenPublisher::default()
    }
}

/// A connection that asked for a session, and what it was answered.
fn ask(cluster: &Cluster, open: OpenPublisher) -> (Peer, Control) {
    let mut peer = Peer::greet(data(cluster));
    let answer = peer.ask(&Control::OpenPublisher(open));
    (peer, answer)
}

fn opened(cluster: &Cluster, open: OpenPublisher) -> (Peer, PublisherOpened) {
    match ask(cluster, open) {
        (peer, Control::PublisherOpened(opened)) => (peer, opened),
        (_, other) => panic!("{other:?}"),
    }
}

/// As a client does that is told to come again.
fn opened_in_time(cluster: &Cluster, producer: u64) -> (Peer, PublisherOpened) {
    let until = Instant::now() + PATIENCE;
    loop {
        match ask(cluster, opening(producer, 1)) {
            (peer, Control::PublisherOpened(opened)) => return (peer, opened),
            (_, Control::Error(error)) if error.code == ErrorCode::ClusterFull => {
                assert!(error.retryable, "{error:?}");
                assert!(Instant::now() < until, "no place became free");
            }
            (_, other) => panic!("{other:?}"),
        }
    }
}

fn publish(peer: &mut Peer, producer: u64, opened: &PublisherOpened, number: u64) {
    let epoch = opened.session_epoch;
    let batch = batch_of(producer, epoch, opened.topic_id, number, &[b"value"]);
    peer.send_bytes(&batch);
    assert!(peer.expect_answers(1)[0].is_ok());
}

#[test]
fn whoever_saw_an_identity_in_the_log_can_do_nothing_with_it() {
    let cluster = start(16);
    let (mut owner, session) = opened(&cluster, opening(7, 1));
    publish(&mut owner, 7, &session, 0);
    for forged in [
        opening(7, 1),
        opening(7, 2),
        OpenPublisher {
            takes_over: session.session_epoch,
            ..opening(7, 2)
        },
        OpenPublisher {
            resumes: true,
            ..opening(7, 1)
        },
    ] {
        let mut thief = Peer::greet(data(&cluster));
        thief.send(&Control::OpenPublisher(OpenPublisher {
            secret: Secret([8; 16]),
            ..forged
        }));
        assert_eq!(thief.expect_refusal().code, ErrorCode::WrongSecret);
    }
    let mut naked = Peer::greet(data(&cluster));
    let answer = naked.ask(&Control::OpenPublisher(OpenPublisher {
        secret: Secret::default(),
        ..opening(8, 1)
    }));
    let Control::Error(refused) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(refused.code, ErrorCode::InvalidArgument);
    assert!(refused.message.contains("secret"), "{}", refused.message);
    publish(&mut owner, 7, &session, 1);
}

#[test]
fn a_late_request_of_a_dead_client_takes_nothing_from_its_successor() {
    let cluster = start(16);
    let (first, session) = opened(&cluster, opening(7, 1));
    drop(first);
    // Its successor learns who has the session, and takes it over.
    let (mut successor, answer) = ask(&cluster, opening(7, 2));
    let Control::SessionHeld(held) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(held.session_epoch, session.session_epoch);
    let takes_over = OpenPublisher {
        takes_over: held.session_epoch,
        ..opening(7, 2)
    };
    let answer = successor.ask(&Control::OpenPublisher(takes_over));
    let Control::PublisherOpened(session) = answer else {
        panic!("{answer:?}");
    };
    publish(&mut successor, 7, &session, 0);
    // What others asked for before that comes now: a first opening, and a takeover.
    for late in [
        opening(7, 3),
        OpenPublisher {
            takes_over: held.session_epoch,
            ..opening(7, 4)
        },
    ] {
        let (_, answer) = ask(&cluster, late);
        assert!(matches!(answer, Control::SessionHeld(_)), "{answer:?}");
    }
    publish(&mut successor, 7, &session, 1);
    let renewed = successor.ask(&Control::OpenSession(OpenSession {
        gives_up: session.session_epoch,
    }));
    assert!(matches!(renewed, Control::SessionOpened(_)), "{renewed:?}");
}

#[test]
fn an_epoch_of_a_deleted_topic_takes_over_nothing_in_its_successor() {
    let cluster = start(16);
    let (first, _) = opened(&cluster, opening(7, 1));
    drop(first);
    let (mut late, answer) = ask(&cluster, opening(7, 2));
    assert!(matches!(answer, Control::SessionHeld(_)), "{answer:?}");
    let delete = DeleteTopic { name: TOPIC.into() };
    let answer = Peer::greet(cluster.bootstrap()).ask(&Control::DeleteTopic(delete));
    assert!(matches!(answer, Control::TopicDeleted), "{answer:?}");
    create_topic_of_order(&cluster, TOPIC, 5, 0);
    let (mut successor, session) = opened(&cluster, opening(7, 3));
    // Sessions of both topics may come to the same epoch.
    let answer = late.ask(&Control::OpenPublisher(OpenPublisher {
        takes_over: session.session_epoch,
        ..opening(7, 2)
    }));
    let Control::Error(refused) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(refused.code, ErrorCode::TopicReplaced);
    publish(&mut successor, 7, &session, 0);
}

#[test]
fn dead_publishers_make_room_for_new_ones_and_learn_it() {
    let cluster = start(4);
    let (mut alive, session) = opened(&cluster, opening(1, 1));
    publish(&mut alive, 1, &session, 0);
    for producer in 2..30 {
        let (mut peer, session) = opened_in_time(&cluster, producer);
        publish(&mut peer, producer, &session, 0);
    }
    // One that lives keeps its place, however long it is silent.
    publish(&mut alive, 1, &session, 1);
    // One whose place went is told, and begins nothing anew in silence.
    let mut back = Peer::greet(data(&cluster));
    back.send(&Control::OpenPublisher(OpenPublisher {
        resumes: true,
        ..opening(2, 1)
    }));
    let refused = back.expect_refusal();
    assert_eq!(refused.code, ErrorCode::SessionGivenUp);
    assert!(!refused.retryable && refused.message.contains("gave up its place"));
}

#[test]
fn a_session_with_a_connection_keeps_its_place() {
    let cluster = start(4);
    let mut all: Vec<_> = (1..4)
        .map(|producer| (producer, opened_in_time(&cluster, producer)))
        .collect();
    // The place of a publisher that goes is free when it was silent for long enough. So were the others by then.
    for producer in 20..24 {
        drop(opened_in_time(&cluster, producer));
    }
    let last = opened_in_time(&cluster, 24);
    let (_, answer) = ask(&cluster, opening(9, 1));
    let Control::Error(refused) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(refused.code, ErrorCode::ClusterFull);
    for (producer, (peer, session)) in &mut all {
        publish(peer, *producer, session, 0);
    }
    drop(all.pop());
    opened_in_time(&cluster, 9);
    drop(last);
}

#[test]
fn a_successor_knows_all_sessions_and_which_have_connections() {
    let mut cluster = start_with(3, 1);
    let (mut alive, session) = opened(&cluster, opening(1, 1));
    publish(&mut alive, 1, &session, 0);
    for producer in 2..4 {
        opened(&cluster, opening(producer, 1));
    }
    cluster.crash_broker(0);
    for producer in 4..10 {
        let (mut peer, session) = opened_in_time(&cluster, producer);
        publish(&mut peer, producer, &session, 0);
    }
    let mut thief = Peer::greet(data(&cluster));
    thief.send(&Control::OpenPublisher(OpenPublisher {
        secret: Secret([8; 16]),
        ..opening(1, 1)
    }));
    assert_eq!(thief.expect_refusal().code, ErrorCode::WrongSecret);
    publish(&mut alive, 1, &session, 1);
    // A broker that dies holds nothing any more, and neither does its next incarnation.
    cluster.restart_broker(0).expect("it comes back");
    cluster.crash_broker(1);
    drop(alive);
    cluster.restart_broker(1).expect("it comes back");
    for producer in 20..23 {
        opened_in_time(&cluster, producer);
    }
    let mut back = Peer::greet(data(&cluster));
    back.send(&Control::OpenPublisher(OpenPublisher {
        resumes: true,
        ..opening(1, 1)
    }));
    assert_eq!(back.expect_refusal().code, ErrorCode::SessionGivenUp);
}
