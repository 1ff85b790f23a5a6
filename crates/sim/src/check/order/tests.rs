//! The checker notices when no candidate's row shows the highest epoch any more, unless the simulator damaged that row.

use std::sync::Arc;

use embar_fabric::layout::TableId;
use embar_fabric::{Geometry, Layout, SequencerRow};
use embar_memory::{Device, LINE_BYTES, Power};

use super::*;
use crate::host::control_file;

/// A head that sequences and one data broker.
fn geometry() -> Geometry {
    Geometry {
        brokers: 2,
        topics: 1,
        lanes: 1,
        lane_slots: 2,
        index_pages: 1,
        payload_bytes: 64 << 10,
        ..Geometry::default()
    }
}

fn formatted() -> Devices {
    let geometry = geometry();
    let devices = Devices {
        control: control_file(&geometry),
        payload_files: vec![Device::blank(geometry.payload_bytes)],
    };
    let [control, payload_file] =
        [&devices.control, &devices.payload_files[0]].map(|it| Arc::new(it.host(1)));
    Region::format(control, vec![payload_file], &geometry, 7, 0).expect("a region");
    devices
}

fn row(epoch: u32) -> SequencerRow {
    SequencerRow {
        epoch,
        ..SequencerRow::default()
    }
}

/// Both copies of the head's row are lost.
fn lose_row(devices: &Devices) {
    let table = Layout::new(&geometry()).tables()[TableId::Sequencers as usize];
    for line in [0, LINE_BYTES] {
        let at = table.offset + line;
        devices.control.damage(at, |line| line.fill(0xC3));
    }
}

#[test]
fn an_epoch_that_is_seen_no_more_is_told_unless_damage_took_it() {
    let devices = formatted();
    let region = devices.host(2, &Power::default()).region();
    let mut head = region.sequencer_row_writer(&region.claim_unlocked(0));
    let mut inspector = OrderInspector::new(&devices);
    let mut oracle = Oracle::default();
    let mut look = |inspector: &mut OrderInspector| inspector.look(&[], &mut oracle);

    head.raise(&row(1));
    assert_eq!(look(&mut inspector), Ok(()));
    lose_row(&devices);
    let violation = look(&mut inspector).expect_err("no row shows epoch 1");
    assert_eq!(violation.invariant, Invariant::I1);

    inspector.lose_row();
    assert_eq!(look(&mut inspector), Ok(()));
    // Of the next epoch the same is asked.
    head.raise(&row(2));
    assert_eq!(look(&mut inspector), Ok(()));
    lose_row(&devices);
    assert!(look(&mut inspector).is_err());
}
