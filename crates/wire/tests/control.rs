//! Every control message survives the wire; what is malformed is refused with a reason.

use embar_frame::{CHECKSUM_BYTES, FrameHeader, verify_checksum};
use embar_wire::control::*;
use embar_wire::error::DecodeError;
use embar_wire::frame::{FrameId, LogProtocol};
use embar_wire::isolation::Isolation;
use embar_wire::limits::{MAX_CONTROL_BYTES, MAX_LISTED_TOPICS, MAX_TOPIC_NAME_BYTES};
use embar_wire::share::{BrokerSet, Share};
use embar_wire::time::WallNs;
use embar_wire::topic::Order;

fn topic() -> Topic {
    Topic {
        id: 3,
        name: "orders".into(),
        order: Order::PerBroker,
        retention_bytes: 1 << 40,
        retention_ms: 0,
        max_message_bytes: 1 << 20,
        created: WallNs(u64::MAX),
        replication_factor: 3,
    }
}

fn one_of_each() -> Vec<Control> {
    let mut all = vec![
        Control::Error(ErrorReply {
            code: ErrorCode::OffsetOutOfRange,
            message: "start at 17".into(),
            retryable: true,
            topic: Some(String::new()),
            first_available: Some(0),
        }),
        Control::OpenPublisher(OpenPublisher {
            topic: "t".into(),
            producer: u64::MAX,
            acks: 1,
            instance: u64::MAX,
            resumes: true,
            topic_id: u32::MAX,
            secret: Secret([7; 16]),
            takes_over: u32::MAX,
        }),
        Control::SessionHeld(SessionHeld { session_epoch: 9 }),
        Control::PublisherOpened(PublisherOpened {
            topic_id: 1,
            max_batch_bytes: 2,
            max_message_bytes: 1 << 20,
            order: Order::TotalPerPublisher,
            session: 3,
            session_epoch: 4,
            mark: u64::MAX,
            window: 6,
            first_epoch: 2,
        }),
        Control::OpenSession(OpenSession { gives_up: 4 }),
        Control::SessionOpened(SessionOpened {
            session: 3,
            session_epoch: 5,
            mark: 17,
            first_epoch: 2,
        }),
        Control::Subscribed(Subscribed {
            topic_id: 1,
            start: 3,
            first: 2,
            next: 4,
            order: Order::TotalPerPublisher,
        }),
        Control::CreateTopic(CreateTopic {
            name: "t".into(),
            order: 1,
            retention_bytes: 2,
            retention_ms: 0,
            max_message_bytes: 3,
            replication_factor: 9,
        }),
        Control::TopicCreated(TopicCreated { topic: topic() }),
        Control::DeleteTopic(DeleteTopic { name: "t".into() }),
        Control::Topics(Topics {
            topics: vec![topic(), Topic::default()],
            next: 256,
        }),
        Control::DescribeTopic(DescribeTopic { name: "t".into() }),
        Control::TopicDescription(TopicDescription {
            topic: topic(),
            partitions: vec![Partition {
                broker: 1,
                first: 2,
                next: 3,
                payload_bytes: 4,
                batches: 5,
                disk_first: Some(0),
                durable: Some(3),
            }],
        }),
        Control::Metadata(Metadata {
            topic: Some("t".into()),
        }),
        Control::ClusterMetadata(ClusterMetadata {
            head: 0,
            topic_order: Some(Order::None),
            sequencer: Some(4),
            region: 5,
            socket_dir: "/dev/shm/r/sockets".into(),
            brokers: vec![BrokerInfo {
                id: 1,
                state: BrokerState::Ready,
                address: "[::1]:1".into(),
                incarnation: 2,
                role: BrokerRole::Member,
                takes_data: true,
                socket_machine: u64::MAX,
            }],
        }),
        Control::StatusReply(StatusReply {
            brokers: vec![BrokerStatus {
                broker: 1,
                uptime_ns: 2,
                connections: 3,
                payload_total_bytes: 4,
                payload_free_bytes: 5,
                batches: 6,
                messages: 7,
                bytes_in: 8,
                bytes_out: 9,
                refused_batches: 10,
                backpressured_connections: 11,
                cpu_ns: 12,
                minor_faults: 13,
                peak_memory_bytes: 14,
                heartbeat_age_ns: 15,
                repaired_records: 16,
                damaged_records: 17,
                unix_connections: 18,
                shm_connections: 20,
                refused_users: 19,
                lent_bytes: 21,
                held_bytes: 22,
                lane_batches: 23,
                held_batches: 24,
                lane_capacity: 25,
                disks: vec![DiskStatus {
                    number: 26,
                    state: DiskState::Full,
                    directory: "/mnt/a".into(),
                    free_bytes: 27,
                }],
            }],
        }),
        Control::ProfileReply(ProfileReply {
            json: b"{}\xFF".to_vec(),
        }),
        Control::SetMetering(SetMetering { on: true }),
        Control::RemoveBroker(RemoveBroker {
            broker: 1,
            force: true,
        }),
        Control::Join(Join {
            pid: 1,
            address: "127.0.0.1:9".into(),
            takes_data: true,
        }),
        Control::Joined(Joined {
            broker_id: 1,
            region_dir: "/dev/shm/embar".into(),
            nonce: 2,
        }),
        Control::TopicDeleted,
        Control::ListTopics(ListTopics { from: 300 }),
        Control::Metadata(Metadata::default()),
        Control::CloseSession,
        Control::Status,
        Control::Profile,
        Control::Done,
    ];
    for start in [StartAt::Earliest, StartAt::Latest, StartAt::Offset(0)] {
        let topic = "t".into();
        all.push(Control::Subscribe(Subscribe {
            topic,
            start,
            topic_id: 9,
            share: Share::All,
            isolation: Isolation::Latest,
        }));
    }
    let mut brokers = BrokerSet::default();
    assert!(brokers.insert(1) && brokers.insert(127));
    let large_bytes = 70_000;
    let without = Share::Without {
        brokers,
        large_bytes,
    };
    for share in [Share::Own { large_bytes }, without] {
        all.push(Control::Subscribe(Subscribe {
            topic: "t".into(),
            start: StartAt::Latest,
            topic_id: 9,
            share,
            isolation: Isolation::Durable,
        }));
    }
    all
}

