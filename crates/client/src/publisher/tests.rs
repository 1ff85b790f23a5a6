//! The core against a scripted cluster: every step is taken by hand, so every order of events can be.

mod brokers;
mod callers;
mod hostile;
mod loss;
mod members;
mod ordered;
mod ordered_faults;
mod ordered_model;
mod reopening;
mod replaced;
mod runs;
pub(super) mod script;
mod sums;
mod wait;

use std::time::Duration;

use embar_frame::Now;
use embar_meter::random::SplitMix64;
use embar_wire::ack::encode_ack;
use embar_wire::acks::Acks;
use embar_wire::control::{Control, ErrorCode};
use embar_wire::frame::FrameId;

use super::model::{Event, OnBrokerLoss, PublisherConfig};
use super::receipt::{Failure, Outcome};
use crate::connection::ChannelId;
use crate::error::ClientError;
use crate::testing::{SECOND, cluster, frame, goodbye, pong, refusal, refused, welcome};

use script::{A, B, Script, config, stored};

#[test]
fn an_ack_names_broker_and_offset_and_frees_the_buffer() {
    let mut script = Script::open(config());
    script.submit(0);
    let channel = if script.sending(A).is_some() { A } else { B };
    script.sent(channel);
    assert!(script.outcomes().is_empty());
    script.ack(channel, 0, &[40]);
    assert!(
        script
            .events
            .iter()
            .any(|event| matches!(event, Event::Released { .. }))
    );
    assert_eq!(script.outcomes(), [(0, stored(channel.0, 40))]);
    assert_eq!(script.core.next_tick(), None, "idle: nothing to wait for");
}

#[test]
fn a_lane_that_is_slow_gets_no_second_batch_while_another_is_free() {
    let mut script = Script::open(config());
    script.submit(0);
    script.submit(1);
    script.submit(2);
    assert!(
        script.sending(A).is_some() && script.sending(B).is_some(),
        "one each, the third waits"
    );
    let (quick, slow) = (B, A);
    let stuck = script.sending(slow);
    script.sent(quick);
    assert_eq!(script.sending(quick), Some((2, false)));
    script.sent(quick);
    script.submit(3);
    assert_eq!(
        script.sending(quick),
        None,
        "two in flight are the limit here"
    );
    script.ack(quick, 0, &[0]);
    assert_eq!(script.sending(quick), Some((3, false)));
    assert_eq!(script.sending(slow), stuck);
}

#[test]
fn only_what_may_have_arrived_is_marked_when_it_is_sent_again() {
    let mut script = Script::open(config());
    script.submit(0);
    script.submit(1);
    script.submit(2);
    let Some((lost, _)) = script.sending(A) else {
        panic!("A has one")
    };
    script.lose(A);
    assert!(script.outcomes().is_empty());
    script.sent(B);
    assert_eq!(
        script.sending(B),
        Some((lost, true)),
        "before the one that waited"
    );
    script.sent(B);
    script.ack(B, 0, &[0, 1]);
    assert_eq!(script.sending(B), Some((2, false)));
}

#[test]
fn in_doubt_is_reported_if_the_caller_wants_to_decide() {
    let mut script = Script::open(PublisherConfig {
        on_broker_loss: OnBrokerLoss::InDoubt,
        ..config()
    });
    script.submit(0);
    script.submit(1);
    script.submit(2);
    let Some((lost, _)) = script.sending(A) else {
        panic!("A has one")
    };
    script.lose(A);
    assert_eq!(
        script.outcomes(),
        [(lost, Outcome::Failed(Failure::InDoubt))]
    );
}

#[test]
fn acknowledged_batches_of_a_lost_lane_are_not_sent_again() {
    let mut script = Script::open(PublisherConfig {
        acks: Acks::Readable,
        ..config()
    });
    script.lose(B);
    script.submit(0);
    script.sent(A);
    script.submit(1);
    script.sent(A);
    script.ack(A, 0, &[5]);
    script.lose(A);
    assert_eq!(script.outcomes(), [(0, stored(1, 5))]);
    script.tick_at(SECOND);
    script.open_lane(A);
    assert_eq!(script.sending(A), Some((1, true)));
    script.sent(A);
    script.ack(A, 0, &[6]);
    assert_eq!(
        script.outcomes(),
        [(1, stored(1, 6))],
        "a new connection counts from 0"
    );
}

