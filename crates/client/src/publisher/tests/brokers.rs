//! Brokers that are away, that take less than others, and that say what cannot be.

use std::net::SocketAddr;

use embar_transport::Address;
use embar_wire::control::{BrokerState, PublisherOpened};
use embar_wire::limits::MAX_BROKERS;
use embar_wire::topic::Order;

use super::script::opened;
use super::*;
use crate::testing::{REGION, bootstrap, cluster_now, welcome_of};
use crate::transport::{Transport, Ways};

const C: ChannelId = ChannelId(3);

fn opened_with(change: impl FnOnce(&mut PublisherOpened)) -> Control {
    let Control::PublisherOpened(mut answer) = opened() else {
        panic!("another answer");
    };
    change(&mut answer);
    Control::PublisherOpened(answer)
}

fn is_opened(script: &Script) -> bool {
    let mut events = script.events.iter();
    events.any(|event| matches!(event, Event::Opened { .. }))
}

fn does_not_know_the_topic(script: &mut Script, channel: ChannelId) {
    script.connect(channel);
    script.feed(channel, &welcome(channel.0));
    script.tell(channel, &refusal(ErrorCode::UnknownTopic, false, None));
    script.lose(channel);
}

/// A publisher that is told one dead address and that of data broker 1, which answered.
fn behind_a_dead_seed() -> (Script, Address) {
    let dead: Address = "127.0.0.1:1".parse().expect("an address");
    let mut script = Script::new(PublisherConfig {
        bootstrap: vec![dead.clone(), "127.0.0.1:9401".parse().expect("an address")],
        ..config()
    });
    assert_eq!(
        script.sockets.channel(ChannelId::CONTROL).connecting,
        Some(dead.clone())
    );
    script.lose(ChannelId::CONTROL);
    script.tick_at(SECOND / 10);
    answer_as_data_broker(&mut script);
    (script, dead)
}

fn answer_as_data_broker(script: &mut Script) {
    script.connect(ChannelId::CONTROL);
    script.feed(ChannelId::CONTROL, &welcome(1));
    script.tell(ChannelId::CONTROL, &cluster(1));
    script.lose(ChannelId::CONTROL);
}

#[test]
fn batches_in_flight_are_in_doubt_when_a_publisher_ends() {
    let mut script = ordered::open(config());
    let (first, second) = ordered::two_out(&mut script);
    script.tell(second, &refusal(ErrorCode::UnknownTopic, false, None));
    script.lose(second);
    script.lose(first);
    let in_doubt = Outcome::Failed(Failure::InDoubt);
    assert!(script.outcomes().contains(&(0, in_doubt)));
}

#[test]
fn a_topic_is_created_although_the_first_address_is_dead() {
    let (mut script, _) = behind_a_dead_seed();
    does_not_know_the_topic(&mut script, A);
    let head = bootstrap().pop();
    assert_eq!(script.sockets.channel(ChannelId::CONTROL).connecting, head);
    script.connect(ChannelId::CONTROL);
    script.feed(ChannelId::CONTROL, &welcome(0));
    script.sockets.taken(ChannelId::CONTROL);
    script.tell(ChannelId::CONTROL, &cluster(1));
    assert_eq!(
        script.sockets.taken(ChannelId::CONTROL),
        [FrameId::CreateTopic]
    );
}

#[test]
fn a_dead_head_is_tried_in_turn_with_the_others_and_with_pauses() {
    let (mut script, dead) = behind_a_dead_seed();
    does_not_know_the_topic(&mut script, A);
    let mut asked = Vec::new();
    for step in 0..400 {
        while let Some(address) = script
            .sockets
            .channel(ChannelId::CONTROL)
            .connecting
            .clone()
        {
            let is_data = address == Address::from(SocketAddr::from(([127, 0, 0, 1], 9401)));
            asked.push(address);
            assert!(asked.len() < 40, "{asked:?}");
            if is_data {
                answer_as_data_broker(&mut script);
            } else {
                script.lose(ChannelId::CONTROL);
            }
        }
        script.tick_at(SECOND / 10 + step * SECOND / 100);
    }
    let head = bootstrap().pop().expect("one");
    for address in [dead, head, "127.0.0.1:9401".parse().expect("an address")] {
        assert!(asked.contains(&address), "{address} is not in {asked:?}");
    }
}

