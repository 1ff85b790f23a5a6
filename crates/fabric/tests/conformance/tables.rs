use embar_fabric::topic_record::TOPIC_RECORD_PAYLOAD_BYTES_MAX;
use embar_fabric::{
    BrokerRow, BrokerState, ControlRow, Layout, Region, RegionError, TopicRecordTooLarge,
};
use embar_memory::Device;

use crate::common::small;
use crate::setup::Setup;

#[test]
fn garbage_is_not_a_region() {
    let control = Device::new(Layout::new(&small()).control_bytes(), 9).host(1);
    let control = std::sync::Arc::new(control);
    let refused = Region::from_parts(control, Vec::new());
    assert!(matches!(refused, Err(RegionError::Damaged { .. })));
}

pub fn rows_start_empty_and_show_the_last_store<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    assert_eq!(there.broker_row(1).found(), None);
    assert_eq!(there.control_row(1).found(), None);
    let claim = here.claim_unlocked(1);
    let mut broker = here.broker_row_writer(&claim);
    let mut control = here.control_row_writer(&claim);
    for beat in 1..100 {
        let mut row = BrokerRow {
            incarnation: claim.incarnation(),
            ..Default::default()
        };
        row.set_broker_state(BrokerState::Ready);
        row.set_address(
            format!("127.0.0.1:{}", 9000 + beat)
                .parse()
                .expect("an address"),
        );
        broker.store(&row);
        control.store(&ControlRow {
            heartbeat: beat,
            ..Default::default()
        });
        assert_eq!(there.broker_row(1).found(), Some(row));
        assert_eq!(
            there.control_row(1).found().map(|row| row.heartbeat),
            Some(beat)
        );
    }
    assert_eq!(there.broker_row(2).found(), None, "a row of its own");
    let mut successor = setup.host().control_row_writer(&claim);
    successor.store(&ControlRow {
        heartbeat: 500,
        ..Default::default()
    });
    assert_eq!(
        there.control_row(1).found().map(|row| row.heartbeat),
        Some(500)
    );
}

pub fn windows_continue_after_a_restart<S: Setup>() {
    let setup = S::new(&small());
    let reader = setup.host();
    let (first_host, second_host) = (setup.host(), setup.host());
    assert_eq!(reader.window(1, 3).found(), None);
    let claim = first_host.claim_unlocked(1);
    let mut writer = first_host.window_writer(&claim, 3);
    writer.reset(77, 0, 0);
    writer.raise_next(100);
    writer.raise_first(40);
    let seen = reader.window(1, 3).found().expect("stored");
    assert_eq!(
        (seen.chain, seen.first, seen.next, seen.incarnation),
        (77, 40, 100, 1)
    );
    drop(writer);
    let claim = second_host.claim_unlocked(1);
    let mut writer = second_host.window_writer(&claim, 3);
    assert_eq!(writer.window().next, 100);
    writer.raise_next(101);
    let seen = reader.window(1, 3).found().expect("stored");
    assert_eq!(
        (seen.chain, seen.first, seen.next, seen.incarnation),
        (77, 40, 101, 2)
    );
}

pub fn topic_records_hold_up_to_their_limit<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let records = there.topic_records();
    assert_eq!(records.load(0).found(), None);
    let mut writer = here.topic_record_writer(&here.claim_unlocked(0));
    for len in [0, 1, 7, 8, 479, TOPIC_RECORD_PAYLOAD_BYTES_MAX] {
        let payload = vec![len as u8; len];
        writer.store(0, &payload).expect("it fits");
        assert_eq!(
            records.load(0).found().map(|(_, payload)| payload),
            Some(payload)
        );
    }
    assert_eq!(
        writer.store(0, &[0; 481]),
        Err(TopicRecordTooLarge { len: 481 })
    );
    assert_eq!(records.load(1).found(), None, "a topic record of its own");
    drop(writer);
    let (before, _) = records.load(0).found().expect("stored");
    let successor = setup.host();
    let mut writer = successor.topic_record_writer(&successor.claim_unlocked(0));
    writer.store(0, b"next").expect("it fits");
    assert_eq!(
        records.load(0).found(),
        Some((before + 2, b"next".to_vec()))
    );
}

pub fn incarnations_grow<S: Setup>() {
    let setup = S::new(&small());
    for expected in 1..5 {
        assert_eq!(setup.host().claim_unlocked(2).incarnation(), expected);
        assert_eq!(setup.host().incarnation(2), expected);
    }
    assert_eq!(setup.host().incarnation(1), 0);
}