#[test]
fn without_acks_sent_is_done() {
    let mut script = Script::open(PublisherConfig {
        acks: Acks::None,
        ..config()
    });
    script.submit(0);
    let channel = if script.sending(A).is_some() { A } else { B };
    script.sent(channel);
    assert_eq!(script.outcomes(), [(0, Outcome::Sent)]);
}

#[test]
fn a_lane_without_progress_counts_as_dead() {
    let mut script = Script::open(config());
    script.submit(0);
    let channel = if script.sending(A).is_some() { A } else { B };
    script.sent(channel);
    assert_eq!(script.core.next_tick(), Some(Now(4 * SECOND)));
    script.tick_at(4 * SECOND - 1);
    assert!(!script.sockets.channel(channel).closing);
    script.tick_at(4 * SECOND);
    assert!(script.sockets.channel(channel).closing);
    script.lose(channel);
    let other = if channel == A { B } else { A };
    assert_eq!(script.sending(other), Some((0, true)));
}

#[test]
fn a_batch_that_no_broker_takes_fails_in_time_and_is_not_stored() {
    let mut script = Script::open(config());
    script.lose(A);
    script.lose(B);
    script.submit(0);
    script.tick_at(30 * SECOND - 1);
    assert!(script.outcomes().is_empty());
    script.tick_at(30 * SECOND);
    assert_eq!(script.outcomes(), [(0, Outcome::Failed(Failure::TimedOut))]);
    assert!(matches!(
        script.core.why_unavailable(),
        ClientError::Unreachable { .. }
    ));
}

#[test]
fn after_goodbye_nothing_new_goes_there_and_what_went_is_waited_for() {
    let mut script = Script::open(config());
    script.submit(0);
    script.submit(1);
    script.sent(A);
    script.sent(B);
    script.feed(A, &goodbye());
    script.submit(2);
    assert_eq!(
        (script.sending(A), script.sending(B)),
        (None, Some((2, false)))
    );
    assert!(!script.sockets.channel(A).closing, "one is unacknowledged");
    script.ack(A, 0, &[0]);
    assert!(script.sockets.channel(A).closing);
    script.lose(A);
    assert_eq!(script.outcomes().len(), 1, "nothing was lost by it");
}

#[test]
fn a_final_refusal_fails_the_batches_and_backpressure_moves_them() {
    let mut script = Script::open(config());
    script.submit(0);
    let (channel, other) = if script.sending(A).is_some() {
        (A, B)
    } else {
        (B, A)
    };
    script.sent(channel);
    script.tell(channel, &refusal(ErrorCode::Backpressure, true, None));
    script.lose(channel);
    assert_eq!(script.sending(other), Some((0, false)), "it is not stored");
    script.sent(other);
    script.tell(other, &refusal(ErrorCode::TooLarge, false, None));
    script.lose(other);
    assert_eq!(
        script.outcomes(),
        [(0, Outcome::Failed(Failure::Refused(ErrorCode::TooLarge)))]
    );
}

#[test]
fn a_publisher_whose_session_is_refused_does_not_open() {
    for code in [
        ErrorCode::UnsupportedVersion,
        ErrorCode::InvalidName,
        ErrorCode::InvalidArgument,
    ] {
        let mut script = Script::new(config());
        script.tell_cluster(1);
        script.connect(A);
        script.feed(A, &welcome(1));
        script.feed(A, &refused(code));
        assert!(script.sockets.channel(A).closing);
        script.lose(A);
        let told = script.events.iter().find_map(|event| match event {
            Event::Failed(ClientError::Refused { code, .. }) => Some(*code),
            _ => None,
        });
        assert_eq!(told, Some(code), "{:?}", script.events);
    }
}

