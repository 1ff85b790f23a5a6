//! Whole clusters.

mod certificate;

use certificate::certificate;
use embar_redis_servers::{Cluster, ClusterOptions, MoveState};
use std::time::Duration;

/// Nothing takes so long, on no machine: what does hangs.
const LONG: Duration = Duration::from_secs(60);

/// A key of the first of three masters: `CLUSTER KEYSLOT slot` is 4772.
const KEY: &str = "{slot}key";

/// A slot of the second of three masters.
const SLOT: u16 = 9189;

#[test]
fn three_masters_share_all_slots() {
    let cluster = Cluster::start(&ClusterOptions::default()).unwrap();
    assert_eq!(cluster.seeds().len(), 3);
    for (slot, owner) in [
        (0, 0),
        (5460, 0),
        (5461, 1),
        (10922, 1),
        (10923, 2),
        (16383, 2),
    ] {
        assert_eq!(cluster.owner_of(slot).unwrap(), owner, "{slot}");
    }
    for node in cluster.nodes() {
        let info = node.command(&["CLUSTER", "INFO"]).unwrap();
        assert!(info.contains("cluster_slots_ok:16384"), "{info}");
        assert!(info.contains("cluster_known_nodes:3"), "{info}");
    }
    let ids: Vec<_> = cluster
        .nodes()
        .iter()
        .map(|n| n.command(&["CLUSTER", "MYID"]).unwrap())
        .collect();
    assert_eq!(ids, [0, 1, 2].map(|index| cluster.node_id(index)));
}

#[test]
fn a_replica_takes_over_and_the_old_master_comes_back_as_a_replica() {
    let options = ClusterOptions {
        replicas: 1,
        node_timeout_ms: 500,
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start(&options).unwrap();
    assert_eq!((cluster.masters().len(), cluster.replicas().len()), (3, 3));
    for replica in cluster.replicas() {
        let role = replica.command(&["ROLE"]).unwrap();
        assert!(
            role.starts_with("slave") && role.contains("connected"),
            "{role}"
        );
    }
    cluster.kill(1);
    cluster.wait_ok(LONG).unwrap();
    assert_eq!(cluster.owner_of(SLOT).unwrap(), 4);

    cluster.restart(1).unwrap();
    cluster.wait_ok(LONG).unwrap();
    assert_eq!(cluster.owner_of(SLOT).unwrap(), 4);
    assert!(
        cluster.nodes()[1]
            .command(&["ROLE"])
            .unwrap()
            .starts_with("slave")
    );
}

#[test]
fn a_slot_moves_with_its_keys() {
    // With everything that nodes must show each other.
    let dir = tempfile::tempdir().unwrap();
    let tls = Some(certificate(dir.path()));
    let password = Some("secret".to_owned());
    let options = ClusterOptions {
        password,
        tls,
        ..ClusterOptions::default()
    };
    let cluster = Cluster::start(&options).unwrap();
    let [old, new] = [0, 2].map(|index| &cluster.nodes()[index]);
    let slot = old.command(&["CLUSTER", "KEYSLOT", KEY]).unwrap();
    let slot = slot.parse().unwrap();
    for index in 0..250 {
        let key = format!("{KEY}{index}");
        old.command(&["SET", &key, "value"]).unwrap();
    }
    old.command(&["SET", KEY, "value"]).unwrap();
    let ask = |key: &str| {
        old.command(&["GET", key])
            .map_err(|error| error.to_string())
    };

    cluster.move_slot(slot, 0, 2, MoveState::Migrating).unwrap();
    assert_eq!(ask(KEY).unwrap(), "value");
    assert!(ask("{slot}other").unwrap_err().contains("ASK"));

    cluster.move_key(KEY.as_bytes(), 0, 2).unwrap();
    assert!(ask(KEY).unwrap_err().contains("ASK"));
    assert_eq!(ask(&format!("{KEY}7")).unwrap(), "value");

    assert_eq!(cluster.move_keys(slot, 0, 2).unwrap(), 250);
    assert_eq!(cluster.owner_of(slot).unwrap(), 0);
    cluster.finish_move(slot, 0, 2).unwrap();
    assert_eq!(cluster.owner_of(slot).unwrap(), 2);
    assert!(ask(KEY).unwrap_err().contains("MOVED"));
    let last = format!("{KEY}249");
    assert_eq!(new.command(&["GET", &last]).unwrap(), "value");

    cluster.move_slot(slot, 2, 1, MoveState::KeysMoved).unwrap();
    assert_eq!(cluster.owner_of(slot).unwrap(), 2);
    assert!(
        new.command(&["GET", &last])
            .unwrap_err()
            .to_string()
            .contains("ASK")
    );
    cluster.cancel_move(slot, 2, 1).unwrap();
    assert_eq!(
        new.command(&["GET", &last]).unwrap(),
        "",
        "the keys are with node 1"
    );

    cluster.move_slot(slot, 2, 0, MoveState::Done).unwrap();
    assert_eq!(ask("{slot}other").unwrap(), "");
}

/// A cluster of which a third is gone.
fn without_a_master(require_full_coverage: bool) -> Cluster {
    let options = ClusterOptions {
        require_full_coverage,
        node_timeout_ms: 500,
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start(&options).unwrap();
    cluster.kill(2);
    cluster
}

#[test]
fn a_cluster_without_all_slots_is_not_well() {
    let cluster = without_a_master(true);
    // Neither before the other nodes notice nor after.
    let error = cluster.wait_ok(Duration::from_millis(900)).unwrap_err();
    assert!(error.to_string().contains("node 0"), "{error}");
    assert!(cluster.owner_of(16_383).is_err());
}

#[test]
fn a_cluster_without_all_slots_is_well_if_it_need_not_have_them() {
    let cluster = without_a_master(false);
    cluster.wait_ok(LONG).unwrap();
    let info = cluster.nodes()[0].command(&["CLUSTER", "INFO"]).unwrap();
    assert!(info.contains("cluster_slots_fail:5461"), "{info}");
}