#[test]
fn a_broker_that_goes_while_it_is_asked_does_not_delay_opening() {
    let mut script = Script::new(config());
    script.tell_cluster(2);
    does_not_know_the_topic(&mut script, B);
    script.open_lane(A);
    assert!(!is_opened(&script), "it may hear of the topic");
    let gone = |id| match id == B.0 {
        true => BrokerState::Gone,
        false => BrokerState::Ready,
    };
    script.tell(A, &cluster_now(2, gone));
    assert!(is_opened(&script));
}

/// It is stopped: the cluster says that it is ready.
#[test]
fn opening_ends_in_time_and_slow_brokers_join_later() {
    let mut script = Script::new(PublisherConfig {
        open_timeout: Duration::from_secs(2),
        ..config()
    });
    script.tell_cluster(2);
    script.open_lane(A);
    script.connect(B);
    script.tick_at(2 * SECOND - 1);
    assert!(script.events.is_empty(), "{:?}", script.events);
    script.tick_at(2 * SECOND);
    assert!(
        matches!(script.events[..], [Event::Opened { topic_id: 9, .. }]),
        "{:?}",
        script.events
    );
    script.feed(B, &welcome(2));
    script.tell(B, &opened());
    script.submit(0);
    script.submit(1);
    assert!(script.sending(A).is_some() && script.sending(B).is_some());
}

#[test]
fn opening_that_nobody_answers_in_time_names_those_who_were_asked() {
    let mut script = Script::new(PublisherConfig {
        open_timeout: Duration::from_secs(2),
        ..config()
    });
    script.tell_cluster(2);
    script.connect(A);
    script.feed(A, &welcome(1));
    script.connect(B);
    script.tick_at(2 * SECOND);
    let [Event::Failed(ClientError::Unreachable { addresses, source })] = &script.events[..] else {
        panic!("{:?}", script.events);
    };
    assert_eq!(
        (addresses.as_str(), source.to_string().as_str()),
        (
            "127.0.0.1:9401 (broker 1), 127.0.0.1:9402 (broker 2)",
            "it has not answered"
        )
    );
}

#[test]
fn a_broker_that_joins_and_takes_less_than_a_batch_gets_none() {
    let smaller = |batch_bytes| {
        let mut script = Script::open(PublisherConfig {
            batch_bytes,
            ..config()
        });
        script.tell(A, &cluster_now(3, |_| BrokerState::Ready));
        script.tick_at(script.now.0);
        let answer = opened_with(|opened| opened.max_batch_bytes = 1 << 16);
        script.announce(C, &answer);
        script
    };
    let script = &mut smaller((1 << 16) + 64);
    assert!(script.sockets.channel(C).closing);
    script.lose(C);
    for number in 0..3 {
        script.submit(number);
    }
    assert_eq!(script.sending(C), None);
    assert_eq!(script.outcomes(), [], "others take them");
    let script = &mut smaller(1 << 16);
    for number in 0..3 {
        script.submit(number);
    }
    assert!(
        script.sending(C).is_some(),
        "a whole batch is all it has to take"
    );
}

#[test]
fn an_answer_that_nothing_can_be_done_with_is_refused() {
    let answers = [
        (
            Acks::Readable,
            opened_with(|opened| opened.max_batch_bytes = 0),
        ),
        (
            Acks::None,
            opened_with(|opened| opened.order = Order::Total),
        ),
    ];
    for (acks, answer) in answers {
        let mut script = Script::new(PublisherConfig { acks, ..config() });
        script.tell_cluster(1);
        script.announce(A, &answer);
        assert!(script.sockets.channel(A).closing, "{answer:?}");
        assert!(!is_opened(&script), "{answer:?}");
    }
}

#[test]
fn only_as_many_brokers_are_believed_in_as_a_cluster_can_have() {
    let mut script = Script::open(config());
    script.tell(
        A,
        &cluster_now(MAX_BROKERS as u32 + 70, |_| BrokerState::Ready),
    );
    let channels = script.core.channel_count() as usize;
    assert_eq!(channels, MAX_BROKERS, "with the control connection");
}

