//! A broker that stands still for so long that the others give up what it has not read yet.

mod common;
#[path = "../../broker/tests/support/mod.rs"]
mod support;

use std::net::SocketAddr;

use common::{Space, Up, eventually, signal};
use embar_fabric::geometry::topic_record_of;
use embar_fabric::region::Region;
use embar_memory::{Coherence, Mapped};
use embar_wire::ack::POSITION_UNKNOWN;
use embar_wire::control::{BrokerState, Control, Metadata, StartAt};
use support::{Peer, batch_of};

const TOPIC: &str = "ordered";
/// Who is stopped, and who goes on.
const SLOW: u16 = 1;
const BUSY: u16 = 2;
/// As many batches as the order has no room for beside each other in what the topic retains.
const COUNT: u64 = 400;

/// Where a broker is, and which of its lives.
fn find(up: &Up, row: u16) -> Option<(SocketAddr, u32)> {
    let bootstrap = up.bootstrap().parse().expect("an address");
    let asked = Peer::greet(bootstrap).ask(&Control::Metadata(Metadata::default()));
    let Control::ClusterMetadata(cluster) = asked else {
        panic!("{asked:?}")
    };
    let broker = cluster.brokers.iter().find(|it| it.id == u32::from(row))?;
    let ready = broker.state == BrokerState::Ready;
    ready.then(|| {
        (
            broker.address.parse().expect("an address"),
            broker.incarnation,
        )
    })
}

fn free_and_total(broker: SocketAddr) -> (u64, u64) {
    let Control::StatusReply(status) = Peer::greet(broker).ask(&Control::Status) else {
        panic!("a status")
    };
    (
        status.brokers[0].payload_free_bytes,
        status.brokers[0].payload_total_bytes,
    )
}

fn read_all(broker: SocketAddr) -> Vec<(u64, Vec<u8>)> {
    let mut peer = Peer::greet(broker);
    let subscribed = peer.subscribe(TOPIC, StartAt::Earliest);
    assert_eq!(subscribed.next, COUNT);
    peer.read((COUNT - subscribed.first) as usize)
}

#[test]
fn an_overtaken_broker_is_started_again_and_nothing_is_lost_or_twice() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    up.ok(&[
        "topic",
        "create",
        TOPIC,
        "--order",
        "5",
        "--retention",
        "256KiB",
    ]);
    let region: Region<Mapped> =
        Region::open(&space.region(), Coherence::Coherent).expect("it is there");
    let (slow, first_life) = find(&up, SLOW).expect("it runs");
    let slow_pid = up.pids()[usize::from(SLOW)];
    let (busy, _) = find(&up, BUSY).expect("it runs");

    // Batch 1 waits for batch 0, which comes by the other broker while this one stands still.
    let mut waits = Peer::greet(slow);
    let opened = waits.open_publisher(TOPIC, 1);
    let value = |number: u64| [&number.to_le_bytes()[..], &[1; 8000]].concat();
    let send = |peer: &mut Peer, number: u64| {
        let bytes = batch_of(
            7,
            opened.session_epoch,
            opened.topic_id,
            number,
            &[&value(number)],
        );
        peer.send_bytes(&bytes);
    };
    send(&mut waits, 1);
    let mut lane = region.lane_reader(SLOW, 0);
    eventually("it is in the lane", || {
        while lane.take().found().is_some() {}
        lane.position() == 2
    });
    signal(slow_pid, "STOP");
    let mut goes_on = Peer::greet(busy);
    goes_on.open_publisher(TOPIC, 1);
    send(&mut goes_on, 0);
    assert_eq!(goes_on.expect_acks(1), [0]);
    for number in 2..COUNT - 1 {
        send(&mut goes_on, number);
        assert_eq!(goes_on.expect_acks(1), [number]);
    }
    eventually("the first page of the order is given up", || {
        let root = region
            .goi_root(0, topic_record_of(opened.topic_id))
            .found()
            .expect("the order");
        let oldest = root.head.checked_sub(1).expect("it has pages");
        let page = region.goi_reader(0).page(oldest).found();
        page.is_some_and(|(_, header)| header.start > 1)
    });

    signal(slow_pid, "CONT");
    let mut now = None;
    eventually("another process has its row", || {
        now = find(&up, SLOW).filter(|(_, life)| *life != first_life);
        now.is_some()
    });
    let (slow, _) = now.expect("it was found");
    let said = std::fs::read_to_string(space.dir.join("up.err")).unwrap_or_default();
    assert!(
        said.contains("broker 1 failed: this broker was overtaken: "),
        "{said}"
    );
    drop(waits);
    let mut again = Peer::greet(slow);
    assert_eq!(again.open_publisher(TOPIC, 1).mark, COUNT - 1);
    send(&mut again, 1);
    send(&mut again, COUNT - 1);
    assert_eq!(again.expect_acks(2), [POSITION_UNKNOWN, COUNT - 1]);

    let read = read_all(slow);
    let first = read[0].0;
    assert!(first > 1);
    let expected: Vec<_> = (first..COUNT)
        .map(|number| (number, value(number)))
        .collect();
    assert!(
        read == expected,
        "each of {first}..{COUNT} once and in order"
    );
    assert!(read_all(busy) == expected, "from whichever broker");

    drop((again, goes_on));
    up.ok(&["topic", "delete", TOPIC]);
    for broker in [slow, busy] {
        eventually("all memory is free", || {
            let (free, total) = free_and_total(broker);
            free == total
        });
    }
    up.stop();
}
