//! The ways to receive payloads differ in speed, and in nothing that a peer sees.

mod support;

use std::time::Duration;

use embar_broker::{BrokerConfig, Cluster, ReceivePath};
use embar_meter::Snapshot;
use embar_wire::control::StartAt;
use support::{Peer, batch, create_topic, data, eventually, small};
use tempfile::TempDir;

const BYTES: usize = 1_000_000;

/// By which socket peers come.
#[derive(Clone, Copy, Debug)]
enum Link {
    Tcp,
    Unix,
}

/// A cluster that receives in one way, from peers that come by one link.
struct Site {
    cluster: Cluster,
    link: Link,
    region: TempDir,
}

impl Site {
    fn start(receive: ReceivePath, link: Link) -> Self {
        let region = tempfile::tempdir().expect("a directory");
        let config = BrokerConfig {
            receive,
            // However slow the machine is, nobody who waits is taken for dead.
            idle_timeout: Duration::ZERO,
            ..BrokerConfig::default()
        };
        let builder = small().region_dir(region.path().join("region"));
        let cluster = builder.config(config).start().expect("a cluster");
        let used = cluster.broker(1).expect("it runs").receive_path();
        assert_eq!(used, receive, "this machine allows all of them");
        create_topic(&cluster, "t", 0);
        Self {
            cluster,
            link,
            region,
        }
    }

    fn greet(&self) -> Peer {
        match self.link {
            Link::Tcp => Peer::greet(data(&self.cluster)),
            Link::Unix => {
                let file = self.region.path().join("region/sockets/1");
                Peer::connect_unix(&file).greeted()
            }
        }
    }

    fn publisher(&self) -> (Peer, u32) {
        let mut peer = self.greet();
        let topic = peer.open_publisher("t", 1).topic_id;
        (peer, topic)
    }

    /// A publisher whose connection may claim room in the log for its next batch.
    fn trusted(&self) -> (Peer, u32) {
        let (mut peer, topic) = self.publisher();
        for sequence in 0..2 {
            peer.send_bytes(&large(topic, sequence));
            peer.expect_acks(1);
        }
        (peer, topic)
    }

    fn profile(&self) -> Snapshot {
        self.cluster.broker(1).expect("it runs").snapshot()
    }
}

/// The `sequence`th batch: one message.
fn large(topic: u32, sequence: u64) -> Vec<u8> {
    batch(topic, sequence, &[&vec![sequence as u8; BYTES]])
}

fn times(profile: &Snapshot, stage: &str) -> u64 {
    profile.stage(stage).map_or(0, |row| row.count)
}

/// Every way to receive, by every link.
fn each(check: impl Fn(&Site, ReceivePath)) {
    for path in ReceivePath::ALL {
        for link in [Link::Tcp, Link::Unix] {
            check(&Site::start(path, link), path);
        }
    }
}

#[test]
fn every_path_stores_what_was_sent() {
    each(|site, path| {
        let (mut peer, topic) = site.publisher();
        // More batches at once than fit into the socket, of sizes around those that are treated differently.
        let sizes = [1, 5_000, 255 << 10, 256 << 10, 600 << 10, BYTES];
        let values: Vec<Vec<u8>> = (0..18)
            .map(|number| vec![number as u8; sizes[number % sizes.len()]])
            .collect();
        for (sequence, value) in (0..).zip(&values) {
            peer.send_bytes(&batch(topic, sequence, &[value]));
        }
        peer.expect_acks(values.len());
        let mut subscriber = site.greet();
        subscriber.subscribe("t", StartAt::Earliest);
        for (offset, value) in (0..).zip(values) {
            let read = subscriber.read(1);
            assert!(read == [(offset, value)], "{path}: message {offset}");
        }
    });
}

#[test]
fn a_peer_that_sends_a_byte_at_a_time_keeps_nobody_waiting() {
    each(|site, _| {
        let (mut slow, topic) = site.trusted();
        let (mut fast, _) = site.trusted();
        let drip = large(topic, 2);
        let (begin, rest) = drip.split_at(10_000);
        slow.send_bytes(begin);
        let (bytes, rest) = rest.split_at(20);
        for (sequence, byte) in (2..).zip(bytes) {
            slow.send_bytes(&[*byte]);
            fast.send_bytes(&large(topic, sequence));
            fast.expect_acks(1);
        }
        slow.send_bytes(rest);
        slow.expect_acks(1);
    });
}

#[test]
fn a_peer_that_dies_in_a_batch_gives_its_room_back() {
    each(|site, _| {
        let (mut peer, topic) = site.trusted();
        let whole = large(topic, 2);
        peer.send_bytes(&whole[..BYTES / 2]);
        let usage = || site.cluster.broker(1).expect("it runs").log_usage();
        eventually("half of a batch is there", || {
            usage().receiving_bytes + usage().staged_bytes > 0
        });
        drop(peer);
        eventually("its room is back", || {
            usage().receiving_bytes + usage().staged_bytes == 0
        });
        let (_peer, _) = site.trusted();
    });
}

#[test]
fn only_the_staging_path_copies_every_batch() {
    each(|site, path| {
        let (mut peer, topic) = site.trusted();
        let before = site.profile();
        for sequence in 2..12 {
            peer.send_bytes(&large(topic, sequence));
            peer.expect_acks(1);
        }
        let after = site.profile().since(&before);
        for stage in ["GetCXLBuffer", "CopyAndFlushPayload"] {
            let count = times(&after, stage);
            // Elsewhere a batch that comes late on a slow machine is copied, too.
            let as_expected = match path {
                ReceivePath::Staging => count == 10,
                _ => count < 10,
            };
            assert!(as_expected, "{path}: {stage} {count} times");
        }
        assert!(times(&after, "DrainPayloadToBuffer") >= 10, "{path}");
    });
}