/// The cluster as a client on machine 7 hears of it, whose data broker has its socket there.
fn tell_of_a_socket(script: &mut Script, incarnation: u32) {
    let Control::ClusterMetadata(mut cluster) = cluster_now(1, |_| BrokerState::Ready) else {
        panic!("no cluster");
    };
    cluster.region = REGION;
    cluster.socket_dir = "/r/sockets".into();
    cluster.brokers[1].socket_machine = 7;
    cluster.brokers[1].incarnation = incarnation;
    script.connect(ChannelId::CONTROL);
    script.feed(ChannelId::CONTROL, &welcome(0));
    script.tell(ChannelId::CONTROL, &Control::ClusterMetadata(cluster));
    script.lose(ChannelId::CONTROL);
}

fn connecting(script: &mut Script) -> String {
    let address = script.sockets.channel(A).connecting.clone();
    address.map_or_else(|| "nowhere".into(), |it| it.to_string())
}

#[test]
fn a_way_that_leads_nowhere_is_left_for_the_next_at_once_and_tried_again_later() {
    let shm = "shm:/r/sockets/1.shm";
    let (unix, tcp) = ("unix:/r/sockets/1", "127.0.0.1:9401");
    let mut script = Script::new(PublisherConfig {
        ways: Ways::on(Transport::Auto, 7),
        ..config()
    });
    tell_of_a_socket(&mut script, 1);
    script.events.clear();
    for way in [shm, unix] {
        assert_eq!(connecting(&mut script), way);
        script.lose(A);
        script.tick_at(script.now.0);
    }
    assert_eq!(connecting(&mut script), tcp);
    assert!(script.events.is_empty(), "{:?}", script.events);
    script.announce(A, &opened());
    assert!(matches!(script.events[..], [Event::Opened { .. }]));
    // The connection was of use, so the next one begins with the better way.
    script.lose(A);
    script.tick_at(script.now.0 + SECOND);
    assert_eq!(connecting(&mut script), shm);
    script.announce(A, &opened());
    script.lose(A);
    script.tick_at(script.now.0 + 2 * SECOND);
    assert_eq!(connecting(&mut script), shm);
}

#[test]
fn a_socket_that_leads_to_another_cluster_or_does_not_answer_is_left_for_tcp() {
    let mut script = Script::new(PublisherConfig {
        ways: Ways::on(Transport::Auto, 7),
        ..config()
    });
    tell_of_a_socket(&mut script, 1);
    let (shm, unix, tcp) = (
        "shm:/r/sockets/1.shm",
        "unix:/r/sockets/1",
        "127.0.0.1:9401",
    );
    for way in [shm, unix] {
        assert_eq!(connecting(&mut script), way);
        script.connect(A);
        script.feed(A, &welcome_of(1, REGION + 1));
        assert!(
            script.sockets.channel(A).sent.is_empty(),
            "nothing is asked there"
        );
        script.lose(A);
        script.tick_at(script.now.0);
    }
    assert_eq!(connecting(&mut script), tcp);
    // Then the sockets stand, and nobody answers.
    script.announce(A, &opened());
    script.lose(A);
    script.tick_at(script.now.0 + SECOND);
    for way in [shm, unix] {
        assert_eq!(connecting(&mut script), way);
        script.connect(A);
        script.tick_at(script.now.0 + 3 * SECOND);
        assert!(script.sockets.channel(A).closing);
        script.lose(A);
        script.tick_at(script.now.0 + SECOND);
    }
    assert_eq!(connecting(&mut script), tcp);
}

#[test]
fn a_way_by_which_a_broker_does_nothing_after_its_welcome_is_left_for_the_next() {
    let mut script = Script::new(PublisherConfig {
        ways: Ways::on(Transport::Auto, 7),
        ..config()
    });
    tell_of_a_socket(&mut script, 1);
    for way in ["shm:/r/sockets/1.shm", "unix:/r/sockets/1"] {
        assert_eq!(connecting(&mut script), way);
        script.connect(A);
        script.feed(A, &welcome_of(1, REGION));
        script.lose(A);
        script.tick_at(script.now.0);
    }
    assert_eq!(connecting(&mut script), "127.0.0.1:9401");
}

#[test]
fn a_broker_without_a_socket_is_left_alone_by_whoever_wants_one() {
    let mut script = Script::new(PublisherConfig {
        ways: Ways::on(Transport::Unix, 7),
        ..config()
    });
    script.tell_cluster(1);
    assert_eq!(connecting(&mut script), "nowhere");
    script.tick_at(5 * SECOND);
    assert!(
        matches!(script.events[..], [Event::Failed(_)]),
        "{:?}",
        script.events
    );
}
