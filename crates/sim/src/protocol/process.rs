//! A process of the simulated protocol on a host of its own. In its slot the processes of one broker, candidate or
//! reader run one after the other, as each dies.

use std::sync::Arc;

use embar_fabric::Region;
use embar_memory::{Device, Faults, Outage, Power, Simulated};

use super::oracle::OrderOracle;
use crate::random::Random;

/// What runs in a process.
pub trait Process {
    /// Does a little of its work. Others may step in the middle of it.
    fn step(&mut self);

    /// Whether it has nothing left to do.
    fn is_finished(&self, oracle: &OrderOracle) -> bool;

    /// How far it is, to explain a run that does not end.
    fn state(&self, oracle: &OrderOracle) -> String;

    /// Whether it is a candidate that does not sequence.
    fn watches(&self) -> bool {
        false
    }

    /// A candidate takes over at its next step, even from one that lives. Other processes do nothing.
    fn challenge(&mut self) {}
}

/// What kind of process it is, and its row, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessKind {
    Broker(u16),
    Candidate(u16),
    Reader,
}

/// The processes of one kind and row, one after the other.
pub struct ProcessSlot {
    pub kind: ProcessKind,
    /// Not here while it takes a step.
    pub process: Option<Box<dyn Process>>,
    /// It takes a step somewhere below on the stack, or starts.
    pub busy: bool,
    /// Grows with each process.
    pub life: u64,
    pub host: Option<Host>,
    /// Where the process before was.
    pub left: Option<Host>,
    /// It takes no step before this one.
    pub paused_until: u64,
}

impl ProcessSlot {
    pub fn new(kind: ProcessKind) -> Self {
        Self {
            kind,
            process: None,
            busy: false,
            life: 0,
            host: None,
            left: None,
            paused_until: 0,
        }
    }

    /// A process begins, on the host of the one before or on another.
    pub fn begin(&mut self, control: &Device, payload_files: &[Device], random: &mut Random) {
        let left = self.left.take().filter(|_| random.one_in(2));
        self.host = Some(match left {
            Some(before) => before.next_process(random),
            None => Host::new(control, payload_files, random),
        });
        self.life += 1;
    }

    /// Whether its process lives.
    pub fn lives(&self) -> bool {
        let on = self.host.as_ref();
        (self.busy || self.process.is_some()) && on.is_some_and(|on| on.power.failed().is_none())
    }

    pub fn row(&self) -> Option<u16> {
        match self.kind {
            ProcessKind::Broker(row) | ProcessKind::Candidate(row) => Some(row),
            ProcessKind::Reader => None,
        }
    }
}

/// A host: its view of the devices, and its power.
#[derive(Clone)]
pub struct Host {
    pub power: Power,
    memories: Vec<Arc<Simulated>>,
}

impl Host {
    pub fn new(control: &Device, payload_files: &[Device], random: &mut Random) -> Self {
        let power = Power::default();
        let files = std::iter::once(control).chain(payload_files);
        let view = |file: &Device| Arc::new(file.host_on(random.bits(), Faults::default(), &power));
        let memories = files.map(view).collect();
        Self { power, memories }
    }

    fn next_process(&self, random: &mut Random) -> Self {
        let power = Power::default();
        let memories = self.memories.iter();
        let next = memories.map(|memory| Arc::new(memory.next_process(random.bits(), &power)));
        Self {
            memories: next.collect(),
            power,
        }
    }

    pub fn region(&self) -> Region<Simulated> {
        let (control, payload_files) = self
            .memories
            .split_first()
            .expect("there is a control file");
        Region::from_parts(Arc::clone(control), payload_files.to_vec())
            .expect("the superblock is never written again")
    }

    /// It ends now, unless it has already.
    pub fn end(&self, outage: Outage) {
        if self.power.failed().is_none() {
            self.power.fail_after(0, outage);
        }
        self.memories
            .iter()
            .for_each(|memory| memory.settle_outage());
    }
}
