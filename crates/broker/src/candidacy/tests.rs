use embar_fabric::{Geometry, Layout};
use embar_memory::{Device, Simulated};
use embar_wire::control::CreateTopic;
use embar_wire::time::WallNs;

use super::*;
use crate::topics::TopicTable;

/// Rows of the two candidates.
const HEAD: u16 = 0;
const STANDBY: u16 = 3;
const LEASE: Duration = Duration::from_millis(200);

/// The memory of a head, two brokers that take data, and a standby.
struct World(Device, Vec<Device>);

impl World {
    fn new() -> Self {
        Self::with_standbys(1)
    }

    fn with_standbys(standbys: u16) -> Self {
        let geometry = Geometry {
            brokers: 4,
            standbys,
            topics: 4,
            lanes: 1,
            lane_slots: 256,
            index_pages: 16,
            payload_bytes: 1 << 20,
            goi_pages: 64,
            sessions: 16,
            ..Geometry::default()
        };
        let control = Device::blank(Layout::new(&geometry).control_bytes());
        let payload_file = |row: u16| Device::new(geometry.payload_bytes, 1 + u64::from(row));
        let payload_files = geometry.data_rows().map(payload_file).collect();
        let world = Self(control, payload_files);
        let (control, payload_files) = world.memories(4);
        let formatted = Region::format(control, payload_files, &geometry, 9, 1);
        drop(formatted.expect("a good geometry"));
        world
    }

    fn memories(&self, seed: u64) -> (Arc<Simulated>, Vec<Arc<Simulated>>) {
        let host = |device: &Device| Arc::new(device.host(seed));
        (host(&self.0), self.1.iter().map(host).collect())
    }

    fn region(&self, row: u16) -> Region<Simulated> {
        let (control, payload_files) = self.memories(100 + u64::from(row));
        Region::from_parts(control, payload_files).expect("it was formatted")
    }

    fn candidate(&self, row: u16, config: &BrokerConfig) -> Candidacy<Simulated> {
        let region = self.region(row);
        let claim = Arc::new(region.claim_unlocked(row));
        Candidacy::new(&region, &claim, config, Now(0))
    }
}

fn config() -> BrokerConfig {
    BrokerConfig {
        sequencer_lease: LEASE,
        ..BrokerConfig::default()
    }
}

/// The time of the turn after this one, if no broker wakes the candidate.
fn next_at(candidate: &Candidacy<Simulated>, turn: &Turn, now: Now) -> Now {
    match turn.due {
        Due::Now => now,
        Due::After(wait) => now.after(wait),
        Due::OnWakeup => now.after(candidate.rest(now)),
    }
}

#[test]
fn a_standby_replaces_a_dead_head_and_a_head_that_wakes_up_stands_by() {
    let world = World::new();
    let (mut head, mut standby) = (
        world.candidate(HEAD, &config()),
        world.candidate(STANDBY, &config()),
    );
    let turn = head.turn(Now(0), &|row| row != 2);
    assert!(
        matches!(turn.outcome, Outcome::TookOver { living } if living == 1 << 1),
        "{turn:?}: it takes data, and lives"
    );
    assert_eq!(turn.to_wake(), u128::MAX, "all have to submit again");
    let turn = standby.turn(Now(1), &|_| true);
    assert!(matches!(turn.outcome, Outcome::Watched), "{turn:?}");
    let turn = standby.turn(Now(2), &|row| row != HEAD);
    assert!(matches!(turn.outcome, Outcome::TookOver { .. }), "{turn:?}");

    let turn = head.turn(Now(3), &|_| true);
    assert!(
        matches!(turn.outcome, Outcome::Deposed { .. }),
        "{turn:?}: its first beat is due"
    );
    assert!(head.sequencer().is_none());
    let turn = head.turn(Now(4), &|_| true);
    assert!(matches!(turn.outcome, Outcome::Watched), "{turn:?}");
}