fn encoded(message: &Control) -> Vec<u8> {
    let mut out = Vec::new();
    encode(message, &mut out).unwrap();
    out
}

#[test]
fn every_message_survives_the_wire() {
    let mut seen = Vec::new();
    for message in one_of_each() {
        let frame = encoded(&message);
        let (header, body) = frame.split_first_chunk().unwrap();
        assert_eq!(verify_checksum(&frame), Ok(()));
        let header = FrameHeader::parse(header).without_checksum().unwrap();
        let body = &body[..body.len() - CHECKSUM_BYTES];
        let id = LogProtocol::default().check(header).unwrap();
        assert_eq!(id, message.id());
        assert_eq!(header.length as usize, body.len());
        assert_eq!(decode(id, body).as_ref(), Ok(&message));
        seen.push(id);
    }
    for id in FrameId::ALL.iter().filter(|id| id.is_control()) {
        assert!(seen.contains(id), "no test for {id:?}");
    }
}

#[test]
fn in_place_and_appended_are_the_same_bytes() {
    for message in one_of_each() {
        let appended = encoded(&message);
        let body = &appended[8..appended.len() - CHECKSUM_BYTES];
        assert_eq!(body_len(&message), Ok(body.len()));
        let mut out = vec![0xAA; body.len()];
        encode_body(&message, &mut out).expect("it is not too large");
        assert_eq!(out, body, "{message:?}");
    }
}

#[test]
#[should_panic(expected = "the length of the body")]
fn a_place_of_another_length_is_a_bug() {
    let _ = encode_body(&Control::Status, &mut [0; 1]);
}

#[test]
fn every_prefix_is_decoded_or_refused() {
    for message in one_of_each() {
        let frame = encoded(&message);
        for end in 8..frame.len() - CHECKSUM_BYTES {
            let cut = decode(message.id(), &frame[8..end]);
            assert_ne!(cut.as_ref(), Ok(&message));
        }
    }
}

#[test]
fn every_error_code_has_its_number() {
    for &code in ErrorCode::ALL {
        assert_eq!(ErrorCode::from_number(code.number()), code);
    }
    assert_eq!(ErrorCode::from_number(999), ErrorCode::Internal);
}

#[test]
fn greetings_survive_the_handshake_and_their_parts_do_not_mix() {
    let hello = Hello {
        role: Role::Broker,
        name: "grün".into(),
    };
    let bytes = hello.to_greeting();
    assert_eq!(Hello::from_greeting(&bytes).as_ref(), Ok(&hello));
    for end in 0..bytes.len() {
        assert_ne!(Hello::from_greeting(&bytes[..end]).as_ref(), Ok(&hello));
    }
    let welcome = Welcome {
        broker_id: 2,
        incarnation: 3,
        max_control_bytes: 4,
        max_batch_bytes: 5,
        server: "embar 0.1".into(),
        region: 6,
    };
    let bytes = welcome.to_greeting();
    assert_eq!(Welcome::from_greeting(&bytes).as_ref(), Ok(&welcome));
    for end in 0..bytes.len() {
        assert_ne!(Welcome::from_greeting(&bytes[..end]).as_ref(), Ok(&welcome));
    }
}