#[test]
fn an_idle_connection_is_given_up_when_its_heartbeat_has_no_answer() {
    let mut script = Script::open(PublisherConfig {
        idle_timeout: Duration::from_secs(9),
        ..config()
    });
    script.tick_at(3 * SECOND);
    script.feed(A, &pong());
    script.tick_at(9 * SECOND);
    assert!(script.sockets.channel(B).closing, "nothing was heard of it");
    assert!(!script.sockets.channel(A).closing, "this one answered");
    script.tick_at(12 * SECOND);
    assert!(script.sockets.channel(A).closing);
}

#[test]
fn an_unknown_topic_is_created_at_the_head_and_the_lane_tries_again() {
    let mut script = Script::new(config());
    script.tell_cluster(1);
    script.connect(A);
    script.feed(A, &welcome(1));
    script.tell(A, &refusal(ErrorCode::UnknownTopic, false, None));
    script.lose(A);
    script.connect(ChannelId::CONTROL);
    script.feed(ChannelId::CONTROL, &welcome(0));
    script.sockets.taken(ChannelId::CONTROL);
    script.tell(ChannelId::CONTROL, &cluster(1));
    assert_eq!(
        script.sockets.taken(ChannelId::CONTROL),
        [FrameId::CreateTopic]
    );
    script.tell(
        ChannelId::CONTROL,
        &refusal(ErrorCode::TopicExists, false, None),
    );
    assert!(
        script.sockets.channel(ChannelId::CONTROL).closing,
        "another was faster, which is just as good"
    );
    script.open_lane(A);
    assert!(
        script
            .events
            .iter()
            .any(|event| matches!(event, Event::Opened { .. }))
    );
}

#[test]
fn a_publisher_that_needs_a_new_topic_waits_for_the_head_and_says_so() {
    let mut script = Script::new(config());
    script.tell_cluster(1);
    script.connect(A);
    script.feed(A, &welcome(1));
    script.tell(A, &refusal(ErrorCode::UnknownTopic, false, None));
    script.lose(A);
    // The head does not answer.
    script.lose(ChannelId::CONTROL);
    let wait = script.core.waiting_for(script.now).expect("it is not open");
    let brokers: Vec<_> = wait.parties.iter().map(|party| party.broker).collect();
    assert_eq!(brokers, [Some(0)]);
    let why = script.core.why_unavailable().to_string();
    assert!(
        why.contains("only the head creates topics, broker 0"),
        "{why}"
    );
}

#[test]
fn a_topic_that_is_created_for_acks_2_is_on_a_disk() {
    for (acks, factor) in [(Acks::Readable, 1), (Acks::Durable, 2)] {
        let mut script = Script::new(PublisherConfig { acks, ..config() });
        script.tell_cluster(1);
        script.connect(A);
        script.feed(A, &welcome(1));
        let Some(Control::OpenPublisher(open)) = script.sockets.channel(A).sent.pop() else {
            panic!("it announces itself");
        };
        assert_eq!(open.acks, acks.level());
        script.tell(A, &refusal(ErrorCode::UnknownTopic, false, None));
        script.lose(A);
        script.connect(ChannelId::CONTROL);
        script.feed(ChannelId::CONTROL, &welcome(0));
        script.tell(ChannelId::CONTROL, &cluster(1));
        let asked = script.sockets.channel(ChannelId::CONTROL).sent.pop();
        let Some(Control::CreateTopic(spec)) = asked else {
            panic!("{asked:?}");
        };
        assert_eq!(spec.replication_factor, factor);
    }
}

