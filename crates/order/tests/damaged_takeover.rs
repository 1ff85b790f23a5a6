//! Takeovers of chains that memory damage ended, by candidates that die on the way.

#[path = "support/devices.rs"]
mod devices;

use std::sync::Arc;

use devices::{Devices, small};
use embar_fabric::layout::TableId;
use embar_fabric::{
    ChainStart, Claim, Geometry, GoiRecord, Layout, PbrRecord, Region, SequencerRow, SequencerState,
};
use embar_memory::{Faults, LINE_BYTES, Outage, Power, Simulated};
use embar_order::{Limits, Sequencer};

const CHAIN: u32 = 0;
/// Accesses from one death to the next while nothing was stored yet. Later it is two: a store takes more.
const READING_STEP: u64 = 200;

fn geometry() -> Geometry {
    Geometry {
        lane_slots: 2,
        index_pages: 1,
        goi_pages: 4,
        ..small()
    }
}

struct World {
    devices: Devices,
}

impl World {
    /// A sequencer that ordered some batches and is gone.
    fn new() -> Self {
        let devices = Devices::formatted(&geometry());
        let region = devices.host(1);
        let claim = region.claim_unlocked(0);
        region.sequencer_row_writer(&claim).store(&SequencerRow {
            epoch: 1,
            state: SequencerState::Active as u32,
            ..SequencerRow::default()
        });
        let mut goi = region.goi_writer(&claim, 1);
        let root = region.goi_root_writer(&claim, 0);
        let at = ChainStart {
            chain: CHAIN,
            order: 5,
            ..ChainStart::default()
        };
        goi.begin(root, &at);
        for base in 0..3 {
            let record = GoiRecord {
                base,
                count: 1,
                ..GoiRecord::default()
            };
            goi.append(CHAIN, &record).expect("there is room");
        }
        goi.fence();
        // As a broker knows it.
        let broker = region.claim_unlocked(1);
        region.window_writer(&broker, 0).reset(CHAIN, 0, 3);
        Self { devices }
    }

    /// Overwrites the first bytes of a table with `filling`.
    fn destroy(&self, (table, bytes): (TableId, u64), filling: u8) {
        let table = Layout::new(&geometry()).tables()[table as usize];
        let control = &self.devices.control;
        for line in (0..bytes).step_by(LINE_BYTES as usize) {
            control.damage(table.offset + line, |bytes| bytes.fill(filling));
        }
    }

    fn host(&self, seed: u64, power: &Power) -> (Arc<Simulated>, Region<Simulated>) {
        let control = self.devices.control.host_on(seed, Faults::default(), power);
        let control = Arc::new(control);
        let region = self.devices.with_control(Arc::clone(&control), seed);
        (control, region)
    }
}

fn take_over(region: &Region<Simulated>) -> Sequencer<Simulated> {
    let claim: Arc<Claim> = Arc::new(region.claim_unlocked(0));
    let limits = Limits {
        sessions: 1,
        ..Limits::default()
    };
    let intact = Box::new(|_: u16, _: &PbrRecord| false);
    let taken = Sequencer::take_over(region, &claim, &limits, &|_| true, intact);
    taken.expect("nothing stops a takeover")
}

#[test]
fn a_chain_that_ended_stays_so_wherever_its_successors_die() {
    // The page that holds the records, the root that leads to it, and the rest of what names the chain.
    let (header, root) = ((TableId::GoiPages, 64), (TableId::GoiRoots, 128));
    let windows = (TableId::Windows, 256);
    // Zeros read as never written.
    let losses = [
        (Outage::Process, 0xC3, vec![header]),
        (Outage::Host, 0xC3, vec![root]),
        (Outage::Process, 0xC3, vec![root, windows]),
        (Outage::Host, 0, vec![root]),
        (Outage::Process, 0, vec![root, windows]),
    ];
    for (outage, filling, lost) in losses {
        let mut accesses = 0;
        loop {
            let world = World::new();
            for entry in &lost {
                world.destroy(*entry, filling);
            }
            let power = Power::default();
            let (control, region) = world.host(2 * accesses + 1, &power);
            power.fail_after(accesses, outage);
            let first = take_over(&region);
            let survived = power.failed().is_none();
            control.settle_outage();
            drop(first);
            let (_, region) = world.host(2 * accesses + 2, &Power::default());
            let row = region.sequencer_row(0).found().expect("it was active");
            let second = take_over(&region);
            assert_eq!(second.damaged(), [CHAIN], "after {accesses} accesses");
            assert_eq!(second.core().chain_next(CHAIN), None);
            if survived {
                break;
            }
            accesses += if row.epoch > 1 { 2 } else { READING_STEP };
        }
        assert!(accesses > READING_STEP, "nothing was tried");
    }
}