#[test]
fn a_greeting_that_says_nothing_is_refused_with_a_reason() {
    let nameless = ControlError::Field { field: "role" };
    assert_eq!(Hello::from_greeting(&[]), Err(nameless));
    let error = Hello::from_greeting(&[0xFF; 20]).unwrap_err();
    assert!(matches!(error, ControlError::Greeting { .. }), "{error:?}");
    assert_eq!(DecodeError::from(error).code(), ErrorCode::BadFrame);
}

#[test]
fn unknown_values_are_refused_and_unknown_reasons_understood() {
    // Field 2 (start) = 9.
    let error = decode(FrameId::Subscribe, &[0x10, 9]).unwrap_err();
    assert_eq!(error, ControlError::Field { field: "start" });
    assert_eq!(DecodeError::from(error).code(), ErrorCode::InvalidArgument);
    assert!(decode(FrameId::TopicCreated, &[]).is_err());
    // Field 2 (start) = 1, field 5 (large_bytes) = 64, field 6 (without) = 128, which no cluster has; and = 1, without field 5.
    for bytes in [&[0x10, 1, 0x28, 64, 0x30, 0x80, 1][..], &[0x10, 1, 0x30, 1]] {
        let error = decode(FrameId::Subscribe, bytes).unwrap_err();
        assert_eq!(error, ControlError::Field { field: "without" });
    }

    // Field 2 (start) = 1, field 7 (isolation) = 2.
    let error = decode(FrameId::Subscribe, &[0x10, 1, 0x38, 2]).unwrap_err();
    assert_eq!(error, ControlError::Field { field: "isolation" });
    // Field 5 (replication_factor) = 257, which is not 1.
    let error = decode(FrameId::CreateTopic, &[0x28, 0x81, 0x02]).unwrap_err();
    let field = "replication_factor";
    assert_eq!(error, ControlError::Field { field });

    // Field 1 (code) = 99, as a newer broker might say.
    let Ok(Control::Error(reply)) = decode(FrameId::Error, &[0x08, 99, 0x18, 1]) else {
        panic!("a refusal is always understood");
    };
    assert_eq!((reply.code, reply.retryable), (ErrorCode::Internal, true));
}

#[test]
fn a_subscriber_that_does_not_say_up_to_where_reads_what_is_durable() {
    // Field 2 (start) = 1.
    let Ok(Control::Subscribe(subscribe)) = decode(FrameId::Subscribe, &[0x10, 1]) else {
        panic!("nothing is missing");
    };
    assert_eq!(subscribe.isolation, Isolation::Durable);
}

#[test]
fn fields_of_a_newer_version_are_skipped() {
    // Field 100, a varint, in a message that has no fields and in one that has.
    let newer = [0xA0, 0x06, 5];
    assert_eq!(decode(FrameId::Done, &newer), Ok(Control::Done));
    assert!(decode(FrameId::DeleteTopic, &newer).is_ok());
    assert!(Welcome::from_greeting(&newer).is_ok());
}

#[test]
fn batch_and_ack_are_not_control() {
    for id in [FrameId::Batch, FrameId::Ack] {
        assert_eq!(decode(id, &[]), Err(ControlError::NotControl { id }));
    }
}

#[test]
fn too_large_is_refused_on_both_sides() {
    let json = vec![b' '; MAX_CONTROL_BYTES as usize];
    let mut out = b"before".to_vec();
    let message = Control::ProfileReply(ProfileReply { json });
    let error = encode(&message, &mut out).unwrap_err();
    assert_eq!(body_len(&message), Err(error));
    assert_eq!(encode_body(&message, &mut out), Err(error));
    assert_eq!(error.id, FrameId::ProfileReply);
    assert!(error.bytes > MAX_CONTROL_BYTES as usize);
    assert_eq!(out, b"before");
    assert!(decode(FrameId::Done, &vec![0; MAX_CONTROL_BYTES as usize + 1]).is_err());
}

#[test]
fn the_longest_list_of_topics_fits() {
    let topic = Topic {
        id: u32::MAX,
        name: "x".repeat(MAX_TOPIC_NAME_BYTES),
        order: Order::TotalPerPublisher,
        retention_bytes: u64::MAX,
        retention_ms: 0,
        max_message_bytes: u32::MAX,
        created: WallNs(u64::MAX),
        replication_factor: u8::MAX,
    };
    let message = Control::Topics(Topics {
        topics: vec![topic; MAX_LISTED_TOPICS],
        next: u32::MAX,
    });
    let frame = encoded(&message);
    let content = &frame[8..frame.len() - CHECKSUM_BYTES];
    assert_eq!(decode(FrameId::Topics, content), Ok(message));
}

#[test]
fn tiny_elements_do_not_become_large_memory() {
    // Two bytes each on the wire, an empty topic.
    let body = [0x0A, 0].repeat(60_000);
    assert!(decode(FrameId::Topics, &body).is_err());
}