#[test]
fn a_topic_that_is_not_ordered_is_no_damaged_order() {
    let world = World::new();
    let mut head = world.candidate(HEAD, &config());
    head.turn(Now(0), &|_| true);
    let region = world.region(HEAD);
    let records = region.topic_record_writer(&region.claim_unlocked(HEAD));
    let mut topics = TopicTable::attach(&region, Some(records));
    let spec = CreateTopic {
        name: "t".into(),
        order: 0,
        retention_bytes: 0,
        retention_ms: 0,
        max_message_bytes: 0,
        replication_factor: 1,
    };
    let topic = topics
        .create(&spec, 1 << 16, WallNs(1), |_| 0)
        .expect("there is room");
    let broker = world.region(1);
    let mut window = broker.window_writer(&broker.claim_unlocked(1), topic.record());
    window.reset(topic.id, 0, 5);
    let mut standby = world.candidate(STANDBY, &config());
    let turn = standby.turn(Now(1), &|row| row != HEAD);
    assert!(matches!(turn.outcome, Outcome::TookOver { .. }), "{turn:?}");
    let sequencer = standby.sequencer().expect("it took over");
    assert!(sequencer.damaged().is_empty());
}

#[test]
fn the_first_living_standby_looks_often_and_those_behind_it_seldom() {
    let world = World::with_standbys(2);
    let config = BrokerConfig {
        sequencer_lease: Duration::from_secs(1),
        ..BrokerConfig::default()
    };
    let [mut head, mut first, mut second] =
        [HEAD, STANDBY - 1, STANDBY].map(|row| world.candidate(row, &config));
    head.turn(Now(0), &|_| true);
    let next = |candidate: &mut Candidacy<_>, now: Now, alive: &dyn Fn(u16) -> bool| {
        let turn = candidate.turn(now, alive);
        assert!(matches!(turn.outcome, Outcome::Watched), "{turn:?}");
        next_at(candidate, &turn, now).since(now)
    };
    assert_eq!(next(&mut first, Now(1), &|_| true), LOOK_EVERY);
    assert_eq!(next(&mut second, Now(1), &|_| true), LOOK_BEHIND_EVERY);
    let first_is_dead = |row| row != STANDBY - 1;
    assert_eq!(next(&mut second, Now(2), &first_is_dead), LOOK_EVERY);
    // It takes over, so there is nobody between it and the one behind it, but the head that lives again.
    first.turn(Now(3), &|row| row != HEAD);
    assert_eq!(next(&mut second, Now(4), &|row| row != HEAD), LOOK_EVERY);
    assert_eq!(next(&mut second, Now(5), &|_| true), LOOK_BEHIND_EVERY);
}

#[test]
fn a_candidate_that_takes_its_turns_in_time_is_not_deposed() {
    let world = World::new();
    let (mut head, mut standby) = (
        world.candidate(HEAD, &config()),
        world.candidate(STANDBY, &config()),
    );
    let alive = |_| true;
    let (mut its, mut others) = (Now(0), Now(1));
    while others < Now(0).after(10 * LEASE) {
        if its <= others {
            let turn = head.turn(its, &alive);
            its = next_at(&head, &turn, its);
        } else {
            let turn = standby.turn(others, &alive);
            assert!(matches!(turn.outcome, Outcome::Watched), "{turn:?}");
            others = next_at(&standby, &turn, others);
        }
    }
    // From now on the head stands still.
    let stopped = others;
    while standby.sequencer().is_none() {
        let turn = standby.turn(others, &alive);
        others = next_at(&standby, &turn, others);
    }
    let waited = others.since(stopped);
    assert!((LEASE / 2..2 * LEASE).contains(&waited), "{waited:?}");
}

#[test]
fn a_takeover_that_failed_is_tried_again_after_a_lease() {
    let world = World::new();
    let impossible = BrokerConfig {
        session_window: 0,
        ..config()
    };
    let mut head = world.candidate(HEAD, &impossible);
    let (mut now, mut tried) = (Now(0), Vec::new());
    while now < Now(0).after(3 * LEASE) {
        let turn = head.turn(now, &|_| true);
        if let Outcome::Failed(error) = &turn.outcome {
            assert!(matches!(error, TakeoverError::Limits(_)), "{error}");
            tried.push(now);
        }
        now = next_at(&head, &turn, now);
    }
    let waits = tried.windows(2).map(|two| two[1].since(two[0]));
    assert!(waits.min().is_some_and(|wait| wait >= LEASE), "{tried:?}");
}