#[test]
fn an_unknown_topic_that_may_not_be_created_ends_the_publisher() {
    let mut script = Script::new(PublisherConfig {
        auto_create: false,
        ..config()
    });
    script.tell_cluster(1);
    script.connect(A);
    script.feed(A, &welcome(1));
    script.tell(A, &refusal(ErrorCode::UnknownTopic, false, None));
    script.lose(A);
    script.connect(ChannelId::CONTROL);
    script.feed(ChannelId::CONTROL, &welcome(0));
    script.sockets.taken(ChannelId::CONTROL);
    script.tell(ChannelId::CONTROL, &cluster(1));
    assert_eq!(
        script.sockets.taken(ChannelId::CONTROL),
        [FrameId::DescribeTopic]
    );
    let unknown = refusal(ErrorCode::UnknownTopic, false, None);
    script.tell(ChannelId::CONTROL, &unknown);
    let failed = script
        .events
        .iter()
        .any(|event| matches!(event, Event::Failed(ClientError::UnknownTopic { .. })));
    assert!(failed, "{:?}", script.events);
    script.submit(0);
    assert_eq!(
        script.outcomes(),
        [(
            0,
            Outcome::Failed(Failure::Refused(ErrorCode::UnknownTopic))
        )]
    );
}

#[test]
fn a_topic_deleted_under_the_publisher_ends_it() {
    let mut script = Script::open(config());
    script.submit(0);
    let channel = if script.sending(A).is_some() { A } else { B };
    script.sent(channel);
    script.tell(channel, &refusal(ErrorCode::UnknownTopic, false, None));
    script.lose(channel);
    assert!(
        script
            .events
            .iter()
            .any(|event| matches!(event, Event::Failed(ClientError::UnknownTopic { .. })))
    );
    let refused = Outcome::Failed(Failure::Refused(ErrorCode::UnknownTopic));
    assert_eq!(script.outcomes(), [(0, refused)]);
}

#[test]
fn opening_gives_up_in_time_and_says_who_did_not_answer() {
    let mut script = Script::new(config());
    script.lose(ChannelId::CONTROL);
    script.tick_at(5 * SECOND);
    let [Event::Failed(ClientError::Unreachable { addresses, source })] = &script.events[..] else {
        panic!("{:?}", script.events);
    };
    assert_eq!(
        (addresses.as_str(), source.to_string().as_str()),
        ("127.0.0.1:9400", "lost")
    );
}

/// Whoever answers is there: what it says is told, and nobody is sent to start a broker.
#[test]
fn opening_that_is_refused_ends_with_what_was_refused() {
    let mut script = Script::new(config());
    script.tell_cluster(2);
    let full = refusal(ErrorCode::ClusterFull, true, None);
    let mut left = 20;
    while script.events.is_empty() {
        left -= 1;
        assert!(left > 0, "{:?}", script.events);
        for channel in [A, B] {
            if script.sockets.channel(channel).connecting.is_some() {
                script.announce(channel, &full);
                script.lose(channel);
            }
        }
        script.events.retain(|it| matches!(it, Event::Failed(_)));
        let now = script.now.0;
        script.tick_at(now + SECOND / 2);
    }
    let [Event::Failed(error)] = &script.events[..] else {
        panic!("{:?}", script.events);
    };
    let text = error.to_string();
    let ClientError::Refused { code, message } = error else {
        panic!("{text}");
    };
    assert_eq!(*code, ErrorCode::ClusterFull);
    assert!(message.contains("data broker 1: ClusterFull"), "{message}");
    assert!(!text.contains("embar up"), "{text}");
}

/// What a broker said once is no cause any more when it does not answer.
#[test]
fn a_broker_that_refused_and_is_gone_does_not_answer() {
    let mut script = Script::new(config());
    script.tell_cluster(1);
    script.announce(A, &refusal(ErrorCode::ClusterFull, true, None));
    script.lose(A);
    assert!(matches!(
        script.core.why_unavailable(),
        ClientError::Refused { .. }
    ));
    while script.sockets.channel(A).connecting.is_none() {
        let now = script.now.0;
        script.tick_at(now + SECOND / 10);
    }
    script.lose(A);
    assert!(matches!(
        script.core.why_unavailable(),
        ClientError::Unreachable { .. }
    ));
}

