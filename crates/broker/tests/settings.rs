//! Every setting acts.

mod support;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use embar_broker::{BrokerConfig, Cluster, StartError};
use embar_wire::control::{Control, ErrorCode, Metadata, SetMetering, StartAt};
use support::{Peer, batch, create_topic, data, eventually, small, start, until_still};

fn refused(config: BrokerConfig) -> String {
    match small().config(config).start() {
        Err(error @ StartError::Config(_)) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it started"),
    }
}

#[test]
fn settings_that_make_no_sense_are_refused_with_a_hint() {
    let open = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let text = refused(BrokerConfig {
        listen: open,
        ..BrokerConfig::default()
    });
    assert!(text.contains("--insecure-listen"), "{text}");
    for config in [
        BrokerConfig {
            network_threads: 0,
            ..BrokerConfig::default()
        },
        BrokerConfig {
            network_threads: 9,
            ..BrokerConfig::default()
        },
        BrokerConfig {
            max_batch_bytes: 10,
            ..BrokerConfig::default()
        },
        BrokerConfig {
            max_batch_bytes: u32::MAX,
            ..BrokerConfig::default()
        },
        BrokerConfig {
            high_watermark_percent: 40,
            ..BrokerConfig::default()
        },
        BrokerConfig {
            high_watermark_percent: 101,
            ..BrokerConfig::default()
        },
        BrokerConfig {
            max_connections: 0,
            ..BrokerConfig::default()
        },
        BrokerConfig {
            data: vec!["/dev/shm/a".into(); 9],
            ..BrokerConfig::default()
        },
    ] {
        refused(config);
    }
    let few = Cluster::builder().brokers(1).start();
    assert!(matches!(few, Err(StartError::TooFewBrokers { brokers: 1 })));
}

#[test]
fn an_address_for_all_needs_the_word_for_it() {
    let open = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let config = BrokerConfig {
        listen: open,
        insecure_listen: true,
        ..BrokerConfig::default()
    };
    // The head listens on every interface; the follower is told 0.0.0.0, which reaches this host.
    start(config);
}

#[test]
fn a_port_in_use_is_told_at_once() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let listen = taken.local_addr().expect("its address");
    let error = small()
        .config(BrokerConfig {
            listen,
            ..BrokerConfig::default()
        })
        .start();
    let error = error.err().expect("the port is taken").to_string();
    assert!(error.contains(&listen.to_string()), "{error}");
}

#[test]
fn the_largest_batch_is_what_was_set() {
    let config = BrokerConfig {
        max_batch_bytes: 1 << 20,
        ..BrokerConfig::default()
    };
    let cluster = start(config);
    create_topic(&cluster, "t", 0);
    let mut peer = Peer::greet(data(&cluster));
    let opened = peer.open_publisher("t", 1);
    assert_eq!(opened.max_batch_bytes, 1 << 20);
    let values = vec![[1u8; 1000]; 1000];
    let values: Vec<&[u8]> = values.iter().map(|v| &v[..]).collect();
    peer.send_bytes(&batch(opened.topic_id, 0, &values));
    peer.expect_acks(1);
    let values = [&values[..], &values[..100]].concat();
    let large = batch(opened.topic_id, 1, &values);
    peer.send_bytes(&large[..1000]);
    assert_eq!(peer.expect_refusal().code, ErrorCode::TooLarge);
}

/// 64 MiB for one broker: the log has about 48 MiB.
fn pressed() -> BrokerConfig {
    BrokerConfig {
        high_watermark_percent: 20,
        low_watermark_percent: 5,
        backpressure_timeout: Duration::from_millis(500),
        ..BrokerConfig::default()
    }
}

/// The last bytes of a batch, which are withheld.
const WITHHELD: usize = 1000;

/// Three publishers of which each sends 3.4 MB and withholds the end: above 20 % of the log, which is
/// some 10 MB.
fn hold(cluster: &Cluster) -> Vec<(Peer, Vec<u8>)> {
    let values = vec![vec![3u8; 825 << 10]; 4];
    let values: Vec<&[u8]> = values.iter().map(|v| &v[..]).collect();
    let held = (0..3)
        .map(|_| {
            let mut peer = Peer::greet(data(cluster));
            let topic = peer.open_publisher("t", 1).topic_id;
            let whole = batch(topic, 0, &values);
            peer.send_bytes(&whole[..whole.len() - WITHHELD]);
            (peer, whole)
        })
        .collect();
    eventually("they hold more than the high watermark", || {
        staged(cluster) > 10_100_000
    });
    held
}

/// Memory of batches that are on their way.
fn staged(cluster: &Cluster) -> u64 {
    cluster.broker(1).expect("it runs").log_usage().staged_bytes
}

