//! The memory that all processes of a cluster share, as long as the power is on.

use std::cell::Cell;
use std::sync::Arc;

use embar_fabric::{Geometry, Layout, Region};
use embar_memory::{Device, Faults, Outage, Power, Simulated};

/// Topic records.
pub const TOPICS: u16 = 4;
/// Disks of the log.
pub const DISKS: u16 = 3;
/// The rows of those that take data.
pub const DATA_ROWS: [u16; 2] = [1, 2];
/// The rows of those that may sequence.
pub const CANDIDATES: [u16; 2] = [0, 3];

const PAYLOAD_BYTES: u64 = 1 << 20;

/// A region's files.
pub struct Files {
    control: Device,
    payload_files: Vec<Device>,
    /// The truth, without a cache between.
    pub view: Region<Simulated>,
    /// Processes begun so far.
    lives: Cell<u64>,
}

/// What one process has mapped.
pub struct Mapping {
    pub region: Region<Simulated>,
    pub power: Power,
    memories: Vec<Arc<Simulated>>,
}

impl Files {
    /// A region in which nothing was ever written.
    pub fn new(nonce: u32, goi_pages: u32) -> Self {
        let geometry = Geometry {
            brokers: 4,
            topics: TOPICS,
            lanes: 1,
            lane_slots: 64,
            index_pages: 4,
            payload_bytes: PAYLOAD_BYTES,
            standbys: 1,
            goi_pages,
            sessions: 12,
            disks: DISKS,
            ..Geometry::default()
        };
        let control = Device::blank(Layout::new(&geometry).control_bytes());
        let payload_files: Vec<Device> = DATA_ROWS
            .iter()
            .map(|_| Device::blank(PAYLOAD_BYTES))
            .collect();
        let host = |device: &Device| Arc::new(device.host(5));
        let files = payload_files.iter().map(host).collect();
        let formatted = Region::format(host(&control), files, &geometry, nonce, 1);
        drop(formatted.expect("a good geometry"));
        let view = |device: &Device| Arc::new(device.view());
        let files = payload_files.iter().map(view).collect();
        let view = Region::from_parts(view(&control), files);
        Self {
            view: view.expect("it was formatted"),
            control,
            payload_files,
            lives: Cell::new(0),
        }
    }

    /// What one more process sees, whose memory fails with `power`.
    pub fn map(&self, power: &Power) -> Mapping {
        let life = self.lives.replace(self.lives.get() + 1);
        let host = |device: &Device| {
            let seed = 100 + life;
            Arc::new(device.host_on(seed, Faults::default(), power))
        };
        let control = host(&self.control);
        let payload_files: Vec<_> = self.payload_files.iter().map(host).collect();
        let mut memories = payload_files.clone();
        memories.push(Arc::clone(&control));
        Mapping {
            region: Region::from_parts(control, payload_files).expect("it was formatted"),
            power: power.clone(),
            memories,
        }
    }
}

impl Mapping {
    /// The process ends, now at the latest.
    pub fn end(&self, outage: Outage) {
        if self.power.failed().is_none() {
            self.power.fail_after(0, outage);
        }
        self.memories
            .iter()
            .for_each(|memory| memory.settle_outage());
    }
}