#[test]
fn one_dead_broker_does_not_keep_the_publisher_from_opening() {
    let mut script = Script::new(config());
    script.tell_cluster(2);
    script.open_lane(A);
    assert!(script.events.is_empty(), "B was not tried yet");
    script.lose(B);
    assert!(
        script
            .events
            .iter()
            .any(|event| matches!(event, Event::Opened { .. }))
    );
}

#[test]
fn reconnecting_waits_longer_each_time() {
    let mut script = Script::open(config());
    script.lose(A);
    let mut waits = Vec::new();
    for _ in 0..6 {
        let from = script.now;
        while script.sockets.channel(A).connecting.is_none() {
            // The control channel fails too, so that only the clock moves things.
            if script
                .sockets
                .channel(ChannelId::CONTROL)
                .connecting
                .is_some()
            {
                script.lose(ChannelId::CONTROL);
            }
            let next = script.core.next_tick().expect("something to wait for");
            script.tick_at(next.0.max(script.now.0 + 1));
        }
        waits.push(script.now.0 - from.0);
        script.lose(A);
    }
    assert!(
        waits.windows(2).all(|pair| pair[1] > pair[0] / 2),
        "{waits:?}"
    );
    assert!(waits[5] > 8 * waits[0], "{waits:?}");
}

#[test]
fn stopping_resolves_everything() {
    let mut script = Script::open(config());
    for number in 0..4 {
        script.submit(number);
    }
    let now = script.now;
    script.core.stop(ClientError::Closed, now);
    script.drain();
    script.lose(A);
    script.lose(B);
    let mut outcomes = script.outcomes();
    outcomes.sort_by_key(|(batch, _)| *batch);
    let failed = |failure| Outcome::Failed(failure);
    assert_eq!(
        outcomes,
        [
            (0, failed(Failure::InDoubt)),
            (1, failed(Failure::InDoubt)),
            (2, failed(Failure::Closed)),
            (3, failed(Failure::Closed)),
        ]
    );
    assert_eq!(script.core.next_tick(), None);
}

/// A flipped status or offset would be a false acknowledgement.
#[test]
fn a_damaged_ack_acknowledges_nothing_and_its_batches_are_sent_again() {
    let mut ack = Vec::new();
    encode_ack(0, None, &[40], &mut ack);
    // If a length grew, more must come before that shows.
    let more = frame(&Control::Done).repeat(4000);
    for bit in 0..ack.len() * 8 {
        let mut script = Script::open(config());
        script.submit(0);
        let (channel, other) = match script.sending(A) {
            Some(_) => (A, B),
            None => (B, A),
        };
        script.sent(channel);
        let mut damaged = ack.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        script.feed(channel, &damaged);
        script.feed(channel, &more);
        assert!(script.sockets.channel(channel).closing, "bit {bit}");
        assert_eq!(script.outcomes(), [], "bit {bit}");
        script.lose(channel);
        assert_eq!(script.sending(other), Some((0, true)), "bit {bit}");
        script.sent(other);
        script.ack(other, 0, &[7]);
        assert_eq!(script.outcomes(), [(0, stored(other.0, 7))], "bit {bit}");
    }
}

#[test]
fn hostile_bytes_close_the_lane_and_lose_nothing() {
    let mut random = SplitMix64::new(5);
    for _ in 0..300 {
        let mut script = Script::open(config());
        script.submit(0);
        script.submit(1);
        let mut bytes = Vec::new();
        encode_ack(random.next_u64() % 3, None, &[1, 2, 3], &mut bytes);
        bytes.extend(welcome(1));
        let at = (random.next_u64() % bytes.len() as u64) as usize;
        bytes[at] = random.next_u64() as u8;
        script.feed(A, &bytes);
        let now = script.now;
        script.core.stop(ClientError::Closed, now);
        script.drain();
        script.lose(A);
        script.lose(B);
        let mut resolved: Vec<u64> = script
            .outcomes()
            .into_iter()
            .map(|(batch, _)| batch)
            .collect();
        resolved.sort_unstable();
        assert_eq!(resolved, [0, 1], "each exactly once");
    }
}