fn paused(cluster: &Cluster) -> u64 {
    let Control::StatusReply(status) = Peer::greet(data(cluster)).ask(&Control::Status) else {
        panic!("a status")
    };
    status.brokers[0].backpressured_connections
}

#[test]
fn publishers_wait_above_the_high_watermark_until_below_the_low_one() {
    let config = BrokerConfig {
        backpressure_timeout: Duration::from_secs(60),
        ..pressed()
    };
    let cluster = start(config);
    create_topic(&cluster, "t", 0);
    let mut held = hold(&cluster);
    let mut waiting = Peer::greet(data(&cluster));
    let topic = waiting.open_publisher("t", 1).topic_id;
    waiting.send_bytes(&batch(topic, 0, &[b"me too"]));
    eventually("the fourth is paused", || paused(&cluster) == 1);
    // One done leaves 6.8 MB, above the low mark.
    let (mut done, whole) = held.pop().expect("three");
    done.send_bytes(&whole[whole.len() - WITHHELD..]);
    done.expect_acks(1);
    assert_eq!(paused(&cluster), 1, "between the marks nothing changes");
    // The others gone leaves nothing.
    drop(held);
    waiting.expect_acks(1);
    assert_eq!(paused(&cluster), 0);
}

#[test]
fn a_publisher_that_waits_too_long_gets_backpressure() {
    let config = BrokerConfig {
        backpressure_timeout: Duration::from_secs(2),
        ..pressed()
    };
    let cluster = start(config);
    create_topic(&cluster, "t", 0);
    let values = vec![vec![3u8; 1000 << 10]; 8];
    let values: Vec<&[u8]> = values.iter().map(|v| &v[..]).collect();
    let mut held: Vec<_> = (0..2)
        .map(|_| {
            let mut peer = Peer::greet(data(&cluster));
            let topic = peer.open_publisher("t", 1).topic_id;
            let whole = batch(topic, 0, &values);
            peer.send_bytes(&whole[..4_300_000]);
            (peer, whole)
        })
        .collect();
    eventually("each has memory for all of its batch", || {
        staged(&cluster) > 16_000_000
    });
    // They go on, several times as fast as they must, and are not done before the other gives up.
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let drip = std::thread::spawn(move || {
        let pause = Duration::from_millis(20);
        let mut at = 4_300_000;
        while ended.recv_timeout(pause) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            for (peer, whole) in &mut held {
                let end = (at + (16 << 10)).min(whole.len() - 1);
                peer.send_bytes(&whole[at..end]);
            }
            at += 16 << 10;
        }
    });
    let mut waiting = Peer::greet(data(&cluster));
    let topic = waiting.open_publisher("t", 1).topic_id;
    waiting.send_bytes(&batch(topic, 0, &[b"me too"]));
    let error = waiting.expect_refusal();
    assert_eq!(error.code, ErrorCode::Backpressure);
    assert!(error.retryable);
    drop(done);
    drip.join().expect("the slow ones were not cut");
}

#[test]
fn memory_held_without_bytes_goes_to_those_who_wait() {
    let config = BrokerConfig {
        hello_timeout: Duration::from_secs(1),
        frame_timeout: Duration::from_secs(3),
        backpressure_timeout: Duration::from_secs(30),
        ..pressed()
    };
    let cluster = start(config);
    create_topic(&cluster, "t", 0);
    let mut held = hold(&cluster);
    let mut waiting = Peer::greet(data(&cluster));
    let topic = waiting.open_publisher("t", 1).topic_id;
    let whole = batch(topic, 0, &[&[1; 5000]]);
    waiting.send_bytes(&whole[..1000]);
    for (peer, _) in &mut held {
        assert_eq!(peer.expect_refusal().code, ErrorCode::Timeout);
    }
    eventually("there is room", || paused(&cluster) == 0);
    // The time for which the broker held it back does not count against it: a tick that refuses a later peer
    // leaves it alone.
    let mut silent = Peer::connect(data(&cluster));
    assert_eq!(silent.expect_refusal().code, ErrorCode::Timeout);
    waiting.send_bytes(&whole[1000..]);
    waiting.expect_acks(1);
}

#[test]
fn metering_is_switched_while_it_runs() {
    let cluster = start(BrokerConfig {
        metering: false,
        ..BrokerConfig::default()
    });
    create_topic(&cluster, "t", 0);
    let publish = |sequence: u64| {
        let mut peer = Peer::greet(data(&cluster));
        let topic = peer.open_publisher("t", 1).topic_id;
        peer.send_bytes(&batch(topic, sequence, &[b"x"]));
        peer.expect_acks(1);
    };
    let timed = || cluster.broker(1).expect("it runs").snapshot().total_ns();
    publish(0);
    assert_eq!(timed(), 0);
    let on = Control::SetMetering(SetMetering { on: true });
    assert!(matches!(
        Peer::greet(data(&cluster)).ask(&on),
        Control::Done
    ));
    publish(1);
    eventually("stages are timed", || timed() > 0);
    let snapshot = cluster.broker(1).expect("it runs").snapshot();
    assert_eq!(
        snapshot.counter("batches"),
        Some(2),
        "counters count either way"
    );
    for stage in [
        "DrainHeader",
        "ReserveBLogSpace",
        "DrainPayloadToBuffer",
        "CompleteBatchInCXL",
    ] {
        assert_eq!(snapshot.stage(stage).map(|s| s.count), Some(1), "{stage}");
    }
}

#[test]
fn explicit_socket_buffers_reach_accepted_connections() {
    // With a tiny send buffer a subscriber that does not read stalls early.
    let send = |bytes: Option<u32>, until: &mut dyn FnMut(&Cluster, &dyn Fn() -> u64)| {
        let config = BrokerConfig {
            send_buffer_bytes: bytes,
            ..BrokerConfig::default()
        };
        let cluster = start(config);
        create_topic(&cluster, "t", 0);
        let mut peer = Peer::greet(data(&cluster));
        let topic = peer.open_publisher("t", 1).topic_id;
        for sequence in 0..16 {
            peer.send_bytes(&batch(topic, sequence, &[&[0; 1 << 20]]));
        }
        peer.expect_acks(16);
        let mut lazy = Peer::greet(data(&cluster));
        lazy.subscribe("t", StartAt::Earliest);
        let count = || {
            let snapshot = cluster.broker(1).expect("it runs").snapshot();
            snapshot.counter("send_bytes").expect("it is counted")
        };
        until(&cluster, &count);
    };
    let mut small = 0;
    send(Some(4096), &mut |cluster, sent| {
        // In MiB: whoever asks for the broker's rounds is sent answers, too.
        until_still("the subscriber has stalled", cluster, || sent() >> 20);
        small = sent();
    });
    send(None, &mut |_, sent| {
        eventually("more is sent", || sent() > small)
    });
}

#[test]
fn socket_files_are_there_for_this_user_alone_unless_they_are_switched_off() {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};

    for (unix_socket, shared_memory) in [(true, true), (true, false), (false, true)] {
        let space = tempfile::tempdir().expect("a directory");
        let region = space.path().join("region");
        let config = BrokerConfig {
            unix_socket,
            shared_memory,
            ..BrokerConfig::default()
        };
        let builder = small().region_dir(&region).config(config);
        let cluster = builder.start().expect("a cluster");
        let sockets = region.join("sockets");
        let file = |name| std::fs::symlink_metadata(sockets.join(name));
        let told = Peer::greet(cluster.bootstrap()).ask(&Control::Metadata(Metadata::default()));
        let Control::ClusterMetadata(told) = told else {
            panic!("{told:?}");
        };
        assert!(
            told.brokers
                .iter()
                .all(|it| (it.socket_machine != 0) == unix_socket)
        );
        assert_eq!(file("1").is_ok(), unix_socket);
        assert_eq!(file("1.shm").is_ok(), unix_socket && shared_memory);
        assert!(file("0.shm").is_err(), "the head takes no data");
        for file in ["1", "1.shm"].into_iter().flat_map(file) {
            assert!(file.file_type().is_socket());
            assert_eq!(file.permissions().mode() & 0o777, 0o600);
            let dir = sockets.metadata().expect("it is there");
            assert_eq!(dir.permissions().mode() & 0o777, 0o700);
            assert_eq!(told.socket_dir, sockets.to_str().expect("text"));
        }
        cluster.shutdown();
        for name in ["1", "1.shm"] {
            assert!(!sockets.join(name).exists(), "removed at the end");
        }
    }
}

#[test]
fn all_brokers_of_a_cluster_and_no_others_use_its_directories() {
    let parent = tempfile::tempdir().expect("a directory");
    let on = |names: [&str; 2], same_device_is_fine| BrokerConfig {
        data: names.map(|name| parent.path().join(name)).into(),
        same_device_is_fine,
        ..BrokerConfig::default()
    };
    let started = |config| small().standbys(1).config(config).start();
    let cautious = started(on(["a", "b"], false)).err();
    let Some(StartError::Disk(why)) = cautious else {
        panic!("{cautious:?}");
    };
    assert!(why.to_string().contains("are on one device"), "{why}");
    let mut cluster = started(on(["a", "b"], true)).expect("it starts");
    let other = started(on(["b", "c"], true)).err().map(|it| it.to_string());
    let other = other.expect("another cluster's");
    assert!(other.contains("in use by the cluster of region"), "{other}");
    // The others keep them for the head.
    cluster.crash_broker(0);
    cluster.restart_broker(0).expect("it starts again");
    cluster.shutdown();
    started(on(["b", "a"], true)).expect("free").shutdown();
}
